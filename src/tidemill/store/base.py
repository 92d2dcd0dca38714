"""What a store promises: a tree of small versioned nodes, sessions, watches, and transactions.

The model is ZooKeeper's, so that a real ensemble can be one of the engines:

* every node has a value and a version that grows by one with each put; writes can be conditional
  on it (compare and set), and `multi` applies several writes together or not at all;
* every commit has a number, and all commits of a store are in one order;
* an ephemeral node belongs to a session and goes with it; a session that is not kept alive for its
  timeout is expired by others, and its owner's next write fails with `SessionExpired`;
* a read shows every write that had returned before it was asked for, whoever made it;
* a watch is persistent and tells of every change after its registration, in commit order. A read
  may already show a change whose event is still on its way, never the other way round. A client
  that could not hear for a while is told the difference afterwards, not every step;
* a write that has returned survives a power cut, in the engines that have a disk.

All methods belong to one event loop. Paths start with `/`, do not end with it, and are bounded
like everything else here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from tidemill.errors import TidemillError

ANY_VERSION = -1
"""As an expected version: whatever it is."""

VALUE_BYTES_MAX = 1 << 20
PATH_CHARS_MAX = 1024
MULTI_OPS_MAX = 200_000


class StoreError(TidemillError):
    """A request that the store refused; `index` is the operation within a `multi`, else 0."""

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index


class NoNode(StoreError):  # noqa: N818 - these are the names everyone knows from ZooKeeper
    """The node, or the parent of the node to create, does not exist."""


class NodeExists(StoreError):  # noqa: N818
    """There is a node at that path already."""


class BadVersion(StoreError):  # noqa: N818
    """The node's version is not the expected one: somebody else wrote first."""


class NotEmpty(StoreError):  # noqa: N818
    """The node still has children."""


class NoChildrenForEphemerals(StoreError):  # noqa: N818
    """Ephemeral nodes cannot be parents."""


class BadArguments(StoreError):  # noqa: N818
    """A path, value or request out of bounds."""


class SessionExpired(StoreError):  # noqa: N818
    """The session is over: its ephemeral nodes are gone or will go. Open a new one."""


class StoreUnavailable(StoreError):  # noqa: N818
    """The store cannot be reached or cannot write; the outcome of the request is unknown."""


class StoreFormatError(StoreError):
    """The stored data was written by a version of this program that we do not understand."""


class Stat(NamedTuple):
    """What is known of a node beside its value.

    `created` and `changed` are commit numbers: the creation's names an incarnation of the node.
    `owner` is the session of an ephemeral node, else 0.
    """

    version: int
    created: int
    changed: int
    owner: int
    child_version: int
    child_count: int


class Node(NamedTuple):
    """A node's value with its stat."""

    value: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; with `sequence` ten digits that only grow are appended to its path."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Replace the value of a node."""

    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but fail the transaction unless the node has this version."""

    path: str
    version: int = ANY_VERSION


Op = Create | Put | Delete | Check


class OpResult(NamedTuple):
    """What one operation of a transaction did: the final path, and the node's stat afterwards.

    The stat is None for a Delete, and for a Check where the engine does not say it.
    """

    path: str
    stat: Stat | None


class EventKind(Enum):
    """What happened to a node."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


class Event(NamedTuple):
    """One change that a watch tells of; `commit` is the number of the transaction that made it."""

    kind: EventKind
    path: str
    commit: int


class Watch(Protocol):
    """A registered watch."""

    def cancel(self) -> None:
        """No further events."""
        ...


class Store(Protocol):
    """One client's view of the store, with at most one session at a time."""

    async def open(self, *, session_timeout_ms: int | None) -> None:
        """Connect. Without a session timeout there is no session: read, watch, and write, but
        make no ephemeral nodes."""
        ...

    async def close(self) -> None:
        """End the session, if any, removing its ephemeral nodes at once, and disconnect."""
        ...

    @property
    def session_id(self) -> int:
        """The session's id, 0 without one."""
        ...

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back, on the loop, when the session turns out to be expired."""
        ...

    async def get(self, path: str) -> Node:
        """The node, or NoNode."""
        ...

    async def exists(self, path: str) -> Stat | None:
        """The node's stat, or None."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names of the node's children, sorted, or NoNode."""
        ...

    async def tree(self, path: str) -> dict[str, Node]:
        """The node and all below it by path, parents first; empty if there is no such node."""
        ...

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> OpResult:
        """Make one node; see `Create`."""
        ...

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace a value; see `Put`."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node; see `Delete`."""
        ...

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """Apply all operations in order as one commit, or none and raise the error of the first
        that failed. An operation sees what those before it did."""
        ...

    def watch(
        self, path: str, callback: Callable[[Event], None], *, recursive: bool = False
    ) -> Watch:
        """Tell of every later change of this node, with `recursive` also of all below it.

        The node need not exist. The creation or deletion of a child is an event of the child.
        """
        ...


@runtime_checkable
class KnowsContact(Protocol):
    """A store that is elsewhere, and knows whether it can be reached."""

    @property
    def connected(self) -> bool:
        """Whether it can be talked to, as far as we know."""
        ...


@runtime_checkable
class CutsCommits(Protocol):
    """A store whose transactions have a largest size, and that can cut a longer list."""

    def portions(self, guard: Check, ops: Sequence[Op]) -> Iterator[list[Op]]:
        """Transactions that fit, in order, each with the guard."""
        ...


class ListedWatch:
    """A watch of a store that keeps its watches in a list; cancelled, it leaves that list.

    It is told of commits after `since`.
    """

    def __init__(
        self,
        path: str,
        callback: Callable[[Event], None],
        recursive: bool,
        listed_in: list[ListedWatch],
        since: int = -1,
    ) -> None:
        self.path = path
        self.callback = callback
        self.recursive = recursive
        self.since = since
        self._listed_in = listed_in
        listed_in.append(self)

    def cancel(self) -> None:
        if self in self._listed_in:
            self._listed_in.remove(self)


class SingleWrites(ABC):
    """One write is a transaction of one: what every engine does with it."""

    @abstractmethod
    async def multi(self, ops: Sequence[Op]) -> list[OpResult]: ...

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> OpResult:
        return (await self.multi([Create(path, value, ephemeral, sequence)]))[0]

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
        stat = (await self.multi([Put(path, value, version)]))[0].stat
        assert stat is not None
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])


def check_path(path: str) -> None:
    """Refuse what is not a path: `/`, or names with a slash before each, none of them . or .."""
    if path == "/":
        return
    names = path[1:].split("/")
    wrong = not path.startswith("/") or len(path) > PATH_CHARS_MAX or "\0" in path
    if wrong or any(name in ("", ".", "..") for name in names):
        raise BadArguments(f"not a path: {path[:100]!r}")


def check_value(path: str, value: bytes) -> None:
    """Refuse a value that a store of small nodes should not hold."""
    if len(value) > VALUE_BYTES_MAX:
        raise BadArguments(f"{path}: a value of {len(value)} bytes; at most {VALUE_BYTES_MAX}")


def split_path(path: str) -> tuple[str, str]:
    """The parent's path and the node's name."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def watches(watched: str, recursive: bool, path: str) -> bool:
    """Whether a watch on `watched` is told of a change of `path`."""
    if path == watched:
        return True
    return recursive and path.startswith(watched if watched == "/" else watched + "/")


def call_watcher(callback: Callable[[Event], None], event: Event) -> None:
    """Tell one watcher; its error goes to the loop's handler and costs nobody else the event."""
    try:
        callback(event)
    except Exception as error:  # noqa: BLE001 - whatever it was, the others must hear
        context = {"message": f"a watcher of {event.path} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
