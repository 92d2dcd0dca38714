"""Failures in the middle of things: what is left of a roll, a cut, a swap, a flush, a stop."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.storage.cleaning import COMPACTED, Cleaning, key
from tests.storage.helpers import (
    DIR,
    TOPIC_ID,
    TP,
    StepExecutor,
    batch,
    manager_on,
    read_all,
    values,
)

from tidemill.errors import ApiError, ErrorCode
from tidemill.executor import Then
from tidemill.storage import checkpoint
from tidemill.storage.checkpoint import LEADER_EPOCHS
from tidemill.storage.disk_errors import (
    DirOfflineError,
    DiskError,
    DiskFailedError,
    DiskFullError,
    OutOfFilesError,
)
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.storage.txn_index import ENTRY_BYTES
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk
from tidemill.types import TopicPartition
from tidemill.wire.control import ControlType, build_marker


class FullDisk(CrashDisk):
    """Has no room for the operations that a test names, from a certain one on."""

    refuses: Callable[[str, str], bool] = staticmethod(lambda operation, path: False)

    def _refuse(self, operation: str, path: str) -> None:
        if self.refuses(operation, path):
            raise DiskFullError(f"No space left for {operation} of {path}")

    def replace(self, source: str, target: str) -> None:
        self._refuse("replace", target)
        super().replace(source, target)

    def unlink(self, path: str) -> None:
        self._refuse("unlink", path)
        super().unlink(path)

    def write_at(self, path: str, position: int, parts: object) -> None:
        self._refuse("write", path)
        super().write_at(path, position, parts)  # type: ignore[arg-type]


def append(log: Log, count: int, *, leader_epoch: int = 0, size: int = 60) -> None:
    for _ in range(count):
        log.append_as_leader(batch(b"v" * size), leader_epoch=leader_epoch)


def abort_transaction(log: Log, *, leader_epoch: int = 0) -> None:
    """A record and the marker that takes it back."""
    records = batch(b"t", producer_id=9, epoch=0, sequence=0, transactional=True)
    log.append_as_leader(records, leader_epoch=leader_epoch)
    marker = build_marker(
        ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp=5
    )
    log.append_as_leader(marker, leader_epoch=leader_epoch, producer_check=False)


class NoHandles(CrashDisk):
    """Cannot open the files to flush, for as long as a test says so."""

    has_none = False

    def fdatasync(self, path: str) -> None:
        if self.has_none:
            raise OutOfFilesError(f"Out of file descriptors while opening {path}")
        super().fdatasync(path)


def lose_power(disk: CrashDisk) -> None:
    """The worst case: nothing is there that was not flushed."""
    disk.random.choice = lambda options: options[0]  # type: ignore[assignment,method-assign]
    disk.random.random = lambda: 1.0  # type: ignore[method-assign]
    disk.power_on()


class TestRoll:
    def test_a_roll_that_fails_half_way_leaves_no_segment_behind(self) -> None:
        """Rule E8: smaller batches go on in the old segment, and no start takes it for closed."""
        disk, config = FullDisk(), LogConfig(segment_bytes=1000)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        append(log, 5)
        disk.refuses = lambda operation, path: operation == "unlink" and path.endswith(".index")
        with pytest.raises(DiskFullError):
            append(log, 1, size=700)
        disk.refuses = lambda operation, path: False
        append(log, 2)
        manager.shutdown({TP: 7})
        log = manager_on(disk, config=config).logs[TP]
        assert len(values(log)) == log.log_end_offset == 7


class TestCut:
    def test_a_cut_that_fails_half_way_is_not_gone_on_with(self) -> None:
        """Rules D8 and E1: memory and files are apart, so nothing may be built on it."""
        disk = FullDisk()
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 5)
        append(log, 5, leader_epoch=1)
        log.flush()
        disk.refuses = lambda operation, path: LEADER_EPOCHS in path
        with pytest.raises(DiskError):
            log.truncate_to(5)
        disk.refuses = lambda operation, path: False
        with pytest.raises(DiskError, match="offline"):
            append(log, 5, leader_epoch=0)
        assert manager.offline_dirs == [DIR]

    def test_a_cut_that_cannot_even_begin_harms_nothing(self) -> None:
        """The recovery point is lowered first, and there is no room for that."""
        disk, config = FullDisk(), LogConfig(segment_bytes=400)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        append(log, 10)
        log.flush()
        manager.write_checkpoints({TP: 10})
        disk.refuses = lambda operation, path: checkpoint.RECOVERY_POINTS in path
        with pytest.raises(DiskFullError):
            log.truncate_to(2)
        disk.refuses = lambda operation, path: False
        assert len(values(log)) == 10
        assert log.truncate_to(2)
        assert len(values(log)) == 2


class TestSwap:
    @pytest.mark.parametrize("rename", range(8))
    def test_a_swap_that_fails_half_way_loses_nothing(self, rename: int) -> None:
        """Rule I5: the old files have given up their names, and the new ones do not have theirs."""
        disk = FullDisk()
        cleaning = Cleaning(disk=disk)
        for number in range(60):
            cleaning.put((key(number // 2), b"v" * 60))
        cleaning.settle()
        names: list[str] = []

        def refuses(operation: str, path: str) -> bool:
            is_decided = any(name.endswith(".log.swap") for name in cleaning.names())
            if operation == "replace" and is_decided:
                names.append(path)
            return operation == "replace" and is_decided and len(names) > rename

        disk.refuses = refuses
        cleaning.clean()
        assert len(names) > rename
        disk.refuses = lambda operation, path: False
        disk.restart()
        cleaning.boot()
        assert {found for _, found, _ in cleaning.records()} == {
            key(number) for number in range(30)
        }
        assert cleaning.log.log_end_offset == 60


class TestFlush:
    def test_a_failed_flush_is_not_tried_again_by_those_who_waited(self) -> None:
        """Rule E1: the device says it once; the next flush succeeds, and the bytes are gone."""
        disk, step = CrashDisk(), StepExecutor()
        manager = manager_on(disk, executor=step)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 1)
        told: list[BaseException | None] = []
        manager.request_flush(log, told.append)
        append(log, 1)
        manager.request_flush(log, told.append)
        failures = iter([True])
        disk.fails_sync = lambda path: path.endswith(".log") and next(failures, False)
        step.run_all()
        assert [isinstance(error, DiskError) for error in told] == [True, True]
        assert log.flushed_offset == 0

    def test_a_snapshot_waits_for_what_it_describes(self) -> None:
        """Rule G5: a crash could still take that away, and would leave the snapshot."""
        disk = CrashDisk()
        log = manager_on(disk).create(TP, TOPIC_ID, LogConfig())
        append(log, 3)
        save = log.begin_save()
        save()
        assert not [name for name in disk.listdir(log.directory) if name.endswith(".snapshot")]
        log.flush()
        save()
        assert [name for name in disk.listdir(log.directory) if name.endswith(".snapshot")]

    def test_aborted_transactions_above_the_recovery_point_are_indexed_anew(self) -> None:
        """Rules E4 and H10: their entries may be lost although their batches are not."""
        disk = CrashDisk()
        log = manager_on(disk).create(TP, TOPIC_ID, LogConfig())
        abort_transaction(log)
        disk.truncate(log.segments[0].txn_index.path, 0)
        disk.restart()
        log = manager_on(disk).logs[TP]
        assert [aborted[:3] for aborted in log.aborted_transactions(0, 2)] == [(9, 0, 1)]

    def test_a_flush_that_could_not_begin_leaves_all_of_its_work_to_the_next(self) -> None:
        """Rule H10: aborted transactions are flushed with the batches, not less."""
        disk = NoHandles()
        log = manager_on(disk).create(TP, TOPIC_ID, LogConfig())
        log.flush()
        abort_transaction(log)
        disk.has_none = True
        with pytest.raises(OutOfFilesError):
            log.flush()
        disk.has_none = False
        log.flush()
        lose_power(disk)
        assert disk.size(log.segments[0].txn_index.path) == ENTRY_BYTES

    @pytest.mark.parametrize("ending", ["shutdown", "truncate"])
    def test_what_a_flush_under_way_was_to_flush_is_not_forgotten(self, ending: str) -> None:
        """Rules E5 and H10: somebody else says that all is durable before it is done."""
        disk, step = CrashDisk(), StepExecutor()
        manager = manager_on(disk, executor=step)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        log.flush()
        abort_transaction(log, leader_epoch=3)
        append(log, 2, leader_epoch=3)
        manager.request_flush(log)
        if ending == "shutdown":
            manager.shutdown({TP: 4})
        else:
            log.truncate_to(3)
        lose_power(disk)
        log = manager_on(disk).logs[TP]
        assert log.log_end_offset == (4 if ending == "shutdown" else 3)
        assert [aborted[:3] for aborted in log.aborted_transactions(0, 3)] == [(9, 0, 1)]
        assert log.leader_epochs.entries == [(3, 0)]

    def test_epochs_of_a_deleted_topic_are_not_written_into_the_next_of_its_name(self) -> None:
        """Rule A11: a flush of the old log was still waiting for its turn."""
        disk, step = CrashDisk(), StepExecutor()
        manager = manager_on(disk, executor=step)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 1, leader_epoch=7)
        manager.request_flush(log)
        manager.delete(TP)
        again = manager.create(TP, UUID(int=8), LogConfig())
        step.run_all()
        assert not [name for name in disk.listdir(again.directory) if LEADER_EPOCHS in name]


class TestDirectories:
    def test_a_directory_that_failed_is_not_written_again_for_a_new_log(self) -> None:
        """Rule E1: it holds a directory of the partition's name that does not say whose it is."""
        disk, dirs = CrashDisk(), ("/one", "/two")
        manager = manager_on(disk, dirs=dirs)
        append(manager.create(TP, TOPIC_ID, LogConfig()), 3)
        manager.shutdown({})
        disk.unlink(f"/one/{TP}/{checkpoint.PARTITION_METADATA}")
        manager = manager_on(disk, dirs=dirs)
        manager.dirs[0].fail(DiskFailedError("broken"))
        before = disk.steps
        with pytest.raises(DirOfflineError):
            manager.create(TP, TOPIC_ID, LogConfig())
        assert disk.steps == before

    def test_a_log_in_a_directory_that_cannot_be_opened_is_not_made_anew(self) -> None:
        """Rule E1: an empty one in its place would pass for the log, and get records of its own."""
        disk = CrashDisk()
        disk.write_at("/one", 0, (b"not a directory",))
        other = TopicPartition("new", 0)
        manager = LogManager(
            ("/one", "/two"),
            files=disk,
            clock=ManualClock(),
            random=Random(1),
            executor=StepExecutor(),
            expected={TP: TOPIC_ID},
        )
        manager.start()
        with pytest.raises(DirOfflineError, match="may be in one that could not: /one"):
            manager.create(TP, TOPIC_ID, LogConfig())
        assert manager.create(other, TOPIC_ID, LogConfig()).dir.path == "/two"
        assert manager.create(TP, UUID(int=8), LogConfig()), "another topic of that name is new"

    def test_what_a_start_had_no_room_to_make_durable_is_not_served(self) -> None:
        """Rule E4: a broker with one directory does not start, and says what would help."""
        disk = FullDisk()
        manager = manager_on(disk)
        append(manager.create(TP, TOPIC_ID, LogConfig()), 3, leader_epoch=1)
        disk.restart()  # It was killed: all of it is in the page cache, and nowhere else.
        disk.refuses = lambda operation, path: operation == "write" and LEADER_EPOCHS in path
        with pytest.raises(DiskFailedError, match=r"No space left.*start the broker again"):
            manager_on(disk)
        disk.refuses = lambda operation, path: False
        disk.restart()
        assert len(values(manager_on(disk).logs[TP])) == 3

    @pytest.mark.parametrize("operation", ["listdir", "write_at"])
    def test_logs_that_a_start_had_no_handles_to_open_are_not_made_anew(
        self, operation: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rule E1: half of a directory is not put into service."""
        disk, dirs = CrashDisk(), ("/one", "/two")
        log = manager_on(disk, dirs=dirs).create(TP, TOPIC_ID, LogConfig())
        append(log, 3)
        disk.restart()
        original, home = getattr(disk, operation), log.dir.path

        def refuse(path: str, *rest: object) -> object:
            if path.startswith(home):
                raise OutOfFilesError(f"Out of file descriptors while opening {path}.")
            return original(path, *rest)

        monkeypatch.setattr(disk, operation, refuse)
        manager = manager_on(disk, dirs=dirs, expected={TP: TOPIC_ID})
        monkeypatch.undo()
        assert manager.offline_dirs == [home]
        with pytest.raises(DirOfflineError, match=f"may be in one that could not: {home}"):
            manager.create(TP, TOPIC_ID, LogConfig())
        disk.restart()
        assert len(values(manager_on(disk, dirs=dirs).logs[TP])) == 3

    def test_a_deleted_log_that_could_not_be_renamed_is_not_the_next_topics(self) -> None:
        """Rule A11: a topic of the same name is made while the old directory is still there."""
        disk, successor = FullDisk(), UUID(int=8)
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 3)
        log.flush()
        disk.refuses = lambda operation, path: operation == "replace" and str(TP) in path
        with pytest.raises(DiskFullError):
            manager.delete(TP)
        with pytest.raises(DiskFullError):
            manager.create(TP, successor, LogConfig())
        assert manager.get(TP) is None
        disk.refuses = lambda operation, path: False
        assert values(manager.create(TP, successor, LogConfig())) == []
        (kept,) = [name for name in disk.listdir(DIR) if name.endswith("-stray")]
        assert checkpoint.read_partition_metadata(disk, f"{DIR}/{kept}") == TOPIC_ID
        disk.restart()
        again = manager_on(disk).logs[TP]
        assert again.topic_id == successor
        assert values(again) == []

    def test_a_compacted_log_without_identity_is_claimed_with_its_gaps(self) -> None:
        """Rules E4 and I5: at start nobody knew the topic, so its policy is news."""
        cleaning = Cleaning()
        for number in range(60):
            cleaning.put((key(number // 30), b"v" * 60))
        cleaning.settle()
        assert cleaning.clean()
        expected = cleaning.records()
        assert len(expected) < 30
        cleaning.manager.shutdown({})
        cleaning.disk.unlink(f"{cleaning.log.directory}/{checkpoint.PARTITION_METADATA}")
        cleaning.manager = manager_on(cleaning.disk, config=LogConfig())
        cleaning.log = cleaning.manager.create(TP, TOPIC_ID, COMPACTED)
        assert cleaning.records() == expected
        assert cleaning.log.log_end_offset == 60

    def test_a_file_that_cannot_be_deleted_stops_no_other_from_going(self) -> None:
        disk, config = FullDisk(), LogConfig(segment_bytes=200, file_delete_delay_ms=0)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        append(log, 6)
        log.advance_log_start(4)
        first = log.segments[0]
        disk.refuses = lambda operation, path: (
            operation == "unlink" and path == first.log_path and path.endswith(".deleted")
        )
        manager.run_retention({TP: 6})
        manager.remove_doomed()
        left = [name for name in disk.listdir(log.directory) if name.endswith(".deleted")]
        kinds = ["checksums", "index", "log", "timeindex"]
        assert left == [f"{0:020d}.{kind}.1.deleted" for kind in kinds]

    def test_retention_without_room_for_another_name(self) -> None:
        """Rule E8: what makes room goes at once where the disk has none for longer names, and a
        reader at the old start is told that its records are gone, not given others."""
        disk = FullDisk()
        config = LogConfig(segment_bytes=200, retention_bytes=300, file_delete_delay_ms=60_000)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        append(log, 6)
        piece = log.read(0, max_bytes=100, upper_offset=6)
        disk.refuses = lambda operation, path: (
            operation == "replace" and path.endswith(".index.1.deleted")
        )
        assert manager.run_retention({TP: 6}) > 1
        names = disk.listdir(log.directory)
        assert not [name for name in names if name.startswith(f"{0:020d}.")]
        assert [name for name in names if name.endswith(".log.2.deleted")], "the next had room"
        assert not log.dir.is_offline
        assert log.log_start_offset == log.segments[0].base_offset > 0
        assert piece.read_blocking() == b""
        with pytest.raises(ApiError) as caught:
            log.read(0, max_bytes=100, upper_offset=6)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert read_all(log)

    def test_files_wait_for_a_thread_that_can_delete_them(self) -> None:
        class NoThreads(StepExecutor):
            has_none = False

            def submit(self, work: Callable[[], Any], then: Then[Any]) -> None:
                if self.has_none:
                    raise RuntimeError("can't start new thread")
                super().submit(work, then)

        disk, executor, config = CrashDisk(), NoThreads(), LogConfig(file_delete_delay_ms=0)
        manager = manager_on(disk, config=config, executor=executor)
        manager.create(TP, TOPIC_ID, config)
        manager.delete(TP)
        executor.has_none = True
        manager.remove_doomed()
        assert [name for name in disk.listdir(DIR) if name.endswith("-delete")]
        executor.has_none = False
        manager.remove_doomed()
        executor.run_all()
        assert not [name for name in disk.listdir(DIR) if name.endswith("-delete")]


class TestCheckpoints:
    def test_a_recovery_point_that_is_yet_to_be_written_is_not_relied_on(self) -> None:
        """Rule E5: compaction makes gaps that only a durable recovery point explains."""
        step = StepExecutor()
        manager = manager_on(CrashDisk(), executor=step)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 9)
        log.flush()
        manager.write_checkpoints({TP: 9})
        note = manager.prepare_recovery_point(log, 9)
        assert note is not None
        note()
        assert manager.prepare_recovery_point(log, 9) is None

    def test_deleted_records_do_not_come_back_with_the_names_of_their_files(self) -> None:
        """Rule E5: the checkpoint is durable, the renaming of what it hid is not."""
        disk, config = CrashDisk(), LogConfig(segment_bytes=400)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        append(log, 12)
        log.flush()
        log.advance_log_start(log.segments[2].base_offset)
        manager.write_checkpoints({TP: 12})
        assert manager.run_retention({TP: 12}) == 2
        start = log.log_start_offset
        manager.write_checkpoints({TP: 12})
        lose_power(disk)
        assert manager_on(disk, config=config).logs[TP].log_start_offset == start

    def test_a_recreated_topic_does_not_inherit_a_high_watermark(self) -> None:
        """Rule B7: nothing of the old one was flushed, so no other checkpoint names it."""
        disk, config = CrashDisk(), LogConfig(flush_policy="async")
        manager = manager_on(disk, config=config)
        append(manager.create(TP, TOPIC_ID, config), 9)
        manager.write_checkpoints({TP: 9})
        manager.delete(TP)
        manager.create(TP, UUID(int=8), config)
        noted = checkpoint.read_offsets(disk, DIR, checkpoint.HIGH_WATERMARKS)
        assert noted.get(TP, 0) == 0

    def test_how_far_a_deleted_topic_was_compacted_is_forgotten_at_the_second_attempt(self) -> None:
        """Rule A11: there was no room to write that down when its successor was to be made."""
        disk, successor = FullDisk(), UUID(int=8)
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, COMPACTED)
        append(log, 9)
        log.flush()
        manager.note_cleaned(log, 9)()
        manager.delete(TP)
        disk.refuses = lambda operation, path: checkpoint.CLEANER_OFFSETS in path
        with pytest.raises(DiskFullError):
            manager.create(TP, successor, COMPACTED)
        disk.refuses = lambda operation, path: False
        manager.create(TP, successor, COMPACTED)
        assert TP not in checkpoint.read_offsets(disk, DIR, checkpoint.CLEANER_OFFSETS)

    def test_what_was_compacted_and_then_cut_off_is_not_taken_for_clean(self) -> None:
        """Rule D8: the crash came between the cut and the cleaner's checkpoint."""
        disk = CrashDisk()
        manager = manager_on(disk, config=COMPACTED)
        log = manager.create(TP, TOPIC_ID, COMPACTED)
        append(log, 30)
        log.flush()
        manager.note_cleaned(log, 20)()
        log.on_recovery_point_lowered = None  # It does not come to that.
        log.truncate_to(10)
        disk.restart()
        for _ in range(2):
            manager = manager_on(disk, config=COMPACTED)
            log = manager.logs[TP]
            cleaned = manager.cleaned_offset(log)
            assert cleaned is not None
            assert cleaned <= 10
            append(log, 30)
            log.flush()
            disk.restart()


def test_a_part_of_a_refused_append_does_not_come_back_in_a_closed_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rules E1, E4 and E8: what was cut off is durably gone before anything after it is acked."""
    disk = CrashDisk(Random(1))
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    log.append_as_leader(batch(b"first"), leader_epoch=0)
    log.flush()
    disk.capacity_bytes -= disk.space(DIR).free_bytes - 30  # Others have filled the disk.
    with pytest.raises(DiskFullError):
        log.append_as_leader(batch(b"refused".ljust(100)), leader_epoch=0)
    disk.capacity_bytes += 1 << 20
    log.roll()
    log.append_as_leader(batch(b"second"), leader_epoch=0)
    log.flush()
    for name in disk.listdir(log.directory):
        # Of what was not flushed, all writes are kept, and no cut is.
        file = disk._file(f"{log.directory}/{name}")
        file.pending = [change for change in file.pending if change[1] is not None]
    monkeypatch.setattr(disk, "_keeps", lambda mood: True)
    disk.power_on()
    assert values(manager_on(disk).logs[TP]) == [b"first", b"second"]


def test_a_segment_that_could_not_begin_nor_be_taken_back() -> None:
    """Rule E4: no start may find a successor of a segment that went on growing. A file system that
    copies on write may have no room even to delete; then the directory goes offline."""
    disk = FullDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    append(log, 1)
    log.flush()
    successor = (f"{1:020d}.log", f"{1:020d}.index")
    disk.refuses = lambda operation, path: operation == "unlink" and path.endswith(successor)
    with pytest.raises(DiskError):
        log.roll()
    assert log.dir.is_offline


def test_a_checkpoint_that_got_its_name_and_failed_then_is_not_taken_for_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule B7: a recovery point that is too high would count what is not flushed as durable."""
    disk = CrashDisk(Random(1))
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    append(log, 3)
    log.flush()
    manager.write_checkpoints({TP: 3})
    append(log, 3)
    log.flush()

    def no_descriptor(path: str) -> None:
        raise OutOfFilesError(f"no descriptor for {path}")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "fsync_dir", no_descriptor)
        manager.write_checkpoints({TP: 6})
    assert not log.dir.is_offline
    log.truncate_to(3)
    assert checkpoint.read_offsets(disk, DIR, checkpoint.RECOVERY_POINTS)[TP] == 3


def test_a_defect_while_an_append_is_noted_takes_the_log_out_of_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule G4: the bytes are in the file, so no other append may get their offsets."""
    disk = CrashDisk(Random(1))
    log = manager_on(disk).create(TP, TOPIC_ID, LogConfig())
    append(log, 1)

    def broken(*args: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(type(log.producers), "apply", broken)
        with pytest.raises(ApiError) as refused:
            log.append_as_leader(batch(b"stored", b"too"), leader_epoch=0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(DirOfflineError):
        log.append_as_leader(batch(b"next"), leader_epoch=0)
    disk.restart()
    assert values(manager_on(disk).logs[TP])[1:] == [b"stored", b"too"]
