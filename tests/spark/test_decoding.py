"""Values decoded by the source: structs, and what becomes of values that cannot be decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import create, fill, read_what_is_there, source

from tidemill.client.blocking import Consumer
from tidemill.spark.formats.dead_letters import refused
from tidemill.spark.options import ColumnOptions, OptionError, SourceOptions
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition

DDL = "id BIGINT, tags ARRAY<STRING>, at STRUCT<x: DOUBLE>"
GOOD = b'{"id": 7, "tags": ["a", "b"], "at": {"x": 0.5}}'
BAD = b'{"id": '


def options(name: str, **more: str) -> dict[str, str]:
    return {"subscribe": name, "valueFormat": "json", "valueSchema": DDL, **more}


def test_values_are_structs_and_bad_ones_keep_their_bytes(
    spark: Any, broker: BrokerProcess, name: str
) -> None:
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, [GOOD, BAD, None])
    frame = source(spark.read, broker.bootstrap, **options(name)).load()
    assert frame.schema["value"].dataType.fieldNames() == ["id", "tags", "at"]
    good, bad, none = frame.orderBy("offset").collect()
    assert (good.value.id, good.value.tags, good.value.at.x) == (7, ["a", "b"], 0.5)
    assert good._corrupt is None
    assert (bad.value, bytes(bad._corrupt)) == (None, BAD)
    assert (none.value, none._corrupt) == (None, None)
    narrow = source(spark.read, broker.bootstrap, **options(name))
    assert narrow.schema("_corrupt binary").load().where("_corrupt IS NOT NULL").count() == 1


def test_bad_values_go_to_the_dead_letter_topic(
    spark: Any, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """They have no row; key, value, headers and time are as they came, and the cause is there."""
    letters = f"{name}-letters"
    create(broker.bootstrap, name)
    create(broker.bootstrap, letters)
    fill(broker.bootstrap, name, [GOOD, BAD], headers={"own": b"1"}, timestamp_ms=5_000)
    more = {"deadLetterTopic": letters, "startingOffsets": "earliest"}
    frame = source(spark.readStream, broker.bootstrap, **options(name, **more)).load()
    assert "_corrupt" not in frame.columns
    seen = read_what_is_there(frame.selectExpr("CAST(value.id AS STRING) AS value"), tmp_path / "c")
    assert [row.value for rows in seen.batches for row in rows] == ["7"]
    with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(letters, 0)])
        (letter,) = consumer.poll(timeout_ms=10_000)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"key-1", BAD, 5_000)
    assert letter.headers[0] == ("own", b"1")
    said = refused(letter.headers)
    assert (said.topic, said.partition, said.offset, said.stage) == (name, 0, 1, "decode")
    assert said.error


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"valueFormat": "yaml", "valueSchema": DDL}, "json, avro or protobuf"),
        ({"valueFormat": "json"}, "needs a schema"),
        ({"valueSchema": DDL}, "`valueFormat`: is missing"),
        ({"deadLetterTopic": "d"}, "`valueFormat`: is missing"),
        ({"valueFormat": "json", "valueSchema": DDL, "deadLetterTopic": "t"}, "without end"),
    ],
)
def test_mistakes_about_values(given: dict[str, str], advice: str) -> None:
    brokers = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}
    with pytest.raises(OptionError) as failure:
        SourceOptions.parse({**brokers, **given}, streaming=True)
    assert advice in str(failure.value)
    with pytest.raises(OptionError):
        ColumnOptions.parse({**brokers, **given})
