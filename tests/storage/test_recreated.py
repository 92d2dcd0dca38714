"""Topics that were deleted and made again, on a broker with several log directories (rule A11)."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from tests.storage.helpers import TP, batch, manager_on, values

from tidemill.storage.checkpoint import PARTITION_METADATA
from tidemill.storage.disk_errors import DirOfflineError, DiskFailedError
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import DirInUseError
from tidemill.testing.disk import CrashDisk
from tidemill.types import TopicPartition

DIRS = ("/one", "/two")
OLD, NEW, NEWEST = UUID(int=1), UUID(int=2), UUID(int=3)


def append(log: Log, *contents: bytes) -> None:
    for content in contents:
        log.append_as_leader(batch(content), leader_epoch=0)
    log.flush()


def strays(disk: CrashDisk) -> list[str]:
    return [path for path in DIRS for name in disk.listdir(path) if name.endswith("-stray")]


class StiffDisk(CrashDisk):
    """A disk on which a log in /one may keep its name for ever."""

    is_stiff = False

    def replace(self, source: str, target: str) -> None:
        if self.is_stiff and source == f"/one/{TP}":
            raise DiskFailedError(f"{source} keeps its name")
        super().replace(source, target)


def two_logs() -> StiffDisk:
    """The topic was made again in /two when the disk of its first log, /one, had failed."""
    disk = StiffDisk(Random(1))
    manager = manager_on(disk, dirs=DIRS)
    first = manager.create(TP, OLD, LogConfig())
    append(first, b"old")
    first.dir.fail(DiskFailedError("broken"))
    manager.delete(TP)
    second = manager.create(TP, NEW, LogConfig())
    append(second, b"new")
    assert (first.dir.path, second.dir.path) == DIRS
    manager.shutdown({TP: 1})
    disk.restart()
    return disk


@pytest.mark.parametrize("dirs", [DIRS, DIRS[::-1]], ids=["old first", "new first"])
def test_a_disk_that_comes_back_with_a_deleted_topics_log_is_no_reason_not_to_start(
    dirs: tuple[str, ...],
) -> None:
    """Rule A11: the topic's log is used, whichever is found first, and the other one is kept."""
    disk = two_logs()
    manager = manager_on(disk, dirs=dirs, expected={TP: NEW})
    assert not manager.offline_dirs
    assert values(manager.logs[TP]) == [b"new"]
    assert strays(disk) == ["/one"]
    manager.shutdown({})
    again = manager_on(disk, dirs=dirs, expected={TP: NEW})
    assert values(again.logs[TP]) == [b"new"]
    assert sorted(log.dir.path for log in again.logs.values()) == ["/two"]


def test_of_two_deleted_topics_one_log_is_kept_aside() -> None:
    """Rule A11: the second was deleted while the broker was down; nothing is thrown away."""
    disk = two_logs()
    manager = manager_on(disk, dirs=DIRS, expected={TP: NEWEST})
    assert values(manager.logs[TP]) == [b"old"]
    assert strays(disk) == ["/two"]


@pytest.mark.parametrize("says", [OLD, None], ids=["the same topic", "nothing"])
def test_two_directories_that_may_both_be_the_partitions_are_refused(says: UUID | None) -> None:
    """Rule A11: nobody can tell which of them counts, so nothing is touched."""
    disk = two_logs()
    identity = disk.read_file(f"/one/{TP}/{PARTITION_METADATA}")
    content = identity if says is not None else b"version: 0\n"
    disk.unlink(f"/two/{TP}/{PARTITION_METADATA}")
    disk.write_at(f"/two/{TP}/{PARTITION_METADATA}", 0, (content,))
    with pytest.raises(DirInUseError, match="both hold"):
        manager_on(disk, dirs=DIRS, expected={TP: NEW})
    assert not strays(disk)


def test_a_deleted_topics_log_that_keeps_its_name_costs_its_own_disk_only() -> None:
    """Rules A11 and E1: the directory of the topic's log did not fail."""
    disk = two_logs()
    disk.is_stiff = True
    manager = manager_on(disk, dirs=DIRS, expected={TP: NEW})
    assert manager.offline_dirs == ["/one"]
    assert values(manager.logs[TP]) == [b"new"]


def test_a_deleted_topics_log_is_not_what_is_missed_from_an_offline_disk() -> None:
    """Rules A11 and E1: the topic's records are on the disk that failed; none is made anew."""
    disk = two_logs()
    disk.replace("/two", "/gone")
    disk.write_at("/two", 0, (b"not a directory",))
    manager = manager_on(disk, dirs=DIRS, expected={TP: NEW})
    assert manager.offline_dirs == ["/two"]
    manager.set_aside(TP)
    with pytest.raises(DirOfflineError, match="may be in one that could not: /two"):
        manager.create(TP, NEW, LogConfig())


def test_a_high_watermark_of_a_deleted_topic_in_another_directory_is_not_believed() -> None:
    """Rules A11 and B7: its successor lies elsewhere, and has committed nothing yet."""
    disk = CrashDisk(Random(1))
    manager = manager_on(disk, dirs=DIRS)
    first = manager.create(TP, OLD, LogConfig())
    append(first, *[b"old"] * 10)
    manager.write_checkpoints({TP: 10})
    manager.delete(TP)
    manager.create(TopicPartition("other", 0), UUID(int=8), LogConfig())
    second = manager.create(TP, NEW, LogConfig())
    assert second.dir is not first.dir
    append(second, *[b"new"] * 5)
    disk.power_on()
    assert manager_on(disk, dirs=DIRS, expected={TP: NEW}).high_watermark(TP) == 0
