"""How long a connection may keep the broker waiting: for a first request, a whole frame, any sign.

One timer per connection looks at all three. A frame may take longer than its time only if enough
of it arrived meanwhile, so that a slow line gets through and a half-sent frame does not stay.
Nobody is idle who waits for an answer, but whoever reads nothing of those that wait for it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.clock import Clock
from tidemill.timers import TimerHandle, TimingWheel

FRAME_WINDOW_BYTES = 1024 * 1024
"""A frame may take longer than its timeout only if it received this much in that time."""


@dataclass(slots=True)
class Limits:
    """The bounds of a connection that configuration sets; shared by all, and changed in place."""

    request_bytes_max: int
    idle_ms: int
    handshake_ms: int
    frame_ms: int


class Patience:
    """The deadlines of one connection; `give_up(reason)` is called when one has passed."""

    __slots__ = (
        "_clock",
        "_give_up",
        "_is_busy",
        "_limits",
        "_opened_at_ms",
        "_reading",
        "_timer",
        "_timers",
        "_unread",
        "_unread_from_ms",
        "_window_from_bytes",
        "_window_from_ms",
        "active_at_ms",
        "holds_up_frame",
        "received_bytes",
        "saw_request",
    )

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        timers: TimingWheel,
        is_busy: Callable[[], bool],
        reading: Callable[[], object | None],
        give_up: Callable[[str], None],
    ) -> None:
        """`reading()` is None unless answers are held up because the peer does not read; then it
        is something that changes when the peer has read of them."""
        self._limits = limits
        self._clock = clock
        self._timers = timers
        self._is_busy = is_busy
        self._reading = reading
        self._give_up = give_up
        self._opened_at_ms = 0
        self._window_from_ms: int | None = None
        self._window_from_bytes = 0
        self._unread: object | None = None
        self._unread_from_ms = 0
        self._timer: TimerHandle | None = None
        self.active_at_ms = 0
        self.received_bytes = 0
        self.saw_request = False
        self.holds_up_frame = False
        """Whether it is the broker that does not read on, so that the peer is not to blame."""

    def begin_in(self, delay_ms: int, begin: Callable[[], None]) -> None:
        """Do nothing yet; `begin` comes after so long, unless the connection ends first."""
        self._timer = self._timers.schedule(delay_ms, begin)

    def begin(self) -> None:
        """The time for the first request starts."""
        self._opened_at_ms = self.active_at_ms = self._clock.monotonic_ms()
        self._look_in(min(self._limits.handshake_ms, self._limits.idle_ms))

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def frame_begins(self) -> None:
        """Part of a frame is there; its time starts unless it has started already."""
        if self._window_from_ms is None:
            self.frame_goes_on()

    def frame_goes_on(self) -> None:
        """A frame has begun, or may go on: its time starts now."""
        now_ms = self.active_at_ms = self._clock.monotonic_ms()
        self._window_from_ms = now_ms
        self._window_from_bytes = self.received_bytes
        timer = self._timer
        if timer is None or timer.deadline_ms > now_ms + self._limits.frame_ms:
            self.end()
            self._look_in(self._limits.frame_ms)

    def no_frame(self) -> None:
        """Everything that came is handled."""
        self._window_from_ms = None

    def _look_in(self, delay_ms: int) -> None:
        self._timer = self._timers.schedule(delay_ms, self._look)

    def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        limits = self._limits
        idle_ms = now_ms - self.active_at_ms
        if not self.saw_request and now_ms - self._opened_at_ms >= limits.handshake_ms:
            self._give_up(f"no request within {limits.handshake_ms} ms")
        elif self._window_from_ms is not None and not self._frame_in_time(now_ms):
            self._give_up(f"a frame was not finished within {limits.frame_ms} ms")
        elif idle_ms >= limits.idle_ms and not self._is_busy():
            self._give_up(f"idle for {idle_ms} ms")
        elif self._reads_nothing(now_ms):
            self._give_up(f"it read none of its answers for {now_ms - self._unread_from_ms} ms")
        else:
            self._look_in(self._next_look_ms(now_ms, idle_ms))

    def _next_look_ms(self, now_ms: int, idle_ms: int) -> int:
        limits = self._limits
        waits_ms = [limits.idle_ms - idle_ms if idle_ms < limits.idle_ms else limits.idle_ms]
        if not self.saw_request:
            waits_ms.append(self._opened_at_ms + limits.handshake_ms - now_ms)
        if self._window_from_ms is not None:
            waits_ms.append(self._window_from_ms + limits.frame_ms - now_ms)
        if self._unread is not None:
            waits_ms.append(self._unread_from_ms + limits.idle_ms - now_ms)
        return max(1, min(waits_ms))

    def _reads_nothing(self, now_ms: int) -> bool:
        """Whether nothing of what waits for the peer was taken for as long as it may be idle."""
        unread = self._reading()
        if unread is None or unread != self._unread:
            self._unread = unread
            self._unread_from_ms = now_ms
            return False
        return now_ms - self._unread_from_ms >= self._limits.idle_ms

    def _frame_in_time(self, now_ms: int) -> bool:
        """Whether the frame under way may go on; a window that brought enough starts the next."""
        assert self._window_from_ms is not None
        if now_ms - self._window_from_ms < self._limits.frame_ms:
            return True
        moved_bytes = self.received_bytes - self._window_from_bytes
        if moved_bytes < FRAME_WINDOW_BYTES and not self.holds_up_frame:
            return False
        self._window_from_ms = now_ms
        self._window_from_bytes = self.received_bytes
        return True
