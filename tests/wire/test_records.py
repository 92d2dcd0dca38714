"""Records: built and read back, by us and by foreign implementations, sound and damaged."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from aiokafka.record.default_records import (
    DefaultRecordBatch as AioBatch,
)
from aiokafka.record.default_records import (
    DefaultRecordBatchBuilder as AioBuilder,
)
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kio.records import readers as kio_readers
from kio.records import schema as kio_schema
from kio.records import writers as kio_writers
from tests.wire.batch_strategies import (
    LIMIT_BYTES,
    codecs,
    decode,
    payloads,
    record_lists,
    simple_records,
)

from tidemill.errors import ErrorCode, WireError
from tidemill.wire.batch import (
    InvalidRecordError,
    TimestampType,
    crc_matches,
    read_header,
    write_crc,
)
from tidemill.wire.compression import Codec, OutputLimitError
from tidemill.wire.control import (
    ControlType,
    EndTransactionMarker,
    build_marker,
    decode_control_type,
    decode_marker,
    encode_control_key,
    read_marker,
)
from tidemill.wire.record_checks import iter_stamps, validate_records
from tidemill.wire.records import (
    BatchBuilder,
    Record,
    build_batch,
    encode_varint,
    iter_records,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# kio keeps timestamps as floating-point seconds: only whole and positive ones survive.
kio_lists = record_lists().map(
    lambda records: [r._replace(timestamp=abs(r.timestamp) // 1000 * 1000) for r in records]
)


# --- both ways ----------------------------------------------------------------------------------


@given(record_lists(gaps=True), codecs)
def test_what_is_built_is_read_back(records: list[Record], codec: Codec) -> None:
    batch = build_batch(records, codec=codec)
    header, decoded = decode(batch)
    assert decoded == records
    assert crc_matches(batch, 0, header)
    assert header.last_offset == records[-1].offset
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.record_count == len(records)


@given(record_lists(base_offset=5000, gaps=True))
def test_absolute_offsets_come_from_the_base_offset(records: list[Record]) -> None:
    batch = build_batch(records, base_offset=5000, last_offset_delta=2**31 - 1)
    header, decoded = decode(b"-" + batch, 1)
    assert decoded == records
    assert header.last_offset == 5000 + 2**31 - 1


def test_records_can_be_made_with_a_builder_in_parts() -> None:
    builder = BatchBuilder()
    sizes = [builder.append(1000 + i, None, b"x" * i, [("h", None)]) for i in range(5)]
    assert sizes == sorted(sizes)
    assert builder.size_bytes == sizes[-1] == len(builder.build())
    assert (builder.record_count, builder.max_timestamp) == (5, 1004)
    assert [r.value for r in decode(builder.build())[1]] == [b"x" * i for i in range(5)]


@given(codecs)
def test_a_retry_changes_the_header_only(codec: Codec) -> None:
    builder = BatchBuilder()
    for record in simple_records(20):
        builder.append(*record[1:])
    first = builder.build(codec=codec, producer_id=1, producer_epoch=0, base_sequence=0)
    again = builder.build(codec=codec, producer_id=1, producer_epoch=1, base_sequence=7)
    assert first[61:] == again[61:]
    header, records = decode(again)
    assert crc_matches(again, 0, header)
    assert (header.producer_epoch, header.base_sequence) == (1, 7)
    assert records == simple_records(20)
    builder.append(1_700_000_000_020, b"k20", b"v" * 10)
    assert decode(builder.build(codec=codec))[1] == simple_records(21)


def test_offsets_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        build_batch([Record(0, 0, None, None), Record(0, 0, None, None)])
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_are_zigzag(value: int) -> None:
    unsigned, data = 0, encode_varint(value)
    for place, byte in enumerate(data):
        unsigned |= (byte & 0x7F) << 7 * place
    assert len(data) <= 10
    assert value == (unsigned >> 1) ^ -(unsigned & 1)


# --- foreign implementations --------------------------------------------------------------------


@given(record_lists(), codecs)
def test_kafka_python_reads_our_batches(records: list[Record], codec: Codec) -> None:
    batch = DefaultRecordBatch(build_batch(records, codec=codec))
    assert batch.validate_crc()
    theirs = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert theirs == records


@given(record_lists(), codecs)
def test_we_read_kafka_pythons_batches(records: list[Record], codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for record in records:
        builder.append(*record[:4], list(record.headers))
    batch = bytes(builder.build())
    header, decoded = decode(batch)
    assert decoded == records
    assert crc_matches(batch, 0, header)


@given(record_lists(), codecs)
def test_aiokafka_reads_and_writes_the_same(records: list[Record], codec: Codec) -> None:
    theirs = AioBatch(build_batch(records, codec=codec))
    assert theirs.validate_crc()
    read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
    assert read == records
    builder = AioBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for record in records:
        builder.append(record.offset, *record[1:4], list(record.headers))
    assert decode(bytes(builder.build()))[1] == records


@given(kio_lists)
def test_kio_reads_our_batches(records: list[Record]) -> None:
    batch, size = kio_readers.read_batch(data := build_batch(records), 0)
    assert size == len(data)
    assert [_from_kio(record) for record in batch.records] == records


@given(kio_lists)
def test_we_read_kios_batches(records: list[Record]) -> None:
    new = kio_schema.NewRecordBatch(
        producer_id=3,
        producer_epoch=4,
        base_sequence=5,
        attributes=0,
        records=tuple(_to_kio(record) for record in records),
    )
    out = io.BytesIO()
    kio_writers.write_batch(out, new)
    header, decoded = decode(out.getvalue())
    assert decoded == records
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 4, 5)
    assert crc_matches(out.getvalue(), 0, header)


def _from_kio(record: kio_schema.Record) -> Record:
    timestamp = (record.timestamp - EPOCH) // timedelta(milliseconds=1)
    headers = tuple((h.key.decode(), h.value) for h in record.headers)
    return Record(record.offset, timestamp, record.key, record.value, headers)


def _to_kio(record: Record) -> kio_schema.Record:
    return kio_schema.Record(
        attributes=0,
        timestamp=EPOCH + timedelta(milliseconds=record.timestamp),
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(
            kio_schema.RecordHeader(key=name.encode(), value=value)
            for name, value in record.headers
        ),
    )


# --- damage -------------------------------------------------------------------------------------


def _with_body(body: bytes, *, count: int = 1, last_delta: int = 0) -> list[Record]:
    header = read_header(build_batch(simple_records(1)))._replace(
        batch_length=49 + len(body), record_count=count, last_offset_delta=last_delta, attributes=0
    )
    data = bytes(61) + body
    try:
        return list(iter_records(data, 0, header, limit_bytes=LIMIT_BYTES))
    except InvalidRecordError:
        with pytest.raises(InvalidRecordError):
            list(iter_stamps(data, 0, header, limit_bytes=LIMIT_BYTES))
        raise


def _record(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return encode_varint(len(body)) + body


NULL = encode_varint(-1)
ZERO = b"\x00"


def test_the_smallest_record_is_read() -> None:
    (record,) = _with_body(_record(ZERO, ZERO, ZERO, NULL, NULL, ZERO))
    assert (record.key, record.value, record.headers) == (None, None, ())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (_record(ZERO, ZERO, ZERO, NULL, NULL, ZERO) + b"\x00", "after its last"),
        (_record(ZERO, ZERO, ZERO, NULL, NULL, ZERO, b"+"), "instead of"),
        (_record(ZERO, ZERO, b"\x02", NULL, NULL, ZERO), "outside its batch"),
        (_record(ZERO, ZERO, b"\x01", NULL, NULL, ZERO), "outside its batch"),
        (_record(ZERO, ZERO, ZERO, b"\x03", NULL, ZERO), "negative length"),
        (_record(ZERO, ZERO, ZERO, NULL, encode_varint(100), ZERO), "middle of a record"),
        (_record(ZERO, ZERO, ZERO, NULL, NULL, encode_varint(1000)), "1000 headers"),
        (_record(ZERO, ZERO, ZERO, NULL, NULL, b"\x01"), "negative length"),
        (_record(ZERO, ZERO, ZERO, NULL, NULL, b"\x02", NULL, NULL), "negative length"),
        (_record(ZERO, b"\xff" * 10 + b"\x01", ZERO, NULL, NULL, ZERO), "longer than 64"),
        (_record(ZERO, b"\xff" * 9 + b"\x02", ZERO, NULL, NULL, ZERO), "larger than 64"),
        (_record(ZERO, ZERO, b"\xff" * 5 + b"\x01", NULL, NULL, ZERO), "longer than 32"),
        (_record(ZERO, ZERO, b"\xff" * 4 + b"\x7f", NULL, NULL, ZERO), "larger than 32"),
        (_record(ZERO, b"\xfe" + b"\xff" * 8 + b"\x01", ZERO, NULL, NULL, ZERO), "timestamp"),
        (encode_varint(50) + bytes(10), "ends after its batch"),
        (NULL + bytes(10), "negative length"),
    ],
)
def test_records_that_make_no_sense_are_refused(body: bytes, why: str) -> None:
    """Rule 3.4.4 (and 3.4.2 for header counts and varints): strict bounds inside a batch."""
    with pytest.raises(InvalidRecordError, match=why):
        _with_body(body)


@pytest.mark.parametrize("count", [-1, 3, 2**31 - 1])
def test_a_record_count_that_cannot_be_is_refused_first(count: int) -> None:
    with pytest.raises(InvalidRecordError, match="declares"):
        _with_body(_record(ZERO, ZERO, ZERO, NULL, NULL, ZERO), count=count)


def test_a_header_name_that_is_not_utf8_is_replaced_as_kafka_does() -> None:
    body = _record(ZERO, ZERO, ZERO, NULL, NULL, b"\x02", b"\x02\xff", NULL)
    assert _with_body(body)[0].headers == (("\ufffd", None),)


@given(record_lists(), codecs, st.data())
def test_mutated_batches_raise_wire_errors_only(
    records: list[Record], codec: Codec, draw: st.DataObject
) -> None:
    """Rule 3.4.9: damage anywhere ends in a `WireError` or in records, never in anything else."""
    batch = bytearray(build_batch(records, codec=codec))
    for _ in range(draw.draw(st.integers(1, 5))):
        place = draw.draw(st.integers(0, len(batch) - 1))
        batch[place] = draw.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(batch))[1]
    except WireError:
        return
    assert sum(len(r.key or b"") + len(r.value or b"") for r in decoded) <= LIMIT_BYTES


@given(record_lists(gaps=True), st.sampled_from([Codec.NONE, Codec.GZIP]), st.data())
def test_a_walk_without_objects_finds_and_refuses_the_same(
    records: list[Record], codec: Codec, draw: st.DataObject
) -> None:
    """Sound or damaged: what can be read tells the same offsets and times, what cannot, neither."""
    batch = bytearray(build_batch(records, codec=codec))
    for _ in range(draw.draw(st.integers(0, 3))):
        place = draw.draw(st.integers(61, len(batch) - 1))
        batch[place] = draw.draw(st.integers(0, 255))
    header = read_header(batch)
    try:
        wanted = [(r.offset, r.timestamp, r.key is not None) for r in decode(bytes(batch))[1]]
    except WireError as error:
        with pytest.raises(type(error)):
            list(iter_stamps(batch, 0, header, limit_bytes=LIMIT_BYTES))
    else:
        assert list(iter_stamps(batch, 0, header, limit_bytes=LIMIT_BYTES)) == wanted


@pytest.mark.parametrize("codec", list(Codec))
def test_the_limit_of_the_caller_holds(codec: Codec) -> None:
    batch = build_batch([Record(0, 0, None, bytes(100_000))], codec=codec)
    with pytest.raises(OutputLimitError):
        list(iter_records(batch, 0, read_header(batch), limit_bytes=99_999))


# --- full validation ----------------------------------------------------------------------------


def _validate(batch: bytes, **options: int | bool | None) -> list[tuple[int, ErrorCode]]:
    summary = validate_records(batch, 0, read_header(batch), limit_bytes=LIMIT_BYTES, **options)  # type: ignore[arg-type]
    return [(problem.record_index, problem.code) for problem in summary.problems]


@given(record_lists(), codecs)
def test_sound_records_have_no_problem(records: list[Record], codec: Codec) -> None:
    batch = build_batch(records, codec=codec)
    summary = validate_records(batch, 0, read_header(batch), limit_bytes=LIMIT_BYTES)
    latest = max(record.timestamp for record in records)
    first = next(record.offset for record in records if record.timestamp == latest)
    assert summary == (len(records), latest, first, 0, ())


@given(st.lists(payloads, min_size=1, max_size=8))
def test_a_missing_key_is_a_problem_where_keys_are_needed(keys: list[bytes | None]) -> None:
    batch = build_batch([Record(i, 0, key, b"") for i, key in enumerate(keys)])
    wanted = [(i, ErrorCode.INVALID_RECORD) for i, key in enumerate(keys) if key is None]
    assert _validate(batch, require_keys=True) == wanted
    assert _validate(batch) == []


def test_timestamps_outside_the_range_are_problems() -> None:
    batch = build_batch([Record(i, time, None, b"") for i, time in enumerate((99, 100, 200, 201))])
    wanted = [(0, ErrorCode.INVALID_TIMESTAMP), (3, ErrorCode.INVALID_TIMESTAMP)]
    assert _validate(batch, timestamp_min=100, timestamp_max=200) == wanted


def test_gaps_and_wrong_counts_are_refused() -> None:
    gap = build_batch([Record(0, 0, None, b""), Record(2, 0, None, b"")])
    with pytest.raises(InvalidRecordError, match="spans 3 offsets"):
        _validate(gap)
    lie = bytearray(build_batch([Record(1, 0, None, b""), Record(2, 0, None, b"")]))
    lie[23:27] = (1).to_bytes(4, "big")
    write_crc(lie, 0, len(lie))
    with pytest.raises(InvalidRecordError, match="record 0 has offset delta 1"):
        _validate(bytes(lie))


def test_a_batch_of_append_time_reports_that_time() -> None:
    records = [Record(i, 50 - i, None, b"") for i in range(3)]
    batch = build_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    summary = validate_records(batch, 0, read_header(batch), limit_bytes=LIMIT_BYTES)
    assert (summary.max_timestamp, summary.max_timestamp_offset) == (50, 0)


# --- control records ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_markers_are_read_back_and_known_to_kafka_python(kind: ControlType) -> None:
    batch = build_marker(
        kind, producer_id=8, producer_epoch=2, coordinator_epoch=6, timestamp=1000, base_offset=77
    )
    header, (record,) = decode(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, -1)
    assert record.offset == 77
    assert read_marker(batch, 0, header) == EndTransactionMarker(kind, 6)
    (theirs,) = DefaultRecordBatch(batch)
    assert theirs.commit is (kind is ControlType.COMMIT)
    assert theirs.abort is (kind is ControlType.ABORT)


def test_control_records_of_other_kinds_are_not_markers() -> None:
    key = encode_control_key(ControlType.LEADER_CHANGE)
    assert decode_marker(Record(0, 0, key, b"")) is None
    assert decode_control_type(b"\x00\x00\x03\xe7") is ControlType.UNKNOWN
    for bad in (None, b"\x00", b"\xff\xff\x00\x00"):
        with pytest.raises(WireError):
            decode_control_type(bad)
    for value in (None, b"\x00\x00", b"\xff\xff\x00\x00\x00\x01"):
        with pytest.raises(WireError):
            decode_marker(Record(0, 0, encode_control_key(ControlType.COMMIT), value))
