"""The offset grammar: where to start reading and where to stop, in one word.

    start, end            the ends of the partition
    5                     offset 5 and on
    +10, -10              ten after the start, ten before the end
    5:9                   from offset 5 up to, but not including, offset 9
    :end                  from the start to what is the end now, then stop
    @2026-11-15           the first record at or after a date, a date and time (RFC 3339),
    @1731628800000        milliseconds (13 digits) or seconds (10 digits) since 1970
    @-1h:end              or a duration before now (ms, s, m, h, d)

Pure: `parse` takes the clock's reading, `Range.bounds` what the broker said about a partition.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Literal

from tidemill.cli.exits import CommandError, Exit

Anchor = Literal["absolute", "start", "end", "timestamp"]

_DURATION = re.compile(r"-((?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+)")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Point:
    """One end of a range: `value` is an offset, a distance from the anchor, or a time in ms."""

    anchor: Anchor
    value: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """What to read; `stop` None means keep reading for ever."""

    start: Point
    stop: Point | None = None

    def points(self) -> tuple[Point, ...]:
        return (self.start,) if self.stop is None else (self.start, self.stop)


START = Point("start")
END = Point("end")


def parse(text: str, now_ms: int) -> Range:
    """The range that `text` names."""
    word = text.strip()
    if word.startswith("@"):
        first, colon, last = _split_times(word[1:])
        start = _time(first, now_ms)
        stop = (END if last == "end" else _time(last.removeprefix("@"), now_ms)) if colon else None
    else:
        first, colon, last = word.partition(":")
        start = START if colon and not first else _point(first)
        stop = _point(last) if colon and last else None
    if stop is not None and start.anchor == stop.anchor and start.value > stop.value:
        raise _wrong(text, "it ends before it starts")
    return Range(start, stop)


def _split_times(text: str) -> tuple[str, str, str]:
    """Split `A:B` of which both may hold colons: a clock time has no second part after `:end` or
    `:@`, and a plain number or duration has no colon of its own."""
    if text.endswith(":end"):
        return text[:-4], ":", "end"
    if ":@" in text:
        first, _, last = text.partition(":@")
        return first, ":", last
    head, colon, tail = text.partition(":")
    is_clock = "T" in head or (colon and re.fullmatch(r"\d{2}", tail[:2]) and " " in head)
    if not colon or is_clock:
        return text, "", ""
    return head, colon, tail


def _point(word: str) -> Point:
    if word in ("start", "beginning", "earliest"):
        return START
    if word in ("end", "latest"):
        return END
    if not re.fullmatch(r"[+-]?\d{1,19}", word):
        raise _wrong(word, "it is no number, `start`, `end` or @time")
    value = int(word)
    if abs(value) > _OFFSET_MAX:
        raise _wrong(word, "it is too large")
    if word[0] == "+":
        return Point("start", value)
    if word[0] == "-":
        return Point("end", value)
    return Point("absolute", value)


def _time(word: str, now_ms: int) -> Point:
    if match := _DURATION.fullmatch(word):
        back_ms = sum(float(n) * _UNIT_MS[unit] for n, unit in _PART.findall(match[1]))
        return Point("timestamp", max(0, int(now_ms - back_ms)))
    if re.fullmatch(r"\d{13}", word):
        return Point("timestamp", int(word))
    if re.fullmatch(r"\d{10}", word):
        return Point("timestamp", int(word) * 1000)
    return Point("timestamp", _date_ms(word))


def _date_ms(word: str) -> int:
    """A date or an RFC 3339 time; without a zone it is UTC."""
    try:
        moment = datetime.datetime.fromisoformat(word)
    except ValueError:
        raise _wrong(
            f"@{word}", "use a date, an RFC 3339 time, 13 digits of ms, 10 of s, or -1h"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def _wrong(text: str, why: str) -> CommandError:
    return CommandError(
        f"{text!r} is no offset: {why}", Exit.USAGE, hint="see `tidemill help offsets`"
    )


def settle(point: Point, *, first: int, last: int, at_time: int | None = None) -> int:
    """The offset of `point` in a partition that holds [first, last); `at_time` is the broker's
    answer for its timestamp, None when no record is that late."""
    if point.anchor == "start":
        wanted = first + point.value
    elif point.anchor == "end":
        wanted = last + point.value
    elif point.anchor == "timestamp":
        wanted = last if at_time is None else at_time
    else:
        wanted = point.value
    return max(first, min(wanted, last)) if point.anchor != "absolute" else wanted
