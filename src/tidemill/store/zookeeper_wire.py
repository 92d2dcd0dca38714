"""The requests of ZooKeeper's protocol that kazoo does not have, in the shape kazoo sends.

* `AddWatch` (servers from 3.6): one watch hears of every change below a node and stays.
* `Write`: a transaction whose results carry stats, so that a creation says its commit number.
* `Read` (servers from 3.6): many nodes or lists of children in one request.

A request has a `type`, `serialize()` and `deserialize()`; kazoo's thread calls them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import (
    CheckVersion,
    Create2,
    Delete,
    GetChildren,
    GetData,
    MultiHeader,
    SetData,
    read_buffer,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from tidemill.store import base

REQUEST_BYTES_MAX = 0xFFFFF
"""What a server takes unless its `jute.maxbuffer` was changed; it hangs up on anything larger."""

_EPHEMERAL = 1
_SEQUENCE = 2
_RECURSIVE = 1
_INT = struct.Struct("!i")
_ERROR = -1
_FRAME_BYTES = 8 + 9  # transaction id, type, and the header that ends a transaction
_OP_BYTES = 9 + 4 + 4 + 4 + 31  # header, lengths, flags or version, and who may do what


@dataclass(frozen=True)
class AddWatch:
    """Hear of a node and everything below it, until the connection is lost."""

    type: ClassVar[int] = 106
    path: str

    def serialize(self) -> bytes:
        return bytes(write_string(self.path)) + _INT.pack(_RECURSIVE)

    @staticmethod
    def deserialize(data: bytes, offset: int) -> None:
        return None


@dataclass(frozen=True)
class _Many:
    operations: Sequence[Any]

    def serialize(self) -> bytes:
        packed = bytearray()
        for operation in self.operations:
            packed += MultiHeader(operation.type, False, -1).serialize() + operation.serialize()
        return bytes(packed + MultiHeader(-1, True, -1).serialize())

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        return list(_results(data, offset))


@dataclass(frozen=True)
class Write(_Many):
    """All of these changes, or none."""

    type: ClassVar[int] = 14


@dataclass(frozen=True)
class Read(_Many):
    """Several `GetData` and `GetChildren`, each with its own outcome."""

    type: ClassVar[int] = 22


def _results(data: bytes, offset: int) -> Iterator[Any]:
    """What became of each operation: a value of its kind, or a kazoo error."""
    while True:
        header, offset = MultiHeader.deserialize(data, offset)
        if header.done:
            return
        value: Any = None
        if header.type == Create2.type:
            path, offset = read_string(data, offset)
            stat, offset = _read_stat(data, offset)
            value = (path, stat)
        elif header.type == SetData.type:
            value, offset = _read_stat(data, offset)
        elif header.type == GetData.type:
            content, offset = read_buffer(data, offset)
            stat, offset = _read_stat(data, offset)
            value = (content, stat)
        elif header.type == GetChildren.type:
            value, offset = _read_names(data, offset)
        elif header.type == _ERROR:
            value = EXCEPTIONS[_INT.unpack_from(data, offset)[0]]()
            offset += _INT.size
        yield value


def _read_stat(data: bytes, offset: int) -> tuple[Any, int]:
    return ZnodeStat._make(stat_struct.unpack_from(data, offset)), offset + stat_struct.size


def _read_names(data: bytes, offset: int) -> tuple[list[str], int]:
    count = _INT.unpack_from(data, offset)[0]
    offset += _INT.size
    names = []
    for _ in range(max(count, 0)):
        name, offset = read_string(data, offset)
        names.append(name)
    return names, offset


def to_operation(op: base.Op, path: str) -> Any:
    """The protocol's form of a change, at its full path."""
    match op:
        case base.Create():
            flags = (_EPHEMERAL if op.ephemeral else 0) | (_SEQUENCE if op.sequence else 0)
            return Create2(path, op.value, OPEN_ACL_UNSAFE, flags)
        case base.Put():
            return SetData(path, op.value, op.version)
        case base.Delete():
            return Delete(path, op.version)
        case base.Check():
            return CheckVersion(path, op.version)


def first_error(results: Sequence[Any]) -> tuple[int, Exception] | None:
    """The operation that made a transaction fail: the others only say that they were undone."""
    for index, result in enumerate(results):
        undone = isinstance(result, RolledBackError | RuntimeInconsistency)
        if isinstance(result, Exception) and not undone:
            return index, result
    return None


def to_stat(stat: Any) -> base.Stat:
    """ZooKeeper's transaction numbers are our commit numbers."""
    return base.Stat(
        version=stat.version,
        created=stat.czxid,
        changed=stat.mzxid,
        owner=stat.ephemeralOwner,
        child_version=stat.cversion,
        child_count=stat.numChildren,
    )


def request_bytes(ops: Sequence[base.Op], chroot: str = "") -> int:
    """At most so many bytes will a transaction of these operations have."""
    return _FRAME_BYTES + sum(op_bytes(op, chroot) for op in ops)


def op_bytes(op: base.Op, chroot: str = "") -> int:
    """An operation's share of its transaction's bytes."""
    value = op.value if isinstance(op, base.Create | base.Put) else b""
    return _OP_BYTES + len(chroot.encode()) + len(op.path.encode()) + len(value)
