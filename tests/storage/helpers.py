"""What the storage tests share: batches, a manager on any disk, an executor that waits."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from uuid import UUID

from tidemill.executor import Executor, InlineExecutor, Then
from tidemill.storage.files import Files
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk
from tidemill.types import TopicId, TopicPartition
from tidemill.wire.batch import iter_headers
from tidemill.wire.compression import Codec
from tidemill.wire.records import Record, build_batch, iter_records

TP = TopicPartition("clicks", 0)
TOPIC_ID = UUID(int=7)
DIR = "/data"


class StepExecutor:
    """Keeps work until the test says go."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], Any], then: Then[Any]) -> None:
        self.waiting.append(lambda: InlineExecutor().submit(work, then))

    def run_all(self) -> int:
        count = 0
        while self.waiting:
            self.waiting.pop(0)()
            count += 1
        return count


def batch(
    *values: bytes,
    timestamp: int = 1_700_000_000_000,
    key: bytes | None = b"k",
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """One batch, as a client sends it; each value is a record of its own."""
    records = [
        Record(base_offset + index, timestamp, key, value) for index, value in enumerate(values)
    ]
    return bytearray(
        build_batch(
            records,
            base_offset=base_offset,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            leader_epoch=leader_epoch,
        )
    )


def old_message_set() -> bytes:
    """One message of format v1, as clients before 0.11 wrote them."""
    body = struct.pack(">bbq", 1, 0, 1_700_000_000_000)
    body += struct.pack(">i", 1) + b"k" + struct.pack(">i", 1) + b"v"
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


def manager_on(
    files: Files,
    *,
    clock: ManualClock | None = None,
    executor: Executor | None = None,
    config: LogConfig | None = None,
    dirs: tuple[str, ...] = (DIR,),
    start: bool = True,
    reserve_bytes: int = 0,
    expected: Mapping[TopicPartition, TopicId] | None = None,
) -> LogManager:
    settings = config or LogConfig()
    manager = LogManager(
        dirs,
        files=files,
        clock=clock or ManualClock(),
        random=Random(5),
        executor=executor or InlineExecutor(),
        config_for=lambda _: settings,
        expected=expected,
        cluster_id="cluster",
        node_id=1,
        reserve_bytes=reserve_bytes,
    )
    if start:
        manager.start()
    return manager


def new_log(
    config: LogConfig | None = None,
    *,
    disk: Files | None = None,
    clock: ManualClock | None = None,
    executor: Executor | None = None,
) -> Log:
    """A fresh log on a disk of its own, or on the one given."""
    settings = config or LogConfig()
    manager = manager_on(disk or CrashDisk(), clock=clock, config=settings, executor=executor)
    return manager.create(TP, TOPIC_ID, settings)


def fill(log: Log, count: int, *, epoch: int = 0, size: int = 40) -> None:
    """Append so many records, each in a batch of its own."""
    for number in range(count):
        value = f"{number}".encode().ljust(size, b".")
        log.append_as_leader(batch(value), leader_epoch=epoch)


def read_all(log: Log) -> list[Record]:
    """Every record from the log's start to its end, read as a consumer would."""
    records: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=1 << 20, upper_offset=log.log_end_offset).read_blocking()
        assert data, f"nothing at {offset} although the log ends at {log.log_end_offset}"
        for position, header in iter_headers(data):
            if not header.is_control:
                found = iter_records(data, position, header, limit_bytes=1 << 24)
                records += [record for record in found if record.offset >= offset]
            offset = max(offset, header.next_offset)
    return records


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]
