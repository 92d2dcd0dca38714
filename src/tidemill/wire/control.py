"""Control records: the markers that end a transaction in a partition's log.

A control batch holds one record that clients never see. Its key says what it is (version, type),
the value of an end-of-transaction marker is the version and the coordinator's epoch. `build_marker`
writes one, `read_marker` reads one back.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from tidemill.errors import WireError
from tidemill.wire.batch import BatchHeader, Buffer
from tidemill.wire.compression import Codec
from tidemill.wire.records import Record, build_batch, iter_records

MARKER_BYTES_MAX: Final = 4096
"""More than any control record needs; they are never compressed."""

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")


class ControlType(IntEnum):
    """What a control record says; types from 2 on belong to Kafka's metadata log."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTransactionMarker(NamedTuple):
    """A commit or an abort, and the epoch of the coordinator that decided it."""

    control_type: ControlType
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        return self.control_type is ControlType.COMMIT


def encode_control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(0, control_type)


def decode_control_type(key: bytes | None) -> ControlType:
    """The type that a control record's key names; what a later version adds is `UNKNOWN`."""
    if key is None or len(key) < _KEY.size:
        raise WireError("control record has no key that says what it is")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise WireError(f"control record key has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def encode_marker_value(coordinator_epoch: int) -> bytes:
    return _VALUE.pack(0, coordinator_epoch)


def decode_marker(record: Record) -> EndTransactionMarker | None:
    """The marker that a control record holds, or None if it is another kind of control record."""
    control_type = decode_control_type(record.key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise WireError("end-of-transaction marker is too short")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise WireError(f"end-of-transaction marker has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)


def build_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a producer's transaction in one partition."""
    key, value = encode_control_key(control_type), encode_marker_value(coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        codec=Codec.NONE,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def read_marker(buf: Buffer, pos: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in the control batch at `pos`; None for a batch without one."""
    for record in iter_records(buf, pos, header, limit_bytes=MARKER_BYTES_MAX):
        return decode_marker(record)
    return None
