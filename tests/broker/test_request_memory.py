"""Request memory: bounded, fair, and never held for ever (rules 3.3 and 3.4)."""

from __future__ import annotations

from tidemill.broker.request_memory import (
    LARGE_FRAME_BYTES,
    PROGRESS_BYTES,
    PROGRESS_MS,
    WHOLE_FRAME_MS_MAX,
    RequestMemory,
)
from tidemill.testing.clock import ManualClock
from tidemill.timers import TimingWheel

MIB = 1024 * 1024


class Holder:
    """A connection that records what the pool tells it."""

    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.received_bytes = 0
        self.between_frames = False
        self.waits_for_broker = False
        self.has_room = False
        self.evicted = False

    def reserve(self, amount_bytes: int) -> bool:
        self.has_room = self.memory.reserve(self, amount_bytes)
        return self.has_room

    def granted(self) -> None:
        self.has_room = True

    def give_back(self) -> None:
        self.has_room = False
        self.memory.release(self)

    def evict(self, reason: str) -> None:
        self.evicted = True
        self.memory.release(self)


class Pool:
    def __init__(self, limit_bytes: int) -> None:
        self.clock = ManualClock()
        self.wheel = TimingWheel(self.clock)
        self.memory = RequestMemory(limit_bytes, self.clock, self.wheel.schedule)

    def holder(self) -> Holder:
        return Holder(self.memory)

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.wheel.advance(self.clock.monotonic_ms())


def test_what_fits_is_granted_and_released() -> None:
    pool = Pool(8 * MIB)
    first = pool.holder()
    assert first.reserve(3 * MIB)
    assert pool.memory.held_bytes == 3 * MIB
    pool.memory.release(first)
    assert pool.memory.held_bytes == 0


def test_waiting_is_first_come_first_served() -> None:
    pool = Pool(4 * MIB)
    first, second, third = pool.holder(), pool.holder(), pool.holder()
    assert first.reserve(3 * MIB)
    assert not second.reserve(3 * MIB)
    assert not third.reserve(1 * MIB), "a later one must not overtake, even if it would fit"
    pool.memory.release(first)
    assert second.has_room
    assert third.has_room


def test_giants_do_not_take_ordinary_room() -> None:
    """Rule 3.4: half-sent giant frames must not stop good clients."""
    pool = Pool(64 * MIB)
    giants = [pool.holder() for _ in range(300)]
    granted = [giant.reserve(100 * MIB) for giant in giants]
    assert granted.count(True) == 1
    good = pool.holder()
    assert good.reserve(LARGE_FRAME_BYTES)


def test_whoever_holds_room_without_using_it_is_closed_when_others_wait() -> None:
    pool = Pool(64 * MIB)
    lazy, eager = pool.holder(), pool.holder()
    assert lazy.reserve(100 * MIB)
    assert not eager.reserve(50 * MIB)
    pool.pass_ms(PROGRESS_MS + 250)
    assert lazy.evicted
    assert eager.has_room


def test_whoever_makes_progress_keeps_its_room() -> None:
    pool = Pool(64 * MIB)
    busy, waiting = pool.holder(), pool.holder()
    assert busy.reserve(100 * MIB)
    assert not waiting.reserve(50 * MIB)
    for _ in range(40):
        busy.received_bytes += PROGRESS_BYTES
        pool.pass_ms(250)
    assert not busy.evicted
    assert not waiting.has_room


def test_who_may_not_hand_over_a_whole_frame_keeps_its_room() -> None:
    """It can send no more, and that is not its doing."""
    pool = Pool(4 * MIB)
    whole, waiting = pool.holder(), pool.holder()
    assert whole.reserve(4 * MIB)
    whole.waits_for_broker = True
    assert not waiting.reserve(1 * MIB)
    evicted = []
    for _ in range(20):
        pool.pass_ms(PROGRESS_MS)
        evicted.append(whole.evicted)
    pool.memory.goes_on(whole)
    whole.waits_for_broker = False
    pool.pass_ms(PROGRESS_MS - 1)
    evicted.append(whole.evicted)
    assert not any(evicted), "its time to send begins when it may go on"
    pool.pass_ms(PROGRESS_MS)
    assert whole.evicted


def test_what_is_held_is_not_held_for_ever() -> None:
    """Some answers take as long as the client wishes."""
    pool = Pool(4 * MIB)
    whole, waiting = pool.holder(), pool.holder()
    assert whole.reserve(4 * MIB)
    whole.waits_for_broker = True
    assert not waiting.reserve(1 * MIB)
    pool.pass_ms(WHOLE_FRAME_MS_MAX)
    pool.pass_ms(PROGRESS_MS)
    assert whole.evicted


def test_the_time_of_copies_under_way_does_not_count() -> None:
    pool = Pool(8 * MIB)
    holder, waiting = pool.holder(), pool.holder()
    assert holder.reserve(4 * MIB)
    pool.pass_ms(PROGRESS_MS // 2)
    pool.memory.keep(4 * MIB)
    assert not waiting.reserve(LARGE_FRAME_BYTES)
    assert not pool.holder().reserve(LARGE_FRAME_BYTES)
    pool.pass_ms(10 * PROGRESS_MS)
    pool.memory.let_go(4 * MIB)
    evicted = []
    for wait_ms in (PROGRESS_MS // 2 - 250, 500):
        pool.pass_ms(wait_ms)
        evicted.append(holder.evicted)
    assert evicted == [False, True]


def test_nobody_is_closed_while_nobody_waits() -> None:
    pool = Pool(64 * MIB)
    slow = pool.holder()
    assert slow.reserve(100 * MIB)
    pool.pass_ms(60_000)
    assert not slow.evicted


def test_kept_buffers_are_taken_back_first() -> None:
    pool = Pool(4 * MIB)
    kept = pool.holder()
    kept.between_frames = True
    assert pool.memory.try_retain(kept, 2 * MIB)
    other = pool.holder()
    assert other.reserve(3 * MIB)
    assert not kept.evicted
    assert pool.memory.held_bytes == 3 * MIB


def test_only_half_of_the_pool_is_kept_between_frames() -> None:
    pool = Pool(4 * MIB)
    assert pool.memory.try_retain(pool.holder(), 2 * MIB)
    assert not pool.memory.try_retain(pool.holder(), 1 * MIB)


def test_a_connection_that_goes_leaves_the_queue() -> None:
    pool = Pool(4 * MIB)
    first, second, third = pool.holder(), pool.holder(), pool.holder()
    first.reserve(4 * MIB)
    second.reserve(4 * MIB)
    third.reserve(4 * MIB)
    pool.memory.release(second)
    pool.memory.release(first)
    assert not second.has_room
    assert third.has_room
    assert pool.memory.waiting == 0


def test_copies_under_way_keep_others_out_and_nobody_is_blamed() -> None:
    """Frames are given back when they are handled, and what was copied of them is still there."""
    pool = Pool(8 * MIB)
    patient = pool.holder()
    assert patient.reserve(1 * MIB)
    pool.memory.keep(3 * MIB)
    pool.memory.keep(1 * MIB)
    late = pool.holder()
    large = pool.holder()
    assert not late.reserve(1 * MIB)
    assert not large.reserve(LARGE_FRAME_BYTES + 1)
    pool.pass_ms(10 * PROGRESS_MS)
    assert (late.has_room, large.has_room, patient.evicted) == (False, False, False)
    pool.memory.let_go(1 * MIB)
    assert (late.has_room, large.has_room) == (True, True)
    pool.memory.let_go(3 * MIB)
    assert pool.memory.held_bytes == 2 * MIB + LARGE_FRAME_BYTES + 1
