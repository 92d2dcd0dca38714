"""Where blocking work goes: fsync, big compressions, cold reads never run on the event loop.

Code below the broker is handed an `Executor` and never starts a thread itself, so a simulation can
run the same work inline, in an order that its seed decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Then = Callable[[T | None, BaseException | None], None]
"""Called on the loop with the result, or with the error that the work raised."""


class Executor(Protocol):
    """Runs work off the loop and reports back on it."""

    def submit(self, work: Callable[[], T], then: Then[T]) -> None:
        """Run `work` elsewhere; afterwards call `then(result, error)` on the loop."""
        ...


class OwnedExecutor(Executor, Protocol):
    """An executor whose owner ends it."""

    def close(self) -> None:
        """Wait for the work under way; take no more."""
        ...


class ExecutorFactory(Protocol):
    """Makes the executors of a broker; what they report comes back on the running loop."""

    def __call__(self, *, threads: int, name: str) -> OwnedExecutor: ...


class InlineExecutor:
    """Runs the work at once, in the caller's turn: for simulations, tests and one-shot tools."""

    def submit(self, work: Callable[[], T], then: Then[T]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it was
            then(None, error)
        else:
            then(result, None)


class ThreadExecutor:
    """A bounded pool of threads whose results come back through `call_soon` on the loop.

    `call_soon` must be safe to call from any thread (`loop.call_soon_threadsafe`); work is handed
    in by one thread. A flush is handed over for every few batches, and the standard library's pool
    spends three times as long on that as is needed, on futures that nobody would look at.

    The threads are daemons: a program that forgets to close a client can end all the same.
    """

    def __init__(
        self, call_soon: Callable[..., object], *, threads: int, name: str = "tidemill-work"
    ) -> None:
        self._call_soon = call_soon
        self._threads_max = threads
        self._name = name
        self._threads: list[Thread] = []
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Then[Any]] | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        """One for each thread that has nothing to do, and that no task is meant for yet."""
        self._is_closed = False

    def submit(self, work: Callable[[], T], then: Then[T]) -> None:
        """Run `work` in a thread; raises `RuntimeError` if there can be none."""
        if self._is_closed:
            raise RuntimeError(f"{self._name} takes no more work: it was closed")
        try:
            self._idle.pop()
        except IndexError:
            self._start_thread()
        self._tasks.put((work, then))

    def _start_thread(self) -> None:
        count = len(self._threads)
        if count == self._threads_max:
            return
        thread = Thread(target=self._serve, name=f"{self._name}_{count}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not count:
                raise
            return  # Those that there are will come to it.
        self._threads.append(thread)

    def _serve(self) -> None:
        while True:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                self._idle.append(None)
                task = self._tasks.get()
            if task is None:
                return
            self._run(*task)
            del task

    def _run(self, work: Callable[[], T], then: Then[T]) -> None:
        """Work and report, and keep hold of neither the result nor the error.

        An error knows the frames it came through, and they the ones that called them. Were it to be
        found from here, all that the work had in its hands would stay until the collector comes,
        and a broker's comes seldom.
        """
        try:
            self._report(then, work(), None)
        except BaseException as error:  # noqa: BLE001 - the caller is told, whatever it was
            self._report(then, None, error)

    def _report(self, then: Then[T], result: T | None, error: BaseException | None) -> None:
        try:
            self._call_soon(then, result, error)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            return

    def close(self) -> None:
        """Wait for all that was handed in, and stop the threads."""
        if not self._is_closed:
            self._is_closed = True
            for _ in self._threads:
                self._tasks.put(None)
        for thread in self._threads:
            thread.join()


def thread_executor(*, threads: int, name: str) -> ThreadExecutor:
    """Threads that report to the running loop."""
    call_soon = asyncio.get_running_loop().call_soon_threadsafe
    return ThreadExecutor(call_soon, threads=threads, name=name)
