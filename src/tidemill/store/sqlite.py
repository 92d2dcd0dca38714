"""The embedded store: all brokers of one machine share one SQLite file.

* Reads of single nodes run on the loop (microseconds, never blocked by writers). Writes and bulk
  reads run in an executor, one after the other, in the order in which they were asked for.
* A session is a lease in the file plus a lock on a file of its own. The loop renews the lease, so a
  stuck loop loses its session like a dead process. The lock vanishes with its process, so others
  notice a death at their next sweep, and a stopped process when its lease runs out. Whoever notices
  first deletes the session and its ephemeral nodes in one commit.
* Watches look every 20 ms whether anybody has committed and are poked by a datagram in between. A
  broker that is alone looks at its sweeps: a core that wakes up for it pays a hundred microseconds.

One machine is one point of failure: for more, use an ensemble. Start at `SqliteStore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tidemill.clock import Clock
from tidemill.executor import Executor, Then
from tidemill.store.base import (
    BadArguments,
    Event,
    ListedWatch,
    Node,
    NoNode,
    Op,
    OpResult,
    SessionExpired,
    SingleWrites,
    Stat,
    StoreUnavailable,
    call_watcher,
    check_path,
    watches,
)
from tidemill.store.sql import SessionRow, StoreFile
from tidemill.store.sqlite_session import Session, boot_id, is_dead, is_over, lock_path

T = TypeVar("T")

POLL_MS = 20
SWEEP_MS = 100
QUEUED_WRITES_MAX = 10_000
SESSION_TIMEOUT_MS_MIN = 100


class SqliteStore(SingleWrites):
    """A store over the file at `path`, which is made when it does not exist."""

    def __init__(self, path: str | Path, clock: Clock, executor: Executor) -> None:
        self._path = str(path)
        self._clock = clock
        self._executor = executor
        self._reader: StoreFile | None = None
        self._writer: StoreFile | None = None
        self._queue: deque[tuple[Callable[[], Any], Then[Any]]] = deque()
        self._working = False
        self._session: Session | None = None
        self._session_lost = False
        self._renewed_ms = 0
        self._judges_from_ms = 0
        """Until then others may have been held up as we were: their leases prove nothing."""
        self._lost_callbacks: list[Callable[[], None]] = []
        self._watches: list[ListedWatch] = []
        self._seen = 0
        self._data_version = -1
        self._behind = False
        self._others: list[SessionRow] = []
        self._expiring: set[int] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._poker: socket.socket | None = None

    # Life

    async def open(self, *, session_timeout_ms: int | None) -> None:
        if session_timeout_ms is not None and session_timeout_ms < SESSION_TIMEOUT_MS_MIN:
            raise BadArguments(f"a session timeout is at least {SESSION_TIMEOUT_MS_MIN} ms")
        if self._writer is None:
            await self._in_executor(self._connect)
            self._poker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._poker.setblocking(False)
        assert self._reader is not None
        if session_timeout_ms is not None:
            timeout_ms = session_timeout_ms
            self._session = await self._in_executor(lambda: self._open_session(timeout_ms))
            self._renewed_ms = self._clock.monotonic_ms()
            self._session_lost = False
            self._listen(self._session)
            self._every("renew", timeout_ms // 3, self._renew)
        self._data_version = self._reader.data_version()
        self._seen = self._reader.latest()
        self._every("poll", POLL_MS, self._poll_others)
        self._every("sweep", SWEEP_MS, self._sweep)

    def _connect(self) -> None:
        # The store will hold secrets: nobody but the owner may read it.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        writer = StoreFile(self._path)
        try:
            self._reader = StoreFile(self._path)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        for row in writer.sessions():
            if is_over(self._path, row, self._clock.monotonic_ms()):
                self._expire(row)

    def _open_session(self, timeout_ms: int) -> Session:
        assert self._writer is not None
        session = Session(self._path, timeout_ms)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        try:
            self._writer.open_session(timeout_ms, deadline_ms, boot_id(), session.begin)
        except BaseException:
            session.end()
            raise
        return session

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._watches.clear()
        if self._reader is None:
            return
        self._reader.close()
        self._reader = None
        await self._in_executor(self._disconnect)
        self._poke()
        if self._poker is not None:
            self._poker.close()
            self._poker = None
        self._stop_listening()
        if self._session is not None:
            self._session.end()
            self._session = None

    def _disconnect(self) -> None:
        writer = self._open_writer()
        self._writer = None
        try:
            if self._session is not None:
                writer.expire(self._session.session_id)
        finally:
            writer.close()

    @property
    def session_id(self) -> int:
        return 0 if self._session is None else self._session.session_id

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._lost_callbacks.append(callback)

    # Reads

    async def get(self, path: str) -> Node:
        node = self._read(path)
        if node is None:
            raise NoNode(f"no node {path}")
        return node

    async def exists(self, path: str) -> Stat | None:
        node = self._read(path)
        return None if node is None else node.stat

    async def children(self, path: str) -> list[str]:
        await self.get(path)
        assert self._reader is not None
        return self._reader.children(path)

    async def tree(self, path: str) -> dict[str, Node]:
        check_path(path)
        return await self._in_executor(lambda: self._open_writer().tree(path))

    def _read(self, path: str) -> Node | None:
        check_path(path)
        if self._reader is None:
            raise StoreUnavailable("the store is closed")
        return self._reader.read(path)

    # Writes

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if self._session_lost:
            raise SessionExpired("the session has expired")
        session_id = self.session_id
        try:
            results = await self._in_executor(lambda: self._open_writer().commit(session_id, ops))
        except SessionExpired:
            # Without a session the request itself is at fault; with one, the session is over.
            if session_id and session_id == self.session_id:
                self._lose_session()
            raise
        self._poke()
        self._poll_soon()
        return results

    async def expire_session(self) -> None:
        """End our session as if its lease had run out: for tests. We hear of it as ever."""
        session_id = self.session_id
        await self._in_executor(lambda: self._open_writer().expire(session_id))

    def _open_writer(self) -> StoreFile:
        if self._writer is None:
            raise StoreUnavailable("the store is closed")
        return self._writer

    async def _in_executor(self, work: Callable[[], T]) -> T:
        """Run work on the writing connection, in turn.

        The work goes on if the caller is cancelled: it may be half way to the disk.
        """
        if len(self._queue) >= QUEUED_WRITES_MAX:
            raise StoreUnavailable(f"{QUEUED_WRITES_MAX} requests already wait for the store")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def then(result: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        self._submit(work, then)
        return await done

    def _submit(self, work: Callable[[], T], then: Then[T]) -> None:
        self._queue.append((work, then))
        if not self._working:
            self._work_next()

    def _work_next(self) -> None:
        self._working = bool(self._queue)
        if not self._queue:
            return
        work, then = self._queue.popleft()

        def finished(result: Any, error: BaseException | None) -> None:
            self._work_next()
            then(result, error)

        self._executor.submit(work, finished)

    # Sessions

    def _renew(self) -> None:
        session = self._session
        if session is None or self._session_lost:
            return
        deadline_ms = self._clock.monotonic_ms() + session.timeout_ms
        seen = self._seen

        def renewed(result: bool | None, error: BaseException | None) -> None:
            # A store that cannot write now is asked again at the next interval.
            if error is None and not result:
                self._lose_session()
            elif error is None:
                self._renewed(session)

        self._submit(
            lambda: self._open_writer().renew(session.session_id, deadline_ms, seen), renewed
        )

    def _renewed(self, session: Session) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._is_held_up(session, now_ms):
            self._judges_from_ms = now_ms + session.timeout_ms
        self._renewed_ms = now_ms

    def _is_held_up(self, session: Session, now_ms: int) -> bool:
        """Whether renewing takes so long that others who live may not have managed it."""
        return now_ms - self._renewed_ms > session.timeout_ms // 2

    def _sweep(self) -> None:
        """Look for sessions that are over: ours, and those of the dead and the stopped."""
        if self._reader is None:
            return
        self._poll()
        rows = self._reader.sessions()
        if self._session is not None and self.session_id not in {row.session_id for row in rows}:
            self._lose_session()
        self._others = [row for row in rows if row.session_id != self.session_id]
        now_ms = self._clock.monotonic_ms()
        for row in self._others:
            if row.session_id not in self._expiring and self._is_over(row, now_ms):
                self._expiring.add(row.session_id)
                self._submit(partial(self._expire, row), partial(self._expired, row))

    def _is_over(self, row: SessionRow, now_ms: int) -> bool:
        """Whether a session is over; its lease says so only where it could have been renewed."""
        session = self._session
        if session is not None and (
            now_ms < self._judges_from_ms or self._is_held_up(session, now_ms)
        ):
            return is_dead(self._path, row)
        return is_over(self._path, row, now_ms)

    def _expire(self, row: SessionRow) -> bool:
        expired = self._open_writer().expire(row.session_id, row.deadline_ms)
        if expired:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock_path(self._path, row.session_id))
        return expired

    def _expired(self, row: SessionRow, result: bool | None, error: BaseException | None) -> None:
        self._expiring.discard(row.session_id)
        if result:
            self._poke()
            self._poll_soon()

    def _lose_session(self) -> None:
        if self._session_lost:
            return
        self._session_lost = True
        self._stop_listening()
        if self._session is not None:
            self._session.end()
        loop = asyncio.get_running_loop()
        for callback in self._lost_callbacks:
            loop.call_soon(callback)

    # Watches

    def watch(
        self, path: str, callback: Callable[[Event], None], *, recursive: bool = False
    ) -> ListedWatch:
        check_path(path)
        if self._reader is None:
            raise StoreUnavailable("the store is closed")
        since = self._reader.latest()
        return ListedWatch(path, callback, recursive, self._watches, since)

    def _poll_others(self) -> None:
        if self._others:
            self._poll()

    def _poll(self) -> None:
        """Deliver what has been committed since the last look, if anything, a portion at a time."""
        if self._reader is None:
            return
        data_version = self._reader.data_version()
        if data_version == self._data_version and not self._behind:
            return
        self._data_version = data_version
        if not self._watches:
            self._seen = self._reader.latest()
            self._behind = False
            return
        events = self._reader.events_after(self._seen)
        self._behind = bool(events)
        if events:
            self._seen = events[-1].commit
            for event in events:
                self._tell(event)
            self._poll_soon()

    def _tell(self, event: Event) -> None:
        for watch in list(self._watches):
            if watch.since < event.commit and watches(watch.path, watch.recursive, event.path):
                call_watcher(watch.callback, event)

    def _poll_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._poll)

    # Pokes and timers

    def _listen(self, session: Session) -> None:
        if session.ears is not None:
            asyncio.get_running_loop().add_reader(session.ears.fileno(), self._hear, session.ears)

    def _stop_listening(self) -> None:
        if self._session is not None and self._session.ears is not None:
            asyncio.get_running_loop().remove_reader(self._session.ears.fileno())

    def _hear(self, ears: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while ears.recv(16):
                pass
        self._poll()

    def _poke(self) -> None:
        """Tell the other brokers to look now; a lost poke costs them one poll interval."""
        if self._poker is None:
            return
        for row in self._others:
            if row.address:
                with contextlib.suppress(OSError):
                    self._poker.sendto(b"!", row.address)

    def _every(self, name: str, interval_ms: int, action: Callable[[], None]) -> None:
        """Run the action again and again; an error goes to the loop and stops nothing."""
        loop = asyncio.get_running_loop()
        if name in self._timers:
            self._timers[name].cancel()

        def run() -> None:
            self._timers[name] = loop.call_later(interval_ms / 1000, run)
            action()

        self._timers[name] = loop.call_later(interval_ms / 1000, run)


def live_nodes(path: str | Path, prefix: str, clock: Clock) -> dict[str, Node]:
    """What a store file says of the nodes below `prefix` right now, without joining it.

    Ephemeral nodes of sessions that are over but not yet swept are left out, so the answer is true
    after a crash, too. An absent file has no nodes.
    """
    if not os.path.exists(path):
        return {}
    file = StoreFile(str(path))
    try:
        nodes = file.tree(prefix)
        sessions = file.sessions()
    finally:
        file.close()
    now_ms = clock.monotonic_ms()
    alive = {row.session_id for row in sessions if not is_over(str(path), row, now_ms)} | {0}
    return {name: node for name, node in nodes.items() if node.stat.owner in alive}
