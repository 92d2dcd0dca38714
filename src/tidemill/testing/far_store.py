"""A broker's way to the store of a simulated cluster, through the network.

A `FarStore` is to its broker what a ZooKeeper client is: requests take time, get lost with their
connection, and may have taken effect all the same (`StoreUnavailable`); a session that was not
heard of for its timeout is over, and its owner learns of it late; events come in commit order,
those of a broken connection with the next one. A `CuttingStore` is one whose transactions are
small: what is longer is cut, as ZooKeeper's are, and its pieces are several commits.

    ensemble = Ensemble(network.host("store"))
    store = FarStore(ensemble.post, broker_host.connect, broker_host.clock)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidemill.client.connection import Connector
from tidemill.clock import Clock
from tidemill.store.base import (
    Check,
    Event,
    ListedWatch,
    Node,
    NoNode,
    Op,
    OpResult,
    SessionExpired,
    SingleWrites,
    Stat,
    StoreError,
    StoreUnavailable,
    call_watcher,
    check_path,
    watches,
)
from tidemill.testing.ensemble import (
    HOST,
    PORT,
    Answer,
    Ask,
    Bye,
    Heard,
    Hello,
    Line,
    Over,
    Ping,
    Post,
    Welcome,
)

CONNECT_TIMEOUT_S = 1.0
OPEN_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.05
ANONYMOUS_TIMEOUT_MS = 10_000
WAITING_MAX = 10_000


class _Call:
    def __init__(self, number: int, name: str, about: Any) -> None:
        self.ask = Ask(number, name, about)
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class FarStore(SingleWrites):
    """One client of an `Ensemble`; implements `Store` and `KnowsContact`."""

    def __init__(self, post: Post, connector: Connector, clock: Clock) -> None:
        self._post = post
        self._connector = connector
        self._clock = clock
        self._session_id = 0
        self._timeout_ms = ANONYMOUS_TIMEOUT_MS
        self._wants_session = False
        self._is_over = False
        self._line: Line | None = None
        self._is_welcome = False
        self._last_heard_ms = 0
        self._heard_to = -1
        self._ready: asyncio.Future[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._numbers = 0
        self._waiting: deque[_Call] = deque()
        self._in_flight: dict[int, _Call] = {}
        self._watches: list[ListedWatch] = []
        self._lost_callbacks: list[Callable[[], None]] = []

    # Life

    async def open(self, *, session_timeout_ms: int | None) -> None:
        self._leave()
        self._wants_session = session_timeout_ms is not None
        self._timeout_ms = session_timeout_ms or ANONYMOUS_TIMEOUT_MS
        self._is_over = False
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._keeping = loop.create_task(self._keep_connected())
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await self._ready
        except BaseException as error:
            self._leave()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("the store cannot be reached") from None
            raise

    async def close(self) -> None:
        self._leave()
        self._watches.clear()

    def _leave(self) -> None:
        """Part from the session, if there is one."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        if self._line is not None:
            self._line.send(Bye())
            self._line.end()
        self._session_id = 0
        self._is_over = True
        self._fail(self._waiting, StoreUnavailable("the store was closed"))

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def connected(self) -> bool:
        return self._is_welcome

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._lost_callbacks.append(callback)

    # The connection

    async def _keep_connected(self) -> None:
        while not self._is_over:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, line = await self._connector(self._new_line, HOST, PORT)
                assert isinstance(line, Line)
                await self._stay(line)
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(RETRY_PAUSE_S)

    def _new_line(self) -> Line:
        return Line(self._post, self._receive, self._line_ended)

    async def _stay(self, line: Line) -> None:
        """Ping until nothing is heard any more; then another connection may do better."""
        self._line = line
        self._last_heard_ms = self._clock.monotonic_ms()
        session_id = self._session_id if self._wants_session else None
        line.send(Hello(session_id, self._timeout_ms, self._heard_to))
        while line.is_open and not self._is_over:
            await asyncio.sleep(self._timeout_ms / 3000)
            silent_ms = self._clock.monotonic_ms() - self._last_heard_ms
            if 3 * silent_ms > 2 * self._timeout_ms:
                line.end()
            line.send(Ping())

    def _receive(self, line: Line, letter: Any) -> None:
        if line is not self._line:
            return
        self._last_heard_ms = self._clock.monotonic_ms()
        if isinstance(letter, Answer):
            self._answered(letter)
        elif isinstance(letter, Heard):
            self._hear(letter.events)
        elif isinstance(letter, Welcome):
            self._welcomed(letter)
        elif isinstance(letter, Over):
            self._session_is_over()

    def _line_ended(self, line: Line) -> None:
        """What was asked and not answered may have been done; what only reads is asked again."""
        if line is not self._line:
            return
        self._line = None
        self._is_welcome = False
        lost, self._in_flight = self._in_flight, {}
        for call in lost.values():
            if call.ask.name == "multi":
                self._fail([call], StoreUnavailable("the connection to the store broke"))
            else:
                self._waiting.appendleft(call)

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.session_id is None:
            self._session_is_over()
            return
        self._session_id = welcome.session_id
        self._heard_to = welcome.heard_to
        self._is_welcome = True
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
        self._pump()

    def _session_is_over(self) -> None:
        self._is_over = True
        if self._line is not None:
            self._line.end()
        self._fail(self._waiting, SessionExpired("the session has expired"))
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(StoreUnavailable("the session was over at once"))
            return
        for callback in self._lost_callbacks:
            asyncio.get_running_loop().call_soon(callback)

    # Requests

    async def get(self, path: str) -> Node:
        node = await self._read(path)
        if node is None:
            raise NoNode(f"no node {path}")
        return node

    async def exists(self, path: str) -> Stat | None:
        node = await self._read(path)
        return None if node is None else node.stat

    async def _read(self, path: str) -> Node | None:
        node: Node | None = await self._ask("read", path)
        return node

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._ask("children", path)
        return names

    async def tree(self, path: str) -> dict[str, Node]:
        found: dict[str, Node] = await self._ask("tree", path)
        return found

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        results: list[OpResult] = await self._ask("multi", tuple(ops))
        return results

    async def _ask(self, name: str, about: Any) -> Any:
        if self._is_over:
            raise SessionExpired("the session has expired")
        if isinstance(about, str):
            check_path(about)
        if len(self._waiting) >= WAITING_MAX:
            raise StoreUnavailable(f"{WAITING_MAX} requests wait for the store already")
        self._numbers += 1
        call = _Call(self._numbers, name, about)
        self._waiting.append(call)
        self._pump()
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await call.future
        except TimeoutError:
            raise StoreUnavailable("no answer from the store in time") from None

    def _pump(self) -> None:
        """Send what waits; while there is no connection nothing is, since callers give up."""
        while self._waiting and self._is_welcome and self._line is not None:
            call = self._waiting.popleft()
            if not call.future.done():
                self._in_flight[call.ask.number] = call
                self._line.send(call.ask)

    def _answered(self, answer: Answer) -> None:
        call = self._in_flight.pop(answer.number, None)
        if call is None or call.future.done():
            return
        if answer.error is None:
            call.future.set_result(answer.value)
        else:
            call.future.set_exception(answer.error)

    def _fail(self, calls: deque[_Call] | list[_Call], error: StoreError) -> None:
        failed = list(calls)
        calls.clear()
        for call in failed:
            if not call.future.done():
                call.future.set_exception(error)

    # Watches

    def watch(
        self, path: str, callback: Callable[[Event], None], *, recursive: bool = False
    ) -> ListedWatch:
        check_path(path)
        return ListedWatch(path, callback, recursive, self._watches)

    def _hear(self, events: Sequence[Event]) -> None:
        self._heard_to += 1
        for event in events:
            for watch in [w for w in self._watches if watches(w.path, w.recursive, event.path)]:
                if watch in self._watches:
                    call_watcher(watch.callback, event)


class CuttingStore(FarStore):
    """Its transactions hold a few operations and the guard; implements `CutsCommits`, too."""

    def __init__(self, post: Post, connector: Connector, clock: Clock, *, ops_max: int) -> None:
        super().__init__(post, connector, clock)
        self.on_cut: Callable[[], None] = lambda: None
        """Called when some pieces of a commit were written and another was not, for all we know."""
        self._ops_max = ops_max
        self._written = 0

    def portions(self, guard: Check, ops: Sequence[Op]) -> Iterator[list[Op]]:
        for start in range(0, len(ops), self._ops_max):
            self._written = start
            yield [guard, *ops[start : start + self._ops_max]]
        self._written = 0

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        try:
            return await super().multi(ops)
        except StoreError:
            if self._written:
                self._written = 0
                self.on_cut()
            raise
