"""Apache Kafka's own Java tools, from its jars, against a Tidemill broker."""

from __future__ import annotations

import itertools
import subprocess

import pytest
from tests.compat.clients import CONSUMERS, PRODUCERS, Sent
from tests.compat.stored import stored_batches
from tests.reference.kafka import kafka_jars, run_kafka_tool, unavailable_reason

from tidemill.testing.process import BrokerProcess

pytestmark = [
    # The foreign clients leave sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
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


def consumed(broker: BrokerProcess, topic: str, count: int, *properties: str) -> str:
    """What the console consumer prints of a topic with one partition."""
    from_start = ("--partition", "0", "--offset", "earliest", "--timeout-ms", "30000")
    shown = [word for each in properties for word in ("--formatter-property", each)]
    words = ("--topic", topic, "--max-messages", str(count), *from_start, *shown)
    return tool(broker, "kafka-console-consumer", *words).stdout


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
    shown = ("print.key=true", "print.headers=true")
    assert consumed(broker, topic, 200, *shown) == lines


def test_tombstones_empty_values_and_no_keys(broker: BrokerProcess) -> None:
    topic = next(fresh_names)
    tool(broker, "kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    lines = "one\t1\none\tNIL\ntwo\t\nNIL\tno key\n\tempty key\n"
    properties = ("parse.key=true", "null.marker=NIL")
    flags = [word for each in properties for word in ("--reader-property", each)]
    tool(broker, "kafka-console-producer", "--topic", topic, *flags, text=lines)
    expected = [
        (b"one", b"1"),
        (b"one", None),
        (b"two", b""),
        (None, b"no key"),
        (b"", b"empty key"),
    ]
    for name, consume in CONSUMERS.items():
        seen = consume(broker.bootstrap, topic, 0, 0, 5)
        assert [(record.key, record.value) for record in seen] == expected, name
    assert consumed(broker, topic, 5, "print.key=true", "null.literal=NIL") == lines


def test_timestamps_of_the_client_and_of_the_log(broker: BrokerProcess) -> None:
    times = [1_600_000_000_123, 1_700_000_000_000]
    shown = ("print.timestamp=true", "print.key=true", "print.headers=true", "print.value=false")
    records = [Sent(b"x", key=b"k", headers=(("h", b"1"),), timestamp_ms=time) for time in times]
    for kind in ("CreateTime", "LogAppendTime"):
        topic = next(fresh_names)
        settings = ("--config", f"message.timestamp.type={kind}", "--partitions", "1")
        tool(broker, "kafka-topics", "--create", "--topic", topic, *settings)
        offsets = PRODUCERS["confluent-kafka"](broker.bootstrap, topic, 0, "none", records)
        assert offsets == [0, 1]
        lines = consumed(broker, topic, 2, *shown).splitlines()
        assert [line.split("\t")[1:] for line in lines] == [["h:1", "k"]] * 2
        if kind == "CreateTime":
            assert [line.split("\t")[0] for line in lines] == [f"{kind}:{time}" for time in times]
        else:
            assert all(line.startswith(f"{kind}:") for line in lines)
            assert not any(str(time) in line for line in lines for time in times)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_megabyte_records(broker: BrokerProcess, codec: str) -> None:
    topic = next(fresh_names)
    tool(broker, "kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    lines = "".join(letter * 1_000_000 + "\n" for letter in "abc")
    flags = ("--compression-codec", codec)
    tool(broker, "kafka-console-producer", "--topic", topic, *flags, text=lines)
    assert consumed(broker, topic, 3) == lines


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_of_ten_thousand_records(broker: BrokerProcess, codec: str) -> None:
    """`--timeout` is longer than the test: the batch leaves when the tool has read all."""
    topic = next(fresh_names)
    tool(broker, "kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    lines = "".join(f"value {number}\n" for number in range(10_000))
    flags = ("--batch-size", "2000000", "--timeout", "60000", "--compression-codec", codec)
    tool(broker, "kafka-console-producer", "--topic", topic, *flags, text=lines)
    (batch,) = stored_batches(broker, topic)
    assert (batch["count"], batch["codec"]) == (10_000, codec)
    assert consumed(broker, topic, 10_000) == lines


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
