"""Moves between directories: what a copy is worth after a restart, and how a move may end."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.broker.cluster import until
from tests.replication.helpers import World, records, topic_image
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on, read_all

from tidemill.image import with_topic
from tidemill.replication.moving import Move, _align
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk

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
