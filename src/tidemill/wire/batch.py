"""Record batches (format v2) seen from outside: the 61-byte header, the CRC, and stamping.

A broker moves batches without looking at their records. `read_header` turns the fixed header into
a `BatchHeader`, `iter_headers` walks the batches of a buffer, `crc_matches` checks one, and `stamp`
writes what a leader assigns - base offset and leader epoch - in place. What is inside a batch is
the business of `tidemill.wire.records`.

The CRC-32C covers everything from the attributes to the end, so it neither protects nor has to be
recomputed for the base offset, the length, the leader epoch and the magic byte in front of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from fastcrc import crc32

from tidemill.errors import WireError
from tidemill.wire.compression import Codec, codec_of

Buffer = bytes | bytearray | memoryview

MAGIC: Final = 2
HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
"""Base offset and length: the part of a batch that its length field does not count."""

OFFSET_DELTA_MAX: Final = 2**31 - 1
SEQUENCE_MAX: Final = 2**31 - 1

LENGTH_POS: Final = 8
LEADER_EPOCH_POS: Final = 12
MAGIC_POS: Final = 16
CRC_POS: Final = 17
ATTRIBUTES_POS: Final = 21
MAX_TIMESTAMP_POS: Final = 35

TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_MAGIC_AFTER_OVERHEAD_BYTES: Final = MAGIC_POS + 1
_LEGACY_LENGTH_MIN: Final = 14
_LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES
_int64 = struct.Struct(">q")
_int32 = struct.Struct(">i")
_int16 = struct.Struct(">h")
_uint32 = struct.Struct(">I")


class CorruptBatchError(WireError):
    """A batch whose bytes contradict themselves or its CRC."""


class InvalidRecordError(CorruptBatchError):
    """A sound batch - its CRC fits - that holds a record which makes no sense."""


class UnsupportedMagicError(WireError):
    """A v0 or v1 message set where a v2 batch is needed; `tidemill.wire.legacy` can read it.

    Kafka 4.3 answers a Produce request that holds one with INVALID_RECORD for the partition, base
    offset, append time and log start -1, and neither record errors nor a message.
    """

    def __init__(self, magic: int) -> None:
        self.magic = magic
        super().__init__(
            f"message format v{magic} is not supported; produce with a client that writes "
            "record batches (format v2, any client since 0.11)"
        )


class TimestampType(IntEnum):
    """Who set a batch's timestamps."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


TIMESTAMP_TYPES: Final = (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)
"""By the bit in a batch's attributes; a look-up costs a third of `TimestampType(...)`."""


class BatchHeader(NamedTuple):
    """The header of one batch, as it stands in the buffer."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header and length field included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records are compressed; raises `WireError` for an unknown codec."""
        return codec_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return TIMESTAMP_TYPES[self.attributes >> 3 & 1]

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > -1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def has_delete_horizon(self) -> bool:
        """Whether compaction replaced the base timestamp by the time to drop tombstones."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.has_delete_horizon else None


_as_header = tuple.__new__
"""`BatchHeader._make` without its check of the length, which the struct's format settles."""


def crc32c(data: Buffer, before: int = 0) -> int:
    """The checksum of record batches, CRC-32C (Castagnoli), of `data` after what made `before`."""
    checksum: int = crc32.iscsi(data, before)
    return checksum


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`; the rest of the batch need not be in the buffer.

    Raises `UnsupportedMagicError` for an old message set, `CorruptBatchError` for anything else
    that is not a v2 batch.
    """
    left_bytes = len(buf) - pos
    if pos < 0 or left_bytes < _MAGIC_AFTER_OVERHEAD_BYTES:
        raise CorruptBatchError(f"{left_bytes} bytes are too few for a record batch")
    if (magic := buf[pos + MAGIC_POS]) != MAGIC:
        _refuse_magic(magic)
    if left_bytes < HEADER_BYTES:
        raise CorruptBatchError(f"{left_bytes} bytes are too few for a record batch's header")
    header = _as_header(BatchHeader, HEADER.unpack_from(buf, pos))
    if header.batch_length < _LENGTH_MIN:
        raise CorruptBatchError(f"record batch declares a length of {header.batch_length}")
    return header


def _refuse_magic(magic: int) -> None:
    if magic < MAGIC:
        raise UnsupportedMagicError(magic)
    raise CorruptBatchError(f"unknown message format v{magic}")


def iter_headers(
    buf: Buffer, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in `buf[start:end]`; a partial tail ends it."""
    stop = len(buf) if end is None else min(end, len(buf))
    pos = start
    while stop - pos >= LOG_OVERHEAD_BYTES:
        (length,) = _int32.unpack_from(buf, pos + LENGTH_POS)
        if length < _LEGACY_LENGTH_MIN:
            raise CorruptBatchError(f"record batch at byte {pos} declares a length of {length}")
        if stop - pos < _MAGIC_AFTER_OVERHEAD_BYTES:
            return
        if (magic := buf[pos + MAGIC_POS]) != MAGIC:
            _refuse_magic(magic)
        if length < _LENGTH_MIN:
            raise CorruptBatchError(f"record batch at byte {pos} declares a length of {length}")
        size_bytes = length + LOG_OVERHEAD_BYTES
        if stop - pos < size_bytes:
            return
        yield pos, _as_header(BatchHeader, HEADER.unpack_from(buf, pos))
        pos += size_bytes


def crc_matches(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the batch at `pos` is whole and its bytes are the ones its CRC was made of."""
    end = pos + header.batch_length + LOG_OVERHEAD_BYTES
    if end > len(buf):
        return False
    checksum: int = crc32.iscsi(memoryview(buf)[pos + ATTRIBUTES_POS : end], 0)
    return checksum == header.crc


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader assigns into the batch at `pos`; the CRC does not cover it."""
    _int64.pack_into(buf, pos, base_offset)
    _int32.pack_into(buf, pos + LEADER_EPOCH_POS, leader_epoch)


def stamp_append_time(buf: bytearray | memoryview, pos: int, timestamp_ms: int) -> None:
    """Give every record of the batch at `pos` the broker's time, and recompute the CRC.

    The records keep their deltas: readers take the maximum timestamp for all of them.
    """
    header = read_header(buf, pos)
    _int16.pack_into(buf, pos + ATTRIBUTES_POS, header.attributes | TIMESTAMP_TYPE_BIT)
    _int64.pack_into(buf, pos + MAX_TIMESTAMP_POS, timestamp_ms)
    write_crc(buf, pos, header.size_bytes)


def write_crc(buf: bytearray | memoryview, pos: int, size_bytes: int) -> None:
    """Recompute the CRC of the batch of `size_bytes` at `pos` after a change under it."""
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_POS : pos + size_bytes])
    _uint32.pack_into(buf, pos + CRC_POS, crc)


def pack_batch(header: BatchHeader, body: Buffer) -> bytes:
    """A whole batch of `body`, with the header's length and CRC replaced by the right ones."""
    length = HEADER_BYTES + len(body) - LOG_OVERHEAD_BYTES
    head = HEADER.pack(*header._replace(batch_length=length, magic=MAGIC, crc=0))
    crc = crc32c(body, crc32c(head[ATTRIBUTES_POS:]))
    return b"".join((head[:CRC_POS], _uint32.pack(crc), head[ATTRIBUTES_POS:], body))
