"""Work off the loop: a bounded pool of threads that reports back on it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.waiting import LONG_S

from tidemill.executor import ThreadExecutor


class Reports:
    """What came back, and a wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, BaseException | None]] = []
        self._more = asyncio.Event()

    def then(self, result: Any, error: BaseException | None) -> None:
        self.seen.append((result, error))
        self._more.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(LONG_S):
            while len(self.seen) < count:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def executor() -> AsyncIterator[ThreadExecutor]:
    made = ThreadExecutor(asyncio.get_running_loop().call_soon_threadsafe, threads=3, name="pool")
    yield made
    made.close()


def threads_of(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


async def test_results_and_errors_come_back_on_the_loop(executor: ThreadExecutor) -> None:
    reports = Reports()
    where: list[int] = []

    def then(result: Any, error: BaseException | None) -> None:
        where.append(threading.get_ident())
        reports.then(result, error)

    executor.submit(threading.get_ident, then)
    await reports.wait_for(1)
    executor.submit(lambda: 1 // 0, then)
    await reports.wait_for(2)
    (worker, none), (nothing, error) = reports.seen
    assert (none, nothing) == (None, None)
    assert worker != threading.get_ident()
    assert isinstance(error, ZeroDivisionError)
    assert set(where) == {threading.get_ident()}


async def test_as_many_at_once_as_there_may_be_threads(executor: ThreadExecutor) -> None:
    reports = Reports()
    meeting = threading.Barrier(3)
    for _ in range(9):
        executor.submit(lambda: meeting.wait(LONG_S), reports.then)
    await reports.wait_for(9)
    assert {error for _, error in reports.seen} == {None}
    assert threads_of("pool") == 3


@pytest.mark.parametrize("count", [2, 3])
async def test_those_handed_in_first_run_at_once(executor: ThreadExecutor, count: int) -> None:
    """However few: a thread that is about to have work is not an idle one."""
    reports = Reports()
    meeting = threading.Barrier(count)
    for _ in range(count):
        executor.submit(lambda: meeting.wait(LONG_S), reports.then)
    await reports.wait_for(count)
    assert {error for _, error in reports.seen} == {None}


async def test_what_is_short_does_not_wait_behind_what_is_long(executor: ThreadExecutor) -> None:
    reports = Reports()
    gate = threading.Event()
    executor.submit(lambda: "first", reports.then)
    await reports.wait_for(1)
    executor.submit(lambda: gate.wait(LONG_S), reports.then)
    executor.submit(lambda: "short", reports.then)
    await reports.wait_for(2)
    gate.set()
    await reports.wait_for(3)
    assert [result for result, _ in reports.seen] == ["first", "short", True]


async def test_an_idle_thread_is_used_again(executor: ThreadExecutor) -> None:
    reports = Reports()
    for number in range(50):
        executor.submit(lambda number=number: number, reports.then)  # type: ignore[misc]
        await reports.wait_for(number + 1)
    assert [result for result, _ in reports.seen] == list(range(50))
    assert threads_of("pool") == 1


async def test_the_end_comes_after_what_was_handed_in(executor: ThreadExecutor) -> None:
    reports = Reports()
    gate = threading.Event()
    for number in range(6):
        executor.submit(lambda number=number: (gate.wait(LONG_S), number), reports.then)  # type: ignore[misc]
    gate.set()
    executor.close()
    await reports.wait_for(6)
    assert sorted(number for (_, number), _ in reports.seen) == list(range(6))
    assert threads_of("pool") == 0
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(gate.set, reports.then)
    executor.close()


async def test_without_any_thread_nothing_is_taken(
    executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hears that it failed must not have it run behind their back later."""
    reports = Reports()
    begun = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more_threads)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            executor.submit(begun.set, reports.then)
    executor.submit(lambda: "later", reports.then)
    await reports.wait_for(1)
    assert reports.seen == [("later", None)]
    assert not begun.is_set()


async def test_with_fewer_threads_than_wanted_the_others_take_it(
    executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports()
    gate = threading.Event()
    executor.submit(lambda: gate.wait(LONG_S), reports.then)
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    executor.submit(lambda: "second", reports.then)
    gate.set()
    await reports.wait_for(2)
    assert [result for result, _ in reports.seen] == [True, "second"]


async def test_nothing_of_the_work_is_held(executor: ThreadExecutor) -> None:
    """A broker collects garbage seldom: what a thread holds on to while idle stays for long."""

    class Load:
        pass

    def fails(load: Load) -> Callable[[], None]:
        def work() -> None:
            raise ValueError(load)

        return work

    reports = Reports()
    load = Load()
    gone = weakref.ref(load)
    executor.submit(fails(load), reports.then)
    await reports.wait_for(1)
    reports.seen.clear()
    del load
    async with asyncio.timeout(LONG_S):
        while gone() is not None:  # noqa: ASYNC110 - the thread tells nobody
            await asyncio.sleep(0.001)


async def test_threads_end_with_a_pool_that_nobody_closed() -> None:
    call_soon = asyncio.get_running_loop().call_soon_threadsafe
    reports = Reports()
    forgotten = ThreadExecutor(call_soon, threads=3, name="forgotten")
    forgotten.submit(lambda: 1, reports.then)
    await reports.wait_for(1)
    assert threads_of("forgotten") == 1
    del forgotten
    async with asyncio.timeout(LONG_S):
        while threads_of("forgotten"):  # noqa: ASYNC110 - the thread tells nobody
            await asyncio.sleep(0.001)


def no_more_threads(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
