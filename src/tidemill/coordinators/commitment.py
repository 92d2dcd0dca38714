"""Answers that wait until what they speak of is committed.

They leave in the order in which they came, when the high watermark has passed the end of the log as
it was for each of them, or with an error when that takes too long: their records may still be
committed later.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.coordinators.result import Settled
from tidemill.errors import ErrorCode
from tidemill.timers import TimerHandle, TimingWheel

WAITING_MAX = 100_000
"""Answers that may wait for one partition; more would mean that nothing is committed any more."""


class _Waiting(NamedTuple):
    end_offset: int
    deadline_ms: int
    settle: Settled


class Commitment:
    """The answers that wait for one partition."""

    def __init__(self, clock: Clock, timers: TimingWheel) -> None:
        self._clock = clock
        self._timers = timers
        self._waiting: deque[_Waiting] = deque()
        self._deadline: TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def settle_at(
        self, end_offset: int, committed: int, settle: Settled, *, timeout_ms: int
    ) -> None:
        """Call `settle` once the log is committed up to `end_offset`; now, if it is."""
        if committed >= end_offset and not self._waiting:
            settle(ErrorCode.NONE)
            return
        if len(self._waiting) >= WAITING_MAX:
            settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._waiting.append(_Waiting(end_offset, deadline_ms, settle))
        if self._deadline is None:
            self._deadline = self._timers.schedule(timeout_ms, self._overdue)

    def settle_up_to(self, committed: int) -> None:
        """Let go whoever waits for no more than this."""
        while self._waiting and self._waiting[0].end_offset <= committed:
            self._waiting.popleft().settle(ErrorCode.NONE)

    def _overdue(self) -> None:
        self._deadline = None
        now_ms = self._clock.monotonic_ms()
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            self._waiting.popleft().settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._waiting:
            delay_ms = self._waiting[0].deadline_ms - now_ms
            self._deadline = self._timers.schedule(delay_ms, self._overdue)

    def close(self, error: ErrorCode) -> None:
        """Send everybody elsewhere."""
        if self._deadline is not None:
            self._deadline.cancel()
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.settle(error)
