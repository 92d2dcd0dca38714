"""Compaction in a real broker: real clients, a process that is killed in the middle of it, and
Kafka's own tools on the files that it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.reference.kafka import kafka_jars, run_kafka_tool

from tidemill.storage.checkpoint import CLEANER_OFFSETS, parse_offsets
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition as Partition

TOPIC = "prices"
KEYS = 50
SEGMENT_BYTES = 1 << 20
WAIT_S = 60
SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.segment.delete.delay.ms": "200",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(SEGMENT_BYTES),
    "log.cleaner.min.cleanable.ratio": "0.1",
}


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.01)


def create_topic(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic(
        TOPIC,
        1,
        config={
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.01",
        },
    )
    admin.create_topics([topic])[TOPIC].result(30)


def produce(broker: BrokerProcess, count: int, last: dict[bytes, bytes], *, start: int = 0) -> None:
    """Updates of a few keys; `last` is what was acked for each of them."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "batch.size": 20_000,
            "linger.ms": 2,
        }
    )
    for number in range(start, start + count):
        key = b"key-%d" % (number % KEYS)
        value = b"%d-" % number + Random(number).randbytes(800)
        producer.produce(TOPIC, value, key)
        last[key] = value
        producer.poll(0)
        if number % 500 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0


def read_all(broker: BrokerProcess, expected_end: int) -> list[tuple[int, bytes, bytes]]:
    """Every record from the start to the end, as a consumer sees them."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[int, bytes, bytes]] = []
    deadline = time.monotonic() + WAIT_S
    while not found or found[-1][0] < expected_end - 1:
        assert time.monotonic() < deadline, f"{len(found)} records, the last at {found[-1:]}"
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None
            key, value, offset = message.key(), message.value(), message.offset()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            assert offset is not None
            found.append((offset, key, value))
    consumer.close()
    return found


def cleaned_offset(data_dir: Path, partition: Partition) -> int:
    path = data_dir / CLEANER_OFFSETS
    return parse_offsets(path.read_bytes()).get(partition, 0) if path.exists() else 0


def end_offset(broker: BrokerProcess) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "end"})
    end: int = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)[1]
    consumer.close()
    return end


def log_bytes(directory: Path) -> int:
    total_bytes = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):  # The broker takes files away while we look.
            total_bytes += path.stat().st_size
    return total_bytes


def test_a_compacted_topic_with_a_real_client_and_a_kill(tmp_path: Path) -> None:
    """Rules I4 and I5: the last value of each key is there after compaction, and after a SIGKILL
    in the middle of the next one."""
    last: dict[bytes, bytes] = {}
    broker = BrokerProcess(tmp_path / "data", SETTINGS)
    directory = broker.data_dir / f"{TOPIC}-0"
    with broker:
        create_topic(broker)
        produce(broker, 8_000, last)
        end = end_offset(broker)
        wait_for("compaction", lambda: cleaned_offset(broker.data_dir, Partition(TOPIC, 0)) > 0)
        wait_for("old files to go", lambda: log_bytes(directory) < 3 * SEGMENT_BYTES)
        check_last_values(read_all(broker, end), last)
    broker.settings["log.cleaner.io.max.bytes.per.second"] = "3000000"
    with broker:
        produce(broker, 6_000, last, start=8_000)
        end = end_offset(broker)

        def is_under_way() -> bool:
            """Looked at too late, a pass is over: then there has to be something for the next."""
            nonlocal end
            if not any(directory.glob("*.cleaned")):
                produce(broker, 500, last, start=end)
                end = end_offset(broker)
            return any(directory.glob("*.cleaned"))

        wait_for("a pass", is_under_way)
        broker.kill()
    del broker.settings["log.cleaner.io.max.bytes.per.second"]
    with broker:
        check_last_values(read_all(broker, end), last)
        before = cleaned_offset(broker.data_dir, Partition(TOPIC, 0))
        produce(broker, 3_000, last, start=end)
        wait_for(
            "compaction after the restart",
            lambda: cleaned_offset(broker.data_dir, Partition(TOPIC, 0)) > max(before, end),
        )
        check_last_values(read_all(broker, end_offset(broker)), last)
    assert not [path.name for path in directory.iterdir() if path.suffix in (".cleaned", ".swap")]
    check_with_kafka(directory)


def check_last_values(found: list[tuple[int, bytes, bytes]], last: dict[bytes, bytes]) -> None:
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    for offset, _, value in found:
        assert value.startswith(b"%d-" % offset), "an offset has changed its record"
    assert {key: value for _, key, value in found} == last


def check_with_kafka(directory: Path) -> None:
    """Kafka's own dump tool reads every batch that compaction wrote, and its indexes."""
    if kafka_jars() is None:
        return
    logs = sorted(str(path) for path in directory.glob("*.log"))
    dumped = run_kafka_tool("kafka-dump-log", "--files", ",".join(logs), "--deep-iteration")
    assert dumped.returncode == 0, dumped.stderr
    assert "isvalid: true" in dumped.stdout
    assert "isvalid: false" not in dumped.stdout
    indexes = ",".join(
        str(path)
        for path in sorted(directory.glob("*index"))
        if path.suffix != ".txnindex" and path.stat().st_size
    )
    checked = run_kafka_tool("kafka-dump-log", "--files", indexes, "--verify-index-only")
    assert checked.returncode == 0, checked.stderr
    assert "Mismatches" not in checked.stdout + checked.stderr


def test_group_offsets_are_compacted_and_survive(tmp_path: Path) -> None:
    """`__consumer_offsets` shrinks while a group commits again and again; what it committed last
    is there after a kill and a restart."""
    broker = BrokerProcess(tmp_path / "data", SETTINGS)
    offsets = Partition("__consumer_offsets", 0)
    directory = broker.data_dir / str(offsets)
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("many", 100)])["many"].result(30)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        partitions = [TopicPartition("many", index) for index in range(100)]
        for position in range(1, 301):
            for partition in partitions:
                partition.offset = position
            consumer.commit(offsets=partitions, asynchronous=False)
        wait_for("compaction", lambda: cleaned_offset(broker.data_dir, offsets) > 0)
        wait_for("old files to go", lambda: log_bytes(directory) < 1.5 * SEGMENT_BYTES)
        committed = consumer.committed([TopicPartition("many", index) for index in range(100)], 30)
        assert {each.offset for each in committed} == {300}
        consumer.close()
        broker.kill()
    with broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        committed = consumer.committed([TopicPartition("many", index) for index in range(100)], 30)
        assert {each.offset for each in committed} == {300}
        consumer.close()
    check_with_kafka(directory)
