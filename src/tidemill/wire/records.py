"""The records inside a batch: decode with `iter_records`, encode with `build_batch`.

`BatchBuilder` is the producer's form of the latter: it encodes each record when it is appended, so
that building - and building again with a new producer epoch or sequence - costs no second encoding.
Whoever only has to know that the records are sound, or when they were made, asks
`tidemill.wire.record_checks`, which makes no objects of them.

Both directions are inner loops, and this is why they look the way they do: the one- and two-byte
cases of a varint are written out where they occur, and everything longer goes to a function.
Hostile input is refused with `InvalidRecordError`, a `WireError`: every record must end where its
length says, lengths are never negative except -1 for null, offsets stay inside the batch, and
nothing may be left over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from tidemill.wire.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC,
    OFFSET_DELTA_MAX,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    InvalidRecordError,
    TimestampType,
    pack_batch,
)
from tidemill.wire.compression import Codec, compress, decompress

Headers = Sequence[tuple[str, bytes | None]]

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, two null lengths and a header count, one byte each."""

RECORD_OVERHEAD_BYTES_MAX: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""What a record adds to its key, value and headers at most."""

HEADERS_MAX: Final = 2**31 - 1
"""As many as a record's format can count: Kafka knows no limit."""

_OFFSET_MAX: Final = 2**63 - 1
TIMESTAMP_MAX: Final = 2**63 - 1
TIMESTAMP_MIN: Final = -(2**63)


class Record(NamedTuple):
    """One record with its absolute offset and timestamp (a tuple: a third of the cost to make)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


# --- decoding -----------------------------------------------------------------------------------


def records_body(buf: Buffer, pos: int, header: BatchHeader, *, limit_bytes: int) -> bytes:
    """The encoded records of the batch at `pos`, decompressed to at most `limit_bytes`."""
    end = pos + header.size_bytes
    if end > len(buf):
        raise CorruptBatchError(f"record batch ends {end - len(buf)} bytes after its buffer")
    body = decompress(
        header.codec, memoryview(buf)[pos + HEADER_BYTES : end], limit_bytes=limit_bytes
    )
    if not 0 <= header.record_count <= len(body) // RECORD_BYTES_MIN:
        raise InvalidRecordError(
            f"record batch declares {header.record_count} records in {len(body)} bytes"
        )
    check_offsets(header)
    return body


def check_offsets(header: BatchHeader) -> None:
    """Refuse offsets that do not fit into 64 bits: compiled readers would see them wrap."""
    if header.base_offset + max(header.last_offset_delta, 0) > _OFFSET_MAX:
        raise InvalidRecordError(f"batch's offsets from {header.base_offset} on are out of range")


def iter_records(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    limit_bytes: int,
    headers_max: int = HEADERS_MAX,
) -> Iterator[Record]:
    """Each record of the batch at `pos`; decompression stops at `limit_bytes` with an error.

    So does a record with more than `headers_max` headers.
    """
    body = records_body(buf, pos, header, limit_bytes=limit_bytes)
    append_time = None
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        append_time = header.max_timestamp
    return _decode(body, header, append_time, headers_max)


def _decode(
    body: bytes, header: BatchHeader, append_time: int | None, headers_max: int
) -> Iterator[Record]:
    """The inner loop; a slice that runs over the end is short, and `pos != end` then tells."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_delta, size, pos = header.last_offset_delta, len(body), 0
    new, cls = tuple.__new__, Record
    try:
        for _ in range(header.record_count):
            if (byte := body[pos]) & 0x81 == 0x80 and (high := body[pos + 1]) < 0x80:
                pos += 2
                end = pos + ((byte & 0x7F | high << 7) >> 1)
            else:
                length, pos = read_length(body, pos)
                end = pos + length
            if end > size:
                raise InvalidRecordError(f"record at byte {pos} ends after its batch")
            pos += 1  # The record's own attributes are unused.
            if (byte := body[pos]) < 0x80:
                pos += 1
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            else:
                delta, pos = read_varlong(body, pos)
                timestamp = base_timestamp + delta
            if (byte := body[pos]) < 0x80:
                pos += 1
                delta = (byte >> 1) ^ -(byte & 1)
            elif (high := body[pos + 1]) < 0x80 and not byte & 1:
                pos += 2
                delta = (byte & 0x7F | high << 7) >> 1
            else:
                delta, pos = read_varint(body, pos)
            if not 0 <= delta <= last_delta:
                raise InvalidRecordError(f"record's offset delta {delta} is outside its batch")
            if body[pos] == 1:  # -1, null
                pos += 1
                key = None
            else:
                length, pos = read_length(body, pos)
                key = body[pos : (pos := pos + length)]
            if (byte := body[pos]) == 1:
                pos += 1
                value = None
            elif byte & 0x81 == 0x80 and (high := body[pos + 1]) < 0x80:  # 64 to 8191 bytes
                pos += 2
                value = body[pos : (pos := pos + ((byte & 0x7F | high << 7) >> 1))]
            else:
                length, pos = read_length(body, pos)
                value = body[pos : (pos := pos + length)]
            if body[pos] == 0:
                pos += 1
                headers: tuple[tuple[str, bytes | None], ...] = ()
            else:
                headers, pos = _read_headers(body, pos, end, headers_max)
            if pos != end:
                raise InvalidRecordError(f"record ends at byte {pos} instead of {end}")
            if append_time is not None:
                timestamp = append_time
            elif not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
                raise InvalidRecordError("record's timestamp is out of range")
            yield new(cls, (base_offset + delta, timestamp, key, value, headers))
    except IndexError:
        raise InvalidRecordError("record batch ends in the middle of a record") from None
    if pos != size:
        raise InvalidRecordError(f"record batch has {size - pos} bytes after its last record")


def read_length(body: bytes, pos: int) -> tuple[int, int]:
    """A length that may not be negative; lengths below 8192 take the short way."""
    byte = body[pos]
    if byte < 0x80:
        encoded, pos = byte, pos + 1
    elif (high := body[pos + 1]) < 0x80:
        encoded, pos = byte & 0x7F | high << 7, pos + 2
    else:
        length, pos = read_varint(body, pos)
        encoded = length << 1 if length >= 0 else 1
    if encoded & 1:
        raise InvalidRecordError("record has a negative length")
    return encoded >> 1, pos


def read_varint(body: bytes, pos: int) -> tuple[int, int]:
    return _read_zigzag(body, pos, 32)


def read_varlong(body: bytes, pos: int) -> tuple[int, int]:
    return _read_zigzag(body, pos, 64)


def _read_zigzag(body: bytes, pos: int, bits: int) -> tuple[int, int]:
    encoded = shift = 0
    while True:
        byte = body[pos]
        pos += 1
        encoded |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise InvalidRecordError(f"varint is longer than {bits} bits")
    if encoded >> bits:
        raise InvalidRecordError(f"varint is larger than {bits} bits")
    return (encoded >> 1) ^ -(encoded & 1), pos


def _read_headers(
    body: bytes, pos: int, end: int, headers_max: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, pos = read_length(body, pos)
    if count > (end - pos) // 2:
        raise InvalidRecordError(f"record declares {count} headers in {end - pos} bytes")
    if count > headers_max:
        raise InvalidRecordError(f"record has {count} headers, and {headers_max} are the limit")
    headers = []
    for _ in range(count):
        length, pos = read_length(body, pos)
        name = body[pos : pos + length].decode("utf-8", "replace")  # As Kafka's readers do.
        pos += length
        value = None
        if body[pos] == 1:
            pos += 1
        else:
            length, pos = read_length(body, pos)
            value = body[pos : pos + length]
            pos += length
        headers.append((name, value))
    return tuple(headers), pos


# --- encoding -----------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """A signed integer as a zigzag varint."""
    encoded = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while encoded > 0x7F:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


_VARINTS: Final = tuple(encode_varint(value) for value in range(8192))
_NULL: Final = encode_varint(-1)


def _varint(value: int) -> bytes:
    return _VARINTS[value] if 0 <= value < 8192 else encode_varint(value)


def _encode_headers(headers: Headers) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (_varint(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
    return b"".join(parts)


class BatchBuilder:
    """Collects records and builds a batch of them, as often as the producer has to send it."""

    __slots__ = (
        "_base_timestamp",
        "_built",
        "_last_delta",
        "_max_timestamp",
        "_more",
        "_parts",
        "_size",
    )

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # A prefix and a body for each record.
        self._more = 0  # Records beyond that: a body that was encoded elsewhere has several.
        self._size = HEADER_BYTES
        self._last_delta = -1
        self._base_timestamp = -1
        self._max_timestamp = -1
        self._built: tuple[Codec, int | None, bytes] | None = None

    @classmethod
    def of_encoded(
        cls, body: bytes, record_count: int, *, base_timestamp: int, max_timestamp: int
    ) -> Self:
        """A builder with records that were encoded elsewhere, their offset deltas from 0 on."""
        builder = cls()
        builder._parts = [b"", body]
        builder._more = record_count - 1
        builder._size += len(body)
        builder._last_delta = record_count - 1
        builder._base_timestamp, builder._max_timestamp = base_timestamp, max_timestamp
        builder._built = (Codec.NONE, None, body)
        return builder

    @property
    def record_count(self) -> int:
        return self._more + len(self._parts) // 2

    @property
    def size_bytes(self) -> int:
        """The batch's size before compression."""
        return self._size

    @property
    def max_timestamp(self) -> int:
        return self._max_timestamp

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> int:
        """Add a record after the last one; returns the batch's size before compression."""
        return self.append_at(self._last_delta + 1, timestamp, key, value, headers)

    def append_at(
        self,
        delta: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
    ) -> int:
        """Add a record at an offset delta above the last one's, as a compacted batch has them."""
        if not self._last_delta < delta <= OFFSET_DELTA_MAX:
            raise ValueError(f"offset delta {delta} does not follow {self._last_delta}")
        if not self._parts:
            self._base_timestamp = self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        since = timestamp - self._base_timestamp
        body = b"".join(
            (
                b"\x00",
                _VARINTS[since] if 0 <= since < 8192 else encode_varint(since),
                _VARINTS[delta] if delta < 8192 else encode_varint(delta),
                _NULL if key is None else _varint(len(key)),
                key or b"",
                _NULL if value is None else _varint(len(value)),
                value or b"",
                _encode_headers(headers) if headers else b"\x00",
            )
        )
        prefix = _varint(len(body))
        self._parts += (prefix, body)
        self._last_delta = delta
        self._built = None
        self._size += len(prefix) + len(body)
        return self._size

    def build(
        self,
        *,
        base_offset: int = 0,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        leader_epoch: int = -1,
        last_offset_delta: int | None = None,
    ) -> bytes:
        """The whole batch; only the header is made anew when the codec stays the same."""
        if not self._parts:
            raise ValueError("a batch needs at least one record")
        attributes = (
            codec
            | (TIMESTAMP_TYPE_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
            | (TRANSACTIONAL_BIT if transactional else 0)
            | (CONTROL_BIT if control else 0)
        )
        header = BatchHeader(
            base_offset,
            0,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            self._last_delta if last_offset_delta is None else last_offset_delta,
            self._base_timestamp,
            self._max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.record_count,
        )
        return pack_batch(header, self._body(codec, level))

    def _body(self, codec: Codec, level: int | None) -> bytes:
        """The records in `codec`'s form, kept for a retry that needs another header."""
        if self._built is None or self._built[:2] != (codec, level):
            body = b"".join(self._parts)
            if codec is not Codec.NONE:
                body = compress(codec, body, level)
            self._built = (codec, level, body)
        return self._built[2]


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch of `records`, whose offsets must rise from `base_offset` on; gaps are kept."""
    builder = BatchBuilder()
    for offset, timestamp, key, value, headers in records:
        builder.append_at(offset - base_offset, timestamp, key, value, headers)
    return builder.build(
        base_offset=base_offset,
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        leader_epoch=leader_epoch,
        last_offset_delta=last_offset_delta,
    )
