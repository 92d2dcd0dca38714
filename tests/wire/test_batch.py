"""Batch headers: what they say, what is refused, and what stamping changes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from tests.wire.batch_strategies import codecs, decode, record_lists, simple_records

from tidemill.errors import WireError
from tidemill.wire.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatchError,
    TimestampType,
    UnsupportedMagicError,
    crc32c,
    crc_matches,
    iter_headers,
    read_header,
    stamp,
    stamp_append_time,
)
from tidemill.wire.compression import Codec
from tidemill.wire.records import Record, build_batch


def test_crc32c_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"56789"), crc32c(b"1234")) == 0xE3069283


def test_the_header_says_what_the_builder_was_told() -> None:
    batch = build_batch(
        simple_records(3),
        codec=Codec.LZ4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
        transactional=True,
        leader_epoch=5,
    )
    header = read_header(batch)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 2, 3)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (7, 2, 42)
    assert (header.codec, header.record_count) == (Codec.LZ4, 3)
    assert header.is_transactional
    assert header.has_producer_id
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.delete_horizon_ms is None
    assert header.partition_leader_epoch == 5
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_the_header_agrees_with_kafka_pythons() -> None:
    batch = build_batch(simple_records(5), codec=Codec.GZIP, producer_id=9, producer_epoch=1)
    theirs, ours = DefaultRecordBatch(batch), read_header(batch)
    assert theirs.validate_crc()
    assert theirs.crc == ours.crc
    assert theirs.size_in_bytes == ours.size_bytes
    assert theirs.last_offset == ours.last_offset
    assert theirs.max_timestamp == ours.max_timestamp
    assert theirs.records_count == ours.record_count


def test_sequences_wrap_to_zero() -> None:
    header = read_header(build_batch(simple_records(3), base_sequence=2**31 - 2))
    assert header.last_sequence == 0
    assert read_header(build_batch(simple_records(3))).last_sequence == -1


def test_stamping_leaves_the_crc_right() -> None:
    batch = bytearray(b"..." + build_batch(simple_records(4)))
    stamp(batch, 3, 1_000_000, 17)
    header = read_header(batch, 3)
    assert (header.base_offset, header.partition_leader_epoch) == (1_000_000, 17)
    assert crc_matches(batch, 3, header)


def test_append_time_counts_for_every_record() -> None:
    batch = bytearray(build_batch(simple_records(4), codec=Codec.ZSTD))
    stamp_append_time(batch, 0, 1_800_000_000_000)
    header, records = decode(bytes(batch))
    assert crc_matches(batch, 0, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp for record in records} == {1_800_000_000_000}
    assert DefaultRecordBatch(bytes(batch)).validate_crc()


@given(st.lists(record_lists(size_max=3), min_size=1, max_size=4), st.data())
def test_iterating_stops_before_a_partial_tail(
    lists: list[list[Record]], draw: st.DataObject
) -> None:
    batches = [build_batch(records, codec=draw.draw(codecs)) for records in lists]
    buffer = b"".join(batches)
    cut = draw.draw(st.integers(0, len(batches[-1]) - 1))
    whole = list(iter_headers(buffer))
    assert [header.size_bytes for _, header in whole] == [len(batch) for batch in batches]
    end = len(buffer) - len(batches[-1]) + cut
    assert list(iter_headers(buffer, 0, end)) == whole[:-1]
    assert list(iter_headers(memoryview(buffer)[:end])) == whole[:-1]
    assert list(iter_headers(buffer, whole[-1][0])) == whole[-1:]


@given(st.data())
def test_a_flipped_bit_under_the_crc_is_seen(draw: st.DataObject) -> None:
    """Rule E2: the CRC is checked over every byte it covers."""
    batch = bytearray(build_batch(simple_records(3)))
    place = draw.draw(st.integers(17, len(batch) - 1))
    batch[place] ^= 1 << draw.draw(st.integers(0, 7))
    assert not crc_matches(batch, 0, read_header(batch))


def test_a_batch_that_is_not_whole_does_not_match() -> None:
    batch = build_batch(simple_records(3))
    assert not crc_matches(batch[:-1], 0, read_header(batch))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_are_recognised(magic: int) -> None:
    batch = bytearray(build_batch(simple_records(1)))
    batch[16] = magic
    for read in (read_header, lambda buf: list(iter_headers(buf))):
        with pytest.raises(UnsupportedMagicError) as error:
            read(batch)
        assert error.value.magic == magic


@pytest.mark.parametrize(
    ("place", "value"),
    [(16, b"\x03"), (16, b"\xff"), (8, struct.pack(">i", 48)), (8, struct.pack(">i", -1))],
)
def test_nonsense_in_the_header_is_refused(place: int, value: bytes) -> None:
    """Rule E2: lengths and magic are checked, because no CRC covers them."""
    batch = bytearray(build_batch(simple_records(1)))
    batch[place : place + len(value)] = value
    with pytest.raises(CorruptBatchError):
        read_header(batch)
    with pytest.raises(CorruptBatchError):
        list(iter_headers(batch))


def test_a_short_buffer_is_refused() -> None:
    batch = build_batch(simple_records(1))
    for size in (0, 16, 17, HEADER_BYTES - 1):
        with pytest.raises(CorruptBatchError):
            read_header(batch[:size])
    assert list(iter_headers(batch[: HEADER_BYTES - 1])) == []


def test_an_unknown_codec_is_a_wire_error() -> None:
    header = read_header(build_batch(simple_records(1)))
    with pytest.raises(WireError):
        _ = header._replace(attributes=6).codec


@given(st.binary(max_size=200))
def test_noise_never_escapes_as_anything_but_a_wire_error(noise: bytes) -> None:
    try:
        found = list(iter_headers(noise))
    except WireError:
        return
    assert all(isinstance(header, BatchHeader) for _, header in found)


def test_a_foreign_batch_has_the_header_it_was_given() -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=True,
        producer_id=4,
        producer_epoch=3,
        base_sequence=11,
        batch_size=10_000,
    )
    for offset in range(3):
        builder.append(offset, 1000 + offset, b"k", b"v", [])
    header = read_header(bytes(builder.build()))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 3, 11)
    assert header.is_transactional
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)
