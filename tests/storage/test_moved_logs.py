"""Moves between log directories that lost power: what the next start makes of the two copies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from uuid import UUID

import pytest
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on, values

from tidemill.storage.disk_errors import DirOfflineError, DiskFullError, OutOfFilesError
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.log_place import MOVED_SUFFIX
from tidemill.storage.manager import LogManager
from tidemill.testing.disk import CrashDisk, PowerCut
from tidemill.types import TopicPartition

DIRS = ("/one", "/two")
CONFIG = LogConfig(file_delete_delay_ms=0)


class MovingDisk(CrashDisk):
    """Loses power, or refuses renames, where a test says so."""

    cuts_after_sync_of: str | None = None
    refuses_rename: Callable[[str], None] = staticmethod(lambda source: None)

    def fsync_dir(self, path: str) -> None:
        super().fsync_dir(path)
        if path == self.cuts_after_sync_of:
            self.cut_after(0)

    def replace(self, source: str, target: str) -> None:
        self.refuses_rename(source)
        super().replace(source, target)


def start(disk: CrashDisk) -> LogManager:
    return manager_on(disk, dirs=DIRS, config=CONFIG, expected={TP: TOPIC_ID})


def other_dir(log: Log) -> str:
    return next(path for path in DIRS if path != log.dir.path)


def copy_of(manager: LogManager, log: Log) -> Log:
    """All of the log in the other directory; it is yet to take the log's place."""
    target = other_dir(log)
    future = manager.open_move(log, target, manager.begin_move(log, target))
    end = log.log_end_offset
    found = log.read(log.log_start_offset, max_bytes=1 << 20, upper_offset=end)
    future.append_as_follower(found.read_blocking())
    return future


def lose_power_in_switch(disk: MovingDisk, manager: LogManager, log: Log, future: Log) -> None:
    """The power goes when the old log's directory is durably gone."""
    disk.cuts_after_sync_of = log.dir.path
    with pytest.raises(PowerCut):
        manager.finish_move(log, future)
    disk.cuts_after_sync_of = None
    disk.power_on()


@pytest.mark.parametrize(
    "error",
    [
        DiskFullError("No space left for the name. Free some disk space."),
        OutOfFilesError("Out of file descriptors. Raise the open-file limit."),
    ],
)
def test_a_complete_copy_that_cannot_be_opened_is_not_replaced_by_an_empty_log(
    error: DiskFullError | OutOfFilesError,
) -> None:
    """Rule E1: it is all there is of the log, and the next start would take the new one for it."""
    disk = MovingDisk(Random(1))
    manager = start(disk)
    log = manager.create(TP, TOPIC_ID, CONFIG)
    log.append_as_leader(batch(b"acked"), leader_epoch=0)
    log.flush()
    target = other_dir(log)
    lose_power_in_switch(disk, manager, log, copy_of(manager, log))

    def refuse(source: str) -> None:
        if source.endswith(MOVED_SUFFIX):
            raise error

    disk.refuses_rename = refuse
    manager = start(disk)
    assert manager.offline_dirs == [target]
    reason = str(manager.describe_dirs()[DIRS.index(target)].error)
    assert reason.endswith(f"{error.message} Then start the broker again.")
    disk.refuses_rename = lambda source: None
    with pytest.raises(DirOfflineError, match="may be in one that could not"):
        manager.create(TP, TOPIC_ID, CONFIG)
    disk.restart()
    manager = start(disk)
    manager.remove_doomed()
    assert values(manager.logs[TP]) == [b"acked"]


def test_what_was_deleted_does_not_come_back_with_a_copy() -> None:
    """Rule E5: where the log begins is durable for the log, so it has to be for its copy, too."""
    disk = MovingDisk(Random(1))
    manager = start(disk)
    log = manager.create(TP, TOPIC_ID, CONFIG)
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(batch(value), leader_epoch=0)
    log.flush()
    future = copy_of(manager, log)
    log.advance_log_start(2)
    manager.write_checkpoints({TP: 3})
    future.advance_log_start(2)
    lose_power_in_switch(disk, manager, log, future)
    manager = start(disk)
    assert manager.logs[TP].dir.path == future.dir.path
    assert values(manager.logs[TP]) == [b"c"]
    assert manager.high_watermark(TP) == 3


def test_what_a_deleted_topic_left_noted_does_not_count_for_a_copy() -> None:
    """Rule A11: its log began at an offset that the copy does not even reach."""
    disk, deleted = MovingDisk(Random(1)), UUID(int=8)
    manager = start(disk)
    old = manager.create(TP, deleted, CONFIG)
    for _ in range(9):
        old.append_as_leader(batch(b"old"), leader_epoch=0)
    old.flush()
    old.advance_log_start(8)
    manager.note_cleaned(old, 8)()
    manager.write_checkpoints({TP: 9})
    manager.delete(TP)
    for place in manager.dirs:
        manager.create(TopicPartition("filler", DIRS.index(place.path)), TOPIC_ID, CONFIG)
    manager.create(TopicPartition("filler", 2), TOPIC_ID, CONFIG)
    log = manager.create(TP, TOPIC_ID, CONFIG)
    assert other_dir(log) == old.dir.path
    log.append_as_leader(batch(b"new"), leader_epoch=0)
    log.flush()
    lose_power_in_switch(disk, manager, log, copy_of(manager, log))
    manager = start(disk)
    log = manager.logs[TP]
    assert log.dir.path == old.dir.path
    assert values(log) == [b"new"]
    assert manager.high_watermark(TP) == 0
    assert manager.cleaned_offset(log) is None


def test_what_is_noted_of_a_copy_outlives_checkpoints_and_a_stop() -> None:
    """Rule E5: a switch failed when the old log was gone; only the next start settles it."""
    disk = MovingDisk(Random(1))
    manager = start(disk)
    log = manager.create(TP, TOPIC_ID, CONFIG)
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(batch(value), leader_epoch=0)
    log.flush()
    future = copy_of(manager, log)
    future.advance_log_start(2)

    def refuse(source: str) -> None:
        if source.endswith(MOVED_SUFFIX):
            raise DiskFullError("No space left for the name. Free some disk space.")

    disk.refuses_rename = refuse
    with pytest.raises(DiskFullError):
        manager.finish_move(log, future)
    disk.refuses_rename = lambda source: None
    manager.write_checkpoints({})
    manager.shutdown({})
    disk.restart()
    assert values(start(disk).logs[TP]) == [b"c"]


def test_a_complete_copy_stays_while_the_log_cannot_be_used() -> None:
    """Rule E1: the directory that the log is in may never come back."""
    disk = MovingDisk(Random(1))
    manager = start(disk)
    log = manager.create(TP, TOPIC_ID, CONFIG)
    log.append_as_leader(batch(b"acked"), leader_epoch=0)
    log.flush()
    manager.create(TopicPartition("elsewhere", 0), TOPIC_ID, CONFIG)
    neighbour = manager.create(TopicPartition("neighbour", 0), TOPIC_ID, CONFIG)
    neighbour.append_as_leader(batch(b"not flushed"), leader_epoch=0)
    assert neighbour.dir is log.dir
    future = copy_of(manager, log)
    moved = f"{future.dir.path}/{TP}{MOVED_SUFFIX}"

    def cut(source: str) -> None:
        if source == log.directory:
            raise PowerCut

    disk.refuses_rename = cut
    with pytest.raises(PowerCut):
        manager.finish_move(log, future)
    disk.refuses_rename = lambda source: None
    disk.restart()
    disk.fails_sync = lambda path: path.startswith(neighbour.directory)
    manager = start(disk)
    assert manager.offline_dirs == [log.dir.path]
    manager.remove_doomed()
    assert disk.exists(moved)
    disk.fails_sync = lambda path: False
    disk.restart()
    manager = start(disk)
    manager.remove_doomed()
    assert not disk.exists(moved)
    assert values(manager.logs[TP]) == [b"acked"]
