"""Apache Kafka's own Java tools, from its jars, against a Tidemill broker."""

from __future__ import annotations

import itertools
import subprocess

import pytest
from tests.reference.kafka import kafka_jars, run_kafka_tool, unavailable_reason

from tidemill.testing.process import BrokerProcess

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(
        kafka_jars() is None, reason=f"NO REFERENCE: no Apache Kafka jars: {unavailable_reason()}"
    ),
]

fresh_names = (f"java-{number}" for number in itertools.count())


def tool(
    broker: BrokerProcess, name: str, *arguments: str, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    done = run_kafka_tool(name, "--bootstrap-server", broker.bootstrap, *arguments, input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_topics(broker: BrokerProcess) -> None:
    topic = next(fresh_names)
    created = tool(broker, "kafka-topics", "--create", "--topic", topic, "--partitions", "3")
    assert f"Created topic {topic}." in created.stdout
    assert topic in tool(broker, "kafka-topics", "--list").stdout.splitlines()
    described = tool(broker, "kafka-topics", "--describe", "--topic", topic).stdout
    assert "PartitionCount: 3" in described
    assert described.count("Leader: ") == 3
    tool(broker, "kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    assert (
        "PartitionCount: 5" in tool(broker, "kafka-topics", "--describe", "--topic", topic).stdout
    )
    tool(broker, "kafka-topics", "--delete", "--topic", topic)
    assert topic not in tool(broker, "kafka-topics", "--list").stdout.splitlines()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(broker: BrokerProcess, codec: str) -> None:
    topic = next(fresh_names)
    tool(broker, "kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    lines = "".join(f"h:v\tkey{number}\tvalue {number}\n" for number in range(200))
    tool(
        broker,
        "kafka-console-producer",
        "--topic",
        topic,
        "--compression-codec",
        codec,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "parse.headers=true",
        text=lines,
    )
    read = tool(
        broker,
        "kafka-console-consumer",
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "earliest",
        "--max-messages",
        "200",
        "--timeout-ms",
        "30000",
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "print.headers=true",
    )
    assert read.stdout == lines


def test_configs_of_topics_and_brokers(broker: BrokerProcess) -> None:
    topic = next(fresh_names)
    tool(broker, "kafka-topics", "--create", "--topic", topic)
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    tool(broker, "kafka-configs", "--alter", *of_topic, "--add-config", "retention.ms=1234")
    assert "retention.ms=1234" in tool(broker, "kafka-configs", "--describe", *of_topic).stdout
    tool(broker, "kafka-configs", "--alter", *of_topic, "--delete-config", "retention.ms")
    assert "retention.ms=1234" not in tool(broker, "kafka-configs", "--describe", *of_topic).stdout
    of_all = ["--entity-type", "brokers", "--entity-default"]
    tool(broker, "kafka-configs", "--alter", *of_all, "--add-config", "log.retention.ms=987654321")
    assert "987654321" in tool(broker, "kafka-configs", "--describe", *of_all).stdout
    tool(broker, "kafka-configs", "--alter", *of_all, "--delete-config", "log.retention.ms")


def test_producer_and_consumer_perf(broker: BrokerProcess) -> None:
    topic = next(fresh_names)
    tool(broker, "kafka-topics", "--create", "--topic", topic, "--partitions", "2")
    sent = run_kafka_tool(
        "kafka-producer-perf-test",
        "--topic",
        topic,
        "--num-records",
        "50000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--bootstrap-server",
        broker.bootstrap,
    )
    assert sent.returncode == 0, sent.stdout + sent.stderr
    assert "50000 records sent" in sent.stdout


def test_offsets_records_log_dirs_and_versions(broker: BrokerProcess) -> None:
    topic = next(fresh_names)
    tool(broker, "kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    tool(broker, "kafka-console-producer", "--topic", topic, text="a\nb\nc\n")
    offsets = tool(broker, "kafka-get-offsets", "--topic", topic)
    assert offsets.stdout.strip() == f"{topic}:0:3"
    assert topic in tool(broker, "kafka-log-dirs", "--describe", "--topic-list", topic).stdout
    versions = tool(broker, "kafka-broker-api-versions").stdout
    assert "Produce(0): 0 to 13" in versions
    assert "Fetch(1): 4 to 18" in versions
