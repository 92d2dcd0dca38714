"""How a client without asyncio runs its asyncio twin: a loop in a thread, and methods that wait.

`waits_for` and `calls` make a method of such a client from one of its twin, with the same
arguments, types and documentation.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from tidemill.client.errors import ClosedError

T = TypeVar("T")
P = ParamSpec("P")


class Twin(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=Twin)


class Client(Generic[C]):
    """A loop in a thread, and the asyncio client that lives on it."""

    def __init__(
        self,
        make: Callable[[], C],
        *,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._make = make
        self._new_loop = new_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._twin: C | None = None

    def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        loop = self._new_loop()
        self._loop = loop
        self._thread = threading.Thread(
            target=loop.run_forever, name="tidemill-client", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._begin())
        except BaseException:
            self._stop_loop()
            raise

    async def _begin(self) -> None:
        twin = self._make()
        await twin.start()
        self._twin = twin

    def close(self) -> None:
        """Finish what is under way and end the thread."""
        twin, self._twin = self._twin, None
        try:
            if twin is not None:
                self._wait(twin.close())
        finally:
            self._stop_loop()

    def _stop_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _running(self) -> C:
        if self._twin is None:
            raise ClosedError("this client is not running; use it inside `with`")
        return self._twin

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop's thread; the caller waits for it later."""
        loop = self._loop
        if loop is None:
            work.close()
            raise ClosedError("this client is not running; use it inside `with`")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop's thread and wait for it."""
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while we wait ends the work, too.
            raise

    def _call(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a plain function on the loop's thread."""

        async def call() -> T:
            return function(*args, **named)

        return self._wait(call())


def fast_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, where there is one: for who moves so much that importing it is nothing."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def waits_for(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client[C], P], T]:
    """A method that runs the twin's coroutine on the loop's thread and waits for it."""

    @functools.wraps(method)
    def wait(self: Client[C], /, *args: P.args, **named: P.kwargs) -> T:
        return self._wait(method(self._running, *args, **named))

    return wait


def calls(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Client[C], P], T]:
    """A method that calls the twin's on the loop's thread, where its state may be touched."""

    @functools.wraps(method)
    def call(self: Client[C], /, *args: P.args, **named: P.kwargs) -> T:
        return self._call(method, self._running, *args, **named)

    return call
