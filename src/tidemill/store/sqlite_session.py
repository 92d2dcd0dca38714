"""What a session of the embedded store holds of the machine, and how others see that it is over.

A locked file vanishes with its process: so a death is noticed at once, and a process that is merely
stopped when its lease has run out. A socket lets others poke it when they have written something.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import sys
from functools import cache
from pathlib import Path

from tidemill.store.sql import SessionRow


class Session:
    """What a session holds of the machine: a locked file, and a socket to be poked at."""

    def __init__(self, store_path: str, timeout_ms: int) -> None:
        self._store_path = store_path
        self._lock: int | None = None
        self.timeout_ms = timeout_ms
        self.session_id = 0
        self.ears: socket.socket | None = None

    def begin(self, session_id: int) -> str:
        """Take the lock and open the ears; the address to be poked at, "" if there is none."""
        self.session_id = session_id
        path = lock_path(self._store_path, session_id)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not sys.platform.startswith("linux"):
            return ""
        # A name in Linux's abstract namespace: no file to leave behind, no limit on its folder.
        digest = hashlib.sha256(os.path.realpath(self._store_path).encode()).hexdigest()[:16]
        address = f"\0tidemill-{digest}-{session_id}"
        self.ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ears.setblocking(False)
        self.ears.bind(address)
        return address

    def end(self) -> None:
        """Let go of both; calling it again does nothing."""
        if self.ears is not None:
            self.ears.close()
            self.ears = None
        if self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock_path(self._store_path, self.session_id))
            os.close(self._lock)
            self._lock = None


def lock_path(store_path: str, session_id: int) -> str:
    return os.path.join(f"{store_path}-sessions", f"{session_id}.lock")


def is_over(store_path: str, row: SessionRow, now_ms: int) -> bool:
    """Whether a session's lease has run out, or its process or its machine's uptime has ended."""
    return row.deadline_ms <= now_ms or is_dead(store_path, row)


def is_dead(store_path: str, row: SessionRow) -> bool:
    """Whether whoever opened the session is gone for certain."""
    return row.boot != boot_id() or not _is_locked(lock_path(store_path, row.session_id))


def _is_locked(path: str) -> bool:
    """Whether the process that made the session still lives."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


@cache
def boot_id() -> str:
    """Names this run of the machine: leases of another one mean nothing on our clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
