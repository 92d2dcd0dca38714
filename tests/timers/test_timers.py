"""The timing wheel: exact order, cancel at any moment, and no way to lose a timer."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.timers.helpers import HandClock

from tidemill.timers import DELAY_MS_MAX, TimerHandle, TimingWheel


def make_wheel(start_ms: int = 1_000_000) -> tuple[HandClock, TimingWheel]:
    clock = HandClock(start_ms)
    return clock, TimingWheel(clock)


def advance(clock: HandClock, wheel: TimingWheel, by_ms: int) -> int:
    clock.at_ms += by_ms
    return wheel.advance(clock.at_ms)


@pytest.mark.parametrize("delay_ms", [1, 63, 64, 65, 4095, 4096, 262_143, 262_144, 10**9, 10**12])
def test_fires_exactly_when_due(delay_ms: int) -> None:
    clock, wheel = make_wheel()
    fired: list[int] = []
    handle = wheel.schedule(delay_ms, lambda: fired.append(clock.at_ms))
    assert handle.deadline_ms == clock.at_ms + delay_ms
    advance(clock, wheel, delay_ms - 1)
    assert fired == []
    assert bool(handle.pending)
    assert advance(clock, wheel, 1) == 1
    assert fired == [clock.at_ms]
    assert not handle.cancel()
    assert len(wheel) == 0


@pytest.mark.parametrize("delay_ms", [0, -5])
def test_a_delay_of_nothing_fires_at_the_next_tick_and_never_at_once(delay_ms: int) -> None:
    clock, wheel = make_wheel()
    fired: list[str] = []
    wheel.schedule(delay_ms, lambda: fired.append("now"))
    wheel.advance(clock.at_ms)
    assert fired == []
    advance(clock, wheel, 1)
    assert fired == ["now"]


def test_the_largest_integer_is_cut_to_69_years() -> None:
    clock, wheel = make_wheel()
    handle = wheel.schedule(2**63 - 1, lambda: None)
    assert handle.deadline_ms == clock.at_ms + DELAY_MS_MAX
    assert advance(clock, wheel, DELAY_MS_MAX) == 1


def test_same_deadline_fires_in_the_order_of_insertion_across_cascades() -> None:
    clock, wheel = make_wheel()
    fired: list[str] = []
    deadline_ms = clock.at_ms + 300_000
    for step_ms in (0, 5_000, 200_000, 94_990):
        advance(clock, wheel, step_ms)
        name = f"inserted {deadline_ms - clock.at_ms} ms before"
        wheel.schedule(deadline_ms - clock.at_ms, lambda name=name: fired.append(name))  # type: ignore[misc]
    advance(clock, wheel, 1_000)
    assert fired == [f"inserted {ms} ms before" for ms in (300_000, 295_000, 95_000, 10)]


def test_cancel_is_final_and_says_whether_it_was_in_time() -> None:
    clock, wheel = make_wheel()
    fired: list[int] = []
    handle = wheel.schedule(10, lambda: fired.append(1))
    assert handle.cancel()
    assert not handle.cancel()
    assert len(wheel) == 0
    assert wheel.next_deadline_ms() is None
    advance(clock, wheel, 100)
    assert fired == []
    done = wheel.schedule(1, lambda: None)
    advance(clock, wheel, 1)
    assert not done.cancel()


@pytest.mark.parametrize("delay_ms", [1, 64, 5_000, 300_000])
def test_a_timer_that_is_put_off_fires_when_it_is_due_then(delay_ms: int) -> None:
    clock, wheel = make_wheel()
    fired: list[int] = []
    handle = wheel.schedule(delay_ms, lambda: fired.append(clock.at_ms))
    for _ in range(3):
        advance(clock, wheel, delay_ms - 1)
        assert handle.put_off(delay_ms)
        assert handle.deadline_ms == clock.at_ms + delay_ms
    advance(clock, wheel, delay_ms - 1)
    assert fired == []
    assert len(wheel) == 1
    assert advance(clock, wheel, 1) == 1
    assert fired == [clock.at_ms]
    assert not handle.put_off(delay_ms)
    assert len(wheel) == 0


def test_a_timer_is_put_off_but_never_brought_forward() -> None:
    clock, wheel = make_wheel()
    handle = wheel.schedule(100, lambda: None)
    assert not handle.put_off(99)
    assert handle.deadline_ms == clock.at_ms + 100
    assert handle.put_off(200)
    assert not handle.put_off(150)
    assert handle.deadline_ms == clock.at_ms + 200
    assert handle.cancel()
    assert not handle.put_off(300)


def test_a_callback_may_cancel_a_timer_of_the_same_moment() -> None:
    clock, wheel = make_wheel()
    fired: list[str] = []
    handles: list[TimerHandle] = []
    wheel.schedule(5, lambda: handles[0].cancel())
    handles.append(wheel.schedule(5, lambda: fired.append("cancelled")))
    wheel.schedule(5, lambda: fired.append("other"))
    assert advance(clock, wheel, 5) == 2
    assert fired == ["other"]


def test_a_timer_that_reschedules_itself_does_not_hold_advance() -> None:
    clock, wheel = make_wheel()
    ran = 0

    def again() -> None:
        nonlocal ran
        ran += 1
        wheel.schedule(0, again)

    wheel.schedule(0, again)
    advance(clock, wheel, 50)
    assert ran == 2
    advance(clock, wheel, 1)
    assert ran == 3


def test_an_exception_costs_no_other_timer_its_turn() -> None:
    clock, wheel = make_wheel()
    fired: list[int] = []
    for index in range(3):
        wheel.schedule(5, lambda index=index: fired.append(1 // (index - 1)))  # type: ignore[misc]
    with pytest.raises(ExceptionGroup) as caught:
        advance(clock, wheel, 5)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]
    assert fired == [-1, 1]
    assert len(wheel) == 0


def test_errors_go_to_the_hook_where_there_is_one() -> None:
    clock = HandClock()
    errors: list[Exception] = []
    wheel = TimingWheel(clock, on_error=errors.append)
    wheel.schedule(1, lambda: dict[int, int]()[1])
    wheel.schedule(1, lambda: None)
    assert advance(clock, wheel, 1) == 2
    assert [type(error) for error in errors] == [KeyError]


def test_a_burst_can_be_taken_in_portions() -> None:
    clock, wheel = make_wheel()
    fired: list[int] = []
    for index in range(10):
        wheel.schedule(5 + index % 2, lambda index=index: fired.append(index))  # type: ignore[misc]
    clock.at_ms += 100
    assert wheel.advance(clock.at_ms, limit=3) == 3
    assert fired == [0, 2, 4]
    deadline_ms = wheel.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms <= clock.at_ms
    assert wheel.advance(clock.at_ms, limit=3) == 3
    assert wheel.advance(clock.at_ms) == 4
    assert fired == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]


def test_idle_years_cost_nothing_to_skip() -> None:
    clock, wheel = make_wheel()
    fired: list[int] = []
    wheel.schedule(10 * 365 * 86_400_000, lambda: fired.append(1))
    wakeups = 0
    while (deadline_ms := wheel.next_deadline_ms()) is not None:
        assert deadline_ms >= clock.at_ms
        clock.at_ms = deadline_ms
        wheel.advance(clock.at_ms)
        wakeups += 1
    assert fired == [1]
    assert wakeups <= 7


@given(st.lists(st.integers(0, 1 << 30), max_size=50), st.integers(1, 1 << 20))
def test_sleeping_until_next_deadline_is_never_late(delays: list[int], start_ms: int) -> None:
    clock, wheel = make_wheel(start_ms)
    late: list[int] = []
    for delay_ms in delays:
        due_ms = clock.at_ms + max(delay_ms, 1)
        wheel.schedule(delay_ms, lambda due_ms=due_ms: late.append(clock.at_ms - due_ms))  # type: ignore[misc]
    while (deadline_ms := wheel.next_deadline_ms()) is not None:
        clock.at_ms = deadline_ms
        wheel.advance(clock.at_ms)
    assert late == [0] * len(delays)


class WheelAgainstHeap(RuleBasedStateMachine):
    """Whatever is scheduled, cancelled and advanced: the wheel fires what a heap would."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.wheel = make_wheel(12_345)
        self.fired: list[int] = []
        self.heap: list[tuple[int, int]] = []
        self.handles: dict[int, TimerHandle] = {}
        self.put_off_once: set[int] = set()
        self.advanced_to_ms = self.clock.at_ms

    def _callback(self, number: int) -> Callable[[], None]:
        return lambda: self.fired.append(number)

    @rule(
        delay_ms=st.one_of(
            st.integers(-1, 70), st.integers(60, 5_000), st.integers(4_000, 1 << 26)
        ),
        count=st.integers(1, 3),
    )
    def schedule(self, delay_ms: int, count: int) -> None:
        for _ in range(count):
            number = len(self.handles)
            self.handles[number] = self.wheel.schedule(delay_ms, self._callback(number))
            due_ms = max(self.clock.at_ms + delay_ms, self.advanced_to_ms + 1)
            heapq.heappush(self.heap, (due_ms, number))

    @rule(choice=st.integers(0, 1_000))
    def cancel(self, choice: int) -> None:
        if self.handles:
            number = choice % len(self.handles)
            present = [entry for entry in self.heap if entry[1] == number]
            assert self.handles[number].cancel() == bool(present)
            self.heap = [entry for entry in self.heap if entry[1] != number]
            heapq.heapify(self.heap)

    @rule(
        choice=st.integers(0, 1_000), delay_ms=st.one_of(st.integers(-1, 70), st.integers(0, 5_000))
    )
    def put_off(self, choice: int, delay_ms: int) -> None:
        if self.handles:
            number = choice % len(self.handles)
            due_ms = max(self.clock.at_ms + delay_ms, self.advanced_to_ms + 1)
            present = [entry for entry in self.heap if entry[1] == number and entry[0] <= due_ms]
            assert self.handles[number].put_off(delay_ms) == bool(present)
            if present:
                self.put_off_once.add(number)
                self.heap[self.heap.index(present[0])] = (due_ms, number)
                heapq.heapify(self.heap)

    @rule(by_ms=st.one_of(st.integers(0, 100), st.integers(0, 1 << 27)))
    def move_clock(self, by_ms: int) -> None:
        self.clock.at_ms += by_ms

    @rule()
    def advance(self) -> None:
        due_ms: dict[int, int] = {}
        while self.heap and self.heap[0][0] <= self.clock.at_ms:
            at_ms, number = heapq.heappop(self.heap)
            due_ms[number] = at_ms
        self.fired.clear()
        assert self.wheel.advance(self.clock.at_ms) == len(due_ms)
        assert [due_ms[number] for number in self.fired] == list(due_ms.values())
        # Those of one moment fire in the order of insertion, but for those that were put off.
        assert [n for n in self.fired if n not in self.put_off_once] == [
            n for n in due_ms if n not in self.put_off_once
        ]
        self.advanced_to_ms = self.clock.at_ms

    @invariant()
    def agrees(self) -> None:
        assert len(self.wheel) == len(self.heap)
        deadline_ms = self.wheel.next_deadline_ms()
        assert (deadline_ms is None) == (not self.heap)
        if deadline_ms is not None:
            assert deadline_ms <= self.heap[0][0]


WheelAgainstHeap.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestWheelAgainstHeap = WheelAgainstHeap.TestCase


@pytest.mark.soak
class TestWheelAgainstHeapAtLength(WheelAgainstHeap.TestCase):  # type: ignore[valid-type,misc]
    settings = settings(max_examples=3_000, stateful_step_count=150, deadline=None)
