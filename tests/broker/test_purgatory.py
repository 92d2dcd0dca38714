"""Purgatory: who is woken when, and that nobody is woken twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.broker.purgatory import Purgatory
from tidemill.testing.clock import ManualClock
from tidemill.timers import TimingWheel


class Place:
    """Stands for a partition: purgatory only ever compares them."""


class Request:
    def __init__(self, needs: int = 1, *, breaks: bool = False) -> None:
        self.needs = needs
        self.breaks = breaks
        self.failures: list[Exception] = []
        self.moves = 0
        self.finished = 0

    def moved(self, partition: object) -> bool:
        self.moves += 1
        if self.breaks:
            raise ValueError("broken")
        return self.moves >= self.needs

    def finish(self) -> None:
        self.finished += 1

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wheel = TimingWheel(self.clock)
        self.soon: list[Callable[[], object]] = []
        self.purgatory = Purgatory(self.wheel, self.soon.append)

    def move(self, place: Any) -> None:
        self.purgatory.partition_moved(place)

    def turn(self) -> None:
        soon = self.soon[:]
        self.soon.clear()
        for callback in soon:
            callback()

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.wheel.advance(self.clock.monotonic_ms())


def watch(world: World, request: Request, *places: Any, timeout_ms: int = 1_000) -> Any:
    return world.purgatory.watch(request, places, timeout_ms)


def test_a_move_wakes_through_the_loop() -> None:
    """Rule B11: never in the middle of the append that caused it."""
    world, place, request = World(), Place(), Request()
    watch(world, request, place)
    world.move(place)
    assert request.moves == 0
    world.turn()
    assert request.finished == 1
    assert len(world.purgatory) == 0
    assert len(world.wheel) == 0


def test_a_place_that_nobody_watches_any_more_costs_nothing() -> None:
    world, place, request = World(), Place(), Request()
    watch(world, request, place).cancel()
    world.move(place)
    world.purgatory.partition_appended(place)  # type: ignore[arg-type]
    assert world.soon == []


def test_a_burst_of_moves_wakes_once() -> None:
    world, place, request = World(), Place(), Request(needs=2)
    watch(world, request, place)
    for _ in range(100):
        world.move(place)
    assert len(world.soon) == 1
    world.turn()
    assert request.moves == 1
    world.move(place)
    world.turn()
    assert request.finished == 1


def test_time_runs_out() -> None:
    world, place, request = World(), Place(), Request()
    watch(world, request, place, timeout_ms=500)
    world.pass_ms(499)
    assert request.finished == 0
    world.pass_ms(1)
    assert request.finished == 1
    world.move(place)
    world.turn()
    assert request.finished == 1


def test_one_request_on_many_partitions_finishes_once() -> None:
    world, request = World(), Request()
    places = [Place() for _ in range(10)]
    watch(world, request, *places)
    assert len(world.purgatory) == 10
    for place in places:
        world.move(place)
    world.turn()
    assert request.finished == 1
    assert len(world.purgatory) == 0


def test_a_cancelled_wait_is_forgotten() -> None:
    world, place, request = World(), Place(), Request()
    watch(world, request, place).cancel()
    world.move(place)
    world.turn()
    world.pass_ms(10_000)
    assert request.finished == 0
    assert len(world.purgatory) == 0


def test_a_partition_that_nobody_watches_costs_no_turn() -> None:
    world = World()
    world.move(Place())
    assert world.soon == []


def test_a_waiter_that_breaks_costs_the_others_nothing() -> None:
    """Rule 2.L: an error is never swallowed; its own client is told."""
    world, place = World(), Place()
    broken, sound = Request(breaks=True), Request()
    watch(world, broken, place)
    watch(world, sound, place)
    world.move(place)
    world.turn()
    assert len(broken.failures) == 1
    assert sound.finished == 1
    assert len(world.purgatory) == 0


def test_a_hundred_thousand_waits() -> None:
    world, place = World(), Place()
    requests = [Request() for _ in range(100_000)]
    for request in requests:
        watch(world, request, place)
    world.move(place)
    world.turn()
    assert all(request.finished == 1 for request in requests)
