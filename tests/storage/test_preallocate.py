"""`preallocate`: a segment's room is there from its beginning, and its size is what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on, values

from tidemill.storage.files import OsFiles
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk

SEGMENT_BYTES = 1 << 20
PREALLOCATED = LogConfig(segment_bytes=SEGMENT_BYTES, preallocate=True)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[OsFiles]:
    opened = OsFiles(open_files_max=8)
    probe = f"{tmp_path}/probe"
    opened.write_at(probe, 0, (b"",))
    opened.reserve(probe, SEGMENT_BYTES)
    if held_bytes(probe) < SEGMENT_BYTES:
        pytest.skip("the file system of the test's directory reserves nothing")
    yield opened
    opened.close_all()


def held_bytes(path: str) -> int:
    """What a file takes on the disk, whatever its size."""
    return os.stat(path).st_blocks * 512


def test_reserved_room_changes_no_size_and_can_be_given_back(
    files: OsFiles, tmp_path: Path
) -> None:
    path = f"{tmp_path}/f"
    files.write_at(path, 0, (b"abc",))
    files.reserve(path, SEGMENT_BYTES)
    assert (files.size(path), files.read_file(path)) == (3, b"abc")
    assert held_bytes(path) >= SEGMENT_BYTES
    files.truncate(path, 3)
    assert held_bytes(path) < SEGMENT_BYTES


def test_a_segment_has_its_room_from_the_start_and_gives_back_what_it_did_not_use(
    files: OsFiles, tmp_path: Path
) -> None:
    manager = manager_on(files, dirs=(str(tmp_path / "d"),))
    log = manager.create(TP, TOPIC_ID, PREALLOCATED)
    first = log.segments[0].log_path
    assert (os.stat(first).st_size, held_bytes(first) >= SEGMENT_BYTES) == (0, True)
    log.append_as_leader(batch(b"a"), leader_epoch=0)
    log.roll()
    second = log.segments[1].log_path
    assert held_bytes(first) < SEGMENT_BYTES <= held_bytes(second)
    assert values(log) == [b"a"]
    manager.shutdown({})


def test_without_it_nothing_is_reserved(files: OsFiles, tmp_path: Path) -> None:
    manager = manager_on(files, dirs=(str(tmp_path / "d"),))
    log = manager.create(TP, TOPIC_ID, LogConfig(segment_bytes=SEGMENT_BYTES))
    assert held_bytes(log.segments[0].log_path) < SEGMENT_BYTES
    manager.shutdown({})


def test_a_crash_leaves_the_log_as_any_other() -> None:
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, PREALLOCATED)
    log.append_as_leader(batch(b"a"), leader_epoch=0)
    log.roll()
    log.append_as_leader(batch(b"b"), leader_epoch=0)
    log.flush()
    disk.power_on()
    again = manager_on(disk).get(TP)
    assert again is not None
    assert values(again) == [b"a", b"b"]
