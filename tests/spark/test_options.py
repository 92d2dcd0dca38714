"""Options: names as for Spark's Kafka source, in any case, and every mistake says what to do."""

from __future__ import annotations

import pickle

import pytest

from tidemill.spark.option_values import SPARK_OWN
from tidemill.spark.options import (
    Assign,
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    OptionError,
    SinkOptions,
    SourceOptions,
    Subscribe,
    SubscribePattern,
)

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def parsed(**options: str) -> SourceOptions:
    return SourceOptions.parse({**BROKERS, "subscribe": "t", **options}, streaming=True)


def of_a_batch(**options: str) -> SourceOptions:
    return SourceOptions.parse({**BROKERS, "subscribe": "t", **options}, streaming=False)


def test_defaults_are_those_of_spark_s_own_source() -> None:
    stream, batch = parsed(), of_a_batch()
    assert (stream.starting, batch.starting, batch.ending) == (
        Edge.LATEST,
        Edge.EARLIEST,
        Edge.LATEST,
    )
    assert stream.fail_on_data_loss
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert stream.isolation_level == "read_uncommitted"
    assert not stream.columns.include_headers


def test_names_have_any_case_and_spark_s_own_are_not_ours() -> None:
    found = parsed(STARTINGOFFSETS="Earliest", includeheaders="TRUE", checkpointLocation="/tmp/x")
    assert found.starting is Edge.EARLIEST
    assert found.columns.include_headers
    assert "checkpointlocation" in SPARK_OWN


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": " a, b,a "}, Subscribe(("a", "b"))),
        ({"subscribePattern": "a.*"}, SubscribePattern("a.*")),
        ({"assign": '{"b": [2, 0, 2], "a": [1]}'}, Assign({"a": (1,), "b": (0, 2)})),
    ],
)
def test_what_to_read(options: dict[str, str], expected: object) -> None:
    assert SourceOptions.parse({**BROKERS, **options}, streaming=True).subscription == expected


def test_the_most_particular_beginning_wins() -> None:
    offsets = {"startingOffsets": '{"t": {"0": 5, "1": -2}}'}
    times = {"startingOffsetsByTimestamp": '{"t": {"0": 7, "1": 8}}'}
    assert parsed(**offsets).starting == AtOffsets({"t": {0: 5, 1: -2}})
    assert parsed(**offsets, **times).starting == AtTimes({"t": {0: 7, 1: 8}})
    assert parsed(**offsets, **times, startingTimestamp="9").starting == AtTime(9)


def test_settings_of_the_client() -> None:
    found = parsed(
        **{
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": "2000000",
            "kafka.receive.buffer.bytes": "65536",
            "kafka.group.id": "a-label",
            "groupIdPrefix": "label",
        }
    )
    assert found.isolation_level == "read_committed"
    assert found.client == {
        "isolation.level": "read_committed",
        "max.partition.fetch.bytes": "2000000",
    }


MISTAKES = [
    ({"subscribe": "t", "assign": '{"t": [0]}'}, "exactly one of"),
    ({}, "exactly one of"),
    ({"subscribePattern": "("}, "is no pattern"),
    ({"assign": '{"t": "0"}'}, 'must look like {"clicks": [0, 1]}'),
    ({"assign": "t"}, "is no JSON"),
    ({"subscribe": ","}, "names nothing"),
    ({"subscribe": "t", "startingOffsets": "first"}, "earliest, latest or {"),
    ({"subscribe": "t", "startingOffsets": '{"t": {"0": -3}}'}, "must look like"),
    ({"subscribe": "t", "endingOffsets": "latest"}, "a stream has no end"),
    ({"subscribe": "t", "maxOffsetsPerTrigger": "0"}, "whole number, 1 or more"),
    ({"subscribe": "t", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than"),
    ({"subscribe": "t", "maxTriggerDelay": "soon"}, "duration such as 15m"),
    ({"subscribe": "t", "failOnDataLoss": "yes"}, "must be true or false"),
    ({"subscribe": "t", "failOnDataLos": "true"}, "did you mean `failOnDataLoss`?"),
    ({"subscribe": "t", "zzz": "1"}, "is unknown"),
    ({"subscribe": "t", "path": "t"}, "leave the path out"),
    ({"subscribe": "t", "client.id": "me"}, "`kafka.client.id`"),
    ({"subscribe": "t", "kafka.auto.offset.reset": "earliest"}, "is decided by `startingOffsets`"),
    ({"subscribe": "t", "kafka.enable.auto.commit": "true"}, "`commitOffsets` = GROUP"),
    ({"subscribe": "t", "kafka.key.deserializer": "x"}, "keys are always binary"),
    ({"subscribe": "t", "kafka.interceptor.classes": "x"}, "runs no interceptors"),
    ({"subscribe": "t", "kafka.fetch.mx.bytes": "1"}, "did you mean `fetch.max.bytes`?"),
    ({"subscribe": "t", "kafka.fetch.max.bytes": "many"}, "must be a number"),
    ({"subscribe": "t", "kafka.bootstrap.servers": "here:there"}, "is no address"),
    ({"subscribe": "t", "commitOffsets": "true"}, "takes the name of a group"),
]


@pytest.mark.parametrize(("options", "advice"), MISTAKES)
def test_a_mistake_says_what_to_write(options: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError) as failure:
        SourceOptions.parse({**BROKERS, **options}, streaming=True)
    assert advice in str(failure.value)
    assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"startingOffsets": "latest"}, "cannot begin at the end"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "cannot begin at the end"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"startingOffsets": "whenRead"}, "must look like|is no JSON"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "reads nothing"),
        ({"commitOffsets": "g"}, "a batch query has none"),
    ],
)
def test_what_a_query_that_ends_cannot_have(options: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        of_a_batch(**options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.sasl.jaas.config", 'Login required password="hunter2";'),
        ("kafka.ssl.keystore.password", "hunter2"),
        ("kafka.pasword", "hunter2"),
        ("fs.s3a.secret.key", "hunter2"),
        ("startingOfsets", "hunter2"),
    ],
)
def test_a_mistake_tells_no_secret(option: str, value: str) -> None:
    """It is logged, and kept where `status` shows it."""
    with pytest.raises(OptionError) as failure:
        SourceOptions.parse({**BROKERS, "subscribe": "t", option: value}, streaming=True)
    assert option.lower() in str(failure.value).lower()
    assert "hunter2" not in str(failure.value)
    assert "hunter2" not in repr(failure.value.__reduce__())


def test_secrets_within_a_value_are_hidden() -> None:
    mistake = OptionError("schema.registry.url", "http://me:hunter2@registry:8081/x", "is bad")
    assert str(mistake) == (
        "option `schema.registry.url` = 'http://[hidden]@registry:8081/x': is bad"
    )
    assert str(OptionError("api.key", "hunter2", "is bad")) == (
        "option `api.key` = '[hidden]': is bad"
    )
    assert "'a,b'" in str(OptionError("keys", "a,b", "is bad"))


@pytest.mark.parametrize(
    ("name", "value"), [("sasl.mechanism", "PLAIN"), ("security.protocol", "SASL_SSL")]
)
def test_security_that_there_is_not_is_said_plainly(name: str, value: str) -> None:
    given = {**BROKERS, "subscribe": "t", f"kafka.{name}": value}
    with pytest.raises(OptionError, match="TLS or SASL are not supported yet"):
        SourceOptions.parse(given, streaming=True)


def test_brokers_are_required() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers.*is required"):
        SourceOptions.parse({"subscribe": "t"}, streaming=True)


def test_where_a_sink_writes() -> None:
    topic = SinkOptions.parse({**BROKERS, "topic": "t", "kafka.compression.type": "lz4"})
    assert (topic.topic, topic.table, topic.client) == ("t", None, {"compression.type": "lz4"})
    structs = SinkOptions.parse(
        {**BROKERS, "topic": "t", "valueFormat": "avro", "schema.registry.url": "http://r:8081"}
    )
    assert structs.value is not None
    assert (structs.value.format, structs.value.subject) == ("avro", "t-value")
    table = SinkOptions.parse(
        {"table": "delta:/tmp/t", "mode": "upsert", "keys": "a, b", "storage.region": "x"}
    )
    assert (table.table, table.keys) == ("delta:/tmp/t", ("a", "b"))
    assert table.table_options == {"storage.region": "x"}


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"topic": "t", "table": "delta:/x"}, "one target"),
        ({"topic": "t", "mode": "upsert"}, "needs `table` and `keys`"),
        ({"table": "delta:/x", "mode": "upsert"}, "needs `table` and `keys`"),
        ({"table": "delta:/x", "keys": "a"}, "are for `mode` = upsert"),
        ({"topic": "t", "tabel": "x"}, "did you mean `table`?"),
        ({"topic": "t", "kafka.value.serializer": "x"}, "binary or string columns"),
        ({"topic": "t", "valueFormat": "json"}, "needs a schema"),
        ({"topic": "t", "valueSchema": "a INT"}, "`valueFormat`: is missing"),
        ({"table": "delta:/x", "valueFormat": "json", "valueSchema": "a INT"}, "is for topics"),
    ],
)
def test_a_sink_s_mistakes(options: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError) as failure:
        SinkOptions.parse({**BROKERS, **options})
    assert advice in str(failure.value)
