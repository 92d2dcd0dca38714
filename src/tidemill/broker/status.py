"""A broker's note about itself in its data directory: who runs here, and where to reach it.

`noted` leaves the note while the broker is up and takes it away on a clean stop, and `read` tells
what is true now: a note counts only while its process holds the directory's lock, so neither a
crash nor a process id that was given out again can pass for a broker. The note is for tools on the
same machine; nothing depends on it.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "broker.json"
LOCK_NAME = ".lock"


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One running broker."""

    id: int
    host: str
    port: int
    pid: int
    cluster_id: str
    version: str
    started_ms: int
    data_dir: str


@contextmanager
def noted(status: BrokerStatus) -> Iterator[None]:
    """In here, the broker is up and its data directory says so."""
    write(status.data_dir, status)
    try:
        yield
    finally:
        (Path(status.data_dir) / FILE_NAME).unlink(missing_ok=True)


def write(directory: str | Path, status: BrokerStatus) -> None:
    """Leave the note, whole or not at all."""
    target = Path(directory) / FILE_NAME
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(status)) + "\n")
    temporary.replace(target)


def read(directory: str | Path) -> BrokerStatus | None:
    """The live broker of this data directory, if there is one."""
    try:
        fields = json.loads((Path(directory) / FILE_NAME).read_text())
        status = BrokerStatus(**fields)
    except (OSError, ValueError, TypeError):
        return None
    return status if _holds_lock(Path(directory) / LOCK_NAME, status.pid) else None


def _holds_lock(path: Path, pid: int) -> bool:
    """Whether the process holds the directory's lock, as a broker does as long as it lives.

    Only asks: taking the lock, for however short, could make a broker that starts now give up.
    """
    if pid == os.getpid():
        # Closing any handle of the file would let go of our own lock.
        return True
    try:
        with path.open("rb+") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, _pack_lock(fcntl.F_WRLCK))
    except OSError:
        return False
    kind, holder = _unpack_lock(answer)
    return kind != fcntl.F_UNLCK and holder == pid


def _pack_lock(kind: int) -> bytes:
    """`struct flock` for the whole file."""
    if sys.platform == "darwin":
        return struct.pack("qqihh", 0, 0, 0, kind, os.SEEK_SET)
    return struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0)


def _unpack_lock(data: bytes) -> tuple[int, int]:
    """The kind of lock and the process that holds it."""
    if sys.platform == "darwin":
        _, _, holder, kind, _ = struct.unpack("qqihh", data)
    else:
        kind, _, _, _, holder = struct.unpack("hhqqi", data)
    return kind, holder
