"""The simulated disk itself: it must be at least as cruel as a real one."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.storage.disk_errors import DiskFailedError, DiskFullError, FileMissingError
from tidemill.testing.disk import CrashDisk, PowerCut


def survivors(seed: int, prepare: str) -> bytes | None:
    disk = CrashDisk(Random(seed))
    disk.mkdir("/d")
    disk.fsync_dir("/")
    disk.write_at("/d/f", 0, (b"old",))
    if prepare != "nothing":
        disk.fdatasync("/d/f")
        disk.fsync_dir("/d")
    if prepare == "overwritten":
        disk.write_at("/d/f", 0, (b"new",))
        disk.write_at("/d/f", 3, (b"er",))
    disk.power_on()
    return disk.read_file("/d/f") if disk.exists("/d/f") else None


def test_what_was_synced_is_there() -> None:
    assert {survivors(seed, "synced") for seed in range(50)} == {b"old"}


def test_what_was_not_may_be_gone_or_torn() -> None:
    names = {survivors(seed, "nothing") for seed in range(200)}
    assert {None, b"", b"old"} <= names
    contents = {survivors(seed, "overwritten") for seed in range(500)}
    assert {b"old", b"newer", b"new", b"older"} <= contents
    assert any(content not in (b"old", b"newer", b"new", b"older") for content in contents)


def test_a_rename_is_all_or_nothing() -> None:
    seen = set()
    for seed in range(100):
        disk = CrashDisk(Random(seed))
        disk.write_at("/a", 0, (b"x",))
        disk.fdatasync("/a")
        disk.fsync_dir("/")
        disk.replace("/a", "/b")
        disk.power_on()
        seen.add((disk.exists("/a"), disk.exists("/b")))
    assert seen == {(True, False), (False, True)}


def test_power_goes_in_the_middle_of_a_write() -> None:
    for cut in range(6):
        disk = CrashDisk()
        disk.write_at("/f", 0, (b"",))
        disk.cut_after(cut)
        if cut < 5:
            with pytest.raises(PowerCut):
                disk.write_at("/f", 0, (b"abc", b"de"))
            with pytest.raises(PowerCut):
                disk.read_file("/f")
        else:
            disk.write_at("/f", 0, (b"abc", b"de"))
        disk.restart()
        assert disk.read_file("/f") == b"abcde"[:cut]


def test_a_failed_sync_loses_what_it_should_have_kept() -> None:
    """Rule E1: trying again would report success and keep nothing."""
    disk = CrashDisk()
    disk.write_at("/f", 0, (b"x",))
    disk.fails_sync = lambda _: True
    with pytest.raises(DiskFailedError):
        disk.fdatasync("/f")
    disk.power_on()
    assert not disk.exists("/f") or disk.read_file("/f") == b""


def test_a_full_disk_takes_what_fits() -> None:
    disk = CrashDisk(capacity_bytes=4)
    with pytest.raises(DiskFullError):
        disk.write_at("/f", 0, (b"abcdef",))
    assert disk.read_file("/f") == b"abcd"
    disk.write_at("/f", 1, (b"XY",))
    assert disk.space("/") == (0, 4)


def test_missing_things() -> None:
    disk = CrashDisk()
    for work in (
        lambda: disk.read_file("/no"),
        lambda: disk.listdir("/no"),
        lambda: disk.write_at("/no/f", 0, (b"x",)),
        lambda: disk.replace("/no", "/yes"),
        lambda: disk.fdatasync("/no"),
        lambda: disk.fsync_dir("/no"),
    ):
        with pytest.raises(FileMissingError):
            work()
