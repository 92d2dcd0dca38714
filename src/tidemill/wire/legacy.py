"""Message sets v0 and v1, the formats before record batches; read only.

On the wire they are refused (`UnsupportedMagicError`, from `tidemill.wire.batch`), but old data
directories hold them. `iter_entries` walks the outer messages of a buffer with what is inside them,
`iter_messages` gives plain records, and `to_batch` makes a record batch of messages.

A message is: offset (8 bytes), size (4), CRC-32 of the rest (4), magic (1), attributes (1), with
magic 1 a timestamp (8), then key and value, each with a 4-byte length. A compressed message, the
*wrapper*, has a message set for its value. Inner offsets are absolute in v0; in v1 they count from
the first inner message, and the wrapper carries the offset of the last one. A v1 wrapper whose
timestamps the broker set gives its own timestamp to all inner messages.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidemill.errors import WireError
from tidemill.wire.batch import (
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POS,
    TIMESTAMP_TYPE_BIT,
    TIMESTAMP_TYPES,
    Buffer,
    CorruptBatchError,
    TimestampType,
)
from tidemill.wire.compression import Codec, codec_of, decompress
from tidemill.wire.records import Record, build_batch

NO_TIMESTAMP: Final = -1
MESSAGE_BYTES_MIN: Final = 14
"""CRC, magic, attributes and two lengths: the smallest v0 message after offset and size."""

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_OVERHEAD: Final = struct.Struct(">qiIbb")
_int64 = struct.Struct(">q")
_int32 = struct.Struct(">i")


class Message(NamedTuple):
    """One message; in a wrapper, `value` is the compressed message set."""

    offset: int
    size_bytes: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    crc_valid: bool

    @property
    def codec(self) -> Codec:
        return codec_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType | None:
        """Who set the timestamp; None in v0, which has none."""
        return TIMESTAMP_TYPES[self.attributes >> 3 & 1] if self.magic else None


class Entry(NamedTuple):
    """An outer message at a byte position, and the messages it stands for (itself, or inner)."""

    pos: int
    outer: Message
    inner: tuple[Message, ...]

    @property
    def base_offset(self) -> int:
        return self.inner[0].offset

    @property
    def last_offset(self) -> int:
        return self.inner[-1].offset


def is_legacy(buf: Buffer, pos: int = 0) -> bool:
    """Whether the bytes at `pos` are a v0 or v1 message rather than a record batch."""
    return len(buf) - pos > MAGIC_POS and buf[pos + MAGIC_POS] < MAGIC


def read_message(buf: Buffer, pos: int = 0) -> Message:
    """The message at `pos`, wrapper or not; `crc_valid` says whether its CRC fits."""
    left_bytes = len(buf) - pos
    if left_bytes < LOG_OVERHEAD_BYTES + MESSAGE_BYTES_MIN:
        raise CorruptBatchError(f"{left_bytes} bytes are too few for a message")
    offset, size, crc, magic, attributes = _OVERHEAD.unpack_from(buf, pos)
    if magic not in (0, 1):
        raise CorruptBatchError(f"message at byte {pos} has format v{magic}, not v0 or v1")
    if size < MESSAGE_BYTES_MIN + 8 * magic or LOG_OVERHEAD_BYTES + size > left_bytes:
        raise CorruptBatchError(f"message at byte {pos} declares {size} bytes")
    end = pos + LOG_OVERHEAD_BYTES + size
    crc_valid = zlib.crc32(memoryview(buf)[pos + MAGIC_POS : end]) == crc
    body_pos = pos + MAGIC_POS + 2
    timestamp = NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _int64.unpack_from(buf, body_pos)
        body_pos += 8
    key, body_pos = _read_bytes(buf, body_pos, end)
    value, body_pos = _read_bytes(buf, body_pos, end)
    if body_pos != end:
        raise CorruptBatchError(f"message at byte {pos} has {end - body_pos} bytes too many")
    size_bytes = end - pos
    return Message(
        offset, size_bytes, crc, magic, attributes & 0xFF, timestamp, key, value, crc_valid
    )


def _read_bytes(buf: Buffer, pos: int, end: int) -> tuple[bytes | None, int]:
    if end - pos < 4:
        raise CorruptBatchError("message ends in the middle of a length")
    (length,) = _int32.unpack_from(buf, pos)
    pos += 4
    if length == -1:
        return None, pos
    if not 0 <= length <= end - pos:
        raise CorruptBatchError(f"message has a key or value of {length} bytes")
    return bytes(buf[pos : pos + length]), pos + length


def iter_outer(
    buf: Buffer, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, Message]]:
    """Position and message of each whole outer message; a partial tail ends it."""
    stop = len(buf) if end is None else min(end, len(buf))
    view = memoryview(buf)[:stop]
    pos = start
    while stop - pos >= LOG_OVERHEAD_BYTES + MESSAGE_BYTES_MIN:
        (size,) = _int32.unpack_from(view, pos + 8)
        if size < MESSAGE_BYTES_MIN:
            raise CorruptBatchError(f"message at byte {pos} declares {size} bytes")
        if stop - pos < LOG_OVERHEAD_BYTES + size:
            return
        message = read_message(view, pos)
        yield pos, message
        pos += message.size_bytes


def iter_entries(
    buf: Buffer, start: int = 0, end: int | None = None, *, limit_bytes: int
) -> Iterator[Entry]:
    """Each outer message with what is inside it, CRCs checked, wrappers opened to `limit_bytes`."""
    for pos, outer in iter_outer(buf, start, end):
        yield Entry(pos, outer, open_message(outer, limit_bytes=limit_bytes))


def iter_messages(buf: Buffer, *, limit_bytes: int) -> Iterator[Record]:
    """Each message as a record with its absolute offset; raises `WireError` on damage."""
    for entry in iter_entries(buf, limit_bytes=limit_bytes):
        for message in entry.inner:
            yield Record(message.offset, message.timestamp, message.key, message.value)


def open_message(
    outer: Message, *, limit_bytes: int, check_crc: bool = True
) -> tuple[Message, ...]:
    """The messages that `outer` stands for, with absolute offsets and their true timestamps.

    Without `check_crc`, a wrong CRC is left to the caller to see in `crc_valid`.
    """
    if check_crc and not outer.crc_valid:
        raise CorruptBatchError(f"message with offset {outer.offset} does not match its CRC")
    if outer.codec is Codec.NONE:
        return (outer,)
    if outer.value is None:
        raise CorruptBatchError(f"compressed message with offset {outer.offset} has no value")
    data = _decompress(outer, limit_bytes)
    inner = tuple(_checked(message, outer, check_crc) for message in _iter_inner(data))
    if not inner:
        raise CorruptBatchError(f"compressed message with offset {outer.offset} is empty")
    return _absolute(outer, inner) if outer.magic == 1 else inner


def _iter_inner(data: bytes) -> Iterator[Message]:
    end = 0
    for pos, message in iter_outer(data):
        end = pos + message.size_bytes
        yield message
    if end != len(data):
        raise CorruptBatchError(f"compressed message has {len(data) - end} bytes left over")


def _checked(message: Message, outer: Message, check_crc: bool) -> Message:
    if message.attributes & 0x07:
        raise CorruptBatchError("compressed message inside a compressed message")
    if message.magic != outer.magic:
        raise CorruptBatchError(f"message format v{message.magic} inside v{outer.magic}")
    if check_crc and not message.crc_valid:
        raise CorruptBatchError(f"inner message with offset {message.offset} fails its CRC")
    return message


def _absolute(outer: Message, inner: tuple[Message, ...]) -> tuple[Message, ...]:
    """v1: the wrapper's offset is the last inner one's, whatever the inner ones count from."""
    shift = outer.offset - inner[-1].offset
    changed = [message._replace(offset=message.offset + shift) for message in inner]
    if outer.timestamp_type is TimestampType.LOG_APPEND_TIME:
        changed = [
            message._replace(
                timestamp=outer.timestamp, attributes=message.attributes | TIMESTAMP_TYPE_BIT
            )
            for message in changed
        ]
    return tuple(changed)


def _decompress(outer: Message, limit_bytes: int) -> bytes:
    data = outer.value or b""
    if outer.codec is Codec.ZSTD:
        raise CorruptBatchError(f"message format v{outer.magic} has no zstd")
    if outer.codec is Codec.LZ4 and outer.magic == 0:
        data = _mend_lz4_header(data)
    return decompress(outer.codec, data, limit_bytes=limit_bytes)


def _mend_lz4_header(frame: bytes) -> bytes:
    """v0 clients made the frame's header checksum over the magic number, too; make it right."""
    if frame[:4] != _LZ4_MAGIC or len(frame) < 7:
        return frame
    end = 6 + (8 if frame[4] & 0x08 else 0)
    if len(frame) <= end:
        raise WireError("lz4 data ends in the middle of a frame")
    checksum = xxh32(frame[4:end]) >> 8 & 0xFF
    return frame[:end] + bytes((checksum,)) + frame[end + 1 :]


def xxh32(data: bytes) -> int:
    """xxHash-32 with seed 0 of fewer than 16 bytes: all that an lz4 frame's header needs."""
    if len(data) >= 16:
        raise ValueError("only for short input")
    mask = 0xFFFFFFFF
    value = 374761393 + len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        lane = int.from_bytes(data[start : start + 4], "little")
        value = value + lane * 3266489917 & mask
        value = (value << 17 | value >> 15) * 668265263 & mask
    for byte in data[whole:]:
        value = value + byte * 374761393 & mask
        value = (value << 11 | value >> 21) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16


def to_batch(
    messages: Sequence[Message], *, codec: Codec = Codec.NONE, leader_epoch: int = -1
) -> bytes:
    """One record batch of messages with rising offsets; offsets, gaps and timestamps are kept.

    The messages must share one timestamp type, and with log append time one timestamp, because a
    batch has only one of each: `split_by_time` gives runs that do.
    """
    append_time = messages[0].timestamp_type is TimestampType.LOG_APPEND_TIME
    base_offset = messages[0].offset
    return build_batch(
        (Record(m.offset, m.timestamp, m.key, m.value) for m in messages),
        base_offset=base_offset,
        codec=codec,
        timestamp_type=TimestampType(int(append_time)),
        leader_epoch=leader_epoch,
    )


def split_by_time(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Runs of messages that fit into one batch each (see `to_batch`)."""
    start = 0
    rules = [_time_rule(message) for message in messages]
    for index in range(1, len(messages) + 1):
        if index == len(messages) or rules[index] != rules[start]:
            yield messages[start:index]
            start = index


def _time_rule(message: Message) -> tuple[bool, int]:
    append_time = message.timestamp_type is TimestampType.LOG_APPEND_TIME
    return append_time, message.timestamp if append_time else 0
