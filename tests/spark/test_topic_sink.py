"""What a task sends for its rows, what it refuses, and how producers are kept between batches."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.client.errors import ClosedError
from tidemill.spark.formats import FormatOptions
from tidemill.spark.tables.target import BatchId, TaskIdentity
from tidemill.spark.topic_sink import (
    HEADERS,
    Producers,
    Send,
    SinkColumnError,
    TopicTarget,
    TopicWriter,
    check_columns,
    sends,
)
from tidemill.types import TopicPartition

NOW_MS = 1_700_000_000_000
TASK = TaskIdentity(BatchId("query", 3), 0, "ab")


def send_one(**columns: Any) -> Send:
    arrays = {
        name: each if isinstance(each, pa.Array) else pa.array(each)
        for name, each in columns.items()
    }
    (found,) = sends(pa.RecordBatch.from_pydict(arrays), "t", NOW_MS)
    return found


def test_values_and_keys_may_be_text_or_bytes() -> None:
    found = send_one(value=["a", None], key=[b"k", None])
    assert found.values == pa.array([b"a", None])
    assert found.keys == pa.array([b"k", None])
    assert found.partitions is None
    assert found.headers is None
    assert found.timestamps_ms.tolist() == [NOW_MS, NOW_MS]


def test_a_row_without_a_partition_leaves_the_choice_to_its_key() -> None:
    found = send_one(value=["a", "b"], partition=pa.array([4, None], pa.int32()))
    assert found.partitions is not None
    assert found.partitions.tolist() == [4, -1]


def test_timestamps_are_rounded_down_whatever_zone_labels_them() -> None:
    at = dt.datetime(2026, 11, 16, 9, 0, 0, 1999, tzinfo=dt.UTC)
    old = dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=dt.UTC)
    column = pa.array([at, None, old], pa.timestamp("us", tz="Europe/Amsterdam"))
    found = send_one(value=["a", "b", "c"], timestamp=column)
    expected = int(at.timestamp() * 1000)
    assert found.timestamps_ms.tolist() == [expected, NOW_MS, -1]


def test_headers_are_passed_on() -> None:
    headers = pa.array([[{"key": "a", "value": b"1"}], None, []], HEADERS)
    found = send_one(value=["a", "b", "c"], headers=headers)
    assert found.headers == headers
    none = send_one(value=["a"], headers=pa.array([None], HEADERS))
    assert none.headers is None
    broken = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    with pytest.raises(SinkColumnError, match="a header without a key"):
        send_one(value=["a"], headers=broken)


def test_a_topic_column_splits_rows_and_keeps_their_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"topic": ["a", "b", "a", "b"], "value": ["1", "2", "3", "4"]}
    )
    found = {each.topic: each.values.to_pylist() for each in sends(batch, None, NOW_MS)}
    assert found == {"a": [b"1", b"3"], "b": [b"2", b"4"]}
    option = list(sends(batch, "c", NOW_MS))
    assert [each.topic for each in option] == ["c"], "the option goes before the column"


def test_a_row_without_a_topic_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": pa.array([None], pa.string()), "value": ["1"]})
    with pytest.raises(SinkColumnError, match="column topic is null in a row"):
        list(sends(batch, None, NOW_MS))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.string()}, "needs a column `value`; the query has: key"),
        ({"value": pa.int64()}, "column value must be binary or string, and is int64"),
        ({"value": pa.string(), "key": pa.bool_()}, "column key must be binary or string"),
        ({"value": pa.string(), "partition": pa.int64()}, "column partition must be int"),
        ({"value": pa.string(), "timestamp": pa.int64()}, "column timestamp must be timestamp"),
        ({"value": pa.string(), "headers": pa.string()}, "column headers must be array<struct"),
        ({"value": pa.string(), "topic": pa.binary()}, "column topic must be string"),
    ],
)
def test_columns_are_checked_before_any_task_runs(
    columns: dict[str, pa.DataType], message: str
) -> None:
    with pytest.raises(SinkColumnError, match=message):
        TopicTarget("b:1", {}, "t").prepare(pa.schema(list(columns.items())))


def test_some_topic_must_be_named() -> None:
    schema = pa.schema([("value", pa.string())])
    with pytest.raises(SinkColumnError, match="which topic"):
        check_columns(schema, None)
    check_columns(schema, "t")
    check_columns(schema.append(pa.field("topic", pa.string())), None)


def test_columns_with_other_names_are_ignored() -> None:
    """A frame that the source read can be written as it is."""
    check_columns(pa.schema([("value", pa.binary()), ("offset", pa.int64())]), "t")
    assert send_one(value=["a"], offset=[7]).values == pa.array([b"a"])


JSON = FormatOptions("json", "n BIGINT, s STRING")
STRUCT = pa.struct([("s", pa.string()), ("n", pa.int32())])


def test_a_struct_is_encoded_by_each_task(made: list[FakeProducer]) -> None:
    """Fields by name, a null as a tombstone; the driver has settled the schema."""
    schema = pa.schema([("value", STRUCT), ("key", pa.string())])
    writer = TopicTarget("b:1", {}, "t", JSON).prepare(schema)
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([{"s": "a", "n": 1}, None], STRUCT), "key": ["k", "gone"]}
    )
    writer.write(iter([rows]), TASK, producers=producers_of(made))
    ((topic, _, keys, values, *_),) = made[0].sent
    assert (topic, keys.to_pylist()) == ("t", [b"k", b"gone"])
    assert values.to_pylist() == [b'{"n":1,"s":"a"}', None]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.string(), "column value must be a struct to be written as json, and is string"),
        (pa.struct([("z", pa.int64())]), "which the schema does not have"),
        (pa.struct([("n", pa.string())]), "n is string, and the schema wants int64"),
    ],
)
def test_structs_are_checked_before_any_task_runs(kind: pa.DataType, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopicTarget("b:1", {}, "t", JSON).prepare(pa.schema([("value", kind)]))


class FakeProducer:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.closed = False

    def send(self, *columns: Any) -> None:
        self.sent.append(columns)

    def flush(self) -> dict[TopicPartition, int]:
        return {TopicPartition("t", 0): len(self.sent) - 1}

    def close(self) -> None:
        self.closed = True
        raise ClosedError("closing failed")


@pytest.fixture
def made() -> list[FakeProducer]:
    return []


def producers_of(made: list[FakeProducer], limit: int = 2) -> Producers[Any]:
    def make(setup: object) -> FakeProducer:
        made.append(FakeProducer())
        return made[-1]

    return Producers(make, limit=limit)


def test_a_task_reports_how_far_it_got(made: list[FakeProducer]) -> None:
    writer = TopicWriter("b:1", (), "t")
    rows = [pa.RecordBatch.from_pydict({"value": ["a", "b"]}) for _ in range(3)]
    empty = pa.RecordBatch.from_pydict({"value": pa.array([], pa.string())})
    found = writer.write(iter([*rows, empty]), TASK, producers=producers_of(made))
    assert found.records == 6
    assert found.last_offsets == {TopicPartition("t", 0): 2}
    assert found.task == TASK
    assert TopicTarget("b:1", {}, "t").commit([found], TASK.batch)


def test_a_producer_is_used_again(made: list[FakeProducer]) -> None:
    producers = producers_of(made)
    for _ in range(3):
        with producers.lend(("b:1", ())):
            pass
    assert len(made) == 1


def test_a_producer_that_failed_is_not(made: list[FakeProducer]) -> None:
    producers = producers_of(made)
    with pytest.raises(KeyError), producers.lend(("b:1", ())):
        raise KeyError
    assert made[0].closed
    with producers.lend(("b:1", ())) as another:
        assert another is made[1]


def test_only_a_few_producers_are_kept(made: list[FakeProducer]) -> None:
    class Quiet(FakeProducer):
        def close(self) -> None:
            self.closed = True

    def make(setup: object) -> FakeProducer:
        made.append(Quiet())
        return made[-1]

    producers: Producers[Any] = Producers(make, limit=2)
    for name in ("a:1", "b:1", "c:1"):
        with producers.lend((name, ())):
            pass
    assert [each.closed for each in made] == [True, False, False]
    with producers.lend(("c:1", ())) as again:
        assert again is made[2]


def test_partitions_below_the_first_are_refused() -> None:
    with pytest.raises(SinkColumnError, match="column partition is -7"):
        send_one(value=["a"], partition=pa.array([-7], pa.int32()))
    assert isinstance(send_one(value=["a"]).timestamps_ms, np.ndarray)
