"""Power cuts at any byte of any write: nothing acked is lost, and what is left still serves.

Each run drives one log through a random life on a `CrashDisk` and cuts the power somewhere in it,
then again and again through the recoveries. A model beside it knows what was acked.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.helpers import DIR, TOPIC_ID, TP, batch, manager_on, read_all

from tidemill.storage import bulk_sync
from tidemill.storage.epochs import LeaderEpochCache
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.storage.producer_state import ProducerStates
from tidemill.storage.recovery_state import rebuild_producers
from tidemill.storage.scan import walk_headers
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk, PowerCut
from tidemill.wire.control import ControlType, build_marker

CONFIG = LogConfig(
    segment_bytes=1200, index_interval_bytes=150, file_delete_delay_ms=0, retention_ms=50_000
)
OPERATIONS = [
    "append",
    "append",
    "append",
    "append",
    "big",
    "idempotent",
    "idempotent",
    "txn",
    "txn",
    "abort",
    "flush",
    "flush",
    "roll",
    "checkpoint",
    "retention",
    "delete_records",
    "truncate",
    "epoch",
    "restart",
    "kill",
]


@dataclass
class Life:
    """A log, its manager, and what the outside world was promised."""

    disk: CrashDisk
    random: Random
    clock: ManualClock = field(default_factory=ManualClock)
    acked: dict[int, bytes] = field(default_factory=dict)
    written: dict[int, bytes] = field(default_factory=dict)
    epoch: int = 0
    counter: int = 0
    deleted_below: int = 0
    manager: LogManager = field(init=False)
    log: Log = field(init=False)

    def boot(self) -> None:
        self.manager = manager_on(self.disk, clock=self.clock, config=CONFIG)
        self.log = self.manager.create(TP, TOPIC_ID, CONFIG)

    def value(self, size: int = 20) -> bytes:
        self.counter += 1
        return f"{self.counter:06d}".encode().ljust(size, b".")

    def put(self, *payload: bytes, **producer: int | bool) -> None:
        timestamp = self.clock.now_ms() - self.random.choice((0, 0, 7_000, 20_000))
        data = batch(*payload, timestamp=timestamp, **producer)  # type: ignore[arg-type]
        before = self.log.log_end_offset
        for index, value in enumerate(payload):
            self.written[before + index] = value
        self.log.append_as_leader(data, leader_epoch=self.epoch)

    def ack(self) -> None:
        """What a flush covered is acked: it must be there for ever after."""
        self.manager.request_flush(self.log)
        assert self.log.flushed_offset == self.log.log_end_offset
        for offset in range(self.log.log_start_offset, self.log.flushed_offset):
            if offset in self.written:
                self.acked[offset] = self.written[offset]

    def step(self, operation: str) -> None:
        getattr(self, "do_" + operation)()
        self.clock.advance(1000)

    def do_append(self) -> None:
        self.put(*(self.value() for _ in range(self.random.randint(1, 4))))

    def do_big(self) -> None:
        self.put(self.value(self.random.randint(200, 900)))

    def do_idempotent(self) -> None:
        self.put(self.value(), producer_id=9, epoch=0, sequence=self.next_sequence(9))

    def do_txn(self) -> None:
        sequence = self.next_sequence(11)
        self.put(self.value(), producer_id=11, epoch=0, sequence=sequence, transactional=True)

    def next_sequence(self, producer_id: int) -> int:
        entry = self.log.producers.get(producer_id)
        return entry.last_sequence + 1 if entry else 0

    def do_abort(self) -> None:
        marker = build_marker(
            ControlType.ABORT,
            producer_id=11,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp=self.clock.now_ms(),
        )
        self.written.pop(self.log.log_end_offset, None)
        self.log.append_as_leader(marker, leader_epoch=self.epoch, producer_check=False)

    def do_flush(self) -> None:
        self.ack()

    def do_roll(self) -> None:
        self.log.roll()

    def do_checkpoint(self) -> None:
        finish = self.log.begin_save()
        self.ack()
        finish()
        self.manager.write_checkpoints({TP: self.log.flushed_offset})

    def do_retention(self) -> None:
        self.clock.advance(self.random.choice((1000, 30_000)))
        self.manager.run_retention({TP: self.log.flushed_offset})
        self.forget_below(self.log.log_start_offset)

    def do_delete_records(self) -> None:
        offset = self.random.randint(self.log.log_start_offset, self.log.log_end_offset)
        self.forget_below(offset)
        self.log.advance_log_start(offset)

    def forget_below(self, offset: int) -> None:
        self.deleted_below = max(self.deleted_below, offset)

    def do_truncate(self) -> None:
        offset = self.random.randint(self.log.log_start_offset, self.log.log_end_offset)
        for gone in [known for known in self.acked if known >= self._cut(offset)]:
            del self.acked[gone]
        self.log.truncate_to(offset)
        self.epoch += 1

    def _cut(self, offset: int) -> int:
        """A cut inside a batch takes the whole batch."""
        for segment in self.log.segments:
            for _, header in walk_headers(self.disk.pread, segment.log_path, 0, segment.size):
                if header.base_offset <= offset <= header.last_offset:
                    return header.base_offset
        return offset

    def do_epoch(self) -> None:
        self.epoch += 1
        self.log.begin_epoch(self.epoch)

    def do_restart(self) -> None:
        self.ack()
        self.manager.shutdown({TP: self.log.log_end_offset}, broker_epoch=3)
        self.boot()
        assert self.manager.previous_broker_epoch == 3
        self.check()

    def do_kill(self) -> None:
        self.disk.restart()
        self.boot()
        self.check()

    def check(self) -> None:
        check_consistent(self.disk, self.log)
        found = {record.offset: record.value for record in read_all(self.log)}
        start = max(self.deleted_below, self.log.log_start_offset)
        for offset, value in self.acked.items():
            if offset >= start:
                assert found.get(offset) == value, f"acked offset {offset} is lost or wrong"
        for offset, stored in found.items():
            assert self.written.get(offset) == stored, f"offset {offset} was never written"
        # What recovery found counts as flushed and is served, so it must survive the next crash.
        self.acked |= {offset: self.written[offset] for offset in found}


def check_consistent(disk: CrashDisk, log: Log) -> None:
    """What must hold of any log that was just opened."""
    expected = log.segments[0].base_offset
    for segment in log.segments:
        assert segment.base_offset == expected
        positions = {}
        for position, header in walk_headers(disk.pread, segment.log_path, 0, segment.size):
            assert header.base_offset == expected
            positions[position] = header
            expected = header.next_offset
        assert segment.size == disk.size(segment.log_path)
        times = [header.max_timestamp for header in positions.values()]
        assert segment.largest_timestamp().timestamp == max(times, default=-1)
        for offset in range(segment.base_offset, expected):
            header = positions[segment.locate(offset, disk.pread)]
            assert header.base_offset <= offset <= header.last_offset
    assert expected == log.log_end_offset
    assert log.flushed_offset == log.log_end_offset
    starts = [start for _, start in log.leader_epochs.entries]
    assert starts == sorted(set(starts))
    assert all(start < log.log_end_offset or start == log.log_start_offset for start in starts)
    if log.log_start_offset < log.log_end_offset:
        assert log.leader_epochs.entries == epochs_by_walking(disk, log)
    check_producers(disk, log)


def epochs_by_walking(disk: CrashDisk, log: Log) -> list[tuple[int, int]]:
    """What the leader-epoch cache must say, from the epoch in each batch."""
    cache = LeaderEpochCache(disk, "")
    for segment in log.segments:
        for _, header in walk_headers(disk.pread, segment.log_path, 0, segment.size):
            cache.note(header.partition_leader_epoch, header.base_offset)
    cache.truncate_from_start(log.log_start_offset)
    return cache.entries


def check_producers(disk: CrashDisk, log: Log) -> None:
    """The producers' state, snapshot and replay, is what a replay of everything gives."""
    if log.log_start_offset:
        return  # Without the deleted part a full replay knows less.
    fresh = ProducerStates()
    segments = list(log.segments)
    rebuild_producers(
        disk,
        log.directory,
        segments,
        fresh,
        set(),
        start_offset=0,
        end_offset=log.log_end_offset,
        snapshot_max=0,
        txn_from=log.log_end_offset,
    )
    found = [aborted[:3] for aborted in log.aborted_transactions(0, log.log_end_offset)]
    assert found == aborted_by_walking(disk, log)
    by_id = {entry.producer_id: entry for entry in fresh.active()}
    assert {entry.producer_id: entry for entry in log.producers.active()} == by_id


def aborted_by_walking(disk: CrashDisk, log: Log) -> list[tuple[int, int, int]]:
    """(producer, first offset, marker's offset) of what was aborted; all markers here abort."""
    first_offsets: dict[int, int] = {}
    aborted = []
    for segment in log.segments:
        for _, header in walk_headers(disk.pread, segment.log_path, 0, segment.size):
            if header.is_control and header.producer_id in first_offsets:
                first = first_offsets.pop(header.producer_id)
                aborted.append((header.producer_id, first, header.base_offset))
            elif header.is_transactional and not header.is_control:
                first_offsets.setdefault(header.producer_id, header.base_offset)
    return aborted


def syncing(in_bulk: bool) -> AbstractContextManager[object]:
    """Start and stop as with thousands of logs, or as with a few."""
    return mock.patch.object(bulk_sync, "LOGS_ONE_BY_ONE_MAX", 0 if in_bulk else 16)


def live(seed: int, operations: list[str], cuts: list[int]) -> None:
    """Run a life with a power cut after each of the given numbers of steps, recoveries included."""
    disk = CrashDisk(Random(seed))
    life = Life(disk, Random(seed + 1))
    life.boot()
    pending = list(cuts)
    if pending:
        disk.cut_after(pending.pop(0))
    for operation in operations:
        try:
            life.step(operation)
        except PowerCut:
            recover(life, pending)
            if pending:
                disk.cut_after(pending.pop(0))
    disk.cut_after(None)
    life.do_append()
    life.ack()
    disk.power_on()
    life.boot()
    life.check()


def recover(life: Life, pending: list[int]) -> None:
    """Come back, perhaps to lose power again while coming back."""
    while True:
        life.disk.power_on()
        if pending:
            life.disk.cut_after(pending.pop(0))
        try:
            life.boot()
            break
        except PowerCut:
            continue
    life.disk.cut_after(None)
    life.check()
    life.written = {
        offset: value for offset, value in life.written.items() if offset < life.log.log_end_offset
    }


@settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=25),
    cuts=st.lists(st.integers(0, 6000), max_size=4),
    in_bulk=st.booleans(),
)
def test_power_cut_at_any_byte_loses_nothing_acked(
    seed: int, operations: list[str], cuts: list[int], in_bulk: bool
) -> None:
    """Rules E3, E4, E5, E10, G5: scenario 18, power cut at each byte of whatever happens."""
    with syncing(in_bulk):
        live(seed, operations, cuts)


@pytest.mark.soak
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 15_000), max_size=8),
    in_bulk=st.booleans(),
)
def test_power_cut_soak(seed: int, operations: list[str], cuts: list[int], in_bulk: bool) -> None:
    """The long form of the same."""
    with syncing(in_bulk):
        live(seed, operations, cuts)


def test_power_cut_at_every_single_byte_of_a_short_life() -> None:
    """Rule E4: no byte of an append, a roll, a flush or a checkpoint is special."""
    operations = ["append", "flush", "big", "roll", "idempotent", "checkpoint", "append"]
    whole = CrashDisk(Random(3))
    life = Life(whole, Random(4))
    life.boot()
    start = whole.steps
    for operation in operations:
        life.step(operation)
    for cut in range(whole.steps - start):
        live(3, operations, [cut])


def test_the_directory_is_there_after_the_first_ack() -> None:
    """Rule E5: names of new files and directories are durable before anything in them is acked."""
    disk = CrashDisk(Random(1))
    disk.random.choice = lambda options: options[0]  # type: ignore[assignment,method-assign]
    life = Life(disk, Random(2))
    life.boot()
    life.do_append()
    life.ack()
    disk.power_on()
    assert disk.is_dir(f"{DIR}/{TP}")
    life.boot()
    life.check()
