"""Columns become the very bytes that the plain encoder makes of the same records."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.wire.batch_strategies import codecs, decode, header_lists, payloads

from tidemill.client.partitioner import positive_hash
from tidemill.wire.batch import SEQUENCE_MAX
from tidemill.wire.column_encoder import rows_by_partition
from tidemill.wire.columns import encode_columns, partition_of_keys
from tidemill.wire.compression import Codec
from tidemill.wire.records import BatchBuilder, Record, build_batch

SHARED_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADERS = pyarrow.list_(pyarrow.struct({"key": pyarrow.string(), "value": pyarrow.binary()}))

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
row_lists: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(st.integers(-1, 2**63 - 2) | st.integers(0, 9999), payloads, payloads, header_lists),
    min_size=1,
    max_size=12,
)


def as_columns(rows: list[Row]) -> tuple[Any, Any, Any, Any]:
    times, keys, values, headers = zip(*rows, strict=True)
    return (
        pyarrow.array(keys, pyarrow.binary()),
        pyarrow.array(values, pyarrow.binary()),
        pyarrow.array(headers, HEADERS),
        numpy.array(times, numpy.int64),
    )


@SHARED_FIXTURE
@given(row_lists, codecs, st.integers(0, 800))
def test_the_bytes_are_those_of_the_plain_encoder(
    engine: str, rows: list[Row], codec: Codec, batch_bytes_max: int
) -> None:
    batches = list(
        encode_columns(
            *as_columns(rows),
            codec=codec,
            batch_bytes_max=batch_bytes_max,
            producer_id=5,
            producer_epoch=1,
            base_sequence=SEQUENCE_MAX - 2,
        )
    )
    left, sequence = rows, SEQUENCE_MAX - 2
    for batch in batches:
        _, decoded = decode(batch)
        count = len(decoded)
        some, left = left[:count], left[count:]
        records = [
            Record(n, time, key, value, tuple(headers))
            for n, (time, key, value, headers) in enumerate(some)
        ]
        plain = build_batch(
            records, codec=codec, producer_id=5, producer_epoch=1, base_sequence=sequence
        )
        assert batch == plain
        bare = build_batch(records)
        assert len(bare) <= batch_bytes_max or count == 1
        if left:
            time, key, value, headers = left[0]
            builder = BatchBuilder()
            for record in records:
                builder.append(*record[1:])
            more = builder.append(time, key, value, headers)
            assert more > batch_bytes_max, "the next record had fitted"
        sequence = (sequence + count) & SEQUENCE_MAX
    assert not left


@SHARED_FIXTURE
@given(row_lists, st.data())
def test_slices_and_other_kinds_of_columns_are_read_as_they_are(
    engine: str, rows: list[Row], draw: st.DataObject
) -> None:
    start = draw.draw(st.integers(0, len(rows) - 1))
    keys, values, headers, times = as_columns(rows)
    plain = encode_columns(*as_columns(rows[start:]), codec=Codec.NONE, batch_bytes_max=1_000_000)
    sliced = encode_columns(
        keys[start:].cast(pyarrow.large_binary()),
        pyarrow.chunked_array([values])[start:],
        headers[start:],
        times[start:],
        codec=Codec.NONE,
        batch_bytes_max=1_000_000,
    )
    assert list(plain) == list(sliced)


def test_columns_may_be_missing(engine: str) -> None:
    values = pyarrow.array(["text", None])
    (batch,) = encode_columns(None, values, None, None, codec=Codec.NONE, batch_bytes_max=1000)
    _, records = decode(batch)
    assert records == [Record(0, -1, None, b"text"), Record(1, -1, None, None)]


def test_a_null_list_is_no_headers_and_a_header_has_a_name(engine: str) -> None:
    values = pyarrow.array([b"1", b"2"])
    headers = pyarrow.array([None, [("h", None)]], HEADERS)
    (batch,) = encode_columns(None, values, headers, None, codec=Codec.NONE, batch_bytes_max=1000)
    assert [record.headers for record in decode(batch)[1]] == [(), (("h", None),)]
    nameless = pyarrow.array([[], [(None, b"")]], HEADERS)
    with pytest.raises(ValueError, match="needs a name"):
        list(encode_columns(None, values, nameless, None, codec=Codec.NONE, batch_bytes_max=1000))


def test_columns_that_do_not_fit_each_other_are_refused() -> None:
    one, two = pyarrow.array([b"1"]), pyarrow.array([b"1", b"2"])
    for keys, values, times in (
        (one, two, None),
        (None, None, None),
        (None, one, [-2]),
        (None, one, [2**63 - 1]),
    ):
        given_times = None if times is None else numpy.array(times)
        with pytest.raises(ValueError):
            list(
                encode_columns(
                    keys, values, None, given_times, codec=Codec.NONE, batch_bytes_max=1000
                )
            )


@SHARED_FIXTURE
@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(1, 1000))
def test_keys_go_where_the_producer_puts_them(
    engine: str, keys: list[bytes | None], partitions: int
) -> None:
    found = partition_of_keys(pyarrow.array(keys, pyarrow.binary()), partitions)
    assert found.dtype == numpy.int32
    expected = [-1 if key is None else positive_hash(key) % partitions for key in keys]
    assert found.tolist() == expected


@SHARED_FIXTURE
@given(st.lists(st.integers(0, 5)), st.integers(6, 9))
def test_rows_are_grouped_in_order(engine: str, partitions: list[int], count: int) -> None:
    found = dict(rows_by_partition(numpy.array(partitions, numpy.int32), count))
    assert {index: rows.tolist() for index, rows in found.items()} == {
        index: [row for row, other in enumerate(partitions) if other == index]
        for index in set(partitions)
    }


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1])
def test_a_partition_that_is_not_there_is_named(engine: str, wrong: int) -> None:
    with pytest.raises(ValueError, match=f"no partition {wrong}, only 0 to 2"):
        list(rows_by_partition(numpy.array([0, wrong], numpy.int32), 3))


def test_a_builder_goes_on_after_what_was_encoded_elsewhere() -> None:
    records = [Record(n, 1000 - n, b"k", b"v%d" % n) for n in range(5)]
    body = build_batch(records[:3])[61:]
    builder = BatchBuilder.of_encoded(body, 3, base_timestamp=1000, max_timestamp=1000)
    assert (builder.record_count, builder.size_bytes) == (3, 61 + len(body))
    for record in records[3:]:
        builder.append(*record[1:])
    assert builder.record_count == 5
    assert builder.build() == build_batch(records)
