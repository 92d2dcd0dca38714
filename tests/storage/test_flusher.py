"""Group commit: who waits for which flush, and how many flushes there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.storage.helpers import TOPIC_ID, StepExecutor, batch, manager_on

from tidemill.executor import Then
from tidemill.storage.disk_errors import DiskError, DiskFullError, OutOfFilesError
from tidemill.storage.flusher import FLUSH_THREADS
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.testing.disk import CrashDisk
from tidemill.types import TopicPartition


def setting(count: int = 1) -> tuple[CrashDisk, StepExecutor, LogManager, list[Log]]:
    disk, executor = CrashDisk(), StepExecutor()
    manager = manager_on(disk, executor=executor)
    logs = [
        manager.create(TopicPartition("t", number), TOPIC_ID, LogConfig())
        for number in range(count)
    ]
    return disk, executor, manager, logs


def put(log: Log, *, epoch: int = 0) -> None:
    log.append_as_leader(batch(b"x"), leader_epoch=epoch)


def test_requests_during_a_flush_share_the_next_one() -> None:
    """Rule E6: one disk call for all who wait."""
    _, executor, manager, (log,) = setting()
    flusher = manager.flusher_of(log)
    done: list[int] = []
    put(log)
    flusher.request(log, lambda _: done.append(log.flushed_offset))
    for _ in range(10):
        put(log)
        flusher.request(log, lambda _: done.append(log.flushed_offset))
    assert len(executor.waiting) == 1
    executor.run_all()
    assert done == [1] + [11] * 10
    assert flusher.flushes == 2
    assert flusher.is_idle


def test_nothing_is_flushed_that_came_later() -> None:
    """Rule E6: an answer waits for a flush that began after its append."""
    _, executor, manager, (log,) = setting()
    put(log)
    manager.request_flush(log)
    put(log)
    executor.waiting.pop(0)()
    assert log.flushed_offset == 1


def test_many_logs_are_shared_among_a_few_workers() -> None:
    _, executor, manager, logs = setting(500)
    done: list[BaseException | None] = []
    for log in logs:
        put(log)
        manager.request_flush(log, done.append)
    assert len(executor.waiting) <= FLUSH_THREADS
    turns = executor.run_all()
    assert done == [None] * 500
    assert turns < 100
    assert all(log.flushed_offset == 1 for log in logs)


def test_everyone_hears_of_a_failure() -> None:
    """Rule E1: the directory goes offline, later requests fail, too, nothing is retried."""
    disk, executor, manager, logs = setting(3)
    disk.fails_sync = lambda _: True
    done: list[BaseException | None] = []
    for log in logs:
        put(log)
        manager.request_flush(log, done.append)
    executor.run_all()
    assert len(done) == 3
    assert all(isinstance(error, DiskError) for error in done)
    assert all(log.flushed_offset == 0 for log in logs)
    assert manager.offline_dirs


def test_a_flush_of_a_deleted_topic_harms_nobody() -> None:
    _, executor, manager, logs = setting(2)
    for log in logs:
        put(log)
        manager.request_flush(log)
    manager.delete(logs[0].topic_partition)
    executor.run_all()
    assert not manager.offline_dirs
    assert logs[1].flushed_offset == 1


def test_a_flush_of_a_segment_that_retention_took() -> None:
    _, executor, manager, (log,) = setting()
    put(log)
    log.roll()
    put(log)
    manager.request_flush(log)
    log.advance_log_start(1)
    log.delete_old_segments(0, 1)
    for segment in log.take_doomed(10**15):
        segment.delete_files()
    executor.run_all()
    assert not manager.offline_dirs
    assert log.flushed_offset == 2


class BusyDisk(CrashDisk):
    """A disk on which something else happens just before a sync."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[str], object] = lambda path: None

    def fdatasync(self, path: str) -> None:
        self.meanwhile(path)
        super().fdatasync(path)

    def fsync_dir(self, path: str) -> None:
        self.meanwhile(path)
        super().fsync_dir(path)


@pytest.mark.parametrize("ending", [".log", ".index", ".timeindex", ".snapshot", "/t-0"])
@pytest.mark.parametrize("deletes_topic", [False, True], ids=["retention", "deletion"])
def test_files_that_go_while_they_are_flushed(ending: str, deletes_topic: bool) -> None:
    """Retention and deletion work on the loop while a thread flushes: no fault of the disk."""
    disk, executor = BusyDisk(), StepExecutor()
    manager = manager_on(disk, executor=executor)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig())
    put(log)
    log.begin_epoch(3)
    log.roll()
    end_offset = log.log_end_offset

    def meanwhile(path: str) -> None:
        if path.endswith(ending) and log.segments[0].base_offset == 0 and not log.is_closed:
            if deletes_topic:
                manager.delete(log.topic_partition)
            else:
                log.advance_log_start(end_offset)
                log.delete_old_segments(0, end_offset)

    disk.meanwhile = meanwhile
    executor.run_all()
    assert log.is_closed if deletes_topic else log.segments[0].base_offset == end_offset
    assert not manager.offline_dirs


class FewHandlesDisk(CrashDisk):
    """A disk whose files cannot be opened to be flushed while `is_out` is set."""

    is_out = False

    def fdatasync(self, path: str) -> None:
        if self.is_out:
            raise OutOfFilesError(f"Out of file descriptors while opening {path}")
        super().fdatasync(path)


def test_a_flush_that_lacked_descriptors_can_be_asked_for_again() -> None:
    """Rule E1 is about a flush that the device refused; this one has not been tried."""
    disk, executor = FewHandlesDisk(), StepExecutor()
    manager = manager_on(disk, executor=executor)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig())
    put(log)
    log.roll()
    put(log)
    executor.run_all()
    done: list[BaseException | None] = []
    disk.is_out = True
    put(log, epoch=7)
    manager.request_flush(log, done.append)
    executor.run_all()
    assert isinstance(done[0], OutOfFilesError)
    assert not manager.offline_dirs
    disk.is_out = False
    manager.request_flush(log, done.append)
    executor.run_all()
    assert done[1] is None
    assert log.flushed_offset == 3
    disk.random.seed(0)
    disk.power_on()
    survivor = manager_on(disk).get(log.topic_partition)
    assert survivor is not None
    assert survivor.log_end_offset == 3
    assert survivor.leader_epochs.entries == [(0, 0), (7, 2)]


def test_a_callback_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    _, executor, manager, logs = setting(2 * FLUSH_THREADS)
    done: list[BaseException | None] = []

    def broken(error: BaseException | None) -> None:
        raise DiskFullError("no room for what follows")

    for _ in range(2):
        for log in logs:
            put(log)
            manager.request_flush(log, broken)
            manager.request_flush(log, done.append)
        executor.run_all()
    assert done == [None] * (4 * FLUSH_THREADS)
    assert all(log.flushed_offset == 2 for log in logs)
    assert manager.flusher_of(logs[0]).is_idle
    assert len(caplog.records) == len(done), "each failure is said once"


def test_an_executor_that_takes_no_work_is_a_failed_flush() -> None:
    class NoThreads(StepExecutor):
        refuses = True

        def submit(self, work: Callable[[], Any], then: Then[Any]) -> None:
            if self.refuses:
                raise RuntimeError("can't start new thread")
            super().submit(work, then)

    executor = NoThreads()
    manager = manager_on(CrashDisk(), executor=executor)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig())
    done: list[BaseException | None] = []
    put(log)
    manager.request_flush(log, done.append)
    assert isinstance(done[0], RuntimeError)
    executor.refuses = False
    manager.request_flush(log, done.append)
    executor.run_all()
    assert done[1] is None
    assert log.flushed_offset == 1
