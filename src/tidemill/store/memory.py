"""The store in memory: the contract without a disk, for simulations and tests.

A `MemoryTree` is the ensemble, shared by all; each broker has its own `MemoryStore`. Events reach a
store through `call_soon`, one commit after the other, and can be held back (`pause`) to play a
client that is slow to hear. Sessions live by the injected clock: whoever runs the simulation calls
`MemoryTree.expire_sessions`, or `expire` to end one at will.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.clock import Clock
from tidemill.store.base import (
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
from tidemill.store.transaction import ROOT, Transaction

CallSoon = Callable[[Callable[[], None]], object]


class Hears(Protocol):
    """Who is told of the commits of a tree."""

    def hear(self, events: Sequence[Event]) -> None:
        """One commit was made, and these are its events."""
        ...


class MemoryTree:
    """The nodes and sessions that several `MemoryStore`s share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nodes: dict[str, Node] = {"/": ROOT}
        self._children: dict[str, dict[str, None]] = {"/": {}}
        self._commit = 0
        self._deadlines: dict[int, tuple[int, int]] = {}
        self._stores: list[Hears] = []

    def read(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        return sorted(self._children[path])

    def commit(self, session_id: int, ops: Sequence[Op]) -> list[OpResult]:
        """Apply the operations as one commit and tell every store of it."""
        transaction = Transaction(self, self._commit + 1, session_id)
        results = transaction.apply(ops)
        self._write(transaction)
        return results

    def open_session(self, timeout_ms: int) -> int:
        self._commit += 1
        self._deadlines[self._commit] = (timeout_ms, self._clock.monotonic_ms() + timeout_ms)
        return self._commit

    def renew(self, session_id: int) -> bool:
        """Extend the session's lease; False if it is expired."""
        if session_id not in self._deadlines:
            return False
        timeout_ms, _ = self._deadlines[session_id]
        self._deadlines[session_id] = (timeout_ms, self._clock.monotonic_ms() + timeout_ms)
        return True

    def has_session(self, session_id: int) -> bool:
        return session_id in self._deadlines

    def expire_sessions(self) -> list[int]:
        """End every session whose lease has run out."""
        now_ms = self._clock.monotonic_ms()
        due = [key for key, (_, deadline_ms) in self._deadlines.items() if deadline_ms <= now_ms]
        for session_id in due:
            self.expire(session_id)
        return due

    def expire(self, session_id: int) -> None:
        """End one session: its ephemeral nodes go in one commit."""
        if self._deadlines.pop(session_id, None) is None:
            return
        owned = [path for path, node in self._nodes.items() if node.stat.owner == session_id]
        if owned:
            transaction = Transaction(self, self._commit + 1, 0)
            transaction.delete_ephemerals(owned)
            self._write(transaction)

    def attach(self, store: Hears) -> None:
        self._stores.append(store)

    def detach(self, store: Hears) -> None:
        self._stores.remove(store)

    def _write(self, transaction: Transaction) -> None:
        changes = transaction.changes()
        if not changes.events:
            return
        self._commit += 1
        for path in changes.deleted:
            del self._nodes[path], self._children[path]
            # A parent that went in the same commit took its list along.
            self._siblings(path).pop(path.rpartition("/")[2], None)
        self._nodes.update(changes.changed)
        for path, node in changes.new.items():
            self._nodes[path] = node
            self._children[path] = {}
            self._siblings(path)[path.rpartition("/")[2]] = None
        for store in self._stores:
            store.hear(changes.events)

    def _siblings(self, path: str) -> dict[str, None]:
        return self._children.get(path.rpartition("/")[0] or "/", {})


class MemoryStore(SingleWrites):
    """One client of a `MemoryTree`; `call_soon` decides when it hears of changes."""

    def __init__(self, tree: MemoryTree, call_soon: CallSoon | None = None) -> None:
        self._tree = tree
        self._call_soon = call_soon
        self._open = False
        self._session_id = 0
        self._session_lost = False
        self._lost_callbacks: list[Callable[[], None]] = []
        self._watches: list[ListedWatch] = []
        self._heard: deque[tuple[Event, list[ListedWatch]]] = deque()
        self._paused = False

    async def open(self, *, session_timeout_ms: int | None) -> None:
        if self._call_soon is None:
            self._call_soon = asyncio.get_running_loop().call_soon
        if not self._open:
            self._tree.attach(self)
        self._open = True
        self._session_lost = False
        if session_timeout_ms is not None:
            self._session_id = self._tree.open_session(session_timeout_ms)

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._tree.detach(self)
        self._tree.expire(self._session_id)
        self._session_id = 0
        self._watches.clear()

    @property
    def session_id(self) -> int:
        return self._session_id

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._lost_callbacks.append(callback)

    def heartbeat(self) -> None:
        """Renew the lease; the owner of the loop calls this while the loop makes progress."""
        if self._session_id and not self._tree.renew(self._session_id):
            self._lose_session()

    async def get(self, path: str) -> Node:
        node = self._read(path)
        if node is None:
            raise NoNode(f"no node {path}")
        return node

    async def exists(self, path: str) -> Stat | None:
        node = self._read(path)
        return None if node is None else node.stat

    async def children(self, path: str) -> list[str]:
        if self._read(path) is None:
            raise NoNode(f"no node {path}")
        return self._tree.children(path)

    async def tree(self, path: str) -> dict[str, Node]:
        root = self._read(path)
        if root is None:
            return {}
        found = {path: root}
        pending = deque([path])
        while pending:
            parent = pending.popleft()
            prefix = parent if parent == "/" else parent + "/"
            for name in self._tree.children(parent):
                node = self._tree.read(prefix + name)
                assert node is not None
                found[prefix + name] = node
                pending.append(prefix + name)
        return found

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        self._check_open()
        if self._session_lost or (
            self._session_id and not self._tree.has_session(self._session_id)
        ):
            self._lose_session()
            raise SessionExpired("the session has expired")
        return self._tree.commit(self._session_id, ops)

    def watch(
        self, path: str, callback: Callable[[Event], None], *, recursive: bool = False
    ) -> ListedWatch:
        check_path(path)
        return ListedWatch(path, callback, recursive, self._watches)

    def hear(self, events: Sequence[Event]) -> None:
        """Queue the events of one commit for the watches that exist now."""
        assert self._call_soon is not None
        for event in events:
            told = [w for w in self._watches if watches(w.path, w.recursive, event.path)]
            if told:
                self._heard.append((event, told))
        if self._heard and not self._paused:
            self._call_soon(self._deliver)

    def pause(self) -> None:
        """Hold events back, as a slow or stopped client would."""
        self._paused = True

    def resume(self) -> None:
        """Deliver what was held back, in order."""
        self._paused = False
        self._deliver()

    def _deliver(self) -> None:
        while self._heard and not self._paused:
            event, told = self._heard.popleft()
            for watch in told:
                if watch in self._watches:
                    call_watcher(watch.callback, event)

    def _read(self, path: str) -> Node | None:
        self._check_open()
        check_path(path)
        return self._tree.read(path)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreUnavailable("the store is closed")

    def _lose_session(self) -> None:
        if self._session_lost:
            return
        self._session_lost = True
        assert self._call_soon is not None
        for callback in self._lost_callbacks:
            self._call_soon(callback)
