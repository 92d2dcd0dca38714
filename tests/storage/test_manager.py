"""Log directories: opening, creating, deleting, checkpoints, clean stops and failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

import pytest
from tests.storage.helpers import (
    DIR,
    TOPIC_ID,
    TP,
    StepExecutor,
    batch,
    manager_on,
    old_message_set,
    values,
)

from tidemill.errors import ApiError, ErrorCode
from tidemill.executor import InlineExecutor
from tidemill.storage.checkpoint import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    BadCheckpointError,
    format_offsets,
    parse_offsets,
)
from tidemill.storage.disk_errors import DirOfflineError, DiskError, DiskFullError
from tidemill.storage.files import Buffer
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import DirInUseError, LogManager, parse_directory_name
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk
from tidemill.types import TopicPartition

OTHER = TopicPartition("dash-ed", 12)


class FussyDisk(CrashDisk):
    """A disk that has no room for the files a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[str], bool] = lambda path: False

    def write_at(self, path: str, position: int, parts: Sequence[Buffer]) -> None:
        if self.refuses(path):
            raise DiskFullError(f"No space left while writing {path}")
        super().write_at(path, position, parts)


def grow(manager: LogManager, tp: TopicPartition = TP, count: int = 3) -> None:
    log = manager.create(tp, TOPIC_ID, LogConfig())
    for _ in range(count):
        log.append_as_leader(batch(b"x"), leader_epoch=0)


def append_many(log: Log, count: int, *, size: int) -> None:
    for _ in range(count):
        log.append_as_leader(batch(b"x" * size), leader_epoch=0)


class TestStartAndStop:
    def test_a_clean_stop_leaves_nothing_to_scan(self) -> None:
        """Rule E3: the marker is written last and taken away first."""
        disk = CrashDisk()
        manager = manager_on(disk)
        grow(manager)
        grow(manager, OTHER, 5)
        manager.shutdown({TP: 2, OTHER: 5}, broker_epoch=42)
        marker = disk.read_file(f"{DIR}/{CLEAN_SHUTDOWN}")
        assert json.loads(marker) == {"version": 0, "brokerEpoch": 42}
        again = manager_on(disk)
        assert not disk.exists(f"{DIR}/{CLEAN_SHUTDOWN}")
        assert again.previous_broker_epoch == 42
        assert again.high_watermark(TP) == 2
        log = again.get(OTHER)
        assert log is not None
        assert (log.log_end_offset, log.topic_id) == (5, TOPIC_ID)

    def test_after_a_crash_there_is_no_previous_epoch(self) -> None:
        """Rule E3: no marker, no trust."""
        disk = CrashDisk()
        grow(manager_on(disk))
        disk.restart()
        again = manager_on(disk)
        assert again.previous_broker_epoch == -1
        log = again.get(TP)
        assert log is not None
        assert len(values(log)) == 3

    def test_a_settled_log_closes_without_a_flush(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        for partition in range(20):
            grow(manager, TopicPartition("many", partition))
        manager.shutdown({})
        again = manager_on(disk)
        before = disk.syncs
        again.shutdown({})
        assert disk.syncs - before < 20

    def test_two_processes_cannot_share_a_directory(self) -> None:
        disk = CrashDisk()
        manager_on(disk)
        with pytest.raises(DirInUseError, match="in use by another process"):
            manager_on(disk)

    def test_a_directory_of_another_broker_is_refused(self) -> None:
        disk = CrashDisk()
        manager_on(disk).shutdown({})
        text = disk.read_file(f"{DIR}/{META_PROPERTIES}").replace(b"node.id=1", b"node.id=9")
        disk.write_at(f"{DIR}/{META_PROPERTIES}", 0, (text,))
        with pytest.raises(DirInUseError, match="belongs to node 9"):
            manager_on(disk)

    def test_the_directory_keeps_its_id(self) -> None:
        disk = CrashDisk()
        first = manager_on(disk)
        first.shutdown({})
        second = manager_on(disk)
        assert second.dirs[0].directory_id == first.dirs[0].directory_id != UUID(int=0)

    def test_unknown_files_are_left_alone(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        disk.write_at(f"{DIR}/notes.txt", 0, (b"mine",))
        disk.mkdir(f"{DIR}/backup")
        disk.mkdir(f"{DIR}/__cluster_metadata-0")
        grow(manager)
        disk.write_at(f"{DIR}/{TP}/README", 0, (b"mine",))
        disk.restart()
        manager = manager_on(disk)
        manager.run_retention({})
        assert disk.read_file(f"{DIR}/notes.txt") == b"mine"
        assert disk.read_file(f"{DIR}/{TP}/README") == b"mine"
        assert disk.is_dir(f"{DIR}/backup")
        assert list(manager.logs) == [TP]


class TestCreateAndDelete:
    def test_a_new_partition_goes_where_the_fewest_are(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk, dirs=("/a", "/b", "/c"))
        places = [
            manager.create(TopicPartition("t", n), TOPIC_ID, LogConfig()).dir.path for n in range(7)
        ]
        assert [places.count(path) for path in ("/a", "/b", "/c")] == [3, 2, 2]

    def test_creating_needs_no_flush(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        before = disk.syncs
        for partition in range(50):
            manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig())
        assert disk.syncs == before

    def test_deleting_does_not_wait_for_the_disk(self) -> None:
        disk, clock, executor = CrashDisk(), ManualClock(), StepExecutor()
        manager = manager_on(disk, clock=clock, executor=executor)
        grow(manager)
        log = manager.logs[TP]
        manager.delete(TP)
        assert manager.get(TP) is None
        assert [name.split(".")[0] for name in disk.listdir(DIR) if "delete" in name] == [str(TP)]
        with pytest.raises(ApiError):
            log.append_as_leader(batch(b"x"), leader_epoch=0)
        manager.run_retention({})
        assert not executor.waiting
        clock.advance(60_000)
        manager.run_retention({})
        executor.run_all()
        assert not any("delete" in name for name in disk.listdir(DIR))

    def test_what_was_being_deleted_goes_after_a_restart(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        grow(manager)
        manager.delete(TP)
        disk.restart()
        again = manager_on(disk)
        assert again.get(TP) is None
        again.run_retention({})
        assert not any("delete" in name for name in disk.listdir(DIR))

    def test_a_recreated_topic_does_not_inherit_old_offsets(self) -> None:
        """Rule A11: the checkpoints of the deleted topic are not believed again."""
        disk = CrashDisk(Random(2))
        manager = manager_on(disk)
        grow(manager, count=50)
        manager.logs[TP].flush()
        manager.write_checkpoints({TP: 50})
        manager.delete(TP)
        log = manager.create(TP, UUID(int=99), LogConfig())
        assert manager.high_watermark(TP) == 0
        assert parse_offsets(disk.read_file(f"{DIR}/{RECOVERY_POINTS}")).get(TP, 0) == 0
        assert (log.log_end_offset, log.topic_id) == (0, UUID(int=99))

    def test_a_long_topic_name_can_be_deleted(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        long = TopicPartition("x" * 249, 0)
        grow(manager, long)
        manager.delete(long)
        assert all(len(name) <= 255 for name in disk.listdir(DIR))

    def test_a_directory_without_identity_is_adopted(self) -> None:
        disk = CrashDisk()
        grow(manager_on(disk))
        disk.unlink(f"{DIR}/{TP}/partition.metadata")
        disk.restart()
        manager = manager_on(disk, dirs=("/other", DIR))
        assert manager.get(TP) is None, "it does not say whose it is"
        manager.create(TP, TOPIC_ID, LogConfig())
        assert manager.logs[TP].topic_id == TOPIC_ID
        assert len(values(manager.logs[TP])) == 3
        assert disk.exists(f"{DIR}/{TP}/partition.metadata")

    def test_a_foreign_directory_is_left_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        disk = CrashDisk()
        disk.mkdir(f"{DIR}/weird-0")
        disk.write_at(f"{DIR}/weird-0/x", 0, (b"hi",))
        manager = manager_on(disk)
        foreign = TopicPartition("weird", 0)
        assert manager.get(foreign) is None
        assert [record.getMessage() for record in caplog.records] == [
            f"{DIR}/weird-0 has no partition.metadata: it is left alone"
        ]
        with pytest.raises(ApiError, match=r"'x'.*move it away"):
            manager.create(foreign, TOPIC_ID, LogConfig())
        manager.shutdown({})
        assert disk.listdir(f"{DIR}/weird-0") == ["x"]

    def test_a_log_that_cannot_be_made_leaves_nothing(self) -> None:
        """Rule E8: on a full disk there is no half of a partition, and it can be made later."""
        disk = FussyDisk()
        manager = manager_on(disk)
        disk.refuses = lambda path: path.endswith(".log")
        with pytest.raises(DiskFullError):
            manager.create(TP, TOPIC_ID, LogConfig())
        assert not disk.exists(f"{DIR}/{TP}")
        disk.refuses = lambda path: False
        assert manager.create(TP, TOPIC_ID, LogConfig()).log_end_offset == 0

    def test_deleted_files_go_after_the_delay_of_their_topic(self) -> None:
        disk, clock = CrashDisk(), ManualClock()
        manager = manager_on(disk, clock=clock)
        manager.create(TP, TOPIC_ID, LogConfig(file_delete_delay_ms=1_000))
        manager.delete(TP)
        clock.advance(999)
        manager.remove_doomed()
        assert any("delete" in name for name in disk.listdir(DIR))
        clock.advance(1)
        manager.remove_doomed()
        assert not any("delete" in name for name in disk.listdir(DIR))

    def test_a_full_disk_is_one_line_a_minute(self, caplog: pytest.LogCaptureFixture) -> None:
        disk, clock = FussyDisk(), ManualClock()
        log = manager_on(disk, clock=clock).create(TP, TOPIC_ID, LogConfig())
        disk.refuses = lambda path: path.endswith(".log")

        def refused() -> None:
            for _ in range(10):
                with pytest.raises(DiskFullError):
                    log.append_as_leader(batch(b"x"), leader_epoch=0)

        refused()
        (line,) = [record.getMessage() for record in caplog.records]
        assert DIR in line
        assert f"{disk.space(DIR).free_bytes} bytes" in line
        clock.advance(60_000)
        refused()
        assert len(caplog.records) == 2
        assert "9 more like it" in caplog.records[1].getMessage()

    def test_a_save_that_finds_no_room_stops_nobody(self) -> None:
        """The snapshot is a help for recovery: the log goes on, and it is written later."""
        disk = FussyDisk()
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append_many(log, 3, size=1 << 19)
        disk.refuses = lambda path: not path.endswith(".log") and "checkpoint" not in path
        manager.write_checkpoints({})
        assert manager.flusher_of(log).is_idle
        assert log.flushed_offset == 3
        assert log.unsaved_bytes
        disk.refuses = lambda path: False
        manager.write_checkpoints({})
        assert not log.unsaved_bytes

    def test_names(self) -> None:
        assert parse_directory_name("a-b-3") == TopicPartition("a-b", 3)
        for name in ("plain", "-3", "a-x", "a-", "__cluster_metadata-0", "t-0.abc-delete"):
            assert parse_directory_name(name) is None


class TestCheckpoints:
    def test_all_partitions_are_noted(self) -> None:
        """Rule B7: also those that nobody leads right now keep their high watermark."""
        disk = CrashDisk()
        manager = manager_on(disk)
        grow(manager)
        grow(manager, OTHER, 5)
        manager.write_checkpoints({TP: 1, OTHER: 4})
        manager.write_checkpoints({TP: 3})
        assert parse_offsets(disk.read_file(f"{DIR}/{HIGH_WATERMARKS}")) == {TP: 3, OTHER: 4}

    def test_log_starts_survive(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        grow(manager, count=10)
        manager.logs[TP].advance_log_start(4)
        manager.write_checkpoints({})
        assert parse_offsets(disk.read_file(f"{DIR}/{LOG_STARTS}")) == {TP: 4}
        disk.restart()
        again = manager_on(disk)
        assert again.logs[TP].log_start_offset == 4
        assert again.logs[TP].leader_epochs.entries == [(0, 4)]

    def test_an_old_picture_does_not_overtake_a_new_one(self) -> None:
        """Rule E4: a truncation lowers the recovery point on disk, whatever was on its way."""
        disk, executor = CrashDisk(), StepExecutor()
        manager = manager_on(disk, executor=executor)
        grow(manager, count=10)
        manager.logs[TP].flush()
        manager.write_checkpoints({})
        manager.logs[TP].truncate_to(4)
        executor.run_all()
        assert parse_offsets(disk.read_file(f"{DIR}/{RECOVERY_POINTS}")) == {TP: 4}

    def test_the_format_is_kafkas(self) -> None:
        assert format_offsets({TP: 7}) == b"0\n1\nclicks 0 7\n"
        for bad in (b"", b"0\n", b"1\n0\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0\n", b"0\n1\nt 0 x\n"):
            with pytest.raises(BadCheckpointError):
                parse_offsets(bad)

    def test_a_damaged_checkpoint_costs_time_not_data(self) -> None:
        """Rule B7: losing it may cost time, never data."""
        disk = CrashDisk()
        manager = manager_on(disk)
        grow(manager)
        manager.shutdown({TP: 3})
        for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS):
            disk.truncate(f"{DIR}/{name}", 1)
        again = manager_on(disk)
        assert len(values(again.logs[TP])) == 3
        assert again.high_watermark(TP) == 0


class TestFlushing:
    def test_flush_ms(self) -> None:
        disk, clock = CrashDisk(), ManualClock()
        manager = manager_on(disk, clock=clock)
        log = manager.create(TP, TOPIC_ID, LogConfig(flush_ms=500, flush_policy="async"))
        log.append_as_leader(batch(b"x"), leader_epoch=0)
        manager.flush_overdue()
        assert log.flushed_offset == 0
        clock.advance(500)
        manager.flush_overdue()
        assert log.flushed_offset == 1

    def test_flush_messages_makes_the_answer_wait(self) -> None:
        manager = manager_on(CrashDisk())
        log = manager.create(TP, TOPIC_ID, LogConfig(flush_messages=3, flush_policy="async"))
        dues = [log.append_as_leader(batch(b"x"), leader_epoch=0).flush_due for _ in range(3)]
        assert dues == [False, False, True]
        log.flush()
        assert not log.append_as_leader(batch(b"x"), leader_epoch=0).flush_due

    def test_a_roll_is_flushed_in_the_background(self) -> None:
        manager = manager_on(CrashDisk(), executor=InlineExecutor())
        log = manager.create(TP, TOPIC_ID, LogConfig(flush_policy="async"))
        for _ in range(3):
            log.append_as_leader(batch(b"x"), leader_epoch=0)
        log.roll()
        assert log.flushed_offset == 3


class TestFailures:
    def test_one_failed_directory_does_not_stop_the_others(self) -> None:
        """Rule E1: only its own partitions are lost to us."""
        disk = CrashDisk()
        manager = manager_on(disk, dirs=("/a", "/b"))
        told: list[tuple[str, list[TopicPartition]]] = []
        manager.on_dir_failure = lambda path, lost: told.append((path, lost))
        first, second = TopicPartition("t", 0), TopicPartition("t", 1)
        grow(manager, first)
        grow(manager, second)
        disk.fails_sync = lambda path: path.startswith("/a/")
        errors: list[BaseException | None] = []
        for tp in (first, second):
            manager.request_flush(manager.logs[tp], errors.append)
        assert isinstance(errors[0], DiskError)
        assert errors[1] is None
        assert told == [("/a", [first])]
        assert manager.offline_dirs == ["/a"]
        assert manager.create(TopicPartition("t", 2), TOPIC_ID, LogConfig()).dir.path == "/b"
        manager.shutdown({})
        assert not disk.exists(f"/a/{CLEAN_SHUTDOWN}")
        assert disk.exists(f"/b/{CLEAN_SHUTDOWN}")

    def test_a_dead_directory_at_start(self) -> None:
        disk = CrashDisk()
        disk.write_at("/a", 0, (b"a file where a directory should be",))
        manager = manager_on(disk, dirs=("/a", "/b"))
        assert manager.offline_dirs == ["/a"]
        grow(manager)
        with pytest.raises(DiskError, match="No log directory can be used"):
            manager_on(disk, dirs=("/a",))

    def test_no_directory_left(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        grow(manager)
        disk.fails_sync = lambda _: True
        manager.request_flush(manager.logs[TP])
        with pytest.raises(DirOfflineError):
            manager.create(OTHER, TOPIC_ID, LogConfig())
        (described,) = manager.describe_dirs()
        assert described.error is not None

    def test_the_reserve_keeps_room_for_what_must_go_on(self) -> None:
        """Rule E8: writes stop early, reads and checkpoints go on."""
        disk = CrashDisk(capacity_bytes=200_000)
        manager = manager_on(disk, reserve_bytes=10_000)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        with pytest.raises(DiskFullError, match="in reserve"):
            append_many(log, 1000, size=1000)
        assert disk.space("/").free_bytes >= 10_000
        assert len(values(log)) == log.log_end_offset > 100
        manager.request_flush(log)
        manager.write_checkpoints({TP: log.log_end_offset})
        assert not manager.offline_dirs
        log.advance_log_start(log.log_end_offset)
        manager.shutdown({})
        assert disk.exists(f"{DIR}/{CLEAN_SHUTDOWN}")

    def test_describe(self) -> None:
        disk = CrashDisk(capacity_bytes=10**6)
        manager = manager_on(disk)
        grow(manager)
        (described,) = manager.describe_dirs()
        assert described.path == DIR
        assert described.error is None
        assert described.total_bytes == 10**6
        assert described.log_sizes == {TP: manager.logs[TP].size_bytes}


def test_an_unserved_partition_says_why() -> None:
    """A directory of old message sets is kept as it is until it is converted."""
    disk = CrashDisk()
    path = f"{DIR}/{TP}/{0:020d}.log"
    disk.mkdir(f"{DIR}/{TP}")
    disk.write_at(path, 0, (old_message_set(),))
    manager = manager_on(disk)
    assert manager.get(TP) is None
    with pytest.raises(ApiError, match="log import") as caught:
        manager.create(TP, TOPIC_ID, LogConfig())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert disk.read_file(path) == old_message_set()
