"""Dead letters: what stands in their headers, and that the record is as it came."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tidemill.spark.formats import FormatOptions, value_format
from tidemill.spark.formats import dead_letters as letters
from tidemill.wire.column_encoder import OutgoingColumns

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


class ColumnBatch(NamedTuple):
    """What a reader of topics hands out: `wire.columns` has the real one."""

    key: pa.BinaryArray
    value: pa.BinaryArray
    offset: Any
    timestamp_ms: Any
    timestamp_type: int
    headers: pa.ListArray | None


def piece(*, headers: bool) -> ColumnBatch:
    own = [[], [{"key": "trace", "value": b"7"}], [{"key": "trace", "value": None}]]
    return ColumnBatch(
        key=pa.array([b"k0", b"k1", None], pa.binary()),
        value=pa.array([b'{"a":1}', b"{", b"[]"], pa.binary()),
        offset=np.array([10, 12, 15]),
        timestamp_ms=np.array([1_000, 2_000, -1]),
        timestamp_type=0,
        headers=pa.array(own, HEADERS) if headers else None,
    )


@pytest.mark.parametrize("headers", [True, False])
def test_the_bad_records_of_a_piece(headers: bool) -> None:
    batch = piece(headers=headers)
    decoded = value_format(FormatOptions("json", "a INT")).decode(batch.value)
    dead = letters.dead_letters(batch, decoded, topic="clicks", partition=3, pipeline="p")
    assert dead.keys.to_pylist() == [b"k1", None]
    assert dead.values.to_pylist() == [b"{", b"[]"]
    assert dead.timestamps_ms.tolist() == [2_000, -1]
    assert dead.headers.type == HEADERS
    listed = [[(each["key"], each["value"]) for each in row] for row in dead.headers.to_pylist()]
    assert listed[0][0] == (("trace", b"7") if headers else (letters.TOPIC, b"clicks"))
    first, second = map(letters.refused, listed)
    assert first == letters.Refused(
        "clicks", 3, 12, 2_000, letters.DECODING, decoded.causes[0], "p"
    )
    assert (second.offset, second.timestamp_ms) == (15, -1)


def test_a_letter_can_be_produced_whatever_the_record_s_time() -> None:
    batch = piece(headers=False)._replace(timestamp_ms=np.array([0, -7, 2**63 - 1]))
    decoded = value_format(FormatOptions("json", "a INT")).decode(batch.value)
    dead = letters.dead_letters(batch, decoded, topic="clicks", partition=3)
    assert dead.timestamps_ms.tolist() == [-1, -1]
    listed = [[(each["key"], each["value"]) for each in row] for row in dead.headers.to_pylist()]
    assert [letters.refused(each).timestamp_ms for each in listed] == [-7, 2**63 - 1]
    OutgoingColumns(dead.keys, dead.values, dead.headers, dead.timestamps_ms)


def test_no_bad_records_are_no_letters() -> None:
    batch = piece(headers=True)
    decoded = value_format(FormatOptions("json", "a INT")).decode(batch.value[:1])
    assert len(letters.dead_letters(batch, decoded, topic="t", partition=0).values) == 0


def test_a_letter_refused_again_tells_the_last_time() -> None:
    twice = [
        *letters.cause_headers({letters.TOPIC: "a", letters.OFFSET: 1}),
        *letters.cause_headers({letters.TOPIC: "b", letters.OFFSET: 2, letters.PIPELINE: None}),
    ]
    assert letters.refused(twice)[:3] == ("b", None, 2)
    assert letters.refused([(letters.OFFSET, b"x"), ("other", None)]).offset is None


def test_only_headers_of_the_table_are_written() -> None:
    with pytest.raises(ValueError, match=r"tidemill\.dlq\.other"):
        letters.cause_headers({"tidemill.dlq.other": 1})
