"""Everything the log does to a disk, behind one protocol.

`OsFiles` is the real one. `tidemill.testing.disk.CrashDisk` is an in-memory twin whose power can be
cut at any byte. Files are named by path; descriptors are opened on demand and kept in a bounded
LRU, because ten thousand partitions have more files than a process may hold open. Every method may
be called from any thread; every failure is a `DiskError`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol

from tidemill.storage.descriptors import DescriptorCache, descriptor_limit
from tidemill.storage.disk_errors import (
    DiskError,
    DiskFailedError,
    FileMissingError,
    disk_error,
    translating,
)

Buffer = bytes | bytearray | memoryview

_IOV_MAX = 1024
"""Linux refuses more parts than this in one vectored write."""


class Space(NamedTuple):
    """How much room a file system has."""

    free_bytes: int
    total_bytes: int


class FileLock(Protocol):
    """Held until released, or until the process ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """The file operations of the storage layer. Parent directories must exist."""

    def write_at(self, path: str, position: int, parts: Sequence[Buffer]) -> None:
        """Write all parts from `position` on, creating the file; an error may leave a part."""
        ...

    def pread(self, path: str, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file. May block."""
        ...

    def pread_now(self, path: str, position: int, length: int) -> bytes | bytearray | None:
        """As `pread`, but None when not every byte is in memory already."""
        ...

    def read_file(self, path: str) -> bytes:
        """The whole of a (small) file."""
        ...

    def fdatasync(self, path: str) -> None:
        """Make the file's content durable; a failure must never be retried (rule E1)."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Make created, renamed and deleted names of a directory durable."""
        ...

    def sync_all(self, path: str) -> None:
        """Make everything on the file system of `path` durable: one call for thousands of files."""
        ...

    def forget(self, path: str, position: int, length: int) -> None:
        """These bytes were read once and will not be again soon: memory need not keep them."""
        ...

    def truncate(self, path: str, size: int) -> None: ...

    def reserve(self, path: str, size: int) -> None:
        """Ask for disk space for a file of `size` bytes, which stays as long as it is.

        Where that cannot be had, nothing happens; `truncate` gives back what was not used.
        """
        ...

    def replace(self, source: str, target: str) -> None:
        """Atomically give `source` (a file, or a directory of files) the name `target`."""
        ...

    def unlink(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        ...

    def mkdir(self, path: str) -> None:
        """Create a directory; an existing one is fine."""
        ...

    def rmdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]: ...

    def is_dir(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the content last changed, in wall-clock milliseconds."""
        ...

    def space(self, path: str) -> Space: ...

    def lock(self, path: str) -> FileLock | None:
        """Take the file's lock; None when another process holds it."""
        ...

    def close(self, path: str) -> None:
        """Let go of the descriptor, if one is held."""
        ...


def replace_file(files: Files, directory: str, name: str, data: bytes) -> None:
    """Write a small file so that a crash leaves the old or the new one (rule E5)."""
    temporary = f"{directory}/{name}.tmp"
    target = f"{directory}/{name}"
    files.unlink(temporary)
    files.write_at(temporary, 0, (data,))
    files.fdatasync(temporary)
    files.replace(temporary, target)
    files.fsync_dir(directory)


def read_if_there(files: Files, path: str) -> bytes | None:
    """The whole of a small file; None when there is none. One call less than asking first."""
    try:
        return files.read_file(path)
    except FileMissingError:
        return None


def make_dir(files: Files, path: str) -> None:
    """Create a directory and those above it, durably: each new name is flushed.

    One that is there may have been made a moment ago, by whoever started us: its name is flushed,
    too, where we may do that.
    """
    missing: list[str] = []
    while path and not files.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    with suppress(DiskError):
        files.fsync_dir(os.path.dirname(path) or ".")
    for name in reversed(missing):
        files.mkdir(name)
        files.fsync_dir(os.path.dirname(name) or ".")


class OsFiles:
    """The machine's own file system."""

    def __init__(self, open_files_max: int | None = None) -> None:
        self._open = DescriptorCache(open_files_max or descriptor_limit())

    @property
    def open_files(self) -> int:
        return len(self._open)

    def write_at(self, path: str, position: int, parts: Sequence[Buffer]) -> None:
        entry = self._open.lease(path)
        try:
            wanted = sum(map(len, parts))
            if len(parts) <= _IOV_MAX:
                written = os.pwritev(entry.fd, parts, position)
                if written == wanted:
                    return
                parts = (b"".join(parts)[written:],)
                position += written
            _write_rest(entry.fd, memoryview(b"".join(parts)), position)
        except OSError as error:
            raise disk_error(error, "writing", path) from error
        finally:
            self._open.give_back(entry)

    def pread(self, path: str, position: int, length: int) -> bytes:
        entry = self._open.lease(path, create=False)
        try:
            data = os.pread(entry.fd, length, position)
            if len(data) == length or not data:
                return data
            return _read_rest(entry.fd, data, position, length)
        except OSError as error:
            raise disk_error(error, "reading", path) from error
        finally:
            self._open.give_back(entry)

    def pread_now(self, path: str, position: int, length: int) -> bytes | bytearray | None:
        entry = self._open.lease(path, create=False)
        try:
            buffer = _uncleared(length)
            count = os.preadv(entry.fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == _EOPNOTSUPP:
                return self.pread(path, position, length)  # tmpfs and friends are memory anyway
            raise disk_error(error, "reading", path) from error
        finally:
            self._open.give_back(entry)
        if count < length and count + position < self.size(path):
            return None
        # Handed over as it is: a copy costs fifteen times as much as the read itself.
        if count < length:
            del buffer[count:]
        return buffer

    def read_file(self, path: str) -> bytes:
        # Ten thousand logs begin with some of these each, so no file object is made for them.
        try:
            fd = self._open.open_once(path, os.O_RDONLY)
        except OSError as error:
            raise disk_error(error, "opening", path) from error
        try:
            return _read_rest(fd, b"", 0, os.fstat(fd).st_size)
        except OSError as error:
            raise disk_error(error, "reading", path) from error
        finally:
            os.close(fd)

    def fdatasync(self, path: str) -> None:
        entry = self._open.lease(path, create=False)
        try:
            os.fdatasync(entry.fd)
        except OSError as error:
            raise DiskFailedError(f"Flushing {path} failed: {error.strerror}") from error
        finally:
            self._open.give_back(entry)

    def fsync_dir(self, path: str) -> None:
        with self._directory(path) as fd:
            try:
                os.fsync(fd)
            except OSError as error:
                raise DiskFailedError(f"Flushing {path} failed: {error.strerror}") from error

    def sync_all(self, path: str) -> None:
        with self._directory(path) as fd:
            try:
                _syncfs(fd)
            except OSError as error:
                raise DiskFailedError(
                    f"Flushing the file system of {path} failed: {error.strerror}"
                ) from error

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        """The directory, opened for as long as the block takes."""
        with translating("opening directory", path):
            fd = self._open.open_once(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def forget(self, path: str, position: int, length: int) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        entry = self._open.lease(path, create=False)
        try:
            with suppress(OSError):  # It is a hint, and a file system may not take any.
                os.posix_fadvise(entry.fd, position, length, os.POSIX_FADV_DONTNEED)
        finally:
            self._open.give_back(entry)

    def reserve(self, path: str, size: int) -> None:
        entry = self._open.lease(path, create=False)
        try:
            _fallocate(entry.fd, size)
        finally:
            self._open.give_back(entry)

    def truncate(self, path: str, size: int) -> None:
        with translating("truncating", path):
            os.truncate(path, size)

    def replace(self, source: str, target: str) -> None:
        with self._changing_hands(source, target), translating("renaming", source):
            os.replace(source, target)

    def unlink(self, path: str) -> None:
        with self._changing_hands(path), translating("deleting", path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return

    @contextmanager
    def _changing_hands(self, *paths: str) -> Iterator[None]:
        """Hold no descriptor of what had these names before, once the block has run.

        Dropped twice: before, since closing the last descriptor of a deleted file takes long; and
        after, because a thread may have opened the old file in between.
        """
        for path in paths:
            self._open.drop(path)
        try:
            yield
        finally:
            for path in paths:
                self._open.drop(path)

    def mkdir(self, path: str) -> None:
        with translating("creating directory", path):
            os.makedirs(path, exist_ok=True)

    def rmdir(self, path: str) -> None:
        with translating("deleting directory", path):
            os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        with translating("listing", path):
            try:
                return os.listdir(path)
            except OSError as error:
                if not self._open.make_room(error):
                    raise
            return os.listdir(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with translating("reading the size of", path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with translating("reading the age of", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def space(self, path: str) -> Space:
        with translating("asking for the free space of", path):
            stats = os.statvfs(path)
        return Space(stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize)

    def lock(self, path: str) -> FileLock | None:
        with translating("locking", path):
            fd = self._open.open_once(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return _OsFileLock(fd)

    def close(self, path: str) -> None:
        self._open.drop(path)

    def close_all(self) -> None:
        """Close every descriptor held; the next use opens them again."""
        self._open.clear()


def _uncleared_buffers() -> Callable[[int], bytearray]:
    """Makes `bytearray`s that hold whatever the memory did: for what is filled at once.

    Python clears them, and that was a sixth of what a fetch cost; only its C interface does not.
    """
    if sys.implementation.name != "cpython":
        return bytearray
    make = ctypes.pythonapi.PyByteArray_FromStringAndSize
    make.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
    make.restype = ctypes.py_object
    return partial(make, None)


_uncleared = _uncleared_buffers()

_EOPNOTSUPP = 95
_FALLOC_FL_KEEP_SIZE = 1


def _syncfs(fd: int) -> None:
    """Linux's syncfs(2), which Python does not offer; elsewhere all file systems are flushed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
        return
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _fallocate(fd: int, size: int) -> None:
    """Linux's fallocate(2) with the file's size kept; a refusal is none of our business."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "fallocate"):
        libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size))


class _OsFileLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write_rest(fd: int, rest: memoryview, position: int) -> None:
    """Go on after a short write: the kernel then gives the real error, if there is one."""
    while rest:
        count = os.pwrite(fd, rest, position)
        rest = rest[count:]
        position += count


def _read_rest(fd: int, data: bytes, position: int, length: int) -> bytes:
    parts = [data]
    count = len(data)
    while count < length:
        more = os.pread(fd, length - count, position + count)
        if not more:
            break
        parts.append(more)
        count += len(more)
    return b"".join(parts)
