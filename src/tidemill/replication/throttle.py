"""Throttled replication: copying that a reassignment causes must not take the whole network.

A topic names the replicas to throttle (`leader.` and `follower.replication.throttled.replicas`), a
broker the bytes per second that all of those may use together (`....throttled.rate`). Only replicas
that are not in sync are held back: what producers wait for is never throttled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.clock import Clock

UNLIMITED = 2**63 - 1
_NO_RATE_WAIT_MS = 1_000
"""With a rate of 0 nothing moves; that may change at any time, so it is looked at again."""


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """Which replicas of a topic are throttled: `PARTITION:BROKER` pairs, or all."""

    pairs: frozenset[tuple[int, int]] = frozenset()
    are_all: bool = False

    def has(self, partition: int, broker_id: int) -> bool:
        return self.are_all or (partition, broker_id) in self.pairs


NONE_THROTTLED = ThrottledReplicas()


def throttled_replicas(entries: Sequence[str]) -> ThrottledReplicas:
    """Read a setting's value, which was checked when it was set: what is no pair is left out."""
    names = [entry.strip() for entry in entries]
    if "*" in names:
        return ThrottledReplicas(are_all=True)
    split = [name.split(":") for name in names]
    pairs = frozenset(
        (int(pair[0]), int(pair[1]))
        for pair in split
        if len(pair) == 2 and all(part.isdigit() for part in pair)
    )
    return ThrottledReplicas(pairs) if pairs else NONE_THROTTLED


class Throttle:
    """A rate in bytes per second, shared by all that is throttled in one direction.

    What was taken is worked off at the rate; until then nobody takes more. So one answer may be
    larger than a second's share, and the next has to wait for it.
    """

    def __init__(self, clock: Clock, rate: Callable[[], int]) -> None:
        self._clock = clock
        self._rate = rate
        self._free_at_ms = 0.0

    def take(self, size_bytes: int) -> None:
        """Count bytes that were sent or received."""
        rate = self._rate()
        if 0 < rate < UNLIMITED:
            begin_ms = max(self._free_at_ms, self._clock.monotonic_ms())
            self._free_at_ms = begin_ms + size_bytes * 1000 / rate

    def wait_ms(self) -> int:
        """How long to take nothing; 0 if there is room."""
        rate = self._rate()
        if rate <= 0:
            return _NO_RATE_WAIT_MS
        if rate >= UNLIMITED:
            return 0
        return max(0, round(self._free_at_ms - self._clock.monotonic_ms()))
