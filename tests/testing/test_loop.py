"""Virtual time, its order, and processes that stand still or die."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tidemill.testing.clock import START_MS
from tidemill.testing.loop import (
    RealWorldError,
    SimLoop,
    SimulationStuckError,
    VirtualClock,
    VirtualExecutor,
)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.close()
    assert made.unhandled == []


def test_a_day_passes_at_once(loop: SimLoop) -> None:
    clock = VirtualClock(loop)

    async def sleep_long() -> str:
        await asyncio.sleep(86_400)
        return "awake"

    assert loop.run_until_complete(sleep_long()) == "awake"
    assert loop.time() == 86_400
    assert clock.monotonic_ms() == 86_400_000
    assert clock.now_ms() == START_MS + 86_400_000
    assert loop.steps < 10


def test_the_order_is_time_then_sequence(loop: SimLoop) -> None:
    seen: list[str] = []
    loop.call_later(0.2, seen.append, "late")
    loop.call_later(0.1, seen.append, "first of two")
    loop.call_at(0.1, seen.append, "second of two")
    loop.call_soon(seen.append, "now")
    loop.run_for(1)
    assert seen == ["now", "first of two", "second of two", "late"]


def test_many_equal_times_keep_their_order(loop: SimLoop) -> None:
    seen: list[int] = []
    for number in range(1_000):
        loop.call_later(0.5, seen.append, number)
    loop.run_for(1)
    assert seen == list(range(1_000))


def test_milliseconds_are_exact(loop: SimLoop) -> None:
    """A timer for n ms fires when the clock says n, not n - 1: sums of floats would drift."""
    clock = VirtualClock(loop)
    seen: list[int] = []

    async def tick() -> None:
        for _ in range(1_000):
            await asyncio.sleep(0.007)
            seen.append(clock.monotonic_ms())

    loop.run_until_complete(tick())
    assert seen == [7 * number for number in range(1, 1_001)]


def test_asyncio_itself_works(loop: SimLoop) -> None:
    async def work() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(_put_all(queue, 5))
            taken = [await queue.get() for _ in range(5)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        assert await loop.run_in_executor(None, sum, [1, 2, 3]) == 6
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return taken

    assert loop.run_until_complete(work()) == [0, 1, 2, 3, 4]
    assert loop.time() == 3


async def _put_all(queue: asyncio.Queue[int], count: int) -> None:
    for number in range(count):
        await queue.put(number)


def test_cancelled_timers_are_forgotten(loop: SimLoop) -> None:
    """A client sets a timeout per request and cancels nearly all of them: they must not pile up."""
    for _ in range(50_000):
        loop.call_later(3_600, lambda: None).cancel()
    assert len(loop._timers) < 5_000
    fired: list[str] = []
    loop.call_later(3_600, fired.append, "kept")
    loop.run_for(3_601)
    assert fired == ["kept"]


def test_a_deadlock_is_an_error_that_names_who_waits(loop: SimLoop) -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationStuckError, match="waits_for_ever"):
        loop.run_until_complete(waits_for_ever())


def test_callbacks_that_never_let_time_pass_are_an_error() -> None:
    loop = SimLoop(steps_per_instant_max=1_000)

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(SimulationStuckError, match="time stands still"):
        loop.run_for(1)
    loop.close()


def test_what_nobody_caught_is_kept() -> None:
    loop = SimLoop()
    loop.call_soon(lambda: 1 // 0)
    loop.run_for(1)
    loop.close()
    assert [type(context["exception"]) for context in loop.unhandled] == [ZeroDivisionError]


def _forbidden(loop: SimLoop) -> list[Callable[[], object]]:
    return [
        lambda: loop.add_reader(0, lambda: None),
        lambda: loop.add_writer(0, lambda: None),
        lambda: loop.add_signal_handler(2, lambda: None),
        lambda: loop.run_until_complete(loop.create_connection(asyncio.Protocol, "h", 1)),
        lambda: loop.run_until_complete(loop.create_server(asyncio.Protocol, "h", 1)),
        lambda: loop.run_until_complete(loop.getaddrinfo("localhost", 1)),
        lambda: loop.run_until_complete(asyncio.create_subprocess_exec("true")),
        lambda: loop.run_until_complete(asyncio.create_subprocess_shell("true")),
    ]


@pytest.mark.parametrize("number", range(8))
def test_the_real_world_is_refused(loop: SimLoop, number: int) -> None:
    with pytest.raises(RealWorldError, match="has to use"):
        _forbidden(loop)[number]()


def test_other_threads_are_refused(loop: SimLoop) -> None:
    errors: list[Exception] = []

    def intrude() -> None:
        try:
            loop.call_soon_threadsafe(lambda: None)
        except RealWorldError as error:
            errors.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert len(errors) == 1


# Domains


async def _count(seen: list[float], loop: SimLoop) -> None:
    while True:
        await asyncio.sleep(1)
        seen.append(loop.time())


def test_a_paused_process_catches_up(loop: SimLoop) -> None:
    seen: list[float] = []
    domain = loop.domain("broker")
    domain.create_task(_count(seen, loop))
    loop.run_for(2.5)
    domain.pause()
    loop.run_for(10)
    assert seen == [1, 2]
    domain.resume()
    loop.run_for(1.6)
    assert seen == [1, 2, 12.5, 13.5]


def test_what_a_paused_process_missed_comes_before_what_is_due_when_it_goes_on(
    loop: SimLoop,
) -> None:
    """A connection is accepted before it is lost."""
    seen: list[str] = []
    domain = loop.domain("broker")
    domain.pause()
    for missed in ("first", "second"):
        domain.call_soon(seen.append, missed)
    loop.run_for(1)
    domain.call_soon(seen.append, "third")
    domain.resume()
    loop.run_for(1)
    assert seen == ["first", "second", "third"]


def test_what_a_callback_starts_belongs_to_its_domain(loop: SimLoop) -> None:
    seen: list[str] = []
    domain = loop.domain("broker")

    async def parent() -> None:
        asyncio.get_running_loop().create_task(child())
        loop.call_later(1, lambda: loop.call_soon(seen.append, loop.current_domain().name))

    async def child() -> None:
        await asyncio.sleep(2)
        seen.append(loop.current_domain().name)

    domain.create_task(parent())
    loop.run_for(5)
    assert seen == ["broker", "broker"]
    assert loop.current_domain() is loop.root


def test_a_crashed_process_runs_nothing_not_even_finally(loop: SimLoop) -> None:
    seen: list[str] = []
    domain = loop.domain("broker")
    event = asyncio.Event()

    async def victim() -> None:
        try:
            await event.wait()
            seen.append("woken")
        finally:
            seen.append("finally")
            await asyncio.sleep(1)
            seen.append("after")

    domain.create_task(victim())
    domain.run(loop.call_later, 1, seen.append, "timer")
    loop.run_for(0.5)
    domain.crash()
    event.set()
    domain.call_soon(seen.append, "soon")
    loop.run_for(10)
    assert seen == []


def test_a_process_can_crash_itself_half_way(loop: SimLoop) -> None:
    """As a power cut in the middle of a write does."""
    seen: list[str] = []
    domain = loop.domain("broker")

    async def victim() -> None:
        seen.append("before")
        domain.crash()
        await asyncio.sleep(0)
        seen.append("after")

    domain.create_task(victim())
    loop.run_for(1)
    assert seen == ["before"]


def test_closing_ends_stubborn_tasks_in_silence() -> None:
    loop = SimLoop()

    async def stubborn() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(3_600)
            finally:
                await asyncio.sleep(1)

    tasks = [loop.domain("broker").create_task(stubborn()) for _ in range(3)]
    loop.run_for(1)
    loop.close()
    assert not any(task.done() for task in tasks)
    assert loop.unhandled == []


def test_the_executor_does_the_work_at_the_end_of_its_delay(loop: SimLoop) -> None:
    executor = VirtualExecutor(loop, Random(1), delay_ms_max=100)
    domain = loop.domain("broker")
    seen: list[object] = []
    domain.run(executor.submit, lambda: seen.append("work"), lambda *_: seen.append("told"))
    executor.submit(lambda: 1 // 0, lambda _, error: seen.append(type(error)))
    assert seen == []
    domain.crash()
    loop.run_for(1)
    assert seen == [ZeroDivisionError]


def test_a_wall_clock_can_be_set_and_durations_go_on(loop: SimLoop) -> None:
    clock = VirtualClock(loop)
    clock.step(-5_000)
    loop.run_for(1)
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS - 4_000, 1_000)


def test_the_end_of_the_world_waits_for_nobody(loop: SimLoop) -> None:
    """A coroutine that awaits in its `finally` is ended all the same, however deep it is.

    Left to the collector it would complain, and any such complaint fails a test.
    """
    never = [loop.create_future() for _ in range(4)]
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            await never[0]
        finally:
            try:
                await never[1]
            finally:
                try:
                    await never[2]
                finally:
                    ended.append("inner")

    async def outer() -> None:
        await stubborn()

    loop.root.create_task(outer())
    loop.run_for(1)
    loop.close()
    gc.collect()
    assert ended == ["inner"]
