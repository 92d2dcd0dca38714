"""Spark's own `format("kafka")`, source and sink, unchanged, against a Tidemill broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.clients import CODECS, ODD_RECORDS, Sent, confluent_consume, confluent_produce
from tests.reference.spark_kafka import connector_jars, connector_missing

from tidemill.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Java's client is patient by default; and the first query of a JVM compiles a great deal.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

FIRST_MS = 1_700_000_000_000
WAIT_S = 120

fresh_names = (f"spark-kafka-{number}" for number in itertools.count())


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """The session of the run, if it has Spark's Kafka connector."""
    if connector_jars() is None:
        pytest.skip(f"NO REFERENCE: no Kafka connector for Spark: {connector_missing()}")
    return spark


def new_topic(broker: BrokerProcess, partitions: int = 1, *, name: str | None = None) -> str:
    topic = name or next(fresh_names)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    return topic


def numbered(count: int, *, first: int = 0) -> list[Sent]:
    """Records that a minute lies between, so that times tell them apart."""
    return [
        Sent(b"value-%d" % at, key=b"key-%d" % (at % 7), timestamp_ms=FIRST_MS + at * 60_000)
        for at in range(first, first + count)
    ]


def produce(broker: BrokerProcess, topic: str, records: Sequence[Sent], partition: int = 0) -> None:
    confluent_produce(broker.bootstrap, topic, partition, "none", records)


def read(spark: SparkSession, broker: BrokerProcess, topic: str, **options: object) -> DataFrame:
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    return with_options(source, {"subscribe": topic} | options).load()


def read_stream(spark: SparkSession, broker: BrokerProcess, **options: object) -> DataFrame:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    return with_options(source, {"startingOffsets": "earliest"} | options).load()


def with_options(source: Any, options: dict[str, object]) -> Any:
    for name, value in options.items():
        source = source.option(name, value)
    return source


def values(rows: Iterable[Any]) -> list[bytes]:
    return sorted(bytes(row.value) for row in rows)


def run_now(stream: DataFrame, name: str, folder: Path) -> list[dict[str, Any]]:
    """All there is, into the table `name` in memory; what Spark reports of each batch."""
    query = (
        stream.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(folder / name))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S), "the query did not end"
    return [json.loads(progress.json) for progress in query.recentProgress]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_reads_whatever_a_record_can_be(
    spark: SparkSession, broker: BrokerProcess, codec: str
) -> None:
    topic = new_topic(broker, 2)
    confluent_produce(broker.bootstrap, topic, 1, codec, ODD_RECORDS)
    frame = read(spark, broker, topic, includeHeaders=True)
    assert frame.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]
    rows = frame.orderBy("offset").collect()
    assert [(row.topic, row.partition, row.offset) for row in rows] == [
        (topic, 1, at) for at in range(len(ODD_RECORDS))
    ]
    for row, sent in zip(rows, ODD_RECORDS, strict=True):
        assert (row.key, row.value) == (sent.key, sent.value)
        headers = [(each.key, bytes(each.value)) for each in row.headers or ()]
        assert headers == list(sent.headers)
        sent_at = datetime.fromtimestamp(sent.timestamp_ms / 1000, UTC)
        assert row.timestamp.astimezone(UTC) == sent_at
        assert row.timestampType == 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_batch_writes_keys_partitions_and_headers(
    spark: SparkSession, broker: BrokerProcess, codec: str
) -> None:
    topic = new_topic(broker, 2)
    frame = spark.sql(
        f"""select '{topic}' as topic, 1 as partition, cast(concat('k', id) as binary) as key,
        cast(concat('v', id) as binary) as value,
        array(struct('h' as key, cast('x' as binary) as value)) as headers from range(50)"""
    )
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("kafka.compression.type", codec).option("includeHeaders", True).save()
    seen = confluent_consume(broker.bootstrap, topic, 1, 0, 50)
    assert {(each.key, each.value) for each in seen} == {
        (b"k%d" % at, b"v%d" % at) for at in range(50)
    }
    assert all([name for name, _ in each.headers] == ["h"] for each in seen)


def test_the_sink_takes_a_key_to_the_partition_where_every_client_expects_it(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    topic = new_topic(broker, 4)
    frame = spark.sql("select cast(id % 9 as string) as key, cast(id as string) as value from "
                      "range(300)")  # fmt: skip
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("topic", topic).save()
    rows = read(spark, broker, topic).select("key", "partition").distinct().collect()
    assert len(rows) == 9, "a key went to two partitions"
    assert values(read(spark, broker, topic).collect()) == sorted(b"%d" % at for at in range(300))


def test_times_bound_a_batch(spark: SparkSession, broker: BrokerProcess) -> None:
    topic = new_topic(broker)
    produce(broker, topic, numbered(10))
    from_third = FIRST_MS + 3 * 60_000
    until_seventh = json.dumps({topic: {"0": FIRST_MS + 7 * 60_000}})
    rows = read(
        spark, broker, topic, startingTimestamp=from_third, endingOffsetsByTimestamp=until_seventh
    ).collect()
    assert values(rows) == [b"value-%d" % at for at in range(3, 7)]


def test_few_partitions_are_read_by_many_tasks(spark: SparkSession, broker: BrokerProcess) -> None:
    topic = new_topic(broker)
    produce(broker, topic, numbered(100))
    frame = read(spark, broker, topic, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert values(frame.collect()) == sorted(b"value-%d" % at for at in range(100))


def test_a_stream_from_topic_to_topic_goes_on_where_it_stopped(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    here, there = new_topic(broker, 2), new_topic(broker, 2)

    def start() -> Any:
        stream = read_stream(spark, broker, subscribe=here).selectExpr("key", "upper(value) value")
        writer = stream.writeStream.format("kafka").option("topic", there)
        return (
            writer.option("kafka.bootstrap.servers", broker.bootstrap)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

    produce(broker, here, numbered(20))
    query = start()
    try:
        query.processAllAvailable()
        produce(broker, here, numbered(20, first=20), partition=1)
        query.processAllAvailable()
    finally:
        query.stop()
    produce(broker, here, numbered(20, first=40))
    query = start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert values(read(spark, broker, there).collect()) == sorted(
        b"VALUE-%d" % at for at in range(60)
    )


def test_available_now_takes_what_there_is_in_bounded_batches(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = new_topic(broker, 2)
    for partition in range(2):
        produce(broker, topic, numbered(50, first=50 * partition), partition)
    stream = read_stream(spark, broker, subscribe=topic, maxOffsetsPerTrigger=40)
    batches = run_now(stream, "available_now", tmp_path)
    assert [batch["numInputRows"] for batch in batches if batch["numInputRows"]] == [40, 40, 20]
    assert values(spark.table("available_now").collect()) == sorted(
        b"value-%d" % at for at in range(100)
    )


def test_a_pattern_finds_topics_that_come_later(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    new_topic(broker, name="pattern-of-spark-a")
    produce(broker, "pattern-of-spark-a", numbered(5))
    new_topic(broker, name="no-pattern-of-spark")
    produce(broker, "no-pattern-of-spark", numbered(5, first=100))
    stream = read_stream(spark, broker, subscribePattern="pattern-of-spark-.*")
    query = stream.writeStream.format("memory").queryName("by_pattern").start()
    try:
        query.processAllAvailable()
        new_topic(broker, name="pattern-of-spark-b")
        produce(broker, "pattern-of-spark-b", numbered(5, first=5))
        query.processAllAvailable()
    finally:
        query.stop()
    assert values(spark.table("by_pattern").collect()) == sorted(
        b"value-%d" % at for at in range(10)
    )


def test_records_that_are_gone_fail_a_query_unless_it_says_otherwise(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    topic = new_topic(broker)
    produce(broker, topic, numbered(10))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result()
    since = json.dumps({topic: {"0": 0}})
    lenient = read(spark, broker, topic, startingOffsets=since, failOnDataLoss=False)
    assert values(lenient.collect()) == [b"value-%d" % at for at in range(4, 10)]
    strict = read(spark, broker, topic, startingOffsets=since, failOnDataLoss=True)
    with pytest.raises(Exception, match=r"(?i)data may have been lost|data_loss|out of range"):
        strict.collect()
