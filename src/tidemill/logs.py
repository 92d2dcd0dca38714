"""Logging: one line per event, for people on a terminal and for machines elsewhere.

Every module logs to `logging.getLogger(__name__)`; its component is the package below `tidemill`
(`storage`, `broker`). `set_up` is called once, by a command. A line carries an event and its
fields, never a record's key or value and never a secret. Fields go into `extra={"fields": {...}}`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, TextIO

from tidemill.clock import Clock

ROOT: Final = "tidemill"
LEVELS: Final = ("debug", "info", "warning", "error")
MESSAGE_CHARS_MAX: Final = 8192
SPARING_INTERVAL_MS: Final = 60_000

# What a client sends (topic names, client ids) may end up in a message: it must not forge lines or
# steer a terminal.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LogLevelError(ValueError):
    """A `--log-level` that cannot be read; the message says how to write it."""


class Sparingly:
    """Lets one line through per interval, so that what goes wrong often does not fill the log."""

    def __init__(self, clock: Clock, interval_ms: int = SPARING_INTERVAL_MS) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._next_ms: int | None = None
        self._held_back = 0

    def ask(self) -> str | None:
        """None: say nothing this time. Else what to put at the end of the line, often nothing."""
        now_ms = self._clock.monotonic_ms()
        if self._next_ms is not None and now_ms < self._next_ms:
            self._held_back += 1
            return None
        self._next_ms = now_ms + self._interval_ms
        held_back, self._held_back = self._held_back, 0
        return f" ({held_back} more like it since the last such line)" if held_back else ""


class TextFormatter(logging.Formatter):
    """`12:30:59.123 info  storage: rolled a segment topic=clicks partition=3`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = _moment(record).astimezone()
        time = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
        fields = "".join(f" {name}={_escaped(value)}" for name, value in _fields(record).items())
        line = f"{time} {_level(record):<7} {component(record.name)}: {_message(record)}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": _level(record),
            "component": component(record.name),
            "event": _message(record),
            **_fields(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False, default=str)


def set_up(
    levels: Iterable[str] = (), *, stream: TextIO | None = None, as_json: bool | None = None
) -> None:
    """Send all of Tidemill's events to `stream` (standard error), replacing an earlier set-up.

    `levels` are `--log-level` flags: `debug` for everything, `storage=debug` for one component.
    Lines are JSON unless the stream is a terminal; `as_json` decides otherwise.
    """
    stream = stream if stream is not None else sys.stderr
    chosen = parse_levels(levels)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(stream, as_json))
    root = logging.getLogger(ROOT)
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.propagate = False
    for name, level in {"": "info", **chosen}.items():
        logging.getLogger(f"{ROOT}.{name}" if name else ROOT).setLevel(level.upper())


def parse_levels(texts: Iterable[str]) -> dict[str, str]:
    """Levels by component; the empty component stands for everything."""
    levels = {}
    for text in texts:
        for part in filter(None, (each.strip() for each in text.split(","))):
            name, _, level = part.rpartition("=")
            if level.lower() not in LEVELS:
                raise LogLevelError(
                    f"`{part}` is not a log level: write {', '.join(LEVELS)}, or COMPONENT=LEVEL"
                )
            levels[name.strip()] = level.lower()
    return levels


def component(logger_name: str) -> str:
    """The part of the system a logger belongs to."""
    parts = logger_name.split(".")
    return parts[1] if parts[0] == ROOT and len(parts) > 1 else parts[0]


def _formatter(stream: TextIO, as_json: bool | None) -> logging.Formatter:
    if as_json is None:
        as_json = not stream.isatty()
    return JsonFormatter() if as_json else TextFormatter()


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, tz=UTC)


def _level(record: logging.LogRecord) -> str:
    return "error" if record.levelno >= logging.ERROR else record.levelname.lower()


def _message(record: logging.LogRecord) -> str:
    return _escaped(record.getMessage())


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _escaped(value: object) -> str:
    text = str(value)
    if len(text) > MESSAGE_CHARS_MAX:
        text = f"{text[:MESSAGE_CHARS_MAX]}… ({len(text)} characters)"
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
