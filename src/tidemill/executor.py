"""Where blocking work goes: fsync, big compressions, cold reads never run on the event loop.

Code below the broker is handed an `Executor` and never starts a thread itself, so a simulation can
run the same work inline, in an order that its seed decides.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
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


class _Shared:
    """What a pool's threads know of it. They must not know the pool: it could never be dropped."""

    __slots__ = ("call_soon", "lock", "tasks", "threads", "unfinished")

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self.call_soon = call_soon
        self.tasks: SimpleQueue[tuple[Callable[[], Any], Then[Any]] | None] = SimpleQueue()
        self.lock = Lock()
        self.threads: list[Thread] = []
        self.unfinished = 0
        """Tasks that wait or are under way: more than threads, and another one is worth it."""

    def serve(self) -> None:
        """What each thread does."""
        while (task := self.tasks.get()) is not None:
            self._run(*task)
            del task

    def end(self) -> None:
        """Have each thread stop once nothing waits any more."""
        for _ in self.threads:
            self.tasks.put(None)

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
        with self.lock:
            self.unfinished -= 1
        try:
            self.call_soon(then, result, error)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            return


class ThreadExecutor:
    """A bounded pool of threads whose results come back through `call_soon` on the loop.

    `call_soon` must be safe to call from any thread (`loop.call_soon_threadsafe`). Every few
    batches a flush is handed over, and the standard library's pool spends three times as long on
    that as is needed, on futures that nobody would look at.

    The threads are daemons, and end with a pool that is dropped: a program that forgets to close a
    client can go on, and end, all the same.
    """

    def __init__(
        self, call_soon: Callable[..., object], *, threads: int, name: str = "tidemill-work"
    ) -> None:
        self._threads_max = threads
        self._name = name
        self._shared = _Shared(call_soon)
        self._end = weakref.finalize(self, self._shared.end)

    def submit(self, work: Callable[[], T], then: Then[T]) -> None:
        """Run `work` in a thread; raises `RuntimeError` if there can be none."""
        shared = self._shared
        with shared.lock:
            if not self._end.alive:
                raise RuntimeError(f"{self._name} takes no more work: it was closed")
            if shared.unfinished >= len(shared.threads) < self._threads_max:
                self._start_thread()
            shared.unfinished += 1
            shared.tasks.put((work, then))

    def _start_thread(self) -> None:
        threads = self._shared.threads
        name = f"{self._name}_{len(threads)}"
        thread = Thread(target=self._shared.serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not threads:
                raise
            return  # Those that there are will come to it.
        threads.append(thread)

    def close(self) -> None:
        """Wait for all that was handed in, and stop the threads."""
        with self._shared.lock:
            self._end()
        for thread in self._shared.threads:
            thread.join()


def thread_executor(*, threads: int, name: str) -> ThreadExecutor:
    """Threads that report to the running loop."""
    call_soon = asyncio.get_running_loop().call_soon_threadsafe
    return ThreadExecutor(call_soon, threads=threads, name=name)
