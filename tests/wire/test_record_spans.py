"""Finding records without decoding them agrees with decoding them, on anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.batch_strategies import LIMIT_BYTES, decode, record_lists

from tidemill.wire.batch import InvalidRecordError, pack_batch, read_header
from tidemill.wire.record_spans import iter_spans, rebased
from tidemill.wire.records import Record, build_batch, iter_records, records_body


def body_of(batch: bytes) -> bytes:
    return records_body(batch, 0, read_header(batch), limit_bytes=LIMIT_BYTES)


@given(record_lists(gaps=True))
def test_spans_are_where_the_records_are(records: list[Record]) -> None:
    batch = build_batch(records)
    header, body = read_header(batch), body_of(batch)
    spans = list(iter_spans(body, header))
    assert [
        (span.offset_delta, header.base_timestamp + span.timestamp_delta, span.key, span.has_value)
        for span in spans
    ] == [
        (record.offset, record.timestamp, record.key, record.value is not None)
        for record in records
    ]
    assert b"".join(body[span.start : span.end] for span in spans) == body


@given(record_lists(gaps=True), st.integers(0, 2**45))
def test_a_new_base_timestamp_changes_no_record(records: list[Record], base: int) -> None:
    batch = build_batch(records)
    header, body = read_header(batch), body_of(batch)
    shift = header.base_timestamp - base
    moved = b"".join(
        rebased(body, span, span.timestamp_delta + shift) for span in iter_spans(body, header)
    )
    assert decode(pack_batch(header._replace(base_timestamp=base), moved))[1] == records


@given(record_lists(size_max=3), st.data())
def test_damaged_bodies_are_refused_or_make_sense(
    records: list[Record], data: st.DataObject
) -> None:
    """Never an endless loop, never a crash: `InvalidRecordError`, or spans within the body."""
    batch = build_batch(records)
    header, body = read_header(batch), bytearray(body_of(batch))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (bytes(body), bytes(body[:cut])):
        try:
            spans = list(iter_spans(damaged, header))
        except InvalidRecordError:
            continue
        assert all(0 <= span.start < span.end <= len(damaged) for span in spans)


def test_what_decoding_refuses_is_refused() -> None:
    batch = build_batch([Record(0, 1, b"key", b"value")])
    header, body = read_header(batch), body_of(batch)
    with pytest.raises(InvalidRecordError):
        list(iter_spans(body + b"\0", header))
    with pytest.raises(InvalidRecordError):
        list(iter_spans(body, header._replace(record_count=2)))
    assert list(iter_records(batch, 0, header, limit_bytes=LIMIT_BYTES))
