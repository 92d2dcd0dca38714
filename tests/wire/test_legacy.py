"""Message sets v0 and v1 as foreign clients wrote them, and their way into record batches."""

from __future__ import annotations

import struct
import zlib

import lz4.frame
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from tests.wire.batch_strategies import LIMIT_BYTES, decode

from tidemill.errors import WireError
from tidemill.wire.batch import CorruptBatchError, TimestampType, UnsupportedMagicError, read_header
from tidemill.wire.compression import Codec, OutputLimitError, compress
from tidemill.wire.legacy import (
    is_legacy,
    iter_entries,
    iter_messages,
    iter_outer,
    read_message,
    split_by_time,
    to_batch,
    xxh32,
)
from tidemill.wire.records import Record

Payload = bytes | None
payloads = st.none() | st.binary(max_size=200)
rows = st.lists(st.tuples(st.integers(0, 2**40), payloads, payloads), min_size=1, max_size=8)
old_codecs = st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
magics = st.sampled_from([0, 1])


def foreign_set(
    magic: int, codec: Codec, messages: list[tuple[int, Payload, Payload]], *, aio: bool = False
) -> bytes:
    """What an old broker stored of an old client's messages: offsets from 0 on."""
    if magic == 0 and codec is Codec.LZ4:  # The clients at hand refuse to write this one.
        inner = b"".join(message(i, 0, 0, 0, *each[1:]) for i, each in enumerate(messages))
        return message(len(messages) - 1, 0, codec, 0, None, broken_lz4(inner))
    make = AioBuilder if aio else LegacyRecordBatchBuilder
    builder = make(magic=magic, compression_type=codec, batch_size=1 << 20)
    for offset, (timestamp, key, value) in enumerate(messages):
        builder.append(offset, timestamp if magic else None, key, value)
    data = bytes(builder.build())
    # Brokers give a wrapper the offset of its last message; clients send 0.
    return data if codec is Codec.NONE else struct.pack(">q", len(messages) - 1) + data[8:]


def broken_lz4(data: bytes) -> bytes:
    """A frame whose header checksum covers the magic number, too, as in v0."""
    frame = bytearray(lz4.frame.compress(data, block_linked=False, store_size=False))
    assert frame[6] == xxh32(bytes(frame[4:6])) >> 8 & 0xFF
    frame[6] = xxh32(bytes(frame[:6])) >> 8 & 0xFF
    return bytes(frame)


def message(
    offset: int, magic: int, attributes: int, timestamp: int, key: Payload, value: Payload
) -> bytes:
    """One message made by hand."""
    body = struct.pack(">bB", magic, attributes)
    if magic:
        body += struct.pack(">q", timestamp)
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(offset: int, magic: int, codec: Codec, inner: bytes, attributes: int = 0) -> bytes:
    return message(offset, magic, codec | attributes, 7777, None, compress(codec, inner))


@given(magics, old_codecs, rows, st.booleans())
def test_foreign_message_sets_are_read(
    magic: int, codec: Codec, messages: list[tuple[int, Payload, Payload]], aio: bool
) -> None:
    data = foreign_set(magic, codec, messages, aio=aio)
    assert is_legacy(data)
    with pytest.raises(UnsupportedMagicError):
        read_header(data)
    wanted = [
        Record(offset, timestamp if magic else -1, key, value)
        for offset, (timestamp, key, value) in enumerate(messages)
    ]
    assert list(iter_messages(data, limit_bytes=LIMIT_BYTES)) == wanted


def test_v1_wrappers_carry_the_last_offset_and_relative_inner_ones() -> None:
    inner = b"".join(message(i, 1, 0, 100 + i, b"k", b"%d" % i) for i in range(3))
    (entry,) = iter_entries(wrapper(502, 1, Codec.GZIP, inner), limit_bytes=LIMIT_BYTES)
    assert [each.offset for each in entry.inner] == [500, 501, 502]
    assert [each.timestamp for each in entry.inner] == [100, 101, 102]
    assert (entry.base_offset, entry.last_offset) == (500, 502)


def test_v1_wrappers_of_a_compacted_log_may_have_gaps() -> None:
    inner = b"".join(message(i, 1, 0, 0, b"k", b"v") for i in (0, 4, 9))
    (entry,) = iter_entries(wrapper(109, 1, Codec.SNAPPY, inner), limit_bytes=LIMIT_BYTES)
    assert [each.offset for each in entry.inner] == [100, 104, 109]


def test_v0_inner_offsets_are_absolute() -> None:
    inner = b"".join(message(i, 0, 0, 0, b"k", b"v") for i in (40, 41))
    (entry,) = iter_entries(wrapper(41, 0, Codec.GZIP, inner), limit_bytes=LIMIT_BYTES)
    assert [each.offset for each in entry.inner] == [40, 41]
    assert entry.outer.timestamp_type is None


def test_append_time_of_a_wrapper_counts_for_all() -> None:
    inner = b"".join(message(i, 1, 0, 100 + i, None, b"v") for i in range(2))
    data = wrapper(1, 1, Codec.LZ4, inner, attributes=0x08)
    (entry,) = iter_entries(data, limit_bytes=LIMIT_BYTES)
    assert [each.timestamp for each in entry.inner] == [7777, 7777]
    header, records = decode(to_batch(entry.inner))
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp for record in records} == {7777}


def test_v0_lz4_with_the_wrong_header_checksum_is_read() -> None:
    """Old Java clients hashed the frame's magic number, too."""
    inner = message(0, 0, 0, 0, b"k", b"value" * 100)
    sized = bytearray(lz4.frame.compress(inner, block_linked=False, store_size=True))
    sized[14] ^= 0x5A
    for frame in (broken_lz4(inner), bytes(sized)):
        data = message(0, 0, Codec.LZ4, 0, None, frame)
        assert [r.value for r in iter_messages(data, limit_bytes=LIMIT_BYTES)] == [b"value" * 100]


def test_xxh32_has_the_published_values() -> None:
    assert xxh32(b"") == 0x02CC5D05
    assert xxh32(b"abc") == 0x32D153FF
    with pytest.raises(ValueError):
        xxh32(bytes(16))


@pytest.mark.parametrize(
    "data",
    [
        message(0, 0, 0, 0, b"k", b"v")[:-1] + b"w",  # CRC
        message(0, 1, Codec.GZIP, 0, None, None),  # a wrapper around nothing
        wrapper(0, 1, Codec.GZIP, b""),
        wrapper(0, 1, Codec.GZIP, message(0, 0, 0, 0, None, b"")),  # mixed formats
        wrapper(0, 1, Codec.GZIP, message(0, 1, 0, 0, None, b"") + b"left over"),
        wrapper(0, 1, Codec.ZSTD, message(0, 1, 0, 0, None, b"")),
        wrapper(0, 1, Codec.GZIP, wrapper(0, 1, Codec.GZIP, message(0, 1, 0, 0, None, b""))),
        wrapper(0, 1, Codec.GZIP, message(0, 1, 0, 0, None, b"")[:-1]),
        message(0, 0, 0, 0, b"k", b"v")[:8] + struct.pack(">i", 5) + bytes(40),
    ],
)
def test_damaged_message_sets_are_refused(data: bytes) -> None:
    """Rule 3.4.4: no nested compression, no lengths that cannot be."""
    with pytest.raises(WireError):
        list(iter_messages(data, limit_bytes=LIMIT_BYTES))


def test_a_length_over_the_end_is_refused() -> None:
    body = struct.pack(">bB", 0, 0) + struct.pack(">i", 1000) + bytes(8)
    data = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    with pytest.raises(CorruptBatchError, match="1000 bytes"):
        read_message(data)


def test_wrappers_are_opened_to_the_limit_only() -> None:
    data = wrapper(0, 1, Codec.GZIP, message(0, 1, 0, 0, None, bytes(100_000)))
    with pytest.raises(OutputLimitError):
        list(iter_messages(data, limit_bytes=50_000))


def test_a_partial_tail_ends_the_set() -> None:
    whole = message(0, 0, 0, 0, b"k", b"v")
    assert len(list(iter_outer(whole + whole[:-1]))) == 1
    assert len(list(iter_outer(whole + whole, 0, len(whole) + 5))) == 1


@given(magics, old_codecs, rows, st.data())
def test_mutated_sets_raise_wire_errors_only(
    magic: int,
    codec: Codec,
    messages: list[tuple[int, Payload, Payload]],
    draw: st.DataObject,
) -> None:
    """Rule 3.4.9 for the old formats."""
    data = bytearray(foreign_set(magic, codec, messages))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        list(iter_messages(bytes(data), limit_bytes=LIMIT_BYTES))
    except WireError:
        pass


@given(magics, old_codecs, rows)
def test_conversion_keeps_offsets_times_and_bytes(
    magic: int, codec: Codec, messages: list[tuple[int, Payload, Payload]]
) -> None:
    data = foreign_set(magic, codec, messages)
    found = [m for entry in iter_entries(data, limit_bytes=LIMIT_BYTES) for m in entry.inner]
    (run,) = split_by_time(found)
    header, records = decode(to_batch(run, codec=Codec.ZSTD, leader_epoch=3))
    assert records == list(iter_messages(data, limit_bytes=LIMIT_BYTES))
    assert header.partition_leader_epoch == 3


def test_runs_split_where_the_append_time_changes() -> None:
    data = b"".join(
        message(offset, 1, attributes, time, None, b"")
        for offset, (attributes, time) in enumerate([(0, 1), (0, 2), (8, 5), (8, 5), (8, 6)])
    )
    found = [m for entry in iter_entries(data, limit_bytes=LIMIT_BYTES) for m in entry.inner]
    assert [len(run) for run in split_by_time(found)] == [2, 2, 1]
