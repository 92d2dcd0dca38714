"""Moves between log directories that lost power: what the next start makes of the two copies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

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
