"""How a commit changes the tree: the one implementation behind the engines that hold it.

A `Transaction` reads nodes through a `NodeTable` (a dict, or a SQL table), keeps all changes to
itself, and hands them over as a `Changes` for the engine to write at once. If an operation fails,
nothing was touched. Pure and synchronous: the engine supplies the commit's number and the session.

Start at `Transaction.apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tidemill.store.base import (
    ANY_VERSION,
    MULTI_OPS_MAX,
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    Event,
    EventKind,
    NoChildrenForEphemerals,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    Put,
    SessionExpired,
    Stat,
    StoreError,
    check_path,
    check_value,
    split_path,
)


class NodeTable(Protocol):
    """The committed nodes, as a transaction reads them."""

    def read(self, path: str) -> Node | None: ...


class Changes(NamedTuple):
    """What a successful transaction asks the engine to write."""

    new: dict[str, Node]
    changed: dict[str, Node]
    deleted: list[str]
    events: list[Event]


class Transaction:
    """One commit in the making."""

    def __init__(self, table: NodeTable, commit: int, session_id: int) -> None:
        self._table = table
        self._commit = commit
        self._session_id = session_id
        self._before: dict[str, Node | None] = {}
        self._now: dict[str, Node | None] = {}
        self._events: list[Event] = []

    def apply(self, ops: Sequence[Op]) -> list[OpResult]:
        """Apply the operations in order; an error names the index of the one that failed."""
        if len(ops) > MULTI_OPS_MAX:
            raise BadArguments(f"{len(ops)} operations in one transaction; at most {MULTI_OPS_MAX}")
        results = []
        for index, op in enumerate(ops):
            try:
                results.append(self._apply_one(op))
            except StoreError as error:
                error.index = index
                raise
        return results

    def delete_ephemerals(self, paths: Iterable[str]) -> None:
        """Remove what a session that is over leaves behind."""
        for path in paths:
            self._delete(Delete(path))

    def changes(self) -> Changes:
        """Everything done so far, for the engine to write."""
        new, changed, deleted = {}, {}, []
        for path, node in self._now.items():
            before = self._before[path]
            if node is None:
                if before is not None:
                    deleted.append(path)
            elif before is None:
                new[path] = node
            elif node is not before:
                changed[path] = node
        return Changes(new, changed, deleted, self._events)

    def _apply_one(self, op: Op) -> OpResult:
        match op:
            case Create():
                return self._create(op)
            case Put():
                return self._put(op)
            case Delete():
                return self._delete(op)
            case Check():
                node = self._expect(op.path, op.version)
                return OpResult(op.path, node.stat)

    def _read(self, path: str) -> Node | None:
        if path in self._now:
            return self._now[path]
        if path != "/" and self._is_new(split_path(path)[0]):
            # Its parent was made by this transaction, so the table cannot hold it: a topic of
            # 10,000 partitions is created without 20,000 look-ups.
            node = None
        else:
            node = self._table.read(path)
        self._before[path] = node
        self._now[path] = node
        return node

    def _is_new(self, path: str) -> bool:
        return path in self._now and self._before[path] is None

    def _expect(self, path: str, version: int) -> Node:
        check_path(path)
        node = self._read(path)
        if node is None:
            raise NoNode(f"no node {path}")
        if version not in (ANY_VERSION, node.stat.version):
            raise BadVersion(f"{path} has version {node.stat.version}, not {version}")
        return node

    def _create(self, op: Create) -> OpResult:
        if op.ephemeral and self._session_id == 0:
            raise SessionExpired(f"{op.path}: an ephemeral node needs a session")
        check_path(op.path)
        check_value(op.path, op.value)
        parent_path, _ = split_path(op.path)
        parent = self._read(parent_path)
        if parent is None:
            raise NoNode(f"{op.path}: no parent node {parent_path}")
        if parent.stat.owner:
            raise NoChildrenForEphemerals(f"{parent_path} is ephemeral and cannot be a parent")
        path = f"{op.path}{parent.stat.child_version:010d}" if op.sequence else op.path
        if path == "/" or self._read(path) is not None:
            raise NodeExists(f"{path} exists already")
        owner = self._session_id if op.ephemeral else 0
        stat = Stat(0, self._commit, self._commit, owner, 0, 0)
        self._now[path] = Node(op.value, stat)
        self._count_child(parent_path, parent, 1)
        self._events.append(Event(EventKind.CREATED, path, self._commit))
        return OpResult(path, stat)

    def _put(self, op: Put) -> OpResult:
        check_value(op.path, op.value)
        before = self._expect(op.path, op.version).stat
        stat = before._replace(version=before.version + 1, changed=self._commit)
        self._now[op.path] = Node(op.value, stat)
        self._events.append(Event(EventKind.CHANGED, op.path, self._commit))
        return OpResult(op.path, stat)

    def _delete(self, op: Delete) -> OpResult:
        node = self._expect(op.path, op.version)
        if op.path == "/":
            raise BadArguments("the root cannot be deleted")
        if node.stat.child_count:
            raise NotEmpty(f"{op.path} has {node.stat.child_count} children")
        parent_path, _ = split_path(op.path)
        parent = self._read(parent_path)
        assert parent is not None
        self._now[op.path] = None
        self._count_child(parent_path, parent, -1)
        self._events.append(Event(EventKind.DELETED, op.path, self._commit))
        return OpResult(op.path, None)

    def _count_child(self, path: str, parent: Node, change: int) -> None:
        stat = parent.stat
        self._now[path] = parent._replace(
            stat=stat._replace(
                child_version=stat.child_version + 1, child_count=stat.child_count + change
            )
        )


ROOT = Node(b"", Stat(0, 0, 0, 0, 0, 0))
"""The node that every store is born with."""
