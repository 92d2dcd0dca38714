"""The clock that everything below the command line is given: tests and simulations own time.

Wall-clock time (`now_ms`) goes into records, file names and answers. Durations, deadlines and
timeouts use `monotonic_ms`, which a step of the system clock does not move.
"""

from __future__ import annotations

import time
from typing import Protocol

from tidemill.types import TimestampMs


class Clock(Protocol):
    """What a component may know about time."""

    def now_ms(self) -> TimestampMs:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def monotonic_us() -> int:
    """Microseconds since some fixed moment, for the few who wait for less than a millisecond."""
    return time.monotonic_ns() // 1_000
