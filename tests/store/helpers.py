"""All engines behind one door: a world in which stores share a tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient
from tests.waiting import LONG_S

from tidemill.clock import Clock, SystemClock
from tidemill.executor import ThreadExecutor
from tidemill.store.base import VALUE_BYTES_MAX, Event, Store
from tidemill.store.memory import MemoryStore, MemoryTree
from tidemill.store.sqlite import SqliteStore
from tidemill.store.zookeeper import ZooKeeperStore


class World:
    """Makes stores over one tree; `close` ends those that are still open."""

    name = ""
    value_bytes_max = VALUE_BYTES_MAX

    def __init__(self) -> None:
        self._stores: list[Store] = []

    async def open(self, *, session_timeout_ms: int | None = 10_000) -> Store:
        store = self._make()
        self._stores.append(store)
        await store.open(session_timeout_ms=session_timeout_ms)
        return store

    def _make(self) -> Store:
        raise NotImplementedError

    async def expire(self, store: Store) -> None:
        """End a store's session as if it had been silent for too long."""
        raise NotImplementedError

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class MemoryWorld(World):
    name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._tree = MemoryTree(SystemClock())

    def _make(self) -> Store:
        return MemoryStore(self._tree)

    async def expire(self, store: Store) -> None:
        self._tree.expire(store.session_id)
        assert isinstance(store, MemoryStore)
        store.heartbeat()


class SqliteWorld(World):
    name = "sqlite"

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        super().__init__()
        self.path = folder / "store.db"
        self._clock = clock or SystemClock()
        loop = asyncio.get_running_loop()
        self.executor = ThreadExecutor(loop.call_soon_threadsafe, threads=2)

    def _make(self) -> SqliteStore:
        return SqliteStore(self.path, self._clock, self.executor)

    async def expire(self, store: Store) -> None:
        other = self._make()
        await other.open(session_timeout_ms=None)
        try:
            await other._in_executor(lambda: other._open_writer().expire(store.session_id))
        finally:
            await other.close()

    async def close(self) -> None:
        await super().close()
        self.executor.close()


class ZooKeeperWorld(World):
    """Stores below a path of their own on a running server or ensemble."""

    name = "zookeeper"
    # A request is a little larger than the value in it.
    value_bytes_max = 2**20 - 200

    def __init__(self, hosts: str, chroot: str) -> None:
        super().__init__()
        self.hosts = hosts
        self.chroot = chroot
        loop = asyncio.get_running_loop()
        self.executor = ThreadExecutor(loop.call_soon_threadsafe, threads=2)

    def _make(self) -> ZooKeeperStore:
        return ZooKeeperStore(self.hosts, SystemClock(), self.executor, chroot=self.chroot)

    async def expire(self, store: Store) -> None:
        """Close the session from another connection, as a server would on its expiry."""
        assert isinstance(store, ZooKeeperStore)
        assert store._session is not None
        identity = store._session._client.client_id
        await asyncio.to_thread(_close_session, self.hosts, identity)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self.executor.close)


def _close_session(hosts: str, identity: tuple[int, bytes]) -> None:
    client = KazooClient(hosts, client_id=identity)
    client.start(10)
    client.stop()
    client.close()


class Heard:
    """Collects events, and waits until there are as many as expected."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    async def wait_for(self, count: int, timeout_s: float = LONG_S) -> list[Event]:
        await until(lambda: len(self.events) >= count, timeout_s)
        return self.events

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event.kind.value, event.path) for event in self.events]


async def until(condition: Callable[[], bool], timeout_s: float = LONG_S) -> None:
    """Wait for something that another callback of the loop will bring about."""
    async with asyncio.timeout(timeout_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)
