"""A log's ordinary life: append, follow, roll, truncate, fail; reading is in `test_log_read.py`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.storage.helpers import (
    DIR,
    TOPIC_ID,
    TP,
    StepExecutor,
    batch,
    fill,
    manager_on,
    new_log,
    read_all,
    values,
)

from tidemill.errors import ApiError, ErrorCode
from tidemill.invariant import InvariantError
from tidemill.storage.disk_errors import DirOfflineError, DiskError, DiskFullError
from tidemill.storage.files import Buffer, Space
from tidemill.storage.log_config import LogConfig
from tidemill.storage.segment import RELATIVE_OFFSET_MAX
from tidemill.testing.clock import START_MS, ManualClock
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import read_header
from tidemill.wire.compression import Codec
from tidemill.wire.control import ControlType, build_marker
from tidemill.wire.records import Record, build_batch

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=0)


class TestAppend:
    def test_offsets_are_assigned_in_order(self) -> None:
        log = new_log()
        first = log.append_as_leader(batch(b"a", b"b"), leader_epoch=0)
        second = log.append_as_leader(batch(b"c"), leader_epoch=0)
        assert (first.base_offset, first.last_offset) == (0, 1)
        assert (second.base_offset, second.last_offset) == (2, 2)
        assert log.log_end_offset == 3
        assert values(log) == [b"a", b"b", b"c"]

    def test_stored_batches_carry_offset_and_epoch_and_keep_their_checksum(self) -> None:
        log = new_log()
        log.append_as_leader(batch(b"a"), leader_epoch=4)
        sent = bytes(batch(b"b", codec=Codec.ZSTD))
        log.append_as_leader(sent, leader_epoch=4)
        stored = log.read(1, max_bytes=1000, upper_offset=2).read_blocking()
        header = read_header(stored)
        assert (header.base_offset, header.partition_leader_epoch) == (1, 4)
        assert stored[16:] == sent[16:]

    def test_several_batches_in_one_write(self) -> None:
        log = new_log()
        info = log.append_as_leader(batch(b"a", b"b") + batch(b"c"), leader_epoch=0)
        assert (info.base_offset, info.last_offset) == (0, 2)
        assert [record.offset for record in read_all(log)] == [0, 1, 2]

    def test_the_clients_buffer_is_not_touched(self) -> None:
        log = new_log()
        fill(log, 3)
        sent = batch(b"a")
        before = bytes(sent)
        log.append_as_leader(memoryview(sent).toreadonly(), leader_epoch=9)
        assert bytes(sent) == before

    def test_garbage_is_refused(self) -> None:
        log = new_log()
        with pytest.raises(ApiError) as caught:
            log.append_as_leader(b"\0" * 100, leader_epoch=0)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        with pytest.raises(ApiError) as caught:
            log.append_as_leader(batch(b"a")[:-1], leader_epoch=0)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert log.log_end_offset == 0


class TestFollower:
    def test_copies_what_the_leader_wrote(self) -> None:
        leader, follower = new_log(), new_log()
        fill(leader, 5, epoch=1)
        fill(leader, 2, epoch=3)
        copied = leader.read(0, max_bytes=1 << 20, upper_offset=7).read_blocking()
        follower.append_as_follower(copied)
        assert values(follower) == values(leader)
        assert follower.leader_epochs.entries == leader.leader_epochs.entries == [(1, 0), (3, 5)]

    def test_refuses_what_it_has_already(self) -> None:
        """Rule D6: the first fetched offset is not below the log's own end."""
        log = new_log()
        log.append_as_follower(batch(b"a", base_offset=0))
        with pytest.raises(InvariantError, match="does not follow"):
            log.append_as_follower(batch(b"a", base_offset=0))

    @pytest.mark.parametrize("is_compacted", [True, False])
    def test_takes_a_gap_that_compaction_made(self, is_compacted: bool) -> None:
        """Rule D6: it stays in the leader's log after the topic's policy has changed."""
        disk, config = CrashDisk(), LogConfig(cleanup_compact=is_compacted)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        log.append_as_follower(batch(b"a", base_offset=0))
        log.roll()
        log.append_as_follower(batch(b"b", base_offset=5) + batch(b"c", base_offset=9))
        assert log.read(2, max_bytes=100, upper_offset=6).read_now() is not None
        disk.restart()
        log = manager_on(disk, config=config).logs[TP]
        assert [record.offset for record in read_all(log)] == [0, 5, 9]

    def test_a_marker_that_cannot_be_read_is_refused_before_it_is_written(self) -> None:
        """Rules D9 and E2: its checksum is right, and what it says makes no sense."""
        log = new_log()
        record = Record(0, START_MS, b"\0", b"")
        bad = build_batch([record], producer_id=1, producer_epoch=0, control=True)
        with pytest.raises(ApiError) as caught:
            log.append_as_follower(bad)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert (log.log_end_offset, log.size_bytes) == (0, 0)

    def test_checks_the_checksum_and_leaves_out_a_partial_batch(self) -> None:
        """Rule E2: also what comes from a leader is checked."""
        log = new_log()
        broken = batch(b"a")
        broken[-1] ^= 1
        with pytest.raises(ApiError) as caught:
            log.append_as_follower(broken)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        log.append_as_follower(batch(b"a") + batch(b"b", base_offset=1)[:-3])
        assert values(log) == [b"a"]


class TestRoll:
    def test_by_size(self) -> None:
        log = new_log(SMALL)
        fill(log, 30)
        assert len(log.segments) > 3
        assert all(segment.size <= 600 for segment in log.segments)
        assert values(log)[7] == b"7".ljust(40, b".")

    def test_by_time_of_the_records(self) -> None:
        log = new_log(LogConfig(segment_ms=1000))
        for timestamp in (10_000, 10_900, 11_001, 11_500):
            log.append_as_leader(batch(b"a", timestamp=timestamp), leader_epoch=0)
        assert [segment.base_offset for segment in log.segments] == [0, 2]

    def test_by_time_without_timestamps(self) -> None:
        clock = ManualClock()
        log = new_log(LogConfig(segment_ms=1000), clock=clock)
        log.append_as_leader(batch(b"a", timestamp=-1), leader_epoch=0)
        clock.advance(1001)
        log.append_as_leader(batch(b"a", timestamp=-1), leader_epoch=0)
        assert [segment.base_offset for segment in log.segments] == [0, 1]

    def test_jitter_makes_it_earlier_not_later(self) -> None:
        log = new_log(LogConfig(segment_ms=1000, segment_jitter_ms=500))
        for timestamp in (10_000, 11_001):
            log.append_as_leader(batch(b"a", timestamp=timestamp), leader_epoch=0)
        assert len(log.segments) == 2

    def test_when_the_index_is_full(self) -> None:
        log = new_log(LogConfig(segment_index_bytes=60, index_interval_bytes=1))
        fill(log, 20)
        assert len(log.segments) > 2
        assert all(len(segment.offset_index) <= 7 for segment in log.segments)

    def test_before_relative_offsets_overflow(self) -> None:
        """Rule E9: offsets in a segment fit 32 bits."""
        log = new_log(LogConfig(cleanup_compact=True))
        log.append_as_follower(batch(b"a", base_offset=0))
        log.append_as_follower(batch(b"b", base_offset=RELATIVE_OFFSET_MAX))
        log.append_as_follower(batch(b"c", base_offset=RELATIVE_OFFSET_MAX + 1))
        assert [segment.base_offset for segment in log.segments] == [0, RELATIVE_OFFSET_MAX + 1]
        assert values(log) == [b"a", b"b", b"c"]

    @pytest.mark.parametrize("is_compacted", [True, False])
    @pytest.mark.parametrize("is_one_answer", [True, False])
    @pytest.mark.parametrize("first", [0, 2 * RELATIVE_OFFSET_MAX], ids=["near", "far"])
    def test_a_gap_too_wide_for_a_segment(
        self, is_compacted: bool, is_one_answer: bool, first: int
    ) -> None:
        """Rule E9: a follower copies what compaction left of a log with billions of offsets."""
        disk = CrashDisk()
        config = LogConfig(cleanup_compact=is_compacted, index_interval_bytes=1)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        step = RELATIVE_OFFSET_MAX + 2
        offsets = [first, first + 1, first + step, first + step + 1, first + 2 * step]
        batches = [bytes(batch(b"v", base_offset=offset)) for offset in offsets]
        for records in [b"".join(batches)] if is_one_answer else batches:
            log.append_as_follower(records)
        for restarts in range(2):
            assert [record.offset for record in read_all(log)] == offsets, restarts
            assert log.log_end_offset == offsets[-1] + 1
            assert log.read(first + 2, max_bytes=1, upper_offset=1 << 62).read_blocking()
            disk.restart()
            log = manager_on(disk, config=config).logs[TP]

    def test_a_full_disk_after_a_gap_leaves_a_log_that_can_go_on(self) -> None:
        """Rule E9: the new segment lies behind the gap, so the log ends there, empty or not."""
        disk, config = CrashDisk(), LogConfig(cleanup_compact=True)
        log = new_log(config, disk=disk)
        log.append_as_follower(batch(b"a"))
        far, room = 2 * RELATIVE_OFFSET_MAX, disk.capacity_bytes
        copied = batch(b"b" * 1000, base_offset=far)
        disk.capacity_bytes = disk.capacity_bytes - disk.space("/").free_bytes + 500
        with pytest.raises(DiskFullError):
            log.append_as_follower(copied)
        disk.capacity_bytes = room
        assert log.append_as_leader(batch(b"c"), leader_epoch=1).base_offset == far
        assert [record.offset for record in read_all(log)] == [0, far]

    def test_an_empty_segment_is_not_rolled(self) -> None:
        log = new_log()
        log.roll()
        assert len(log.segments) == 1


class TestEpochs:
    def test_end_offset_for_epoch(self) -> None:
        """Rule D2."""
        log = new_log()
        fill(log, 2, epoch=1)
        fill(log, 3, epoch=4)
        assert log.end_offset_for_epoch(4) == (4, 5)
        assert log.end_offset_for_epoch(3) == (1, 2)
        assert log.end_offset_for_epoch(1) == (1, 2)
        assert log.end_offset_for_epoch(0) == (0, 0)
        assert log.end_offset_for_epoch(5) == (-1, -1)

    def test_an_epoch_is_durable_before_its_records_are(self) -> None:
        """Rule A7: the epoch reaches the disk first."""
        disk = CrashDisk(Random(1))
        log = new_log(disk=disk)
        fill(log, 3, epoch=0)
        log.begin_epoch(7)
        log.append_as_leader(batch(b"x"), leader_epoch=7)
        log.flush()
        disk.power_on()
        again = manager_on(disk).get(TP)
        assert again is not None
        assert again.leader_epochs.entries == [(0, 0), (7, 3)]

    def test_assign_does_not_wait_for_a_flush(self) -> None:
        """Rule A7: durable when it returns."""
        disk = CrashDisk(Random(1))
        log = new_log(disk=disk)
        log.flush()
        log.leader_epochs.assign(5, 0)
        disk.power_on()
        assert b"5 0" in disk.read_file(f"{DIR}/{TP}/leader-epoch-checkpoint")


class TestTruncate:
    def test_takes_everything_along(self) -> None:
        """Rule D8: indexes, epochs, producers and snapshots shrink with the log."""
        disk = CrashDisk()
        log = new_log(SMALL, disk=disk)
        for number in range(30):
            data = batch(b"x" * 40, producer_id=1, epoch=0, sequence=number)
            log.append_as_leader(data, leader_epoch=number // 10)
        assert log.truncate_to(13)
        assert log.log_end_offset == log.flushed_offset == 13
        assert log.leader_epochs.entries == [(0, 0), (1, 10)]
        entry = log.producers.get(1)
        assert entry is not None
        assert entry.last_sequence == 12
        names = [name for name in disk.listdir(log.directory) if name.endswith(".snapshot")]
        assert all(int(name[:20]) <= 13 for name in names)
        log.append_as_leader(batch(b"new", producer_id=1, epoch=0, sequence=13), leader_epoch=5)
        assert values(log)[-1] == b"new"
        assert log.leader_epochs.entries == [(0, 0), (1, 10), (5, 13)]

    def test_inside_a_batch_takes_the_batch(self) -> None:
        log = new_log()
        log.append_as_leader(batch(b"a"), leader_epoch=0)
        log.append_as_leader(batch(b"b", b"c", b"d"), leader_epoch=0)
        log.truncate_to(2)
        assert log.log_end_offset == 1
        assert values(log) == [b"a"]

    def test_above_the_end_only_tidies_epochs(self) -> None:
        """Rule D1: the cache is cleaned even if the truncation is a no-op."""
        disk = CrashDisk(Random(1))
        log = new_log(disk=disk)
        fill(log, 3, epoch=1)
        log.flush()
        log.leader_epochs.assign(4, 3)
        assert not log.truncate_to(3)
        assert log.leader_epochs.entries == [(1, 0)]
        # The log grows over the place, and the process dies before it flushes anything.
        fill(log, 1, epoch=1)
        log.abandon()
        disk.restart()
        again = manager_on(disk).get(TP)
        assert again is not None
        assert again.leader_epochs.entries == [(1, 0)]

    def test_fully(self) -> None:
        """Rule B6: start, end and producers move together."""
        log = new_log(SMALL)
        for number in range(20):
            data = batch(b"x" * 40, producer_id=1, epoch=0, sequence=number)
            log.append_as_leader(data, leader_epoch=0)
        log.truncate_fully_and_start_at(500)
        assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (500, 500, 500)
        assert log.producers.active() == []
        assert log.leader_epochs.entries == []
        assert log.size_bytes == 0
        info = log.append_as_leader(batch(b"x"), leader_epoch=2)
        assert info.base_offset == 500

    def test_below_the_first_segment_starts_over_there(self) -> None:
        log = new_log(SMALL)
        fill(log, 30)
        log.advance_log_start(20)
        log.delete_old_segments(START_MS, 30)
        log.truncate_to(3)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)

    def test_a_flush_under_way_does_not_cover_what_came_after_a_cut(self) -> None:
        """Rule E4: the recovery point advances only by completed flushes."""
        executor = StepExecutor()
        disk = CrashDisk()
        manager = manager_on(disk, executor=executor)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        fill(log, 10)
        manager.request_flush(log)
        log.truncate_to(4)
        fill(log, 20)
        executor.run_all()
        assert log.flushed_offset == 4


class TestTransactions:
    def test_last_stable_offset_and_aborted_index(self) -> None:
        """Rules H9 and H10: open and unreplicated transactions hold the stable offset."""
        log = new_log()
        fill(log, 2)
        data = batch(b"t", producer_id=5, epoch=0, sequence=0, transactional=True)
        log.append_as_leader(data, leader_epoch=0)
        fill(log, 1)
        assert log.last_stable_offset(4) == 2
        marker = build_marker(
            ControlType.ABORT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp=9
        )
        log.append_as_leader(marker, leader_epoch=0, producer_check=False)
        assert log.last_stable_offset(4) == 2
        assert log.last_stable_offset(5) == 5
        assert log.aborted_transactions(0, 5) == [(5, 2, 4, 5)]
        assert log.aborted_transactions(2, 3) == [(5, 2, 4, 5)]
        assert log.aborted_transactions(0, 2) == []

    def test_an_aborted_transaction_survives_a_power_cut_once_flushed(self) -> None:
        """Rule H10: the first entry makes a file, whose name has to be durable, too."""
        for seed in range(20):
            disk = CrashDisk(Random(seed))
            log = new_log(disk=disk)
            data = batch(b"t", producer_id=5, epoch=0, sequence=0, transactional=True)
            log.append_as_leader(data, leader_epoch=0)
            log.flush()
            marker = build_marker(
                ControlType.ABORT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp=9
            )
            log.append_as_leader(marker, leader_epoch=0, producer_check=False)
            log.flush()
            disk.power_on()
            path = log.segments[0].txn_index.path
            assert len(disk.read_file(path)) == 34

    def test_a_plain_write_inside_a_transaction_is_refused(self) -> None:
        """Rule H13."""
        log = new_log()
        data = batch(b"t", producer_id=5, epoch=0, sequence=0, transactional=True)
        log.append_as_leader(data, leader_epoch=0)
        with pytest.raises(ApiError) as caught:
            log.append_as_leader(batch(b"p", producer_id=5, epoch=0, sequence=1), leader_epoch=0)
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE


class TestFailures:
    def test_a_failed_flush_takes_the_directory_offline_for_good(self) -> None:
        """Rule E1: never retried, no more appends, reads go on."""
        disk = CrashDisk()
        log = new_log(disk=disk)
        fill(log, 3)
        disk.fails_sync = lambda path: path.endswith(".log")
        with pytest.raises(DiskError):
            log.flush()
        disk.fails_sync = lambda _: False
        assert log.dir.is_offline
        assert log.flushed_offset == 0
        with pytest.raises(DirOfflineError):
            log.append_as_leader(batch(b"x"), leader_epoch=0)
        assert len(values(log)) == 3

    def test_a_full_disk_refuses_appends_and_recovers(self) -> None:
        """Rule E8: one clear error per request, the log goes on when there is room again."""
        disk = CrashDisk(capacity_bytes=3000)
        log = new_log(disk=disk)
        with pytest.raises(DiskFullError, match="Free some disk space"):
            fill(log, 100)
        end = log.log_end_offset
        assert end > 5
        assert len(values(log)) == end
        disk.capacity_bytes = 10_000
        log.append_as_leader(batch(b"x"), leader_epoch=0)
        assert log.log_end_offset == end + 1
        assert not log.dir.is_offline

    def test_a_torn_write_is_undone(self) -> None:
        disk = CrashDisk(capacity_bytes=3000)
        log = new_log(disk=disk)
        disk.space = lambda path: Space(1 << 40, 1 << 40)  # type: ignore[method-assign]
        with pytest.raises(DiskFullError):
            fill(log, 100)
        assert disk.size(log.segments[-1].log_path) == log.segments[-1].size
        assert not log.dir.is_offline
        assert len(values(log)) == log.log_end_offset

    def test_a_torn_write_that_cannot_be_undone_is_a_failed_disk(self) -> None:
        disk = CrashDisk(capacity_bytes=3000)
        log = new_log(disk=disk)
        disk.space = lambda path: Space(1 << 40, 1 << 40)  # type: ignore[method-assign]

        def refuse(path: str, size: int) -> None:
            raise DiskFullError("no")

        disk.truncate = refuse  # type: ignore[method-assign]
        with pytest.raises(DiskError, match="cannot be undone"):
            fill(log, 100)
        assert log.dir.is_offline

    def test_a_full_disk_for_the_index_does_not_tear_an_append(self) -> None:
        """Rules E8 and G4: an index is a hint, and what is in the log is in memory as well."""
        config = LogConfig(index_interval_bytes=1)
        log = new_log(config)
        disk, write_at = log._files, log._files.write_at

        def refuse_index(path: str, position: int, parts: Sequence[Buffer]) -> None:
            if path.endswith("index"):
                raise DiskFullError("no room for an index")
            write_at(path, position, parts)

        disk.write_at = refuse_index  # type: ignore[method-assign]
        for _ in range(300):
            log.append_as_leader(batch(b"a") + batch(b"b"), leader_epoch=0)
        assert values(log) == [b"a", b"b"] * 300
        assert not log.dir.is_offline
        disk.write_at = write_at  # type: ignore[method-assign]
        log.append_as_leader(batch(b"c"), leader_epoch=0)
        assert not log.segments[-1].has_unwritten_index
