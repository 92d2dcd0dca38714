"""Group commit: who waits for which flush, and how many flushes there are."""

from __future__ import annotations

from tests.storage.helpers import TOPIC_ID, StepExecutor, batch, manager_on

from tidemill.storage.disk_errors import DiskError
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


def put(log: Log) -> None:
    log.append_as_leader(batch(b"x"), leader_epoch=0)


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
