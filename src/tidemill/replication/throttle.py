"""Throttled replication: copying that a reassignment causes must not take the whole network.

A topic names the replicas to throttle (`leader.` and `follower.replication.throttled.replicas`), a
broker the bytes per second that all of those may use together (`....throttled.rate`). Only replicas
that are not in sync are held back: what producers wait for is never throttled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from tidemill.clock import Clock

UNLIMITED = 2**63 - 1
WAIT_MS_MAX = 1_000
"""The rate may change at any time, so nobody waits longer without looking again."""

DEBT_MS_MAX = 10_000
"""More is forgotten: replicas in sync count, and are not held back, however much they take."""


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
    larger than a second's share, and the next has to wait for it. The debt is kept in bytes: a rate
    that is raised, or removed, counts for what is owed already.
    """

    def __init__(self, clock: Clock, rate: Callable[[], int]) -> None:
        self._clock = clock
        self._rate = rate
        self._debt_bytes = 0.0
        self._looked_ms = clock.monotonic_ms()

    def take(self, size_bytes: int) -> None:
        """Count bytes that were sent or received."""
        rate = self._work_off()
        if rate < UNLIMITED:
            most_bytes = max(rate * DEBT_MS_MAX / 1000, size_bytes, self._debt_bytes)
            self._debt_bytes = min(self._debt_bytes + size_bytes, most_bytes)

    def wait_ms(self) -> int:
        """How long to take nothing before looking again; 0 if there is room."""
        rate = self._work_off()
        if rate <= 0:
            return WAIT_MS_MAX
        return min(WAIT_MS_MAX, ceil(self._debt_bytes * 1000 / rate))

    def _work_off(self) -> int:
        """Take what the time since the last look was worth off the debt; the rate by now."""
        rate, now_ms = self._rate(), self._clock.monotonic_ms()
        worth_bytes = max(0, rate) * (now_ms - self._looked_ms) / 1000
        self._looked_ms = now_ms
        self._debt_bytes = 0.0 if rate >= UNLIMITED else max(0.0, self._debt_bytes - worth_bytes)
        return rate
