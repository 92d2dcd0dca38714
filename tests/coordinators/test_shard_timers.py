"""The timers of a shard: by key, put off in place, and cancelled or replaced until their turn."""

from __future__ import annotations

from collections.abc import Callable

from tests.timers.helpers import HandClock

from tidemill.coordinators.result import Result
from tidemill.coordinators.shard_timers import ShardTimers
from tidemill.executor import InlineExecutor
from tidemill.timers import TimerHandle, TimingWheel

KEY = ("heartbeat", "group", "member")


class CountingWheel(TimingWheel):
    """Counts how often something is put into it."""

    inserted = 0

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerHandle:
        self.inserted += 1
        return super().schedule(delay_ms, callback)


class Scene:
    """Timers on a clock that is moved by hand; what is due waits in line until it is taken."""

    def __init__(self) -> None:
        self.clock = HandClock(1_000)
        self.wheel = CountingWheel(self.clock)
        self.line: list[Callable[[], Result[None]]] = []
        self.timers = ShardTimers(self.wheel, InlineExecutor(), self.line.append)
        self.done: list[str] = []

    def schedule(self, delay_ms: int, what: str) -> None:
        def callback() -> Result[None]:
            self.done.append(what)
            return Result()

        self.timers.schedule(KEY, delay_ms, callback)

    def advance(self, by_ms: int) -> None:
        self.clock.at_ms += by_ms
        self.wheel.advance(self.clock.at_ms)

    def take_line(self) -> list[str]:
        while self.line:
            self.line.pop(0)()
        return self.done


def test_a_session_that_goes_on_costs_the_wheel_nothing() -> None:
    scene = Scene()
    for beat in range(1_000):
        scene.schedule(6_000, f"beat {beat}")
        scene.advance(3)
    assert scene.wheel.inserted == 1
    scene.advance(5_996)
    assert scene.take_line() == []
    scene.advance(1)
    assert scene.take_line() == ["beat 999"]
    assert not scene.timers.is_set(KEY)


def test_a_shorter_time_takes_the_place_of_a_longer_one() -> None:
    scene = Scene()
    scene.schedule(6_000, "long")
    scene.schedule(100, "short")
    scene.advance(100)
    assert scene.take_line() == ["short"]
    scene.advance(10_000)
    assert scene.take_line() == ["short"]


def test_what_is_due_and_waits_in_line_is_replaced_by_what_comes_before_its_turn() -> None:
    scene = Scene()
    scene.schedule(100, "late")
    scene.advance(100)
    scene.schedule(100, "in time")
    assert scene.take_line() == []
    scene.advance(100)
    assert scene.take_line() == ["in time"]


def test_one_that_was_put_off_can_be_cancelled() -> None:
    scene = Scene()
    scene.schedule(100, "first")
    scene.schedule(200, "second")
    scene.timers.cancel(KEY)
    scene.advance(1_000)
    assert scene.take_line() == []
    assert len(scene.wheel) == 0
