"""How far a stream is, how much of what is there the next batch takes, and into what pieces.

Values and arithmetic only. Spark keeps a stream's position as JSON text and compares it as text, so
`Position.to_json` writes topics and partitions always in the same order:

    {"clicks": {"0": 120, "1": 98}, "#ids": {"clicks": "2f9c..."}, "#from": {"clicks": {"0": 100}}}

No topic's name may have a `#`. `#ids` says which topic of that name it was: one that was deleted
and made anew is another one, however many records it has by now. `#from` stands in the end of a
query's first batch and says where that batch began: Spark does not write down where a query began,
and asks again after a crash, when "latest" is somewhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

Offsets = dict[str, dict[int, int]]
"""Per topic and partition the next offset to read."""

EARLIEST: Final = -2
LATEST: Final = -1

SPLIT_BYTES: Final = 64 * 1024 * 1024
"""A larger range becomes several tasks: one busy partition must not leave cores idle."""
PIECES_MAX: Final = 10_000
"""Tasks of one batch; beyond this they get larger instead of more."""

_IDS = "#ids"
_FROM = "#from"


OPEN_END: Final = 2**63 - 1
"""The end of a range that ends wherever its partition does when it is read."""


class OffsetRange(NamedTuple):
    """The records of one partition from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


@dataclass(frozen=True, slots=True)
class Position:
    """A stream's position, and what is needed to trust it later."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    began_at: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        """What Spark is given; equal positions always have equal texts."""
        found: dict[str, Any] = _texts(self.offsets)
        if self.topic_ids:
            found[_IDS] = {name: self.topic_ids[name] for name in sorted(self.topic_ids)}
        if self.began_at is not None:
            found[_FROM] = _texts(self.began_at)
        return found

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Position:
        began = given.get(_FROM)
        return cls(
            _numbers({name: given[name] for name in given if not name.startswith("#")}),
            dict(given.get(_IDS, {})),
            _numbers(began) if began is not None else None,
        )

    def is_recreated(self, topic: str, later: Position) -> bool:
        """Whether `later` has another topic of the same name."""
        before, after = self.topic_ids.get(topic), later.topic_ids.get(topic)
        return before is not None and after is not None and before != after


def _texts(offsets: Offsets) -> dict[str, Any]:
    return {
        topic: {str(index): offsets[topic][index] for index in sorted(offsets[topic])}
        for topic in sorted(offsets)
    }


def _numbers(given: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        topic: {int(index): int(offset) for index, offset in partitions.items()}
        for topic, partitions in given.items()
    }


# --- how much the next batch takes ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """How many records a batch should have; None: whatever is there."""

    most: int | None = None
    least: int | None = None
    delay_max_ms: int = 0
    """Fewer than `least` are taken once so much time has passed since the last batch."""


def backlog(start: Offsets, available: Offsets) -> int:
    """How many records wait between the two."""
    return sum(_sizes(start, available).values())


def plan_batch(
    start: Offsets, available: Offsets, limits: Limits, *, waited_ms: float = float("inf")
) -> Offsets:
    """Where the next batch ends; `start` itself means that there is none yet.

    Each of `available`'s partitions must have a start. A partition that went back ends where it is
    now. The most that a batch may have is shared in proportion to what waits in each partition,
    but whoever has anything gets a record at least: a quiet partition is never starved by a busy
    one.
    """
    sizes = _sizes(start, available)
    total = sum(sizes.values())
    if limits.least is not None and 0 < total < limits.least and waited_ms < limits.delay_max_ms:
        return start
    if limits.most is None or total <= limits.most:
        return available
    shares = _shares(sizes, limits.most)
    return {
        topic: {
            index: _end(start[topic][index], end, shares.get((topic, index), 0))
            for index, end in partitions.items()
        }
        for topic, partitions in available.items()
    }


def _end(start: int, end: int, share: int) -> int:
    return min(end, start + share) if end > start else end


def _sizes(start: Offsets, available: Offsets) -> dict[tuple[str, int], int]:
    return {
        (topic, index): end - start[topic][index]
        for topic, partitions in available.items()
        for index, end in partitions.items()
        if end > start[topic][index]
    }


def _shares(sizes: Mapping[tuple[str, int], int], most: int) -> dict[tuple[str, int], int]:
    """One for each, and what is left in proportion; whole numbers, so the largest loses least."""
    total = sum(sizes.values())
    left = max(most - len(sizes), 0)
    shares = {key: min(size, 1 + left * (size - 1) // total) for key, size in sizes.items()}
    spare = most - sum(shares.values())
    for key in sorted(sizes, key=lambda each: (-sizes[each], each)):
        more = min(max(spare, 0), sizes[key] - shares[key])
        shares[key] += more
        spare -= more
    return shares


# --- into what pieces -----------------------------------------------------------------------------


def split_ranges(
    ranges: Sequence[OffsetRange],
    *,
    record_bytes: Mapping[tuple[str, int], float],
    min_partitions: int | None = None,
    max_records: int | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> list[OffsetRange]:
    """The ranges in tasks: none above `split_bytes` or `max_records`, `min_partitions` in all.

    `record_bytes` says how large a record of each partition is on average; where it is not known
    a range is not split by size. Empty ranges are left out.
    """
    full = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in full)
    counts = []
    for each in full:
        size_bytes = each.size * record_bytes.get((each.topic, each.partition), 0.0)
        count = _power_of_two(-int(-size_bytes // split_bytes))
        if max_records is not None:
            count = max(count, -(-each.size // max_records))
        if min_partitions is not None and len(full) < min_partitions:
            count = max(count, -(-each.size * min_partitions // total))
        counts.append(min(count, each.size))
    scale = max(1.0, sum(counts) / PIECES_MAX)
    return [
        piece
        for each, count in zip(full, counts, strict=True)
        for piece in _evenly(each, max(1, int(count / scale)))
    ]


def _power_of_two(least: int) -> int:
    """At least so many, and a number that comes out even on most machines: five equal tasks keep
    two cores as long as six would."""
    return 1 << max(least - 1, 0).bit_length()


def _evenly(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.size * step // count for step in range(count + 1)]
    return [OffsetRange(whole.topic, whole.partition, start, end) for start, end in pairwise(edges)]
