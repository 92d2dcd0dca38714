"""One hierarchical timing wheel for every timer of a process: insert and cancel are O(1).

Purgatory, session timeouts, transaction timeouts and delayed delivery all schedule here, so a
broker may hold a million timers of which nearly all are cancelled before they fire.

The wheel has seven levels of 64 slots. Time counts in ticks of one millisecond since the wheel was
made, and a timer lives at the level of the highest base-64 digit in which its deadline differs
from the wheel's position. Three facts follow, and everything here leans on them:

* a slot of a lower level is always due before any slot of a higher one;
* at one level the slots in use lie ahead of the position, so none ever wraps round;
* timers with the same deadline always share a slot, so they fire in the order of insertion.

A timer that is put off stays in its slot until that is due, and only then moves on: a session's end
is put off with every heartbeat, and mostly so long before it comes that moving it each time would
cost more than all else that the heartbeat does.

When the position enters a slot of a higher level, that slot's timers move to lower levels
("cascade"); a timer cascades at most six times in its life. One integer per level says which slots
are in use, so a long idle stretch costs nothing to skip.

Start at `TimingWheel.schedule`, then `TimingWheel.advance`.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.clock import Clock

_DIGIT_BITS = 6
_SLOTS = 1 << _DIGIT_BITS
_SLOT_MASK = _SLOTS - 1
_LEVELS = 7

DELAY_MS_MAX = 1 << 41
"""The longest delay, 69 years: a longer one (clients send the largest integer) is cut to it."""


class _Link:
    """A place in a circular doubly linked list; an empty list is one link that points at itself."""

    __slots__ = ("_next", "_previous")

    _next: _Link
    _previous: _Link


class _Slot(_Link):
    """The head of one slot's list of timers."""

    __slots__ = ()

    def __init__(self) -> None:
        self._next = self
        self._previous = self


class TimerHandle(_Link):
    """One scheduled callback: keep it in order to cancel."""

    __slots__ = ("_callback", "_tick", "_wheel")

    def __init__(self, wheel: TimingWheel, tick: int, callback: Callable[[], object]) -> None:
        self._wheel = wheel
        self._tick = tick
        self._callback: Callable[[], object] | None = callback

    @property
    def pending(self) -> bool:
        """Whether the callback is still to run."""
        return self._callback is not None

    @property
    def deadline_ms(self) -> int:
        """When the callback is due, on the wheel's monotonic clock."""
        return self._wheel._origin_ms + self._tick

    def put_off(self, delay_ms: int) -> bool:
        """Run the callback only once `delay_ms` have passed from now.

        False, and nothing is changed, if it already ran or was cancelled, or would run earlier than
        before. Among timers of the same moment it counts as inserted when its old one has come.
        """
        tick = self._wheel._tick_after(delay_ms)
        if self._callback is None or tick < self._tick:
            return False
        self._tick = tick
        return True

    def cancel(self) -> bool:
        """Make sure that the callback does not run; False if it already ran or was cancelled."""
        if self._callback is None:
            return False
        self._callback = None
        self._unlink()
        # Links to itself would be a cycle that only the garbage collector could free.
        del self._next, self._previous
        self._wheel._count -= 1
        return True

    def _unlink(self) -> None:
        previous = self._previous
        following = self._next
        previous._next = following
        following._previous = previous


class TimingWheel:
    """Timers of one event loop. Not thread-safe: the loop owns it and calls `advance`.

    A callback that raises never costs another timer its turn. Its error goes to `on_error`, or,
    without one, `advance` raises all of them together once everything due has run.
    """

    def __init__(self, clock: Clock, on_error: Callable[[Exception], None] | None = None) -> None:
        self._clock = clock
        self._on_error = on_error
        self._origin_ms = clock.monotonic_ms()
        self._position = 0
        self._count = 0
        self._slots = [[_Slot() for _ in range(_SLOTS)] for _ in range(_LEVELS)]
        self._in_use = [0] * _LEVELS

    def __len__(self) -> int:
        """How many timers wait."""
        return self._count

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once `delay_ms` have passed, never earlier and never from in here."""
        tick = self._tick_after(delay_ms)
        handle = TimerHandle(self, tick, callback)
        self._insert(handle, tick)
        self._count += 1
        return handle

    def _tick_after(self, delay_ms: int) -> int:
        if delay_ms > DELAY_MS_MAX:
            delay_ms = DELAY_MS_MAX
        tick = self._clock.monotonic_ms() - self._origin_ms + delay_ms
        # The position's own slot has run; the next tick is the first that still will.
        return tick if tick > self._position else self._position + 1

    def _insert(self, handle: TimerHandle, tick: int) -> None:
        # The lowest bit is set so that a timer due right now counts as level 0.
        level = (((tick ^ self._position) | 1).bit_length() - 1) // _DIGIT_BITS
        digit = (tick >> (level * _DIGIT_BITS)) & _SLOT_MASK
        slot = self._slots[level][digit]
        last = slot._previous
        handle._previous = last
        handle._next = slot
        last._next = handle
        slot._previous = handle
        self._in_use[level] |= 1 << digit

    def next_deadline_ms(self) -> int | None:
        """A time before which no timer is due, or None without timers.

        Exact within the current 64 ms; further away it is the moment of the next cascade, which is
        never late and at most six times early per timer, or of one that was put off meanwhile.
        Sleep until then and call `advance`.
        """
        found = self._next_slot()
        return None if found is None else self._origin_ms + found[2]

    def advance(self, now_ms: int, limit: int | None = None) -> int:
        """Run what is due at `now_ms`, in order of deadline; return how many callbacks ran.

        With `limit` it stops after that many, so that a burst does not hold the loop; the rest
        stays due, and `next_deadline_ms` says so.
        """
        target = now_ms - self._origin_ms
        ran = 0
        errors: list[Exception] = []
        while (found := self._next_slot()) is not None and found[2] <= target:
            level, slot, tick = found
            self._position = max(self._position, tick)
            if level > 0:
                self._cascade(slot)
                continue
            ran += self._run_slot(slot, errors, None if limit is None else limit - ran)
            if limit is not None and ran >= limit:
                break
        else:
            self._position = max(self._position, target)
        if errors:
            raise ExceptionGroup("timer callbacks failed", errors)
        return ran

    def _next_slot(self) -> tuple[int, _Slot, int] | None:
        """The earliest slot that holds timers: its level, itself, the tick at which it opens."""
        in_use = self._in_use
        for level in range(_LEVELS):
            # Cancelling leaves the bits alone; those of slots that it emptied are cleared here.
            while bits := in_use[level]:
                lowest = bits & -bits
                digit = lowest.bit_length() - 1
                slot = self._slots[level][digit]
                if slot._next is not slot:
                    shift = level * _DIGIT_BITS
                    block = self._position >> (shift + _DIGIT_BITS)
                    return level, slot, ((block << _DIGIT_BITS) | digit) << shift
                in_use[level] = bits ^ lowest
        return None

    def _cascade(self, slot: _Slot) -> None:
        """Move a slot's timers to lower levels, in order, now that the position has entered it."""
        link = slot._next
        slot._next = slot._previous = slot
        while link is not slot:
            assert isinstance(link, TimerHandle)
            following = link._next
            self._insert(link, link._tick)
            link = following

    def _run_slot(self, slot: _Slot, errors: list[Exception], limit: int | None) -> int:
        ran = 0
        # A callback may cancel timers of this very slot: take them one at a time from the front.
        while (handle := slot._next) is not slot and (limit is None or ran < limit):
            assert isinstance(handle, TimerHandle)
            if handle._tick > self._position:
                handle._unlink()
                self._insert(handle, handle._tick)
                continue
            callback = handle._callback
            assert callback is not None
            handle.cancel()
            ran += 1
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - whatever it was, the others must run
                if self._on_error is None:
                    errors.append(error)
                else:
                    self._on_error(error)
        return ran
