"""The real file system: descriptors, short writes, errors and locks."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on, values

from tidemill.errors import ErrorCode
from tidemill.storage.descriptors import DescriptorCache
from tidemill.storage.disk_errors import (
    DiskError,
    DiskFailedError,
    DiskFullError,
    FileMissingError,
    OutOfFilesError,
    disk_error,
)
from tidemill.storage.files import OsFiles, make_dir, replace_file
from tidemill.storage.log_config import LogConfig
from tidemill.types import TopicPartition


@pytest.fixture
def files() -> Iterator[OsFiles]:
    opened = OsFiles(open_files_max=8)
    yield opened
    opened.close_all()


def test_write_and_read(files: OsFiles, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    files.write_at(path, 0, (b"abc", bytearray(b"def"), memoryview(b"ghi")))
    files.write_at(path, 3, (b"XYZ",))
    assert files.read_file(path) == b"abcXYZghi"
    assert files.pread(path, 2, 4) == b"cXYZ"
    assert files.pread(path, 7, 100) == b"hi"
    assert files.pread_now(path, 2, 4) in (b"cXYZ", None)
    assert files.pread_now(path, 7, 100) in (b"hi", None)
    assert files.size(path) == 9
    files.truncate(path, 2)
    assert files.read_file(path) == b"ab"


def test_what_a_reader_gets_is_all_of_the_file_s(files: OsFiles, tmp_path: Path) -> None:
    """A buffer that was not cleared holds what others left in memory: none of that may come out."""
    path = f"{tmp_path}/f"
    files.write_at(path, 0, [b"stored " * 100_000])
    for _ in range(20):
        left = [bytearray(b"secret " * 100_000) for _ in range(4)]
        del left
        for position, length in ((0, 1_000_000), (350_000, 700_000), (699_999, 700_000)):
            found = files.pread_now(path, position, length)
            assert found in ((b"stored " * 100_000)[position : position + length], None)


def test_more_parts_than_the_kernel_takes_at_once(files: OsFiles, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    files.write_at(path, 0, [b"x%04d" % n for n in range(3000)])
    assert files.size(path) == 15_000
    assert files.pread(path, 14_995, 5) == b"x2999"


def test_short_writes_are_finished(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/f"
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [parts[0][:2]], at))
    files.write_at(path, 0, (b"abc", b"def"))
    assert files.read_file(path) == b"abcdef"


def test_few_descriptors_serve_many_files(files: OsFiles, tmp_path: Path) -> None:
    for number in range(50):
        files.write_at(f"{tmp_path}/{number}", 0, (b"%d" % number,))
    assert files.open_files <= 8
    for number in range(50):
        assert files.pread(f"{tmp_path}/{number}", 0, 10) == b"%d" % number
    assert files.open_files <= 8


def test_going_round_a_few_files_too_many_finds_most_of_them_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always closing the longest unused one would close exactly the next one that is wanted."""
    files, opened = OsFiles(open_files_max=100), 0
    real = os.open

    def counting(path: str, flags: int, mode: int = 0o777) -> int:
        nonlocal opened
        opened += 1
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", counting)
    for _ in range(10):
        for number in range(105):
            files.write_at(f"{tmp_path}/{number}", 0, (b"x",))
    assert files.open_files <= 100
    assert opened < 105 + 9 * 105 // 4
    files.close_all()


def test_a_descriptor_in_use_is_not_closed(files: OsFiles, tmp_path: Path) -> None:
    path = f"{tmp_path}/busy"
    files.write_at(path, 0, (b"x",))
    entry = files._open.lease(path)
    for number in range(20):
        files.write_at(f"{tmp_path}/{number}", 0, (b"y",))
    files.unlink(path)
    assert os.pread(entry.fd, 1, 0) == b"x"
    files._open.give_back(entry)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(entry.fd, 1, 0)


def test_threads_share_descriptors(files: OsFiles, tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(100):
                path = f"{tmp_path}/{(number * 7 + turn) % 30}"
                files.write_at(path, 0, (b"data",))
                assert files.pread(path, 0, 4) == b"data"
                files.fdatasync(path) if turn % 25 == 0 else files.close(path)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_out_of_descriptors_is_a_clear_error(tmp_path: Path) -> None:
    """One clear error per request; the files that are open go on."""
    files = OsFiles(open_files_max=10_000)
    files.write_at(f"{tmp_path}/first", 0, (b"x",))
    entry = files._open.lease(f"{tmp_path}/first")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    hogs: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    try:
        while True:
            try:
                hogs.append(os.dup(0))
            except OSError:
                break
        with pytest.raises(OutOfFilesError, match="Raise the open-file limit") as caught:
            files.write_at(f"{tmp_path}/second", 0, (b"y",))
        with pytest.raises(OutOfFilesError):
            files.fsync_dir(str(tmp_path))
        files._open.give_back(entry)
        files.write_at(f"{tmp_path}/third", 0, (b"z",))  # an idle one makes room
        files.fsync_dir(str(tmp_path))
        files.write_at(f"{tmp_path}/third", 0, (b"z",))
        assert files.listdir(str(tmp_path))
        files.write_at(f"{tmp_path}/third", 0, (b"z",))
        assert files.read_file(f"{tmp_path}/third") == b"z"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in hogs:
            os.close(fd)
        files.close_all()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not caught.value.takes_dir_offline


@pytest.mark.parametrize(
    ("number", "kind", "offline"),
    [
        (errno.ENOSPC, DiskFullError, False),
        (errno.EDQUOT, DiskFullError, False),
        (errno.EMFILE, OutOfFilesError, False),
        (errno.ENFILE, OutOfFilesError, False),
        (errno.ENOENT, FileMissingError, True),
        (errno.EIO, DiskFailedError, True),
        (errno.EROFS, DiskFailedError, True),
        (errno.EACCES, DiskFailedError, True),
    ],
)
def test_what_each_error_means(number: int, kind: type[DiskError], offline: bool) -> None:
    """Rules E1 and E8: what ends with its cause, and what ends the directory's use."""
    error = disk_error(OSError(number, os.strerror(number)), "writing", "/x")
    assert type(error) is kind
    assert error.takes_dir_offline is offline
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_missing_files(files: OsFiles, tmp_path: Path) -> None:
    with pytest.raises(FileMissingError):
        files.pread(f"{tmp_path}/no", 0, 1)
    with pytest.raises(FileMissingError):
        files.size(f"{tmp_path}/no")
    with pytest.raises(FileMissingError):
        files.write_at(f"{tmp_path}/no/f", 0, (b"x",))
    files.unlink(f"{tmp_path}/no")


def test_directories_and_names(files: OsFiles, tmp_path: Path) -> None:
    make_dir(files, f"{tmp_path}/a/b/c")
    assert files.is_dir(f"{tmp_path}/a/b/c")
    replace_file(files, f"{tmp_path}/a", "f", b"one")
    replace_file(files, f"{tmp_path}/a", "f", b"two")
    assert files.read_file(f"{tmp_path}/a/f") == b"two"
    assert sorted(files.listdir(f"{tmp_path}/a")) == ["b", "f"]
    files.replace(f"{tmp_path}/a/f", f"{tmp_path}/a/g")
    files.rmdir(f"{tmp_path}/a/b/c")
    assert files.exists(f"{tmp_path}/a/g")
    assert not files.exists(f"{tmp_path}/a/b/c")
    assert files.modified_ms(f"{tmp_path}/a/g") > 0
    space = files.space(str(tmp_path))
    assert 0 < space.free_bytes <= space.total_bytes


def test_lock(files: OsFiles, tmp_path: Path) -> None:
    lock = files.lock(f"{tmp_path}/.lock")
    assert lock is not None
    pid = os.fork()
    if pid == 0:
        os._exit(0 if OsFiles().lock(f"{tmp_path}/.lock") is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lock.release()


def test_a_manager_on_the_real_disk(tmp_path: Path) -> None:
    """The same life as on the simulated disk: write, stop, start, crash, start."""
    path = str(tmp_path / "data")
    files = OsFiles()
    manager = manager_on(files, dirs=(path,), config=LogConfig(segment_bytes=2000))
    log = manager.create(TP, TOPIC_ID, LogConfig(segment_bytes=2000))
    for number in range(50):
        log.append_as_leader(batch(b"%d" % number), leader_epoch=0)
    manager.shutdown({TP: 50}, broker_epoch=8)
    files.close_all()
    files = OsFiles()
    manager = manager_on(files, dirs=(path,), config=LogConfig(segment_bytes=2000))
    assert manager.previous_broker_epoch == 8
    log = manager.logs[TP]
    log.append_as_leader(batch(b"50"), leader_epoch=1)
    with open(log.segments[-1].log_path, "ab") as file:
        file.write(b"torn")
    files.close_all()
    for place in manager._places.values():
        assert place.lock is not None
        place.lock.release()
    files = OsFiles()
    again = manager_on(files, dirs=(path,), config=LogConfig(segment_bytes=2000))
    assert values(again.logs[TP]) == [b"%d" % number for number in range(51)]
    again.shutdown({})
    files.close_all()


def test_a_thousand_partitions_with_few_descriptors(tmp_path: Path) -> None:
    files = OsFiles(open_files_max=64)
    manager = manager_on(files, dirs=(str(tmp_path),))
    for number in range(1000):
        log = manager.create(TopicPartition("many", number), TOPIC_ID, LogConfig())
        log.append_as_leader(batch(b"x"), leader_epoch=0)
    assert files.open_files <= 64
    for log in manager.logs.values():
        assert log.read(0, max_bytes=100, upper_offset=1).read_blocking()
    manager.request_flush(manager.logs[TopicPartition("many", 500)])
    assert files.open_files <= 64
    for log in manager.logs.values():
        log.abandon()
    files.close_all()


def test_a_directory_whose_flush_fails_is_not_flushed_again(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule E1: whatever a flush fails with, even a lack of room, it takes the directory offline."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFailedError) as caught:
        files.fsync_dir(str(tmp_path))
    assert caught.value.takes_dir_offline


@pytest.mark.parametrize("how", ["unlink", "replace", "replaced", "directory"])
def test_a_name_that_changes_hands_while_a_thread_opens_it(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A descriptor of the old file must not take what is written to the next one of its name."""
    directory, path, other = f"{tmp_path}/d", f"{tmp_path}/d/f", f"{tmp_path}/d/other"
    files.mkdir(directory)
    files.write_at(path, 0, (b"old",))
    files.write_at(other, 0, (b"other",))

    def meanwhile(name: str) -> None:
        real = getattr(os, name)

        def with_reader(*names: str) -> None:
            assert files.pread(path, 0, 3) == b"old", "as a scrub or a cold read in a thread"
            real(*names)

        monkeypatch.setattr(os, name, with_reader)

    meanwhile("unlink" if how == "unlink" else "replace")
    if how == "unlink":
        files.unlink(path)
    elif how == "replace":
        files.replace(path, f"{directory}/elsewhere")
    elif how == "replaced":
        files.replace(other, path)
    else:
        files.replace(directory, f"{directory}-delete")
        files.mkdir(directory)
    files.write_at(path, 0, (b"newer",))
    assert Path(path).read_bytes() == b"newer"
    assert files.pread(path, 0, 10) == b"newer"
    files.fdatasync(path)


def test_a_lease_from_before_a_rename_is_not_handed_out_again(
    files: OsFiles, tmp_path: Path
) -> None:
    """The thread that has it finishes with the old file; nobody else meets that file."""
    directory, path = f"{tmp_path}/d", f"{tmp_path}/d/f"
    files.mkdir(directory)
    files.write_at(path, 0, (b"old",))
    entry = files._open.lease(path, create=False)
    files.replace(directory, f"{directory}-delete")
    files.mkdir(directory)
    files.write_at(path, 0, (b"new",))
    assert os.pread(entry.fd, 3, 0) == b"old"
    files._open.give_back(entry)
    assert Path(path).read_bytes() == files.pread(path, 0, 3) == b"new"
    assert files.open_files == 1


def test_a_descriptor_in_use_outlives_its_name(tmp_path: Path) -> None:
    """The number of a closed one may be another file's before its last user is done with it."""
    cache = DescriptorCache(4)
    path = str(tmp_path / "file")
    first, second = cache.lease(path), cache.lease(path)
    assert first is second
    cache.drop(path)
    cache.give_back(first)
    os.pwrite(second.fd, b"still open", 0)
    cache.give_back(second)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second.fd)
