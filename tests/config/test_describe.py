"""DescribeConfigs answers: secrets, sources and synonyms, and word for word against Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.config.helpers import (
    BROKER,
    TOPIC,
    as_facts,
    broker_with,
    kafka_alters,
    kafka_describes,
)
from tests.reference.kafka import ApacheKafka, kafka_jars, run_kafka_tool, unavailable_reason

from tidemill.config import (
    BROKER_KEYS,
    TOPIC_KEYS,
    BrokerConfig,
    ConfigError,
    ConfigType,
    DescribedConfig,
    Source,
    check_broker_overrides,
    check_topic_overrides,
    describe_broker,
    describe_broker_default,
    describe_topic,
    load_broker_config,
)


def by_name(described: list[DescribedConfig]) -> dict[str, DescribedConfig]:
    return {each.name: each for each in described}


def synonyms_of(described: DescribedConfig) -> list[tuple[str, str | None, Source]]:
    return [(each.name, each.value, each.source) for each in described.synonyms]


def test_every_layer_is_listed_strongest_first() -> None:
    config = broker_with({"log.retention.hours": "24"})
    config.apply_dynamic({"log.retention.ms": "5000"}, {"log.retention.ms": "7000"})
    expected = [
        ("log.retention.ms", "5000", Source.DYNAMIC_BROKER),
        ("log.retention.ms", "7000", Source.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "24", Source.STATIC_BROKER),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]
    entry = by_name(describe_broker(config))["log.retention.ms"]
    assert synonyms_of(entry) == expected
    topic = by_name(describe_topic({"retention.ms": "9"}, config))["retention.ms"]
    assert synonyms_of(topic) == [("retention.ms", "9", Source.DYNAMIC_TOPIC), *expected]
    assert (topic.value, topic.source, topic.is_default) == ("9", Source.DYNAMIC_TOPIC, False)


def test_secrets_are_never_shown() -> None:
    """Rule 3.4.6: no secret in a DescribeConfigs answer, its synonyms or a printed object."""
    secret = "hunter2-hunter2"
    config = broker_with({"ssl.key.password": secret, "listener.name.x.ssl.key.password": secret})
    config.apply_dynamic({"sasl.jaas.config": secret}, {})
    described = by_name(describe_broker(config))
    assert described["ssl.key.password"].sensitive
    assert described["listener.name.x.ssl.key.password"].type is ConfigType.UNKNOWN
    assert secret not in repr(described)
    assert secret not in repr(describe_broker_default(config))
    assert secret not in repr(config)
    assert config.shown("ssl.key.password") == "[hidden]"


def test_only_what_was_asked_for() -> None:
    config = BrokerConfig()
    assert [each.name for each in describe_broker(config, names=["num.partitions", "x"])] == [
        "num.partitions"
    ]
    assert [each.name for each in describe_topic({}, config, names=["flush.ms"])] == ["flush.ms"]
    assert describe_topic({}, config, names=[]) == []


def test_the_default_of_all_brokers_lists_only_what_is_set() -> None:
    config = BrokerConfig()
    assert describe_broker_default(config) == []
    config.apply_dynamic({"max.connections": "8"}, {"max.connections": "7"})
    (entry,) = describe_broker_default(config)
    assert (entry.value, entry.source) == ("7", Source.DYNAMIC_DEFAULT_BROKER)
    assert synonyms_of(entry) == [("max.connections", "7", Source.DYNAMIC_DEFAULT_BROKER)]


def test_safe_defaults_are_reported_as_defaults() -> None:
    config = BrokerConfig()
    replication = by_name(describe_broker(config, brokers=3))["default.replication.factor"]
    assert (replication.value, replication.is_default) == ("3", True)
    topic = by_name(describe_topic({}, config, replication_factor=3))["min.insync.replicas"]
    assert (topic.value, topic.is_default) == ("2", True)


# --- beside Apache Kafka --------------------------------------------------------------------------

STATIC = {
    "log.retention.hours": "24",
    "log.roll.hours": "5",
    "log.flush.scheduler.interval.ms": "777",
    "log.roll.jitter.ms": "9",
    "compression.type": "gzip",
    "log.cleanup.policy": "delete, compact",
    "log.cleaner.io.max.bytes.per.second": "12345678",
}

# Where Tidemill's answer differs on purpose, and why.
DIFFERENCES = {
    "node.id": "has a default, because a single broker needs no number",
    "broker.id": "its default follows node.id",
    "listeners": "the default binds this machine only, and a change takes a restart",
    "listener.security.protocol.map": "listeners are opened at start, so this is read-only, too",
    "socket.listen.backlog.size": "larger, because one loop accepts for everybody",
    "socket.send.buffer.bytes": "the kernel's own sizing does better than a fixed size",
    "socket.receive.buffer.bytes": "the same",
    "log.dir": "the default is a folder of the working directory, not /tmp",
    "max.connections": "half of the file limit by default, so that clients cannot use it up",
    "queued.max.request.bytes": "request memory is bounded by default",
    "min.insync.replicas": "Kafka writes a cluster-wide setting when a cluster is formatted",
    "log.retention.hours": "Kafka shows the default while log.retention.ms is set dynamically",
    "log.flush.scheduler.interval.ms": "the same, while log.flush.interval.ms is set",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    """A node of our own, because these tests change its settings."""
    if kafka_jars() is None:
        pytest.skip(f"NO REFERENCE: Apache Kafka cannot run here: {unavailable_reason()}")
    with ApacheKafka(properties=STATIC) as node:
        yield node


@pytest.fixture(scope="module")
def topic(kafka: ApacheKafka) -> str:
    command = ("--create", "--topic", "described", "--bootstrap-server", kafka.bootstrap)
    run_kafka_tool("kafka-topics", *command, check=True)
    return "described"


def ours_for(kafka: ApacheKafka) -> BrokerConfig:
    """Our reading of the very file that the node was started with."""
    file = kafka.directory / "server.properties"
    config, _ = load_broker_config(properties_file=file, for_start=False)
    return config


def compare(kafka: ApacheKafka, topic: str, config: BrokerConfig, own: dict[str, str]) -> None:
    theirs = kafka_describes(kafka.bootstrap, BROKER, "1")
    ours = {each.name: as_facts(each) for each in describe_broker(config)}
    assert set(theirs) == {name for name in ours if name not in BROKER_KEYS or not _own(name)}
    assert {name for name in theirs if theirs[name] != ours[name]} <= set(DIFFERENCES)
    theirs = kafka_describes(kafka.bootstrap, TOPIC, topic)
    ours = {each.name: as_facts(each) for each in describe_topic(own, config)}
    assert set(theirs) == {name for name in ours if not TOPIC_KEYS[name].own}
    assert {name for name in theirs if theirs[name] != ours[name]} <= set(DIFFERENCES)


def _own(name: str) -> bool:
    return BROKER_KEYS[name].own


@pytest.mark.reference
def test_kafka_describes_the_same(kafka: ApacheKafka, topic: str) -> None:
    config = ours_for(kafka)
    compare(kafka, topic, config, {})
    own = {"log.retention.ms": "5000", "leader.replication.throttled.rate": "5"}
    cluster = {"log.retention.ms": "7000", "log.flush.interval.ms": "55", "max.connections": "77"}
    of_topic = {"retention.ms": "9000", "flush.ms": "3", "cleanup.policy": "compact"}
    changes = ((BROKER, "1", own), (BROKER, "", cluster), (TOPIC, topic, of_topic))
    try:
        for kind, name, texts in changes:
            assert kafka_alters(kafka.bootstrap, kind, name, texts, dry_run=False) == (0, None)
        config.apply_dynamic(own, cluster)
        _eventually_described(kafka, "max.connections", "77")
        compare(kafka, topic, config, of_topic)
    finally:
        for kind, name, texts in changes:
            kafka_alters(kafka.bootstrap, kind, name, texts, dry_run=False, delete=True)
        _eventually_described(kafka, "max.connections", "2147483647")


def _eventually_described(kafka: ApacheKafka, name: str, value: str) -> None:
    for _ in range(100):
        if kafka_describes(kafka.bootstrap, BROKER, "1")[name]["value"] == value:
            return
    raise AssertionError(f"{name} did not become {value}")


NUMBERS = ("-5", "0", "7", " 7 ", "1.5", "+1", "1_0", "99999999999")

TRIALS: list[tuple[int, str, dict[str, str]]] = [
    *(
        (TOPIC, "described", {key: text})
        for key in (
            "retention.ms",
            "segment.bytes",
            "cleanup.policy",
            "compression.type",
            "compression.gzip.level",
            "compression.lz4.level",
            "min.cleanable.dirty.ratio",
            "message.timestamp.type",
            "preallocate",
            "flush.messages",
            "max.compaction.lag.ms",
            "leader.replication.throttled.replicas",
            "unheard.of",
        )
        for text in (
            "",
            "abc",
            "-5",
            "0",
            "7",
            " 7 ",
            "1.5",
            "+1",
            "1_0",
            "99999999999",
            "true",
            "*",
        )
    ),
    (TOPIC, "described", {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "50"}),
    (TOPIC, "described", {"remote.storage.enable": "true"}),
    *(
        (BROKER, name, {key: text})
        for name in ("1", "")
        for key in (
            "num.partitions",
            "log.retention.ms",
            "log.roll.ms",
            "log.segment.bytes",
            "message.max.bytes",
            "compression.type",
            "ssl.keystore.location",
            "unclean.leader.election.enable",
            "leader.replication.throttled.rate",
            "listener.name.plaintext.ssl.keystore.location",
        )
        for text in ("", "abc", "-5", "0", "7", "true")
    ),
]


@pytest.mark.reference
def test_kafka_refuses_the_same_in_the_same_words(kafka: ApacheKafka, topic: str) -> None:
    config = ours_for(kafka)
    for kind, name, texts in TRIALS:
        theirs = kafka_alters(kafka.bootstrap, kind, name, texts, dry_run=True)
        assert _our_answer(kind, name, texts, config) == theirs, (kind, name, texts)


def _our_answer(
    kind: int, name: str, texts: dict[str, str], config: BrokerConfig
) -> tuple[int, str | None]:
    try:
        if kind == TOPIC:
            check_topic_overrides(texts, config)
        else:
            check_broker_overrides(texts, "broker" if name else "cluster", config)
    except ConfigError as refusal:
        return int(refusal.code), refusal.message
    return 0, None
