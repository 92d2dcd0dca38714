"""`BrokerConfig`: precedence of layers, changes while running, and what several keys decide."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import (
    BrokerConfig,
    ConfigError,
    Setting,
    Source,
    check_broker_overrides,
    resolve_topic_config,
)
from tidemill.errors import ErrorCode


def static(**texts: str) -> BrokerConfig:
    """A broker with static settings; `log__dir` is written for `log.dir`."""
    return BrokerConfig(
        {name.replace("__", "."): Setting(text, "test") for name, text in texts.items()}
    )


def test_getters_are_typed() -> None:
    config = BrokerConfig()
    assert config.int("num.partitions") == 1
    assert config.optional_int("log.retention.ms") is None
    assert config.bool("delete.topic.enable") is True
    assert config.float("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.str("log.flush.policy") == "ack"
    assert config.optional_str("broker.rack") is None
    assert config.list("log.cleanup.policy") == ["delete"]
    assert config.list("log.dirs") == []
    with pytest.raises(TypeError, match=r"num\.partitions"):
        config.str("num.partitions")
    with pytest.raises(TypeError, match=r"log\.retention\.ms"):
        config.int("log.retention.ms")
    with pytest.raises(KeyError):
        config.int("num.partition")


layer = st.one_of(st.none(), st.integers(1, 10**9).map(str))


@given(own=layer, cluster=layer, file=layer)
def test_the_strongest_layer_counts(own: str | None, cluster: str | None, file: str | None) -> None:
    name = "message.max.bytes"
    config = BrokerConfig({name: Setting(file, "file:1")} if file else {})
    config.apply_dynamic({name: own} if own else {}, {name: cluster} if cluster else {})
    sources = {
        Source.DYNAMIC_BROKER: own,
        Source.DYNAMIC_DEFAULT_BROKER: cluster,
        Source.STATIC_BROKER: file,
        Source.DEFAULT: "1048588",
    }
    expected = [(source, text) for source, text in sources.items() if text is not None]
    assert [(each.source, each.text) for each in config.layers(name)] == expected
    assert config.source(name) is expected[0][0]
    assert config.int(name) == int(expected[0][1])
    config.apply_dynamic({}, {})
    assert config.int(name) == int(file or "1048588")


def test_subscribers_hear_of_their_keys_only() -> None:
    config = BrokerConfig()
    heard: list[frozenset[str]] = []
    stop = config.subscribe(["message.max.bytes", "log.flush.policy"], heard.append)
    config.apply_dynamic({"log.retention.ms": "1"}, {})
    config.apply_dynamic({"message.max.bytes": "7", "log.retention.ms": "1"}, {})
    config.apply_dynamic({"message.max.bytes": "7"}, {"message.max.bytes": "8"})
    config.apply_dynamic({}, {})
    stop()
    config.apply_dynamic({"message.max.bytes": "9"}, {})
    assert heard == [frozenset({"message.max.bytes"})] * 2
    with pytest.raises(KeyError, match="no such configuration key: nonsense"):
        config.subscribe(["nonsense"], heard.append)


def test_a_stored_setting_that_does_not_fit_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig()
    with caplog.at_level(logging.WARNING, logger="tidemill"):
        config.apply_dynamic(
            {"message.max.bytes": "lots", "num.partitions": "9", "unheard.of": "1"},
            {"listeners": "PLAINTEXT://:1"},
        )
    assert config.int("message.max.bytes") == 1048588
    assert config.int("num.partitions") == 1
    assert config.list("listeners") == ["PLAINTEXT://127.0.0.1:9092"]
    assert len(caplog.records) == 3


def test_both_names_of_the_broker_id() -> None:
    assert static(node__id="3").int("broker.id") == 3
    assert static(broker__id="4").broker_id == 4
    assert BrokerConfig().broker_id == 0
    with pytest.raises(ConfigError, match=r"`node.id` to the same value as `broker.id`"):
        static(node__id="3", broker__id="4")


@pytest.mark.parametrize(
    ("texts", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log__retention__hours": "2"}, 7_200_000),
        ({"log__retention__hours": "2", "log__retention__minutes": "3"}, 180_000),
        ({"log__retention__minutes": "3", "log__retention__ms": "9"}, 9),
        ({"log__retention__hours": "-7"}, -1),
        ({"log__retention__ms": "-7"}, -1),
    ],
)
def test_the_finest_unit_of_retention_counts(texts: dict[str, str], retention_ms: int) -> None:
    config = static(**texts)
    assert config.retention_ms == retention_ms
    assert resolve_topic_config({}, config).int("retention.ms") == retention_ms


def test_rolling_and_flushing_have_units_too() -> None:
    config = static(log__roll__hours="2", log__roll__jitter__hours="1")
    topic = resolve_topic_config({}, config)
    assert topic.int("segment.ms") == 7_200_000
    assert topic.int("segment.jitter.ms") == 3_600_000
    assert topic.int("flush.ms") == 2**63 - 1
    config.apply_dynamic({"log.roll.ms": "5"}, {"log.flush.interval.ms": "6"})
    topic = resolve_topic_config({"segment.jitter.ms": "4"}, config)
    assert [topic.int(f"{name}.ms") for name in ("segment", "segment.jitter", "flush")] == [5, 4, 6]


def test_safe_replication_unless_told_otherwise() -> None:
    """Replication min(3, brokers); two of three must be in sync."""
    config = BrokerConfig()
    assert [config.default_replication_factor(n) for n in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert [config.default_min_insync_replicas(n) for n in (1, 2, 3, 5)] == [1, 1, 2, 2]
    topic = resolve_topic_config({}, config, replication_factor=3)
    assert topic.int("min.insync.replicas") == 2
    told = static(default__replication__factor="2", min__insync__replicas="3")
    assert told.default_replication_factor(9) == 2
    assert told.default_min_insync_replicas(1) == 3


# Each refusal was seen from Kafka 4.3.1 itself.
REFUSALS = [
    (
        {"num.partitions": "3"},
        "broker",
        "Cannot update these configs dynamically: [num.partitions]",
    ),
    (
        {"num.partitions": "3", "log.dirs": "/x"},
        "cluster",
        "Cannot update these configs dynamically: [num.partitions, log.dirs]",
    ),
    (
        {"listeners": "PLAINTEXT://:1"},
        "broker",
        "Cannot update these configs dynamically: [listeners]; listeners are opened at start:"
        " change the broker's file and restart it",
    ),
    (
        {"ssl.keystore.location": "/x", "ssl.protocol": "x"},
        "cluster",
        "These security configs can be dynamically updated only per-listener using the listener"
        " prefix: [ssl.keystore.location]",
    ),
    (
        {"listener.name.plaintext.ssl.keystore.location": "/x"},
        "cluster",
        "Cannot update these configs at default cluster level, broker id must be specified:"
        " [listener.name.plaintext.ssl.keystore.location]",
    ),
    (
        {"log.retention.ms": "0"},
        "broker",
        "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal"
        " to 1",
    ),
    (
        {"log.roll.ms": "0"},
        "cluster",
        "requirement failed: log.roll.ms must be greater than or equal to 1",
    ),
    (
        {"num.io.threads": "0"},
        "broker",
        "Invalid value 0 for configuration num.io.threads: Value must be at least 1",
    ),
    (
        {"leader.replication.throttled.rate": "-1"},
        "broker",
        "Invalid value -1 for configuration leader.replication.throttled.rate:"
        " Value must be at least 0",
    ),
    (
        {"log.retention.mz": "1"},
        "broker",
        "Unknown broker config name: log.retention.mz. Did you mean log.retention.ms?",
    ),
]


@pytest.mark.parametrize(("overrides", "scope", "message"), REFUSALS)
def test_refused_changes(overrides: dict[str, str], scope: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_broker_overrides(overrides, scope)
    assert caught.value.message == message
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_allowed_changes() -> None:
    config = static(log__retention__hours="0")
    check_broker_overrides({"log.retention.ms": "5"}, "broker", config)
    check_broker_overrides({"leader.replication.throttled.rate": "5"}, "broker")
    check_broker_overrides({"listener.name.plaintext.ssl.keystore.location": "/x"}, "broker")
    check_broker_overrides({"log.flush.policy": "async"}, "cluster")
    check_broker_overrides({}, "cluster")
    assert config.optional_int("log.retention.ms") is None
