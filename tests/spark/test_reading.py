"""A range of a partition as Spark's columns: exactly the schema, and only what is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.spark.topics import create, fill, numbers

from tidemill.client.columnar import OffsetsLost
from tidemill.client.errors import ClientError
from tidemill.errors import ErrorCode
from tidemill.spark import reading
from tidemill.spark.data_loss import DataLossError
from tidemill.spark.offsets import OPEN_END, OffsetRange
from tidemill.spark.options import SourceOptions
from tidemill.spark.reading import Rows, read_range
from tidemill.testing.process import BrokerProcess
from tidemill.wire.columns import ColumnBatch

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", HEADER))),
    ]
)


def columns(start: int, end: int, *, timestamp_type: int = 0) -> ColumnBatch:
    count = end - start
    headers: list[list[dict[str, Any]]] = [[{"key": "h", "value": b"1"}]] * (count - 1) + [[]]
    return ColumnBatch(
        pa.array([None] * count, pa.binary()),
        pa.array([b"%d" % number for number in range(start, end)], pa.binary()),
        np.arange(start, end),
        np.full(count, 1_500),
        timestamp_type,
        pa.array(headers, pa.list_(pa.field("element", HEADER))),
    )


def options(**given: str) -> SourceOptions:
    brokers = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}
    return SourceOptions.parse({**brokers, **given}, streaming=False)


def test_rows_have_exactly_the_schema() -> None:
    rows = Rows(SCHEMA, "t", 3)
    first, second = rows.of(columns(5, 8)), rows.of(columns(8, 10, timestamp_type=1))
    assert first.schema.equals(SCHEMA)
    assert second.schema.equals(SCHEMA)
    assert first.column("topic").to_pylist() == ["t"] * 3
    assert second.column("partition").to_pylist() == [3, 3]
    assert second.column("offset").to_pylist() == [8, 9]
    assert second.column("timestampType").to_pylist() == [1, 1]
    assert first.column("timestampType").to_pylist() == [0, 0, 0]
    assert first.column("timestamp").cast(pa.int64()).to_pylist() == [1_500_000] * 3
    assert first.column("headers").to_pylist() == [
        [{"key": "h", "value": b"1"}],
        [{"key": "h", "value": b"1"}],
        None,
    ]


def test_a_time_that_spark_does_not_have_is_null() -> None:
    """Nanoseconds in the place of milliseconds would wrap around into some other time."""
    nanoseconds, least = 1_763_300_000_000_000_000, -(2**63)
    given = columns(0, 4)._replace(timestamp_ms=np.array([1_500, nanoseconds, least, -1]))
    made = Rows(SCHEMA, "t", 0).of(given)
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [1_500_000, None, None, -1_000]


def test_only_the_columns_that_are_wanted() -> None:
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    made = Rows(schema, "t", 0).of(columns(0, 2)._replace(headers=None))
    assert made.to_pydict() == {"offset": [0, 1], "value": [b"0", b"1"]}


class Script:
    """A reader that yields what it was told to, and raises what it was told to."""

    def __init__(self, *steps: ColumnBatch | Exception) -> None:
        self._steps = iter(steps)
        self.starts: list[int] = []

    def read(
        self, topic: str, partition: int, start: int, end: int, *, headers: bool = False
    ) -> Iterator[ColumnBatch]:
        self.starts.append(start)
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            yield step


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*steps: ColumnBatch | Exception) -> Script:
        script = Script(*steps)
        monkeypatch.setattr(reading, "_reader_for", lambda options: script)
        return script

    return install


def offsets_read(given: SourceOptions) -> list[int]:
    schema = pa.schema([("offset", pa.int64())])
    made = read_range(given, schema, OffsetRange("t", 0, 0, 10))
    return [offset for batch in made for offset in batch.column(0).to_pylist()]


def test_records_lost_while_they_are_read(scripted: Any) -> None:
    lost = OffsetsLost("t", 0, 3, 7)
    scripted(columns(0, 3), lost)
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        offsets_read(options())
    script = scripted(columns(0, 3), lost, columns(7, 10))
    assert offsets_read(options(failOnDataLoss="false")) == [0, 1, 2, 7, 8, 9]
    assert script.starts == [0, 7]


def test_a_topic_deleted_while_it_is_read(scripted: Any) -> None:
    gone = ClientError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    scripted(columns(0, 3), gone)
    with pytest.raises(DataLossError, match="was deleted while it was read"):
        offsets_read(options())
    scripted(columns(0, 3), gone)
    assert offsets_read(options(failOnDataLoss="false")) == [0, 1, 2]


def test_other_failures_are_failures(scripted: Any) -> None:
    scripted(columns(0, 3), ClientError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ClientError):
        offsets_read(options(failOnDataLoss="false"))


def test_an_open_end_is_the_partitions_when_it_is_read(broker: BrokerProcess, name: str) -> None:
    """The same range twice, as Spark computes a frame again that it has planned once."""
    create(broker.bootstrap, name)
    given = SourceOptions.parse(
        {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": name,
            "endingOffsets": "whenRead",
        },
        streaming=False,
    )
    schema = pa.schema([("value", pa.binary())])
    for start, end in ((0, 0), (0, 3), (3, 5)):
        fill(broker.bootstrap, name, numbers(start, end))
        made = read_range(given, schema, OffsetRange(name, 0, 0, OPEN_END))
        values = [value for batch in made for value in batch.column(0).to_pylist()]
        assert values == [b"%d" % number for number in range(end)]
