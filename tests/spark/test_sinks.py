"""The sinks in a real Spark session: what a query writes is what is there afterwards, once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.tables.lake import KINDS, Lake
from tests.spark.topics import create, fill, numbers, source

from tidemill.client.blocking import Consumer
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition

RUN_S = 240
"""A generous limit for one run over what is there; a test that passes never waits so long."""


def sink_options(lake: Lake, **options: str) -> dict[str, str]:
    catalog = {f"catalog.{name}": value for name, value in lake.catalog.items()}
    return {"table": f"{lake.kind}:{lake.address}", **catalog, **options}


def follow(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    given = {"startingOffsets": "earliest", "subscribe": topic, **options}
    return source(spark.readStream, broker.bootstrap, **given).load()


def run(frame: Any, checkpoint: Path, options: dict[str, str], mode: str = "append") -> Any:
    """One run over what is there; raises what the query raised."""
    writer = frame.writeStream.format("tidemill").options(**options).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(RUN_S)
    assert not query.isActive
    return query


def forget_last_batch(checkpoint: Path) -> int:
    """As if the driver had been killed after the sink's commit and before Spark's own."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def only(*kinds: str) -> pytest.MarkDecorator:
    """Where one kind of table stands for all; what differs between them needs no Spark to show."""
    return pytest.mark.parametrize("lake", kinds, indirect=True)


# --- tables ---------------------------------------------------------------------------------------

ROWS = ("CAST(CAST(value AS string) AS bigint) AS id", "CAST(key AS string) AS value", "offset")


def test_a_stream_into_a_table_and_its_last_batch_again(
    spark: Any, broker: BrokerProcess, lake: Lake, name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, name, partitions=2)
    fill(broker.bootstrap, name, numbers(0, 50))
    fill(broker.bootstrap, name, numbers(50, 100), partition=1)
    frame = follow(spark, broker, name, maxOffsetsPerTrigger="40").selectExpr(*ROWS)
    checkpoint, options = tmp_path / "checkpoint", sink_options(lake)
    run(frame, checkpoint, options)
    assert [row["id"] for row in lake.read()] == list(range(100))
    assert forget_last_batch(checkpoint) >= 2, "several batches"
    fill(broker.bootstrap, name, numbers(100, 130))
    run(frame, checkpoint, options)
    assert [row["id"] for row in lake.read()] == list(range(130))
    assert lake.parquet_files() == lake.live_files()


def test_changes_of_keys_into_a_table(
    spark: Any, broker: BrokerProcess, lake: Lake, name: str, tmp_path: Path
) -> None:
    """The last value of each key; a null value deletes its key."""
    create(broker.bootstrap, name)
    values = [None if number % 7 == 0 else b"%d" % number for number in range(100)]
    fill(broker.bootstrap, name, values, key=lambda number: b"%d" % (number % 10))
    frame = follow(spark, broker, name, maxOffsetsPerTrigger="30").selectExpr(
        "CAST(CAST(key AS string) AS bigint) AS id", "CAST(value AS string) AS value", "offset"
    )
    options = sink_options(lake, mode="upsert", keys="id")
    run(frame, tmp_path / "checkpoint", options)
    last = {number % 10: (value, number) for number, value in enumerate(values)}
    assert lake.read() == [
        {"id": key, "value": value.decode(), "offset": offset}
        for key, (value, offset) in sorted(last.items())
        if value is not None
    ]


@only("iceberg")
def test_a_result_that_is_complete_each_time_replaces_the_table(
    spark: Any, broker: BrokerProcess, lake: Lake, name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, numbers(0, 60))
    counts = (
        follow(spark, broker, name, maxOffsetsPerTrigger="25")
        .selectExpr("CAST(CAST(value AS string) AS bigint) % 3 AS id")
        .groupBy("id")
        .count()
    )
    run(counts, tmp_path / "checkpoint", sink_options(lake), mode="complete")
    assert lake.read() == [{"id": number, "count": 20} for number in range(3)]


def test_a_frame_is_appended_and_replaced(spark: Any, lake: Lake) -> None:
    frame = spark.range(10).selectExpr("id", "current_timestamp() AS at", "array(id) AS ids")
    options = sink_options(lake)
    for _ in range(2):
        frame.write.format("tidemill").options(**options).mode("append").save()
    assert [row["id"] for row in lake.read()] == sorted([*range(10), *range(10)])
    frame.where("id < 3").write.format("tidemill").options(**options).mode("overwrite").save()
    assert [row["id"] for row in lake.read()] == [0, 1, 2]


@only("delta")
def test_a_frame_with_an_identity_is_written_once(spark: Any, lake: Lake) -> None:
    """As inside `foreachBatch`, which runs again after a crash."""
    for version in (0, 1, 1):
        options = {"table.txnAppId": "nightly", "table.txnVersion": str(version)}
        writer = spark.range(5).write.format("tidemill").options(**sink_options(lake, **options))
        writer.mode("append").save()
    assert len(lake.read()) == 10


@only("delta", "iceberg")
def test_the_sessions_time_zone_does_not_matter(spark: Any, lake: Lake) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Amsterdam")
    try:
        frame = spark.range(1).selectExpr(
            "id", "timestamp_millis(1700000000123) AS at", "named_struct('at', at) AS s"
        )
        frame.write.format("tidemill").options(**sink_options(lake)).mode("append").save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (row,) = lake.read()
    assert round(row["at"].timestamp() * 1000) == 1_700_000_000_123
    assert row["s"]["at"] == row["at"]


@only("parquet")
def test_a_batch_whose_task_fails_leaves_nothing(spark: Any, lake: Lake) -> None:
    writer = spark.range(2).write.format("tidemill").options(**sink_options(lake))
    writer.mode("append").save()
    broken = spark.range(0, 100, 1, 2).selectExpr(
        "IF(id = 99, raise_error('row 99 is bad'), id) AS id"
    )
    with pytest.raises(Exception, match="row 99 is bad"):
        broken.write.format("tidemill").options(**sink_options(lake)).mode("append").save()
    assert len(lake.read()) == 2
    lake.target().clean_orphans(older_than_ms=0)
    assert lake.parquet_files() == lake.live_files()


def test_plain_readers_read_a_parquet_table(spark: Any, tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path)
    for _ in range(3):
        writer = spark.range(10).write.format("tidemill").options(**sink_options(lake))
        writer.mode("append").save()
    assert spark.read.parquet(lake.address).count() == 30
    assert spark.read.parquet(lake.address).schema.simpleString() == "struct<id:bigint>"


def test_mistakes_reach_the_user(spark: Any, tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path)
    spark.range(1).write.format("tidemill").options(**sink_options(lake)).mode("append").save()
    other = spark.range(1).selectExpr("CAST(id AS string) AS id")
    with pytest.raises(Exception, match="column id is int64 in the table and string in the query"):
        other.write.format("tidemill").options(**sink_options(lake)).mode("append").save()
    with pytest.raises(Exception, match="must be delta:URL, iceberg"):
        other.write.format("tidemill").option("table", "hudi:/x").mode("append").save()


# --- topics ---------------------------------------------------------------------------------------


def records(broker: BrokerProcess, topic: str) -> Iterator[Any]:
    """Everything a topic has, partition by partition."""
    with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, each) for each in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        left = sum(ends.values())
        while left:
            for record in consumer.poll(timeout_ms=1_000):
                left -= 1
                yield record


def test_a_stream_from_topic_to_topic_keeps_all_of_a_record(
    spark: Any, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    for topic in (name, f"{name}-copy"):
        create(broker.bootstrap, topic, partitions=2)
    kept = {"headers": {"h": b"1", "n": None}, "timestamp_ms": 1_700_000_000_123}
    fill(broker.bootstrap, name, [*numbers(0, 20), None], partition=1, **kept)  # type: ignore[arg-type]
    frame = follow(spark, broker, name, includeHeaders="true")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": f"{name}-copy"}
    run(frame, tmp_path / "checkpoint", options)
    before, after = list(records(broker, name)), list(records(broker, f"{name}-copy"))
    assert len(after) == 21
    assert [(r.key, r.value, r.headers, r.timestamp_ms, r.partition) for r in after] == [
        (r.key, r.value, r.headers, r.timestamp_ms, r.partition) for r in before
    ]


def test_rows_name_their_topic_and_keys_choose_the_partition(
    spark: Any, broker: BrokerProcess, name: str
) -> None:
    for topic in (f"{name}-0", f"{name}-1"):
        create(broker.bootstrap, topic, partitions=3)
    frame = spark.range(100).selectExpr(
        f"concat('{name}-', id % 2) AS topic", "CAST(id % 10 AS string) AS key", "'v' AS value"
    )
    writer = frame.write.format("tidemill").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.mode("append").save()
    for index in range(2):
        found = list(records(broker, f"{name}-{index}"))
        assert len(found) == 50
        places = {record.key: record.partition for record in found}
        assert len(places) == 5
        assert all(places[record.key] == record.partition for record in found)
        assert len(set(places.values())) > 1


def test_mistakes_about_topics_reach_the_user(spark: Any, broker: BrokerProcess) -> None:
    writer = spark.range(1).write.format("tidemill").mode("append")
    given = writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "t")
    with pytest.raises(Exception, match="a topic needs a column `value`; the query has: id"):
        given.save()
    values = spark.range(1).selectExpr("'v' AS value").write.format("tidemill")
    given = values.option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match="which topic"):
        given.mode("append").save()
    with pytest.raises(Exception, match="can only be appended to"):
        given.option("topic", "t").mode("overwrite").save()


def test_a_table_is_what_its_topic_was(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """Rows with headers that are all null, which Spark hands over slowly if it is let."""
    create(broker.bootstrap, "all-columns")
    fill(broker.bootstrap, "all-columns", [json.dumps({"n": n}).encode() for n in range(30)])
    lake = Lake("delta", tmp_path)
    frame = follow(spark, broker, "all-columns", includeHeaders="true")
    run(frame, tmp_path / "checkpoint", sink_options(lake))
    table = lake._read().sort_by("offset")
    assert table.column("offset").to_pylist() == list(range(30))
    assert table.column("headers").null_count == 30
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
