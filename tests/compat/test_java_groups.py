"""Kafka's own Java tools, from its jars, as members and observers of groups of Tidemill."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from tests.cli.helpers import BIN, environment
from tests.reference.kafka import java_command, kafka_jars, run_kafka_tool, unavailable_reason
from tests.reference.tool_batch import ToolBatch

from tidemill.testing.process import BrokerProcess

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        kafka_jars() is None, reason=f"NO REFERENCE: no Apache Kafka jars: {unavailable_reason()}"
    ),
]

PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
LIMIT_S = 60
PARTITIONS = 4
Event = dict[str, Any]

fresh_names = (f"java-group-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One whose groups do not wait for more members, and hear of changes soon."""
    settings = {
        "num.partitions": str(PARTITIONS),
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.min.heartbeat.interval.ms": "300",
        "offsets.topic.num.partitions": "5",
    }
    with BrokerProcess(tmp_path_factory.mktemp("java-groups") / "data", settings) as process:
        yield process


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic of four partitions with 25 records each."""
    name = next(fresh_names)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.list_topics(name, timeout=10)
    for number in range(100):
        producer.produce(name, f"value {number}", partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    return name


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A tool in the background; ended if the test has not done it."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def rows(text: str) -> list[list[str]]:
    """A table as the groups command prints it."""
    return [line.split() for line in text.splitlines() if line.strip()]


# --- the console consumer and the perf test -------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_reads_as_a_group(
    broker: BrokerProcess, topic: str, protocol: str
) -> None:
    """Ten records, then the rest: the second run goes on where the first has committed."""
    words = ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", f"g-{topic}"]
    words += ["--consumer-property", f"group.protocol={protocol}", "--timeout-ms", "20000"]
    words += ["--from-beginning"]
    values: list[str] = []
    for count in (10, 90):
        done = run_kafka_tool("kafka-console-consumer", *words, "--max-messages", str(count))
        assert done.returncode == 0, done.stdout + done.stderr
        found = [line for line in done.stdout.splitlines() if line.startswith("value ")]
        assert len(found) == count
        values += found
    assert sorted(values) == sorted(f"value {number}" for number in range(100))


def test_the_consumer_perf_test_reads_as_a_group(broker: BrokerProcess, topic: str) -> None:
    words = ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", f"g-{topic}"]
    done = run_kafka_tool("kafka-consumer-perf-test", *words, "--num-records", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = done.stdout.splitlines()[-1].split(", ")
    assert figures[4] == "100"


# --- the groups command ---------------------------------------------------------------------------


def test_the_groups_command(broker: BrokerProcess, topic: str) -> None:
    """A live group is listed and described, an idle one is moved and deleted."""
    group = f"g-{topic}"
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": "observed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    with ToolBatch() as batch:

        def ask(*words: str, status: int = 0) -> str:
            done = batch.run(
                "kafka-consumer-groups", "--bootstrap-server", broker.bootstrap, *words
            )
            assert done.returncode == status, done.stdout + done.stderr
            return done.stdout + done.stderr

        read_all(consumer, 100)
        while_live(ask, group, topic)
        consumer.close()
        when_idle(ask, group, topic)


def read_all(consumer: confluent_kafka.Consumer, count: int) -> None:
    deadline, found = time.monotonic() + LIMIT_S, 0
    while found < count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        found += message is not None and message.error() is None
    consumer.commit(asynchronous=False)


def while_live(ask: Any, group: str, topic: str) -> None:
    assert group in ask("--list").splitlines()
    assert [group, "Stable"] in rows(ask("--list", "--state"))
    assert [group, "Classic"] in rows(ask("--list", "--type"))
    offsets = rows(ask("--describe", "--group", group, "--offsets"))
    assert sorted(row[2:6] for row in offsets if row[0] == group) == [
        [str(partition), "25", "25", "0"] for partition in range(PARTITIONS)
    ]
    members = ask("--describe", "--group", group, "--members", "--verbose")
    (member,) = (row for row in rows(members) if row[0] == group)
    assert member[3:5] == ["observed", str(PARTITIONS)]
    assert f"{topic}:0,1,2,3" in member, members
    state = rows(ask("--describe", "--group", group, "--state"))
    assert [row[-2:] for row in state if row[0] == group] == [["Stable", "1"]]
    refused = ask(
        "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
    )
    assert "inactive" in refused
    assert "not empty" in ask("--delete", "--group", group)


def when_idle(ask: Any, group: str, topic: str) -> None:
    state = rows(ask("--describe", "--group", group, "--state"))
    assert [row[-2:] for row in state if row[0] == group] == [["Empty", "0"]]
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--shift-by", "-5"]
    planned = rows(ask(*reset, "--dry-run"))
    assert sorted(row[-1] for row in planned if row[0] == group) == ["20"] * PARTITIONS
    assert committed(ask, group) == ["25"] * PARTITIONS
    ask(*reset, "--execute")
    assert committed(ask, group) == ["20"] * PARTITIONS
    deleted = ask("--delete-offsets", "--group", group, "--topic", f"{topic}:0,1")
    assert "Successful" in deleted
    assert committed(ask, group) == ["20"] * 2
    assert "was successful" in ask("--delete", "--group", group)
    assert group not in ask("--list").splitlines()


def committed(ask: Any, group: str) -> list[str]:
    found = rows(ask("--describe", "--group", group, "--offsets"))
    return [row[3] for row in found if row[0] == group and row[3] != "-"]


# --- the verifiable tools, Kafka's and ours -------------------------------------------------------


def tools(name: str, java_class: str) -> dict[str, list[str]]:
    return {"kafka": java_command(java_class), "tidemill": [str(BIN / f"{name}.sh")]}


def events(text: str) -> list[Event]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def shape(found: Sequence[Event]) -> list[tuple[str, ...]]:
    """What the events are and in which order their fields come; how often, is chance."""
    shapes = [(each["name"], *each) for each in found]
    return [kind for kind, _ in itertools.groupby(shapes)]


def finished(process: subprocess.Popen[str]) -> list[Event]:
    out, _ = process.communicate(timeout=LIMIT_S)
    return events(out)


def test_the_verifiable_producers_print_the_same(broker: BrokerProcess) -> None:
    topic = next(fresh_names)
    words = ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--max-messages", "20"]
    words += ["--repeating-keys", "3", "--value-prefix", "7", "--throughput", "200"]
    printed = {}
    for who, command in tools("kafka-verifiable-producer", PRODUCER).items():
        with running([*command, *words]) as process:
            printed[who] = finished(process)
            assert process.returncode == 0
    assert shape(printed["tidemill"]) == shape(printed["kafka"])
    for found in printed.values():
        sent = [each for each in found if each["name"] == "producer_send_success"]
        assert sorted(each["value"] for each in sent) == sorted(f"7.{n}" for n in range(20))
        assert {each["key"] for each in sent} == {"0", "1", "2"}
        (data,) = (each for each in found if each["name"] == "tool_data")
        assert (data["sent"], data["acked"], data["target_throughput"]) == (20, 20, 200)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_verifiable_consumers_share_a_group(
    broker: BrokerProcess, topic: str, protocol: str, tmp_path: Path
) -> None:
    """Kafka's and ours are members of one group, are told to stop, and print the same events."""
    words = ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", f"g-{topic}"]
    words += ["--group-protocol", protocol, "--verbose"]
    if protocol == "classic":
        (tmp_path / "quick").write_text("heartbeat.interval.ms=300\n")
        words += ["--session-timeout", "10000", "--command-config", str(tmp_path / "quick")]
    commands = tools("kafka-verifiable-consumer", CONSUMER)
    with running([*commands["kafka"], *words]) as java:
        lines = [read_until(java, "records_consumed")]
        with running([*commands["tidemill"], *words]) as ours:
            lines.append(read_until(ours, "partitions_assigned"))
            produce_until_both_read(broker, topic, java, ours, lines)
            for process, found in zip((ours, java), reversed(lines), strict=True):
                process.send_signal(signal.SIGTERM)
                found += finished(process)
                assert process.returncode in (143, -signal.SIGTERM)
    of_java, of_ours = lines
    read = [each["value"] for each in of_java + of_ours if each["name"] == "record_data"]
    assert {f"value {number}" for number in range(100)} <= set(read)
    assert field_orders(of_ours) == field_orders(of_java)
    for found in lines:
        names = [each["name"] for each in found]
        assert names[0] == "startup_complete"
        # An assignment that was on its way may still arrive after the request, and nothing else.
        after = names[names.index("shutdown_requested") + 1 :]
        assert after[-2:] == ["partitions_revoked", "shutdown_complete"]
        assert set(after[:-2]) <= {"partitions_assigned", "partitions_revoked"}


def field_orders(found: Sequence[Event]) -> dict[str, tuple[str, ...]]:
    return {each["name"]: tuple(each) for each in found}


def read_until(process: subprocess.Popen[str], name: str) -> list[Event]:
    """Events up to the first of this name that tells of something."""
    assert process.stdout is not None
    found: list[Event] = []
    for line in process.stdout:
        if line.startswith("{"):
            found.append(json.loads(line))
            if found[-1]["name"] == name and found[-1].get("partitions", True):
                return found
    raise AssertionError(f"the tool ended: {found}")


def produce_until_both_read(
    broker: BrokerProcess,
    topic: str,
    java: subprocess.Popen[str],
    ours: subprocess.Popen[str],
    lines: list[list[Event]],
) -> None:
    """The two share the partitions now, so both must get something of what comes."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce(topic, f"more {number}", partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    for process, found in zip((java, ours), lines, strict=True):
        found += read_until(process, "records_consumed")
        found += read_until(process, "offsets_committed")
