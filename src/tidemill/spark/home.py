"""Spark's folder without its Python archive, so that workers start three times as fast.

Spark puts `python/lib/pyspark.zip` of its folder first on the path of every Python process that it
starts, and Python keeps no bytecode of what is in an archive: each process compiles all of PySpark
anew, 1.3 s of work where 0.45 s would do. A query starts several such processes, and Spark gives
each ten seconds, no more, to report; a busy machine does not always manage. A folder that has all
of Spark's but the archive sends them to the installed package instead, which is the driver's own.

The folder goes with the process that made it; what a killed one left, the next one clears away.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PREFIX: Final = "tidemill-spark-home-"
_LOCK: Final = "in-use"
_SOCKETS: Final = "s"  # Short: of a socket's whole name the kernel takes this many bytes.
_SOCKET_PATH_BYTES_MAX: Final = 107
_SOCKET_NAME_BYTES: Final = len("/.") + 36 + len(".sock")


def home_without_archive() -> Path | None:
    """A folder for SPARK_HOME, which goes with this process; none where Spark is no package."""
    found = find_spec("pyspark")
    if found is None or found.origin is None or ".zip" in found.origin:
        return None
    installed = Path(found.origin).parent
    if not (installed / "jars").is_dir():
        return None
    _clear_away_left_ones()
    fresh = Path(tempfile.mkdtemp(prefix=".tidemill-spark-"))
    _lock(fresh)  # Before it has the name that others look for.
    made = fresh.rename(fresh.with_name(_PREFIX + fresh.name[-8:]))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    (made / _SOCKETS).mkdir(mode=0o700)
    for part in ("bin", "sbin", "jars", "conf", "data"):
        if (installed / part).exists():
            (made / part).symlink_to(installed / part)
    return made


def sockets_folder() -> Path | None:
    """Where Spark's sockets may be, for nobody else: in the folder that `SPARK_HOME` is, if it is
    one of ours, and its name leaves room for theirs."""
    home = Path(os.environ.get("SPARK_HOME", ""))
    folder = home / _SOCKETS
    is_short = len(os.fsencode(folder)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES_MAX
    return folder if home.name.startswith(_PREFIX) and folder.is_dir() and is_short else None


def _lock(home: Path) -> None:
    """Say that it is used, until this process ends in whatever way."""
    fcntl.flock(os.open(home / _LOCK, os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)


def _clear_away_left_ones() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # It is used, or another's, or another clears it away.
            lock = os.open(left / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
