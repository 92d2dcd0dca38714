"""Drives the timing wheel with one timer of the event loop, however many timers wait in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.clock import Clock
from tidemill.timers import TimerHandle, TimingWheel

_CALLBACKS_PER_TURN_MAX = 256
"""A burst of due timers lets the loop breathe after this many."""


class Ticker(TimingWheel):
    """A timing wheel that wakes itself up: scheduling is all that its users do."""

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        super().__init__(clock, on_error)
        self._loop = loop
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for_ms: int | None = None
        self._closed = False

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerHandle:
        handle = super().schedule(delay_ms, callback)
        armed_for_ms = self._armed_for_ms
        if armed_for_ms is None or handle.deadline_ms < armed_for_ms:
            self._arm(handle.deadline_ms)
        return handle

    def close(self) -> None:
        """Stop: no callback runs after this."""
        self._closed = True
        if self._armed is not None:
            self._armed.cancel()

    def _arm(self, deadline_ms: int) -> None:
        if self._closed:
            return
        if self._armed is not None:
            self._armed.cancel()
        delay_ms = max(0, deadline_ms - self._clock.monotonic_ms())
        self._armed_for_ms = deadline_ms
        self._armed = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._armed = None
        self._armed_for_ms = None
        if self._closed:
            return
        self.advance(self._clock.monotonic_ms(), _CALLBACKS_PER_TURN_MAX)
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is not None:
            self._arm(deadline_ms)
