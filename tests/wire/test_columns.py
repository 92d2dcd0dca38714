"""Decoding into columns agrees with `iter_records`, compiled or not, on sound and damaged input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.wire.batch_strategies import LIMIT_BYTES, codecs, record_lists, simple_records

from tidemill.errors import WireError
from tidemill.wire import columns
from tidemill.wire.batch import (
    BatchHeader,
    CorruptBatchError,
    InvalidRecordError,
    TimestampType,
    iter_headers,
    pack_batch,
    read_header,
)
from tidemill.wire.columns import ColumnBatch, columns_of, decode_columns
from tidemill.wire.compression import Codec
from tidemill.wire.control import ControlType, build_marker
from tidemill.wire.messages.fetch import AbortedTransaction
from tidemill.wire.records import Record, build_batch, iter_records

SHARED_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
EVERYTHING: dict[str, Any] = {"first_offset": 0, "end_offset": 2**63 - 1, "headers": True}


def rows(pieces: Iterable[ColumnBatch]) -> list[Record]:
    """Columns as the records that they stand for."""
    found = []
    for piece in pieces:
        assert piece.headers is not None
        assert piece.headers.null_count == 0
        for column in (piece.key, piece.value, piece.headers):
            column.validate(full=True)
        found += [
            Record(
                int(offset),
                int(timestamp),
                key,
                value,
                tuple((header["key"], header["value"]) for header in headers),
            )
            for offset, timestamp, key, value, headers in zip(
                piece.offset,
                piece.timestamp_ms,
                piece.key.to_pylist(),
                piece.value.to_pylist(),
                piece.headers.to_pylist(),
                strict=True,
            )
        ]
    return found


def plain(log: bytes) -> list[Record]:
    """The records of a log as the plain decoder finds them."""
    return [
        record
        for pos, header in iter_headers(log)
        for record in iter_records(log, pos, header, limit_bytes=LIMIT_BYTES)
    ]


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """A few batches of different kinds, their offsets rising with gaps."""
    offset, batches = draw(st.integers(0, 50)), []
    for _ in range(draw(st.integers(0, 4))):
        records = draw(record_lists(base_offset=offset, gaps=True, size_max=6))
        batches.append(
            build_batch(
                records,
                base_offset=offset,
                codec=draw(codecs),
                timestamp_type=draw(st.sampled_from(TimestampType)),
            )
        )
        offset = records[-1].offset + 1 + draw(st.integers(0, 3))
    return b"".join(batches)


@SHARED_FIXTURE
@given(logs(), st.integers(0, 60_000), st.integers(0, 60_000))
def test_columns_hold_what_the_records_hold(engine: str, log: bytes, low: int, high: int) -> None:
    expected = [record for record in plain(log) if low <= record.offset < high]
    pieces, _ = decode_columns(
        log, first_offset=low, end_offset=high, headers=True, check_crcs=True
    )
    assert rows(pieces) == expected


@SHARED_FIXTURE
@given(logs(), st.integers(1, 7), st.sampled_from([0, 100, 1 << 20]), st.integers(1, 2000))
def test_how_rows_are_cut_into_pieces_changes_nothing(
    engine: str, log: bytes, rows_max: int, join_bytes: int, piece_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "PIECE_ROWS_MAX", rows_max)
        patch.setattr(columns, "JOIN_BYTES", join_bytes)
        patch.setattr(columns, "PIECE_BYTES", piece_bytes)
        pieces, _ = decode_columns(log, check_crcs=True, **EVERYTHING)
    assert all(0 < piece.row_count <= rows_max for piece in pieces)
    assert rows(pieces) == plain(log)
    kinds = [header.timestamp_type for _, header in iter_headers(log)]
    assert {piece.timestamp_type for piece in pieces} == set(kinds)


def outcome(header: BatchHeader, body: bytes) -> tuple[object, object]:
    """What the plain decoder and the kernels make of a body: records, or None for a refusal."""
    batch = pack_batch(header, body)
    sealed = read_header(batch)
    try:
        by_record: object = list(iter_records(batch, 0, sealed, limit_bytes=LIMIT_BYTES))
    except WireError:
        by_record = None
    try:
        by_column: object = rows(columns_of([(sealed, batch)], **EVERYTHING))
    except WireError:
        by_column = None
    return by_record, by_column


@SHARED_FIXTURE
@given(record_lists(size_max=4), st.data())
def test_both_refuse_the_same_damage(
    engine: str, records: list[Record], draw: st.DataObject
) -> None:
    """Rule 3.4.4: compiled code reads nothing outside its buffer and accepts nothing more."""
    batch = build_batch(records)
    body = bytearray(batch[61:])
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, len(body) - 1))
        body[place] = draw.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(body)) | st.just(len(body)))
    by_record, by_column = outcome(read_header(batch), bytes(body[:cut]))
    assert by_record == by_column


@SHARED_FIXTURE
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.binary(min_size=1, max_size=11),
    st.integers(0, 2**63 - 2),
    st.sampled_from([0, 8]),
)
def test_both_agree_on_extreme_numbers(
    engine: str, base: int, delta: bytes, offset: int, attributes: int
) -> None:
    record = b"\x00" + delta + b"\x00\x01\x01\x00"
    body = bytes((2 * len(record),)) + record
    header = read_header(build_batch(simple_records(1)))._replace(
        base_offset=offset, base_timestamp=base, max_timestamp=base, attributes=attributes
    )
    by_record, by_column = outcome(header, body)
    assert by_record == by_column


def transaction(base: int, count: int, producer_id: int) -> bytes:
    return build_batch(
        [Record(base + n, 1000 + n, None, b"%d" % (base + n)) for n in range(count)],
        base_offset=base,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(base: int, producer_id: int, kind: ControlType) -> bytes:
    return build_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=base,
    )


def test_markers_and_aborted_transactions_are_not_shown(engine: str) -> None:
    """Producer 1 aborts, then commits; producer 2 commits: their batches are mingled."""
    log = b"".join(
        [
            transaction(0, 2, producer_id=1),
            transaction(2, 2, producer_id=2),
            marker(4, 1, ControlType.ABORT),
            transaction(5, 1, producer_id=1),
            marker(6, 2, ControlType.COMMIT),
            marker(7, 1, ControlType.COMMIT),
        ]
    )
    pieces, next_offset = decode_columns(
        log,
        check_crcs=True,
        aborted=[AbortedTransaction(producer_id=1, first_offset=0)],
        **EVERYTHING,
    )
    assert [record.offset for record in rows(pieces)] == [2, 3, 5]
    assert next_offset == 8
    pieces, _ = decode_columns(log, check_crcs=True, **EVERYTHING)
    assert [record.offset for record in rows(pieces)] == [0, 1, 2, 3, 5]


def test_a_batch_that_is_cut_off_is_left_for_the_next_read(engine: str) -> None:
    first, second = build_batch(simple_records(3)), transaction(3, 2, producer_id=1)
    pieces, next_offset = decode_columns((first + second)[:-1], check_crcs=True, **EVERYTHING)
    assert (len(rows(pieces)), next_offset) == (3, 3)
    pieces, next_offset = decode_columns(second, check_crcs=True, **EVERYTHING)
    assert (len(rows(pieces)), next_offset) == (2, 5)
    assert decode_columns(b"", check_crcs=True, **EVERYTHING) == ([], 0)


def test_the_end_of_the_range_ends_the_work(engine: str) -> None:
    """What lies behind the range is not even checked: it may be damaged."""
    log = build_batch(simple_records(3)) + bytearray(transaction(3, 2, producer_id=1))
    log = log[:-1] + b"!"
    pieces, next_offset = decode_columns(
        log, first_offset=1, end_offset=3, headers=True, check_crcs=True
    )
    assert ([record.offset for record in rows(pieces)], next_offset) == ([1, 2], 3)


def test_a_wrong_checksum_is_named(engine: str) -> None:
    log = build_batch(simple_records(3)) + transaction(3, 2, producer_id=1)[:-1] + b"!"
    with pytest.raises(CorruptBatchError, match="offset 3 does not match"):
        decode_columns(log, check_crcs=True, **EVERYTHING)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_batch_may_not_grow_beyond_the_limit(engine: str, codec: Codec) -> None:
    bomb = build_batch([Record(7, 0, None, bytes(1 << 20))], base_offset=7, codec=codec)
    with pytest.raises(InvalidRecordError, match=r"offset 7.*limit"):
        decode_columns(bomb, check_crcs=True, limit_bytes=1 << 16, **EVERYTHING)


def test_a_count_that_cannot_be_allocates_nothing(engine: str) -> None:
    batch = build_batch(simple_records(3))
    header = read_header(batch)._replace(record_count=2**31 - 1, base_offset=12)
    with pytest.raises(InvalidRecordError, match="offset 12 declares 2147483647"):
        list(columns_of([(header, batch)], **EVERYTHING))


def test_names_of_headers_that_are_no_text_are_replaced(engine: str) -> None:
    body = bytes((2 * 10, 0, 0, 0, 1, 1, 2, 2, 0xFF, 2, 0x41))
    header = read_header(build_batch(simple_records(1)))._replace(attributes=0)
    by_record, by_column = outcome(header, body)
    assert by_record == by_column
    assert isinstance(by_column, list)
    assert by_column[0].headers == (("\ufffd", b"A"),)
