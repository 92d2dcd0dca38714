"""Finds a process that was stopped in the middle of a write and keeps all others from writing.

SQLite's write lock goes with its process. A process that is merely stopped keeps it: then nobody
can renew a session or end one, the stopped one's included, until somebody ends that process.
Whoever watches over the brokers of a machine asks `WriteLockWatch` now and then whom to end.

The system's list of locks says who holds which: SQLite locks one byte of the `-shm` file beside the
store, and every session has a locked file of its own. That list is Linux's; elsewhere nobody is
ever found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.store.sql import SessionRow, StoreFile
from tidemill.store.sqlite_session import lock_path

LOCKS = Path("/proc/locks")
_WRITE_LOCK_BYTE = "120"
"""Where SQLite locks the `-shm` file of a database in WAL mode while it writes."""


class _Lock(NamedTuple):
    """One lock that is held, not one that is waited for."""

    kind: str
    pid: int
    inode: int
    first_byte: str


class WriteLockWatch:
    """Looks at the write lock of one store, again and again."""

    def __init__(self, path: str | Path, clock: Clock) -> None:
        self._path = str(path)
        self._clock = clock
        self._holder = 0
        self._since_ms = 0

    def look(self) -> int | None:
        """A process whose lease has run out, and that has held the lock at every look for half a
        session's time: it will not let go by itself. None as long as there is none."""
        locks = list(_locks())
        holder = _writer(self._path, locks)
        now_ms = self._clock.monotonic_ms()
        if holder is None or holder != self._holder:
            self._holder, self._since_ms = holder or 0, now_ms
            return None
        row = _session_of(self._path, holder, locks)
        if row is None or row.deadline_ms > now_ms:
            return None
        return holder if now_ms - self._since_ms >= row.timeout_ms // 2 else None


def _writer(path: str, locks: list[_Lock]) -> int | None:
    inode = _inode(f"{path}-shm")
    for lock in locks:
        if (lock.kind, lock.inode, lock.first_byte) == ("POSIX", inode, _WRITE_LOCK_BYTE):
            return lock.pid
    return None


def _session_of(path: str, pid: int, locks: list[_Lock]) -> SessionRow | None:
    """The session that a process holds the file of."""
    file = StoreFile(path)
    try:
        rows = file.sessions()
    finally:
        file.close()
    held = {lock.inode for lock in locks if lock.kind == "FLOCK" and lock.pid == pid}
    return next((row for row in rows if _inode(lock_path(path, row.session_id)) in held), None)


def _inode(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_ino
    return -1


def _locks() -> Iterator[_Lock]:
    """`1: POSIX  ADVISORY  WRITE 4434 fe:00:9986289 120 120`, and so on."""
    with suppress(OSError):
        for line in LOCKS.read_text().splitlines():
            fields = line.split()
            if len(fields) == 8 and fields[3] == "WRITE":
                yield _Lock(fields[1], int(fields[4]), int(fields[5].split(":")[2]), fields[6])
