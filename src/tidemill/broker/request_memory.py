"""Room for the requests that are being received: bounded, shared, and never held for ever.

A frame of up to `SMALL_FRAME_BYTES` needs nobody's leave: every connection has that much of its
own. A larger one must be granted room for its declared size before the broker reads on; until
then its connection is not read from, and what it declared costs nothing. Two lanes keep the giants
away from ordinary requests:

* frames up to `LARGE_FRAME_BYTES` share the pool (`queued.max.request.bytes`), first come first
  served;
* larger ones share half a pool of their own, the smallest first, so that whoever declares the most
  waits the longest; one is always let in when the lane is empty.

What a handler copies in order to go on with it later (`keep`) is counted apart, for the frame it
came in is given back. While such copies take half a pool, nobody is let in: they go by themselves,
and wait for nobody.

So the most that requests can hold is two pools, plus the larger of half a pool and one largest
frame, plus `SMALL_FRAME_BYTES` and `outbox.OWED_BYTES_MAX` per connection.

Whoever holds room while others wait must use it: a connection that received less than
`PROGRESS_BYTES` in `PROGRESS_MS` is closed, and buffers that are merely kept for the next frame
are taken back first. Hundreds of half-sent giants therefore cost a good client at most about a
second, not its service. Whoever has sent its frame and may not hand it over, since the broker owes
answers to earlier ones, has done what it can and gets `WHOLE_FRAME_MS_MAX`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tidemill.clock import Clock
from tidemill.invariant import invariant

SMALL_FRAME_BYTES = 64 * 1024
LARGE_FRAME_BYTES = 4 * 1024 * 1024
PROGRESS_MS = 1_000
PROGRESS_BYTES = 256 * 1024
WHOLE_FRAME_MS_MAX = 60_000
"""More than producers give their requests; but there are answers that may take days on end."""
RETAINED_BYTES_MAX = 2 * 1024 * 1024
"""The largest buffer that a busy connection may keep between two frames."""

_CHECK_MS = 250


class Holder(Protocol):
    """A connection, as the pool sees it."""

    @property
    def received_bytes(self) -> int:
        """All bytes it has received so far: how progress is told from standing still."""
        ...

    @property
    def between_frames(self) -> bool:
        """Whether it holds its room only to be quick with the next frame."""
        ...

    @property
    def waits_for_broker(self) -> bool:
        """Whether its frame is whole, and it is the broker that does not take it yet."""
        ...

    def granted(self) -> None:
        """Its room is there: read on."""
        ...

    def give_back(self) -> None:
        """Drop the buffer kept for the next frame and release its room."""
        ...

    def evict(self, reason: str) -> None:
        """Close: others wait for the room that it does not use."""
        ...


class _Lease:
    """One holder's room, and how far it had come when it was last looked at."""

    __slots__ = ("amount_bytes", "marked_at_ms", "marked_bytes")

    def __init__(self, amount_bytes: int, now_ms: int, received_bytes: int) -> None:
        self.amount_bytes = amount_bytes
        self.mark(now_ms, received_bytes)

    def mark(self, now_ms: int, received_bytes: int) -> None:
        self.marked_at_ms = now_ms
        self.marked_bytes = received_bytes


class _Lane:
    """One share of the pool with its holders and those who wait for it."""

    def __init__(self, limit_bytes: int, *, smallest_first: bool) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.leases: dict[Holder, _Lease] = {}
        self.waiting: OrderedDict[Holder, int] = OrderedDict()
        self._smallest_first = smallest_first

    def has_room(self, amount_bytes: int) -> bool:
        """Whether that much is free; an empty lane takes anything, or it would wait for ever."""
        return not self.leases or self.held_bytes + amount_bytes <= self.limit_bytes

    def next_waiting(self) -> tuple[Holder, int]:
        """Who is let in next, and how much it needs."""
        if self._smallest_first:
            return min(self.waiting.items(), key=lambda entry: entry[1])
        return next(iter(self.waiting.items()))


class RequestMemory:
    """The pool: `reserve` before reading a large frame, `release` when its bytes are dropped."""

    def __init__(
        self,
        limit_bytes: int,
        clock: Clock,
        schedule: Callable[[int, Callable[[], object]], object],
    ) -> None:
        self._clock = clock
        self._schedule = schedule
        self._ordinary = _Lane(limit_bytes, smallest_first=False)
        self._large = _Lane(limit_bytes // 2, smallest_first=True)
        self._kept_bytes_max = limit_bytes // 2
        self._kept_bytes = 0
        self._strained_from_ms = 0
        self._check_scheduled = False

    @property
    def held_bytes(self) -> int:
        return self._ordinary.held_bytes + self._large.held_bytes + self._kept_bytes

    @property
    def waiting(self) -> int:
        """How many connections are held back until there is room."""
        return len(self._ordinary.waiting) + len(self._large.waiting)

    def reserve(self, holder: Holder, amount_bytes: int) -> bool:
        """Grant `holder` room for `amount_bytes` in all; False: wait for `granted()`."""
        self._forget(holder)
        lane = self._large if amount_bytes > LARGE_FRAME_BYTES else self._ordinary
        if not (lane.waiting or self.is_strained) and self._make_room(lane, amount_bytes):
            self._grant(lane, holder, amount_bytes)
            return True
        lane.waiting[holder] = amount_bytes
        self._schedule_check()
        return False

    def try_retain(self, holder: Holder, amount_bytes: int) -> bool:
        """Whether `holder` may keep a buffer of that size between frames: only while nobody waits
        and half of the pool stays free for frames on their way."""
        if amount_bytes > RETAINED_BYTES_MAX or self.waiting or self.is_strained:
            return False
        lane = self._ordinary
        lease = lane.leases.get(holder)
        others_bytes = lane.held_bytes - (lease.amount_bytes if lease else 0)
        if others_bytes + amount_bytes > lane.limit_bytes // 2:
            return False
        self._forget(holder)
        self._grant(lane, holder, amount_bytes)
        return True

    def release(self, holder: Holder) -> None:
        """Take back whatever `holder` has or waits for, and let the next in."""
        self._forget(holder)
        if self.waiting:
            self._admit_waiting()

    def keep(self, amount_bytes: int) -> None:
        """Count a copy that a handler has made, until `let_go`."""
        was_strained = self.is_strained
        self._kept_bytes += amount_bytes
        if self.is_strained and not was_strained:
            self._strained_from_ms = self._clock.monotonic_ms()

    def let_go(self, amount_bytes: int) -> None:
        was_strained = self.is_strained
        self._kept_bytes -= amount_bytes
        invariant(self._kept_bytes >= 0, "a copy is let go of once")
        if was_strained and not self.is_strained:
            self._discount_strain()
        if self.waiting:
            self._admit_waiting()

    def goes_on(self, holder: Holder) -> None:
        """What `holder` had to wait with is handled: its time to make progress begins anew."""
        for lane in (self._ordinary, self._large):
            lease = lane.leases.get(holder)
            if lease is not None:
                lease.mark(self._clock.monotonic_ms(), holder.received_bytes)

    @property
    def is_strained(self) -> bool:
        """Whether so much has been copied that nobody may receive a large frame."""
        return self._kept_bytes >= self._kept_bytes_max

    def _grant(self, lane: _Lane, holder: Holder, amount_bytes: int) -> None:
        lane.leases[holder] = _Lease(
            amount_bytes, self._clock.monotonic_ms(), holder.received_bytes
        )
        lane.held_bytes += amount_bytes

    def _forget(self, holder: Holder) -> None:
        for lane in (self._ordinary, self._large):
            lease = lane.leases.pop(holder, None)
            if lease is not None:
                lane.held_bytes -= lease.amount_bytes
                invariant(lane.held_bytes >= 0, "request memory is released once")
            lane.waiting.pop(holder, None)

    def _make_room(self, lane: _Lane, amount_bytes: int) -> bool:
        if lane.has_room(amount_bytes):
            return True
        for holder in [held for held in lane.leases if held.between_frames]:
            holder.give_back()
        return lane.has_room(amount_bytes)

    def _admit_waiting(self) -> None:
        for lane in (self._ordinary, self._large):
            while lane.waiting and not self.is_strained:
                holder, amount_bytes = lane.next_waiting()
                if not self._make_room(lane, amount_bytes):
                    break
                del lane.waiting[holder]
                self._grant(lane, holder, amount_bytes)
                holder.granted()

    def _schedule_check(self) -> None:
        if not self._check_scheduled:
            self._check_scheduled = True
            self._schedule(_CHECK_MS, self._check)

    def _check(self) -> None:
        """While somebody waits: close those who hold room and do not use it."""
        self._check_scheduled = False
        for lane in (self._ordinary, self._large):
            # Nobody is to blame while it is the broker's own work that they wait for.
            if lane.waiting and not self.is_strained:
                for holder in self._idle_holders(lane):
                    holder.evict(
                        "it held request memory that others waited for, and sent too little"
                    )
        self._admit_waiting()
        if self.waiting:
            self._schedule_check()

    def _idle_holders(self, lane: _Lane) -> list[Holder]:
        now_ms = self._clock.monotonic_ms()
        idle = []
        for holder, lease in lane.leases.items():
            patience_ms = WHOLE_FRAME_MS_MAX if holder.waits_for_broker else PROGRESS_MS
            if now_ms - lease.marked_at_ms < patience_ms:
                continue
            if holder.received_bytes - lease.marked_bytes < PROGRESS_BYTES:
                idle.append(holder)
            lease.mark(now_ms, holder.received_bytes)
        return idle

    def _discount_strain(self) -> None:
        """Nobody was looked at meanwhile: the time does not count against those who hold room."""
        now_ms = self._clock.monotonic_ms()
        for lane in (self._ordinary, self._large):
            for lease in lane.leases.values():
                lease.marked_at_ms += now_ms - max(lease.marked_at_ms, self._strained_from_ms)
