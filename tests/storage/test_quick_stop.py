"""A stop writes only what a start could not find out quickly, and a start then finds it out."""

from __future__ import annotations

import struct
from random import Random

import pytest
from tests.storage.helpers import DIR, TOPIC_ID, TP, batch, manager_on, read_all
from tests.storage.scrub_helpers import SMALL, filled

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.storage.segment import UNINDEXED_BYTES_MAX
from tidemill.testing.disk import CrashDisk, PowerCut

HOME = f"{DIR}/{TP}"
TIME = 1_700_000_000_000


def restarted(disk: CrashDisk, manager: LogManager) -> LogManager:
    """The same logs after a clean stop and a start."""
    manager.shutdown({})
    disk.restart()
    return manager_on(disk)


def put(log: Log, sequence: int, *, timestamp: int = TIME, size: int = 1) -> None:
    records = batch(b"x" * size, producer_id=9, epoch=0, sequence=sequence, timestamp=timestamp)
    log.append_as_leader(records, leader_epoch=0)


def test_a_short_log_costs_a_stop_nothing() -> None:
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for number in range(20):
        log.append_as_leader(batch(b"%d" % number), leader_epoch=0)
    manager.request_flush(log)
    names = disk.listdir(HOME)
    assert log.write_down().is_clean
    again = restarted(disk, manager).logs[TP]
    assert disk.listdir(HOME) == names, "neither indexes nor a snapshot"
    assert [record.value for record in read_all(again)] == [b"%d" % n for n in range(20)]
    assert again.flushed_offset == 20


def test_producers_are_known_after_a_stop_without_a_snapshot_of_the_end() -> None:
    """Rule G5: the snapshot that there is, and the few batches after it, say the same."""
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    put(log, 0)
    manager = restarted(disk, manager)
    snapshots = [name for name in disk.listdir(HOME) if name.endswith(".snapshot")]
    assert snapshots == ["00000000000000000001.snapshot"], "Kafka would know of no producer"
    put(manager.logs[TP], 1)
    log = restarted(disk, manager).logs[TP]
    assert [name for name in disk.listdir(HOME) if name.endswith(".snapshot")] == snapshots
    repeated = log.append_as_leader(batch(b"x", producer_id=9, epoch=0, sequence=1), leader_epoch=0)
    assert (repeated.duplicate, repeated.base_offset) == (True, 1)
    with pytest.raises(ApiError) as caught:
        put(log, 7)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("size", [1, 2 * UNINDEXED_BYTES_MAX])
def test_the_latest_time_is_known_after_every_stop(size: int) -> None:
    """An index file that is there must be complete: its last entry is believed."""
    disk = CrashDisk()
    manager = manager_on(disk)
    manager.create(TP, TOPIC_ID, LogConfig())
    for number in range(6):
        put(manager.logs[TP], number, timestamp=TIME + number, size=size if number == 2 else 1)
        manager = restarted(disk, manager)
        latest = manager.logs[TP].max_timestamp()
        assert latest is not None
        assert (latest.offset, latest.timestamp) == (number, TIME + number)


def test_the_latest_time_is_known_of_a_segment_that_was_cut_and_grew_to_its_old_size() -> None:
    """It was closed at that size once; what its index said then is not what it has to say now."""
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for timestamp in (TIME + 5, TIME):
        log.append_as_leader(batch(b"x", timestamp=timestamp), leader_epoch=0)
    size = log.segments[0].size
    log.roll()
    log.truncate_to(1)
    log.append_as_leader(batch(b"y", timestamp=TIME + 9), leader_epoch=1)
    assert [segment.size for segment in log.segments] == [size]
    latest = restarted(disk, manager).logs[TP].max_timestamp()
    assert latest is not None
    assert (latest.offset, latest.timestamp) == (1, TIME + 9)


def test_what_a_power_cut_left_of_a_time_index_is_not_believed_after_the_next_stop() -> None:
    """A hole and then an entry: recovery takes nothing of it, so a stop must not leave it there."""
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    log.append_as_leader(batch(b"x", timestamp=TIME), leader_epoch=0)
    manager.request_flush(log)
    torn = bytes(12) + struct.pack(">qi", TIME, 0)
    disk.write_at(f"{HOME}/{0:020d}.timeindex", 0, (torn,))
    disk.restart()
    manager = manager_on(disk)
    manager.logs[TP].append_as_leader(batch(b"y", timestamp=TIME + 9), leader_epoch=0)
    latest = restarted(disk, manager).logs[TP].max_timestamp()
    assert latest is not None
    assert (latest.offset, latest.timestamp) == (1, TIME + 9)


@pytest.mark.parametrize("seed", range(8))
def test_the_indexes_of_a_segment_that_ended_just_before_a_power_cut_are_made_again(
    seed: int,
) -> None:
    """Its records were flushed, and the next one has begun: the recovery point lies between."""
    disk = CrashDisk(Random(seed))
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for timestamp in (TIME, TIME + 5):
        log.append_as_leader(batch(b"x", timestamp=timestamp), leader_epoch=0)
    manager.request_flush(log)
    manager.write_checkpoints({TP: log.flushed_offset})
    log.roll()
    first = f"{HOME}/{0:020d}.timeindex"
    disk.truncate(first, 0)
    disk.write_at(first, 0, (struct.pack(">qi", TIME, 0),))
    disk.restart()
    again = manager_on(disk).logs[TP]
    assert [segment.base_offset for segment in again.segments] == [0, 2]
    assert again.segments[0].largest_timestamp().timestamp == TIME + 5
    again.append_as_leader(batch(b"y", timestamp=TIME + 6), leader_epoch=0)
    disk.power_on()
    assert disk.read_file(first) == struct.pack(">qi", TIME + 5, 1), "it is durable, too"


def test_a_long_tail_gets_its_indexes_and_its_snapshot() -> None:
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for number in range(20):
        put(log, number, size=5_000)
    again = restarted(disk, manager).logs[TP]
    names = disk.listdir(HOME)
    assert "00000000000000000020.snapshot" in names
    assert "00000000000000000000.index" in names
    assert disk.size(f"{HOME}/00000000000000000000.index") > 0
    assert len(read_all(again)) == 20


def test_a_recovery_that_cuts_nothing_leaves_the_index_files_alone() -> None:
    """Ten thousand truncations are what a start after a kill took most of its time for."""
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig(index_interval_bytes=100))
    for number in range(50):
        put(log, number, size=3_000)
    manager.shutdown({})
    index = f"{HOME}/00000000000000000000.index"
    before = disk.read_file(index)
    assert before
    disk.unlink(f"{DIR}/.kafka_cleanshutdown")
    disk.restart()
    again = manager_on(disk, config=LogConfig(index_interval_bytes=100)).get(TP)
    assert again is not None
    assert disk.read_file(index) == before
    assert len(read_all(again)) == 50


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_in_a_truncation_leaves_no_hole(seed: int) -> None:
    """Rule D8: the segments above the cut go durably before the cut itself is made."""
    cut, is_over = 0, False
    while not is_over:
        disk = CrashDisk(Random(seed))
        manager, log = filled(disk, 40)
        manager.write_checkpoints({})
        disk.cut_after(cut)
        is_over = truncates(log, 7)
        disk.power_on()
        again = manager_on(disk, config=SMALL).get(TP)
        assert again is not None
        found = [record.offset for record in read_all(again)]
        assert found == list(range(again.log_start_offset, again.log_end_offset))
        cut += 1


def truncates(log: Log, offset: int) -> bool:
    """Whether the power lasted."""
    try:
        log.truncate_to(offset)
    except PowerCut:
        return False
    return True
