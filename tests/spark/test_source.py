"""The source in a real Spark session, reading from a real broker process."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import tidemill
from tests.reference.kafka import kafka_jars, run_kafka_tool, unavailable_reason
from tests.spark.topics import Seen, create, fill, numbers, read_what_is_there, source, stream

from tidemill.client.admin_types import NewPartitions
from tidemill.client.blocking import Admin
from tidemill.spark import settling
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)

Read = Callable[..., Any]


@pytest.fixture
def read(spark: Any, broker: BrokerProcess) -> Read:
    """A query that ends."""
    return lambda **options: source(spark.read, broker.bootstrap, **options)


@pytest.fixture
def follow(spark: Any, broker: BrokerProcess) -> Read:
    """A stream."""
    return lambda **options: source(
        spark.readStream, broker.bootstrap, **{"startingOffsets": "earliest", **options}
    )


def values(frame: Any) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


# --- queries that end -----------------------------------------------------------------------------


def test_every_column_of_every_record(read: Read, broker: BrokerProcess, name: str) -> None:
    from pyspark.sql.types import StructType

    create(broker.bootstrap, name, partitions=2)
    fill(broker.bootstrap, name, [b"a", None, b""], partition=1, timestamp_ms=1_700_000_000_123)
    fill(broker.bootstrap, name, [b"z"], key=lambda _: None, timestamp_ms=5)
    frame = read(subscribe=name).load()
    assert frame.schema == StructType.fromDDL(COLUMNS)
    rows = frame.orderBy("partition", "offset").collect()
    assert [(r.key, r.value, r.topic, r.partition, r.offset, r.timestampType) for r in rows] == [
        (None, b"z", name, 0, 0, 0),
        (b"key-0", b"a", name, 1, 0, 0),
        (b"key-1", None, name, 1, 1, 0),
        (b"key-2", b"", name, 1, 2, 0),
    ]
    times = frame.selectExpr("unix_millis(timestamp) AS ms").distinct().collect()
    assert {row.ms for row in times} == {5, 1_700_000_000_123}


def test_what_a_process_has_loaded_for_its_work_is_set_aside(
    broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's workers collect all garbage after each task, 80 ms of work every time."""
    from tidemill.spark.source import TidemillDataSource
    from tidemill.spark.tables.target import TaskIdentity

    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 10))
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name}
    frozen: list[str] = []

    def after(work: str) -> None:
        assert frozen, work
        frozen.clear()
        monkeypatch.setattr(settling, "_done", itertools.count(1))

    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("once"))
    monkeypatch.setattr(settling, "_done", itertools.count(1))
    asked = TidemillDataSource(options)
    schema = asked.schema()
    after("schema")
    reader = asked.reader(schema)
    (piece,) = reader.partitions()
    after("partitions")
    assert sum(batch.num_rows for batch in reader.read(piece)) == 10
    after("read")
    sink = TidemillDataSource({"kafka.bootstrap.servers": broker.bootstrap, "topic": name})
    writer = sink.writer(schema, overwrite=False)
    after("writer")
    monkeypatch.setattr("tidemill.spark.sink._task", lambda batch: TaskIdentity(batch, 0, "it"))
    assert writer.write(iter(())).what.records == 0
    after("write")
    writer.commit([])
    after("commit")


def test_the_log_s_own_time(read: Read, broker: BrokerProcess, name: str) -> None:
    create(broker.bootstrap, name, message_timestamp_type="LogAppendTime")
    fill(broker.bootstrap, name, [b"a"], timestamp_ms=5)
    row = read(subscribe=name).load().selectExpr("unix_millis(timestamp) AS ms", "*").first()
    assert row.timestampType == 1
    assert row.ms > 5


def test_headers_are_null_where_there_are_none(
    read: Read, broker: BrokerProcess, name: str
) -> None:
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, [b"a"], headers={"h": b"1", "n": None})
    fill(broker.bootstrap, name, [b"b"])
    frame = read(subscribe=name, includeHeaders="true").load().orderBy("offset")
    kind = frame.schema["headers"].dataType.simpleString()
    assert kind == "array<struct<key:string,value:binary>>"
    first, second = frame.collect()
    assert [tuple(header) for header in first.headers] == [("h", b"1"), ("n", None)]
    assert second.headers is None


def test_a_schema_with_fewer_columns(read: Read, broker: BrokerProcess, name: str) -> None:
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 10))
    frame = read(subscribe=name).schema("offset bigint, value binary").load()
    assert frame.columns == ["offset", "value"]
    assert [(r.offset, bytes(r.value)) for r in frame.orderBy("offset").collect()] == [
        (number, b"%d" % number) for number in range(10)
    ]
    assert read(subscribe=name).schema("value binary").load().count() == 10


@pytest.mark.parametrize(
    ("options", "schema", "advice"),
    [
        ({"failOnDataLos": "true"}, "value binary", "did you mean `failOnDataLoss`"),
        ({}, "value string", "column `value` is binary"),
        ({}, "vale binary", "did you mean `value`"),
        ({}, "headers array<struct<key:string,value:binary>>", "includeHeaders"),
        ({"subscribe": "not-there-at-all"}, "value binary", "there is no such topic"),
    ],
)
def test_mistakes_are_explained(
    read: Read, name: str, options: dict[str, str], schema: str, advice: str
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as failure:
        read(**{"subscribe": "t", **options}).schema(schema).load().count()
    assert advice in str(failure.value)


def test_between_offsets_and_times(read: Read, broker: BrokerProcess, name: str) -> None:
    create(broker.bootstrap, name)
    for number in range(10):
        fill(broker.bootstrap, name, [b"%d" % number], timestamp_ms=1_000 * number)
    offsets = read(
        subscribe=name,
        startingOffsets=json.dumps({name: {"0": 3}}),
        endingOffsets=json.dumps({name: {"0": 7}}),
    )
    assert values(offsets.load()) == numbers(3, 7)
    times = read(subscribe=name, startingTimestamp="2500", endingTimestamp="6000")
    assert values(times.load()) == numbers(3, 6)
    by_partition = read(subscribe=name, startingOffsetsByTimestamp=json.dumps({name: {"0": 8_000}}))
    assert values(by_partition.load()) == numbers(8, 10)
    late = read(
        subscribe=name, startingTimestamp="99999", startingOffsetsByTimestampStrategy="latest"
    )
    assert values(late.load()) == []


def test_topics_by_pattern_and_by_assignment(read: Read, broker: BrokerProcess, name: str) -> None:
    for suffix in ("a", "b", "xc"):
        create(broker.bootstrap, f"{name}-{suffix}", partitions=2)
        fill(broker.bootstrap, f"{name}-{suffix}", [suffix.encode()], partition=1)
    assert values(read(subscribePattern=f"{name}-.").load()) == [b"a", b"b"]
    assert values(read(subscribe=f"{name}-a,{name}-xc").load()) == [b"a", b"xc"]
    assigned = json.dumps({f"{name}-a": [1], f"{name}-b": [0]})
    assert values(read(assign=assigned).load()) == [b"a"]


def test_one_partition_fills_all_cores(read: Read, broker: BrokerProcess, name: str) -> None:
    """A range above 64 MB becomes several tasks, cut by what the broker says of its size."""
    create(broker.bootstrap, name)
    large = b"x" * 500_000
    fill(broker.bootstrap, name, [large] * 160)
    frame = read(subscribe=name).schema("offset bigint").load()
    by_task = frame.selectExpr("spark_partition_id() AS task").groupBy("task").count().collect()
    assert sorted(row["count"] for row in by_task) == [80, 80]
    few = read(subscribe=name, minPartitions="4").schema("offset bigint").load()
    assert few.rdd.getNumPartitions() == 4
    assert sorted(row.offset for row in few.collect()) == list(range(160))


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_follows_its_topic(
    follow: Read, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """New records, and a new partition while it runs."""
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 10))
    seen = Seen()
    query = stream(follow(subscribe=name).load(), seen, tmp_path / "c")
    try:
        seen.wait_for(10, query)
        fill(broker.bootstrap, name, numbers(10, 20))
        seen.wait_for(20, query)
        with Admin(broker.bootstrap) as admin:
            admin.create_partitions({name: NewPartitions(2)}).raise_first()
        fill(broker.bootstrap, name, numbers(20, 30), partition=1)
        seen.wait_for(30, query)
        query.processAllAvailable()
        progress = query.lastProgress
    finally:
        query.stop()
    assert sorted(seen.values, key=int) == numbers(0, 30)
    end = json.loads(progress["sources"][0]["endOffset"])
    assert end[name] == {"0": 20, "1": 10}
    assert json.loads(progress["sources"][0]["latestOffset"])[name] == {"0": 20, "1": 10}


def test_available_now_in_limited_batches(
    follow: Read, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, name, partitions=2)
    fill(broker.bootstrap, name, numbers(0, 30))
    fill(broker.bootstrap, name, numbers(30, 50), partition=1)
    frame = follow(subscribe=name, maxOffsetsPerTrigger="20").load()
    seen = read_what_is_there(frame, tmp_path / "c")
    assert [len(rows) for rows in seen.batches] == [20, 20, 10]
    assert sorted(seen.values, key=int) == numbers(0, 50)


def test_a_stream_goes_on_where_it_stopped(
    follow: Read, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """With the trigger availableNow, which waits for no least number of records."""
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 10))
    frame = follow(subscribe=name, minOffsetsPerTrigger="1000").load()
    assert read_what_is_there(frame, tmp_path / "c").values == numbers(0, 10)
    assert read_what_is_there(frame, tmp_path / "c").values == []
    fill(broker.bootstrap, name, numbers(10, 15))
    assert read_what_is_there(frame, tmp_path / "c").values == numbers(10, 15)


def test_the_first_batch_is_read_again_from_where_it_began(
    follow: Read, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """A query that began at the end and died with its first records skips none of them."""
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 5))
    frame = follow(subscribe=name, startingOffsets="latest").load()

    def die(batch: Any, batch_id: int) -> None:
        if not batch.isEmpty():
            raise RuntimeError("the first batch fails")

    writer = frame.writeStream.foreachBatch(die).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()
    wait_until_it_looked(query)
    fill(broker.bootstrap, name, numbers(5, 9))
    with pytest.raises(Exception, match="the first batch fails"):
        query.awaitTermination(60)
    fill(broker.bootstrap, name, numbers(9, 12))
    assert read_what_is_there(frame, tmp_path / "c").values == numbers(5, 12)


def wait_until_it_looked(query: Any) -> None:
    """Until the stream has decided where it begins: it then waits for records."""
    for _ in range(600):
        if query.status["message"].startswith("Waiting for data"):
            return
        query.awaitTermination(0.1)
    raise AssertionError(query.status)


# --- losses ---------------------------------------------------------------------------------------


def test_records_deleted_before_they_were_read(
    follow: Read, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 10))
    read_what_is_there(follow(subscribe=name).load(), tmp_path / "c")
    fill(broker.bootstrap, name, numbers(10, 20))
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(name, 0): 15}).raise_first()
    with pytest.raises(Exception, match="begins at offset 15: 10 and on are gone"):
        read_what_is_there(follow(subscribe=name).load(), tmp_path / "c")
    frame = follow(subscribe=name, failOnDataLoss="false").load()
    assert read_what_is_there(frame, tmp_path / "c").values == numbers(15, 20)


def test_a_topic_that_was_made_anew(
    follow: Read, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 10))
    read_what_is_there(follow(subscribe=name).load(), tmp_path / "c")
    with Admin(broker.bootstrap) as admin:
        admin.delete_topics([name]).raise_first()
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 25))
    with pytest.raises(Exception, match="deleted and made anew"):
        read_what_is_there(follow(subscribe=name).load(), tmp_path / "c")
    frame = follow(subscribe=name, failOnDataLoss="false").load()
    assert read_what_is_there(frame, tmp_path / "c").values == numbers(0, 25)


# --- what others see ------------------------------------------------------------------------------


def test_lag_is_visible_to_others(
    follow: Read, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """`tidemill group describe` and Kafka's own tool see how far the query is."""
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 10))
    frame = follow(subscribe=name, commitOffsets=f"{name}-group").load()
    read_what_is_there(frame, tmp_path / "c")
    fill(broker.bootstrap, name, numbers(10, 13))
    ran = tidemill(
        *("group", "describe", f"{name}-group", "--format", "json"),
        variables={"TIDEMILL_BOOTSTRAP": broker.bootstrap},
    )
    (row,) = json.loads(ran.out)["partitions"]
    assert (row["topic"], row["committed"], row["end"], row["lag"]) == (name, 10, 13, 3)
    if kafka_jars() is None:
        pytest.skip(f"NO REFERENCE: Apache Kafka's tools cannot run: {unavailable_reason()}")
    said = run_kafka_tool(
        "kafka-consumer-groups",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--group", f"{name}-group"),
        check=True,
    ).stdout
    assert f"{name} 0 10 13 3" in " ".join(said.split())
