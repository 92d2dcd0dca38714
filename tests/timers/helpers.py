"""A clock for tests of whatever lives by one."""

from __future__ import annotations

from tidemill.types import TimestampMs


class HandClock:
    """A clock that moves when told to."""

    def __init__(self, start_ms: int = 0) -> None:
        self.at_ms = start_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.at_ms)

    def monotonic_ms(self) -> int:
        return self.at_ms
