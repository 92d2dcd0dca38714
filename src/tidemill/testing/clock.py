"""A clock that stands still until a test moves it."""

from __future__ import annotations

from tidemill.types import TimestampMs

START_MS = 1_700_000_000_000


class ManualClock:
    """Implements `tidemill.clock.Clock`."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, duration_ms: int) -> None:
        """Let time pass, for both kinds of it."""
        if duration_ms < 0:
            raise ValueError("time only moves forward; use `step` to set the wall clock")
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def step(self, change_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP does; durations go on."""
        self._now_ms += change_ms
