"""The store on a ZooKeeper ensemble (3.6 or later): for clusters of more than one machine.

* A read first asks its server to catch up, so it shows every write that had returned before it was
  asked for, whoever made it. `tree` reads many nodes per request; it is no snapshot: changes made
  meanwhile may show in part.
* A write whose connection breaks fails with `StoreUnavailable`: it may have taken effect. Reads are
  repeated on the next connection for as long as a session's timeout.
* A transaction must fit into one request, 1 MiB with a server's defaults (`REQUEST_BYTES_MAX`). A
  larger one is refused as `BadArguments` before anything is sent; `portions` cuts a list of
  operations into transactions that fit, each with the same guard.
* One watch on everything below the root is set with each connection, so that events come in commit
  order and registering a watch needs no request. What happened while there was no connection is
  told afterwards as a difference (`watchers.py`): every node that differs, not every step.
* A session is over when a server says so, or when this process' loop hung (rule A9). While no
  server can be reached, nobody knows: requests fail, and `connected` is False.

The whole tree can live below a path of the ensemble (`chroot`), which is made when it is missing.
Start at `ZooKeeperStore.open`, then `multi`; `zookeeper_session.py` is the way to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kazoo import exceptions as kazoo
from kazoo.protocol.serialization import Exists, GetChildren, GetData, Sync

from tidemill.clock import Clock
from tidemill.executor import Executor
from tidemill.store.base import (
    MULTI_OPS_MAX,
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    Event,
    NoChildrenForEphemerals,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    Put,
    SessionExpired,
    SingleWrites,
    Stat,
    StoreError,
    StoreUnavailable,
    check_path,
    check_value,
)
from tidemill.store.missed import Sight
from tidemill.store.watchers import EnsembleWatch, Watchers
from tidemill.store.zookeeper_session import ZooKeeperSession
from tidemill.store.zookeeper_wire import (
    REQUEST_BYTES_MAX,
    AddWatch,
    Read,
    Write,
    first_error,
    op_bytes,
    request_bytes,
    to_operation,
    to_stat,
)

SESSION_TIMEOUT_MS_MIN = 100
CONNECT_TIMEOUT_MS = 10_000
ANONYMOUS_TIMEOUT_MS = 10_000
"""How long a client without a session of its own waits for a server, and a server for it."""
READS_PER_REQUEST = 200
_SETTLE_PAUSE_S = 0.1
_OVER_AT_ONCE = "ZooKeeper ended the session as soon as it was open; try again"

_SYSTEM = "zookeeper"
"""ZooKeeper keeps its own things below this name of the true root: none of ours."""

_ERRORS: tuple[tuple[type[Exception], type[StoreError]], ...] = (
    (kazoo.NoNodeError, NoNode),
    (kazoo.NodeExistsError, NodeExists),
    (kazoo.BadVersionError, BadVersion),
    (kazoo.NotEmptyError, NotEmpty),
    (kazoo.NoChildrenForEphemeralsError, NoChildrenForEphemerals),
    (kazoo.BadArgumentsError, BadArguments),
    (kazoo.QuotaExceededError, BadArguments),
    (kazoo.SessionExpiredError, SessionExpired),
)


class ZooKeeperStore(SingleWrites):
    """A store on the ensemble at `hosts` ("h1:2181,h2:2181"), below `chroot` ("/a/b" or "")."""

    def __init__(
        self,
        hosts: str,
        clock: Clock,
        executor: Executor,
        *,
        chroot: str = "",
        request_bytes_max: int = REQUEST_BYTES_MAX,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> None:
        if chroot:
            check_path(chroot)
        self._hosts = hosts
        self._clock = clock
        self._executor = executor
        self._chroot = chroot.rstrip("/")
        self._request_bytes_max = request_bytes_max
        self._connect_timeout_ms = connect_timeout_ms
        self._session: ZooKeeperSession | None = None
        self._session_id = 0
        self._session_lost = False
        self._lost_callbacks: list[Callable[[], None]] = []
        self._watchers = Watchers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._settling: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None

    # Life

    async def open(self, *, session_timeout_ms: int | None) -> None:
        if session_timeout_ms is not None and session_timeout_ms < SESSION_TIMEOUT_MS_MIN:
            raise BadArguments(f"a session timeout is at least {SESSION_TIMEOUT_MS_MIN} ms")
        await self._end_session()
        timeout_ms = session_timeout_ms or ANONYMOUS_TIMEOUT_MS
        renews = session_timeout_ms is None
        session = ZooKeeperSession(self._hosts, timeout_ms, self._clock, self, renews=renews)
        self._session = session
        self._session_id = 0
        self._ready = asyncio.get_running_loop().create_future()
        try:
            session.start()
            await self._wait_until_ready()
            if session.over:
                raise StoreUnavailable(_OVER_AT_ONCE)
        except BaseException:
            await self._end_session()
            raise
        self._session_id = 0 if renews else session.session_id
        self._session_lost = False

    async def _wait_until_ready(self) -> None:
        assert self._ready is not None
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await self._ready
        except TimeoutError:
            raise StoreUnavailable(
                f"cannot reach ZooKeeper at {self._hosts}. Is it running, and is the address right?"
            ) from None

    async def close(self) -> None:
        await self._end_session()
        self._watchers.clear()
        self._session_id = 0
        self._session_lost = False

    async def _end_session(self) -> None:
        """Part from the session, if there is one; its threads end elsewhere than on the loop."""
        session, self._session = self._session, None
        if session is None:
            return
        self._watchers.go_deaf(session.zxid)
        session.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def then(result: None, error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(None)

        self._executor.submit(session.finish, then)
        await ended

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def connected(self) -> bool:
        """Whether a server can be talked to, as far as we know."""
        return self._session is not None and self._session.connected

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._lost_callbacks.append(callback)

    # What the session tells

    def on_connected(self) -> None:
        self._settle_anew()

    def on_disconnected(self) -> None:
        assert self._session is not None
        self._watchers.go_deaf(self._session.zxid)

    def on_session_over(self) -> None:
        assert self._session is not None
        self._watchers.go_deaf(self._session.zxid)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(StoreUnavailable(_OVER_AT_ONCE))
        elif self._session_id and not self._session_lost:
            self._session_lost = True
            for callback in self._lost_callbacks:
                asyncio.get_running_loop().call_soon(callback)

    def on_event(self, event: Event) -> None:
        path = self._path_of(event.path)
        if path is not None and not self._watchers.hear(event._replace(path=path)):
            self._settle_anew()

    # Reads

    async def get(self, path: str) -> Node:
        check_path(path)
        value, stat = await self._read(path, GetData(self._full(path), None))
        return Node(value or b"", to_stat(stat))

    async def exists(self, path: str) -> Stat | None:
        check_path(path)
        stat = await self._read(path, Exists(self._full(path), None))
        return None if stat is None else to_stat(stat)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        names = await self._read(path, GetChildren(self._full(path), None))
        return sorted(name for name in names if not self._is_system(path, name))

    async def tree(self, path: str) -> dict[str, Node]:
        check_path(path)
        await self._call(Sync(self._full(path)), path, repeat=True)
        found = await self._read_tree(path, recursive=True)
        return {name: Node(value or b"", to_stat(stat)) for name, (value, stat) in found.items()}

    async def _read(self, path: str, request: Any) -> Any:
        # Should the connection break in between, no server that lags behind will take us.
        await self._call(Sync(self._full(path)), path, repeat=True)
        return await self._call(request, path, repeat=True)

    async def _read_tree(self, path: str, *, recursive: bool) -> dict[str, tuple[bytes, Any]]:
        """The nodes by path, level by level: as many per request, and as many requests, as go."""
        found: dict[str, tuple[bytes, Any]] = {}
        level = [path]
        while level:
            nodes = await self._read_many(level, GetData)
            present = {name: node for name, node in zip(level, nodes, strict=True) if node}
            found.update(present)
            parents = [name for name, (_, stat) in present.items() if stat.numChildren]
            if not recursive or not parents:
                break
            listed = await self._read_many(parents, GetChildren)
            level = [
                f"{parent.rstrip('/')}/{name}"
                for parent, names in zip(parents, listed, strict=True)
                for name in sorted(names or ())
                if not self._is_system(parent, name)
            ]
        return found

    async def _read_many(self, paths: Sequence[str], request: type) -> list[Any]:
        """One answer per path, None for a node that is not there (any more)."""
        calls = [
            self._call(
                Read(
                    [request(self._full(path), None) for path in paths[at : at + READS_PER_REQUEST]]
                ),
                paths[at],
                repeat=True,
            )
            for at in range(0, len(paths), READS_PER_REQUEST)
        ]
        answers = [answer for portion in await asyncio.gather(*calls) for answer in portion]
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, kazoo.NoNodeError):
                raise _translated(answer, path)
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    # Writes

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if self._session_lost:
            raise SessionExpired("the session has expired")
        self._check_ops(ops)
        if not ops:
            return []
        operations = [to_operation(op, self._full(op.path)) for op in ops]
        results = await self._call(Write(operations), ops[0].path, repeat=False)
        failed = first_error(results)
        if failed is not None:
            index, error = failed
            raise _translated(error, ops[index].path, index)
        return [self._result(op, result) for op, result in zip(ops, results, strict=True)]

    def _check_ops(self, ops: Sequence[Op]) -> None:
        if len(ops) > MULTI_OPS_MAX:
            raise BadArguments(f"{len(ops)} operations in one transaction; at most {MULTI_OPS_MAX}")
        for index, op in enumerate(ops):
            try:
                self._check_op(op)
            except StoreError as error:
                error.index = index
                raise
        size_bytes = request_bytes(ops, self._chroot)
        if size_bytes > self._request_bytes_max:
            raise BadArguments(
                f"a transaction of {len(ops)} operations and {size_bytes} bytes; a ZooKeeper "
                f"server takes {self._request_bytes_max} (its jute.maxbuffer). Make it smaller."
            )

    def _check_op(self, op: Op) -> None:
        check_path(op.path)
        if isinstance(op, Create | Put):
            check_value(op.path, op.value)
        if isinstance(op, Create) and op.ephemeral and self._session_id == 0:
            raise SessionExpired(f"{op.path}: an ephemeral node needs a session")
        if isinstance(op, Delete) and op.path == "/":
            raise BadArguments("the root cannot be deleted")

    def _result(self, op: Op, result: Any) -> OpResult:
        match op:
            case Create():
                path = self._path_of(result[0])
                assert path is not None
                return OpResult(path, to_stat(result[1]))
            case Put():
                return OpResult(op.path, to_stat(result))
            case _:
                return OpResult(op.path, None)

    def portions(self, guard: Check, ops: Sequence[Op]) -> Iterator[list[Op]]:
        """Transactions that fit, in order: each is the guard and some of the operations.

        Together they are not one commit: the caller orders the operations so that every prefix
        makes sense.
        """
        start_bytes = request_bytes([guard], self._chroot)
        portion: list[Op] = []
        size_bytes = start_bytes
        for op in ops:
            more_bytes = op_bytes(op, self._chroot)
            if portion and size_bytes + more_bytes > self._request_bytes_max:
                yield [guard, *portion]
                portion, size_bytes = [], start_bytes
            portion.append(op)
            size_bytes += more_bytes
        if portion:
            yield [guard, *portion]

    # Watches

    def watch(
        self, path: str, callback: Callable[[Event], None], *, recursive: bool = False
    ) -> EnsembleWatch:
        check_path(path)
        if self._session is None:
            raise StoreUnavailable("the store is closed")
        watch = self._watchers.add(path, callback, recursive, self._session.zxid)
        if not self._watchers.deaf:
            self._spawn(self._learn(watch))
        return watch

    async def _learn(self, watch: EnsembleWatch) -> None:
        # If it fails, the connection is gone, and the watcher will be told to look again.
        with contextlib.suppress(StoreError):
            self._watchers.learn(watch, await self._look([watch]))

    async def _look(self, asked: Iterable[EnsembleWatch]) -> dict[str, Sight]:
        found: dict[str, Sight] = {}
        for path, recursive in {(watch.path, watch.recursive): None for watch in asked}:
            for name, (_, stat) in (await self._read_tree(path, recursive=recursive)).items():
                found[name] = Sight(stat.czxid, stat.mzxid, stat.pzxid)
        return found

    # After each connect

    def _settle_anew(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = self._spawn(self._settle())

    async def _settle(self) -> None:
        """Hear again, and tell what was missed; with the first connection the store is open."""
        assert self._ready is not None
        while not self._ready.done() or self.connected:
            try:
                await self._hear_again()
            except StoreError as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                await asyncio.sleep(_SETTLE_PAUSE_S)
            else:
                if not self._ready.done():
                    self._ready.set_result(None)
                return

    async def _hear_again(self) -> None:
        assert self._ready is not None
        if self._chroot and not self._ready.done():
            await self._make_chroot()
        root = self._full("/")
        await self._call(AddWatch(root), "/", repeat=True)
        if not self._watchers.deaf:
            return
        await self._call(Sync(root), "/", repeat=True)
        asked = self._watchers.all
        found = await self._look(asked)
        assert self._session is not None
        self._watchers.catch_up(asked, found, self._session.zxid)
        for watch in self._watchers.all:
            if watch not in asked:
                self._spawn(self._learn(watch))

    async def _make_chroot(self) -> None:
        names = self._chroot[1:].split("/")
        for count in range(1, len(names) + 1):
            path = "/" + "/".join(names[:count])
            results = await self._call(Write([to_operation(Create(path), path)]), path, repeat=True)
            failed = first_error(results)
            if failed is not None and not isinstance(failed[1], kazoo.NodeExistsError):
                raise _translated(failed[1], path)

    # The way to the server

    async def _call(self, request: Any, path: str, *, repeat: bool) -> Any:
        if self._session is None:
            raise StoreUnavailable("the store is closed")
        try:
            return await self._session.call(request, repeat=repeat)
        except kazoo.KazooException as error:
            raise _translated(error, path) from error
        except SessionExpired:
            if self._session_id:
                raise
            raise StoreUnavailable("the connection to ZooKeeper has ended; open it again") from None

    def _full(self, path: str) -> str:
        return (self._chroot + path if path != "/" else self._chroot) or "/"

    def _path_of(self, full: str) -> str | None:
        """A path of ours, None if it is somebody else's."""
        if self._chroot:
            if full == self._chroot:
                return "/"
            below = full.startswith(self._chroot + "/")
            return full[len(self._chroot) :] if below else None
        return None if full.split("/")[1] == _SYSTEM else full

    def _is_system(self, parent: str, name: str) -> bool:
        return not self._chroot and parent == "/" and name == _SYSTEM

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _translated(error: Exception, path: str, index: int = 0) -> StoreError:
    """Our error for kazoo's; what has no name here means that the ensemble could not answer."""
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"{path}: {_words(error)}", index)
    if isinstance(error, kazoo.UnimplementedError):
        return StoreUnavailable("this ZooKeeper server is too old: 3.6 is the least", index)
    if isinstance(error, kazoo.NoAuthError | kazoo.AuthFailedError):
        return StoreUnavailable(f"{path}: ZooKeeper denies access to this node", index)
    return StoreUnavailable(f"{path}: ZooKeeper did not answer ({_words(error)})", index)


def _words(error: Exception) -> str:
    """The name of a kazoo error, which often is all it says."""
    return str(error) or type(error).__name__.removesuffix("Error")
