"""Moves between directories: what a copy is worth after a restart, and how a move may end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.replication.helpers import World, records, topic_image
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on, read_all

from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ReplicaTrouble, with_topic
from tidemill.replication import moving
from tidemill.replication.moving import Move, _align
from tidemill.replication.partition import Partition
from tidemill.storage.disk_errors import (
    DiskError,
    DiskFailedError,
    DiskFullError,
    OutOfFilesError,
)
from tidemill.storage.files import Buffer
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk
from tidemill.testing.in_process import until
from tidemill.types import TopicPartition

DIRS = ("/one", "/two")


def come_up(disk: CrashDisk, topic_number: int = 1) -> World:
    """A broker with two directories, as it starts: the topic `t` may have been made anew."""
    world = World(disk=disk, dirs=DIRS)
    world.image = with_topic(world.image, topic_image(number=topic_number))
    world.replicas.apply(world.image, at_once=True)
    return world


def go_down(world: World) -> None:
    world.logs.shutdown(world.replicas.high_watermarks(), broker_epoch=7)
    world.disk.restart()


def other_dir(log: Log) -> str:
    return next(path for path in DIRS if path != log.dir.path)


async def moves_end(world: World) -> None:
    await until(lambda: not world.replicas.moves.under_way)


def logs(log_epochs: list[int], copy_epochs: list[int]) -> tuple[Log, Log]:
    """A log and a copy, one record for each epoch."""
    manager = manager_on(CrashDisk(Random(1)), dirs=DIRS)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for epoch in log_epochs:
        log.append_as_leader(batch(b"x"), leader_epoch=epoch)
    target = other_dir(log)
    future = manager.open_move(log, target, manager.begin_move(log, target))
    for epoch in copy_epochs:
        future.append_as_leader(batch(b"x"), leader_epoch=epoch)
    return log, future


def move_of(log: Log, found_end: int | None = None) -> Move:
    partition = cast("Any", SimpleNamespace(log=log))
    end = log.log_end_offset if found_end is None else found_end
    return Move(partition, "", "", log.cuts, end)


@pytest.mark.parametrize(
    ("log_epochs", "copy_epochs", "left"),
    [
        ([1, 1, 1], [1, 1], 2),
        ([1, 1], [1, 1, 1], 2),
        ([1, 1, 2, 2], [1, 1, 1], 2),
        ([1, 2, 2, 4], [1, 2, 3, 3], 2),
        ([1, 3, 3, 3], [1, 2, 2], 1),
        ([5, 5], [1, 1], 0),
        ([1, 1], [], 0),
    ],
)
def test_a_copy_keeps_what_the_log_agrees_with(
    log_epochs: list[int], copy_epochs: list[int], left: int
) -> None:
    """Rule D3, for a copy on the same broker: epochs tell where the two logs part."""
    log, future = logs(log_epochs, copy_epochs)
    _align(move_of(log), log, future)
    assert future.log_end_offset == left
    assert len(read_all(future)) == left


def test_what_the_log_got_since_is_not_what_the_copy_has() -> None:
    """A power cut took the log's end, and others wrote there since in the same epoch."""
    log, future = logs([1, 1, 1, 1], [1, 1, 1])
    _align(move_of(log, found_end=2), log, future)
    assert future.log_end_offset == 2


async def test_a_move_of_a_deleted_topic_does_not_go_on_with_its_successor() -> None:
    """Rule A11: the topic was deleted and made again while the broker was down in a move."""
    disk = CrashDisk(Random(3))
    first = come_up(disk)
    log = first.only().log
    first.only().append(records(b"old"), required_acks=1)
    copy = first.logs.begin_move(log, other_dir(log))
    go_down(first)

    second = come_up(disk, topic_number=2)
    assert not second.replicas.moves.under_way
    assert not disk.exists(copy)
    for value in (b"new 0", b"new 1"):
        second.only().append(records(value), required_acks=1)
    await moves_end(second)
    assert second.only().log.topic_id == second.only().topic_id
    go_down(second)

    third = come_up(disk, topic_number=2)
    assert [record.value for record in read_all(third.only().log)] == [b"new 0", b"new 1"]


@pytest.mark.parametrize("rest_bytes_max", [0, 1 << 20], ids=["in chunks", "in one go"])
async def test_a_log_that_begins_in_the_middle_of_a_batch_can_be_moved(
    rest_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords cut into the first batch: it is copied whole, and begins where the log does."""
    monkeypatch.setattr(moving, "REST_BYTES_MAX", rest_bytes_max)
    disk = CrashDisk(Random(3))
    world = come_up(disk)
    partition = world.only()
    partition.append(records(b"a", b"b", b"c", b"d"), required_acks=1)
    partition.append(records(b"e"), required_acks=1)
    partition.log.flush()
    partition.log.advance_log_start(2)
    target = other_dir(partition.log)
    world.replicas.moves.move(partition, target)
    await moves_end(world)
    assert partition.log.dir.path == target
    assert partition.log.log_start_offset == 2
    go_down(world)

    log = come_up(disk).only().log
    assert log.dir.path == target
    assert log.log_start_offset == 2
    assert [record.value for record in read_all(log)] == [b"c", b"d", b"e"]


async def test_a_copy_is_flushed_while_it_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 2.L: what the loop waits for in the end is little, however large the log is."""
    monkeypatch.setattr(moving, "REST_BYTES_MAX", 5_000)
    monkeypatch.setattr(moving, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(moving, "FLUSH_BYTES", 50_000)
    world = come_up(CrashDisk(Random(3)))
    partition = world.only()
    for _ in range(200):
        partition.append(records(b"v" * 1_000), required_acks=1)
    unflushed: list[int] = []
    finish_move = world.logs.finish_move

    def finish(log: Log, future: Log) -> Log:
        unflushed.append(future.log_end_offset - future.flushed_offset)
        return finish_move(log, future)

    monkeypatch.setattr(world.logs, "finish_move", finish)
    target = other_dir(partition.log)
    flusher = world.logs._places[target].flusher
    world.replicas.moves.move(partition, target)
    await moves_end(world)
    assert partition.log.dir.path == target
    assert len(read_all(partition.log)) == 200
    (left,) = unflushed
    assert left <= 5
    assert flusher.flushes >= 200_000 // 60_000


async def test_a_copy_that_cannot_be_flushed_is_given_up_and_the_log_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule E1, in the directory that it was to go to."""
    monkeypatch.setattr(moving, "REST_BYTES_MAX", 100)
    disk = CrashDisk(Random(3))
    world = come_up(disk)
    partition = world.only()
    for _ in range(10):
        partition.append(records(b"v" * 100), required_acks=1)
    target = other_dir(partition.log)
    disk.fails_sync = lambda path: path.startswith(target) and path.endswith(".log")
    world.replicas.moves.move(partition, target)
    await moves_end(world)
    assert world.logs.offline_dirs == [target]
    assert partition.log.dir.path != target
    assert partition.append(records(b"more"), required_acks=1)


class FailingDisk(CrashDisk):
    """A disk that refuses one kind of operation on the paths that a test names."""

    def __init__(self) -> None:
        super().__init__(Random(3))
        self.refused = ""
        self.refuses: Callable[[str], bool] = lambda path: False
        self.error: DiskError = DiskFailedError("broken")

    def _check(self, operation: str, path: str) -> None:
        if operation == self.refused and self.refuses(path):
            raise self.error

    def replace(self, source: str, target: str) -> None:
        self._check("replace", source)
        super().replace(source, target)

    def fsync_dir(self, path: str) -> None:
        self._check("fsync_dir", path)
        super().fsync_dir(path)

    def pread(self, path: str, position: int, length: int) -> bytes:
        self._check("pread", path)
        return super().pread(path, position, length)

    def write_at(self, path: str, position: int, parts: Sequence[Buffer]) -> None:
        self._check("write_at", path)
        super().write_at(path, position, parts)


class Reports:
    """The controller, as far as it is told which replicas are lost."""

    def __init__(self) -> None:
        self.gone: list[TopicPartition] = []

    def report(self, partitions: Sequence[TopicPartition], trouble: ReplicaTrouble) -> None:
        assert trouble is ReplicaTrouble.GONE
        self.gone += partitions


async def move_on(disk: FailingDisk, world: World, reports: Reports) -> Partition:
    """A partition with three records whose move was tried, and ended somehow."""
    world.replicas.replicate(cast("Any", None), cast("Any", None), cast("Any", reports))
    partition = world.only()
    for number in range(3):
        partition.append(records(b"%d" % number), required_acks=1)
    world.replicas.moves.move(partition, other_dir(partition.log))
    await moves_end(world)
    disk.refused = ""
    return partition


@pytest.mark.parametrize(
    ("refused", "path", "error"),
    [
        ("replace", "/one/t-0", DiskFailedError("the old log keeps its name")),
        ("fsync_dir", "/one", DiskFailedError("the old directory cannot be synced")),
        ("replace", "/two/t-0-moved", DiskFailedError("the copy keeps its name")),
        ("pread", "/two/t-0/", OutOfFilesError("the copy cannot be opened")),
    ],
    ids=lambda value: str(value) if isinstance(value, DiskError) else "",
)
async def test_a_replica_whose_move_fails_in_the_last_steps_is_handed_over(
    refused: str, path: str, error: DiskError
) -> None:
    """Rule E1: it has no log to lead with, so it does not lead, and the controller knows."""
    disk, reports = FailingDisk(), Reports()
    world = come_up(disk)
    disk.error, disk.refused = error, refused
    disk.refuses = lambda asked: asked.startswith(path) if refused != "fsync_dir" else asked == path
    partition = await move_on(disk, world, reports)
    assert partition.is_offline
    assert not partition.is_leader
    assert reports.gone == [partition.topic_partition], "once"
    with pytest.raises(ApiError) as caught:
        partition.append(records(b"more"), required_acks=1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    go_down(world)
    values = [record.value for record in read_all(come_up(disk).only().log)]
    assert values == [b"0", b"1", b"2"], "the next start finds what there is of the two"


async def test_a_move_without_room_to_note_the_copy_leaves_the_log_in_use() -> None:
    """Rule E8: nothing has happened to the log by then, and the move can be asked for again."""
    disk, reports = FailingDisk(), Reports()
    world = come_up(disk)
    disk.error, disk.refused = DiskFullError("no room for the checkpoint"), "write_at"
    disk.refuses = lambda asked: asked.startswith("/two/recovery-point")
    partition = await move_on(disk, world, reports)
    assert partition.log.dir.path == "/one"
    assert partition.append(records(b"more"), required_acks=1)
    assert not reports.gone
    world.replicas.moves.move(partition, "/two")
    await moves_end(world)
    assert partition.log.dir.path == "/two"
    values = [record.value for record in read_all(partition.log)]
    assert values == [b"0", b"1", b"2", b"more"]


@pytest.mark.parametrize("error", [DiskFailedError("broken"), OutOfFilesError("too many")])
async def test_a_copy_that_is_not_known_to_be_complete_does_not_outlive_its_move(
    error: DiskError,
) -> None:
    """Rule E1: the log goes on, so the copy is old soon, and must never be found in its place."""
    disk, reports = FailingDisk(), Reports()
    world = come_up(disk)
    disk.error, disk.refused = error, "fsync_dir"
    disk.refuses = lambda asked: disk.exists("/two/t-0-moved")
    partition = await move_on(disk, world, reports)
    assert partition.append(records(b"more"), required_acks=1)
    assert not disk.exists("/two/t-0-moved")
    assert world.logs.offline_dirs == (["/two"] if error.takes_dir_offline else [])
    assert not reports.gone
