"""The files that are followed, as the machine has them: found by pattern, known by identity.

A file that is open stays readable when it is renamed or deleted, and nobody else gets its inode.
"""

from __future__ import annotations

import glob
import os
import stat
from typing import NamedTuple, Protocol


class Identity(NamedTuple):
    """What a file keeps through renaming; after its deletion another file may get it."""

    device: int
    inode: int


class FileState(NamedTuple):
    """Changes whenever the file's content does."""

    size: int
    modified_ns: int


class OpenFile(Protocol):
    """A file that is being read."""

    identity: Identity

    def state(self) -> FileState: ...

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file only."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """What following files asks of a file system."""

    def expand(self, pattern: str) -> list[str]:
        """The paths a pattern matches; a path that exists matches itself, whatever is in it."""
        ...

    def identity(self, path: str) -> Identity | None:
        """Which file has this name; None when there is none, or it is no regular file."""
        ...

    def open(self, path: str) -> OpenFile | None:
        """None when it is gone; `PermissionError` when it may not be read."""
        ...

    def names_in(self, directory: str) -> list[str]:
        """Full paths of what a directory holds; nothing when it is gone."""
        ...


class OsDisk:
    """The machine's own file system."""

    def expand(self, pattern: str) -> list[str]:
        if os.path.lexists(pattern):
            return [pattern]
        return sorted(glob.glob(pattern, recursive=True))

    def identity(self, path: str) -> Identity | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return Identity(found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None

    def open(self, path: str) -> OpenFile | None:
        try:
            return OsOpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except FileNotFoundError:
            return None

    def names_in(self, directory: str) -> list[str]:
        try:
            return sorted(os.path.join(directory, name) for name in os.listdir(directory))
        except OSError:
            return []


class OsOpenFile:
    """A descriptor, and who it belongs to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        found = os.fstat(fd)
        self.identity = Identity(found.st_dev, found.st_ino)

    def state(self) -> FileState:
        found = os.fstat(self._fd)
        return FileState(found.st_size, found.st_mtime_ns)

    def pread(self, length: int, position: int) -> bytes:
        return os.pread(self._fd, length, position)

    def close(self) -> None:
        os.close(self._fd)
