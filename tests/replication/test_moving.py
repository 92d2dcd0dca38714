"""What was copied before a restart is only worth what the log still has."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on, read_all

from tidemill.replication.moving import Move, _align
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk

DIRS = ("/one", "/two")


def logs(log_epochs: list[int], copy_epochs: list[int]) -> tuple[Log, Log]:
    """A log and a copy, one record for each epoch."""
    manager = manager_on(CrashDisk(Random(1)), dirs=DIRS)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for epoch in log_epochs:
        log.append_as_leader(batch(b"x"), leader_epoch=epoch)
    target = next(path for path in DIRS if path != log.dir.path)
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
