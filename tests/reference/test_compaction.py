"""Apache Kafka compacts a log, we compact a copy of it, and the same batches are left.

Kafka holds its cleaner back (`min.cleanable.dirty.ratio=1`) while the log is written and copied.
Then both go to work on the same files: updates, tombstones, several codecs, an idempotent producer
and transactions, committed and aborted. Twice, so that delete horizons come into it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.reference.kafka import ApacheKafka, kafka_jars, unavailable_reason
from tests.storage.helpers import manager_on

from tidemill.executor import InlineExecutor
from tidemill.storage.checkpoint import CLEANER_OFFSETS, read_offsets
from tidemill.storage.cleaner import LogCleaner
from tidemill.storage.cleaner_run import CleanerSettings
from tidemill.storage.files import OsFiles
from tidemill.storage.log_config import LogConfig
from tidemill.testing.clock import ManualClock
from tidemill.types import TopicPartition
from tidemill.wire.batch import DELETE_HORIZON_BIT, iter_headers
from tidemill.wire.records import Record, iter_records

TOPIC = "compacted"
TP = TopicPartition(TOPIC, 0)
SEGMENT_BYTES = 1 << 20
DELETE_RETENTION_MS = 1000
WAIT_S = 60


class Batch(NamedTuple):
    """What must be the same in both results."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    leader_epoch: int
    max_timestamp: int
    records: tuple[Record, ...]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    if kafka_jars() is None:
        pytest.skip(f"NO REFERENCE: Apache Kafka cannot run here: {unavailable_reason()}")
    properties = {
        "log.cleaner.backoff.ms": "50",
        "log.cleaner.dedupe.buffer.size": str(4 << 20),
        "log.segment.delete.delay.ms": "100",
        "log.initial.task.delay.ms": "0",
    }
    with ApacheKafka(properties=properties) as node:
        yield node


def test_the_same_batches_are_left(kafka: ApacheKafka, tmp_path: Path) -> None:
    """Rules I2, I3 and I4, judged by Kafka itself."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "1.0",
        "delete.retention.ms": str(DELETE_RETENTION_MS),
    }
    admin.create_topics([NewTopic(TOPIC, 1, config=config)])[TOPIC].result(30)
    directory = kafka.data_dir / str(TP)
    for number in range(3):
        produce(kafka.bootstrap, Random(number))
        time.sleep(DELETE_RETENTION_MS / 1000 + 0.2)  # Horizons of the last pass are over.
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(directory, copy / str(TP))
        if cleaned_offset(kafka.data_dir) >= 0:
            shutil.copy(kafka.data_dir / CLEANER_OFFSETS, copy)
        compact_by_kafka(admin, kafka)
        compact_by_us(copy)
        theirs, ours = batches_in(directory), batches_in(copy / str(TP))
        assert ours == theirs
    assert any(batch.attributes & DELETE_HORIZON_BIT for batch in theirs)
    assert any(not batch.records for batch in theirs), "kept for a producer's last sequence"


def produce(bootstrap: str, random: Random) -> None:
    """Some three segments of everything that compaction has an opinion about."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "batch.size": 12_000,
            "linger.ms": 5,
        }
        plain = Producer({**common, "enable.idempotence": codec == "gzip"})
        send(plain, random, 350)
        plain.flush(30)
        transactional = Producer({**common, "transactional.id": f"t-{codec}"})
        transactional.init_transactions(30)
        for number in range(4):
            transactional.begin_transaction()
            send(transactional, random, 40)
            transactional.flush(30)
            if number % 2:
                transactional.abort_transaction(30)
            else:
                transactional.commit_transaction(30)


def send(producer: Producer, random: Random, count: int) -> None:
    for _ in range(count):
        key = b"key-%d" % random.randrange(150) if random.random() < 0.9 else random.randbytes(60)
        value = None if random.random() < 0.1 else random.randbytes(random.randrange(1500))
        producer.produce(TOPIC, value, key)
        producer.poll(0)


def compact_by_kafka(admin: AdminClient, kafka: ApacheKafka) -> None:
    directory = kafka.data_dir / str(TP)
    active = max(int(path.stem) for path in directory.glob("*.log"))
    set_ratio(admin, "0.0")
    wait_for("Kafka's cleaner", lambda: cleaned_offset(kafka.data_dir) >= active)
    set_ratio(admin, "1.0")
    wait_for("old files to go", lambda: not list(directory.glob("*.deleted")))


def set_ratio(admin: AdminClient, ratio: str) -> None:
    entry = ConfigEntry(
        "min.cleanable.dirty.ratio", ratio, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def cleaned_offset(data_dir: Path) -> int:
    return read_offsets(OsFiles(), str(data_dir), CLEANER_OFFSETS).get(TP, -1)


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.02)


def compact_by_us(copy: Path) -> None:
    config = LogConfig(
        segment_bytes=SEGMENT_BYTES,
        cleanup_compact=True,
        cleanup_delete=False,
        min_cleanable_ratio=0.0,
        delete_retention_ms=DELETE_RETENTION_MS,
        file_delete_delay_ms=0,
    )
    files, clock = OsFiles(), ManualClock()
    clock.advance(int(time.time() * 1000) - clock.now_ms())
    manager = manager_on(files, clock=clock, config=config, dirs=(str(copy),))
    log = manager.logs[TP]
    later: list[Callable[[], None]] = []
    cleaner = LogCleaner(
        manager,
        clock=clock,
        executor=InlineExecutor(),
        call_later=lambda _, callback: later.append(callback),
        settings=CleanerSettings,
        high_watermarks=lambda: {TP: log.log_end_offset},
    )
    cleaner.run(lambda: None)
    while later:
        later.pop(0)()
    assert cleaner.totals.passes == 1, cleaner.uncleanable
    assert manager.cleaned_offset(log) == log.segments[-1].base_offset
    manager.shutdown({TP: log.log_end_offset})
    files.close_all()


def batches_in(directory: Path) -> list[Batch]:
    found: list[Batch] = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for position, header in iter_headers(data):
            records = iter_records(data, position, header, limit_bytes=1 << 26)
            found.append(
                Batch(
                    header.base_offset,
                    header.last_offset,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.attributes,
                    header.partition_leader_epoch,
                    header.max_timestamp,
                    tuple(records),
                )
            )
    return found
