"""Workers that Spark lets go end without a word; the daemon is a real one, this test is its JVM."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from tidemill.spark.daemon import SPARKS_OWN, QuietWorker, end_quietly
from tidemill.spark.sessions import without_ports

OURS = "tidemill.spark.daemon"
PROBE = "pyspark_probe"  # Spark's daemon imports a worker by a name that begins like this.
LIMIT_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short name: that of a socket is not to be longer than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tidemill-") as name:
        yield Path(name)


A_WORKER = """
import os, sys
from pyspark.serializers import read_int
from tidemill.spark.daemon import end_quietly

def main(infile, outfile):
    if "ENDS_QUIETLY" in os.environ:
        end_quietly()
    try:
        read_int(infile)
    except EOFError:
        outfile.write(b"the input has ended")
        sys.exit(-1)
"""


def said_when_let_go(folder: Path, module: str, *, ends_quietly: bool) -> str:
    """What daemon and worker print if Spark closes the connection after a first task."""
    (folder / f"{PROBE}.py").write_text(A_WORKER)
    env = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
        **({"ENDS_QUIETLY": "1"} if ends_quietly else {}),
    }
    with subprocess.Popen(
        [sys.executable, "-m", module, PROBE],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdout is not None
        (length,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(daemon.stdout.read(length))
            (pid,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            connection.sendall(struct.pack(">i", 1))
        # Only then the daemon may end: it would take its workers along.
        eventually(lambda: not Path(f"/proc/{pid}").exists(), "the worker's end")
        _, said = daemon.communicate(timeout=LIMIT_S)
    return said.decode()


def test_sparks_own_daemon_says_that_a_pipe_is_broken(folder: Path) -> None:
    """Should it stop doing that, ours is not needed any longer."""
    assert "BrokenPipeError" in said_when_let_go(folder, SPARKS_OWN, ends_quietly=False)


def test_our_daemon_is_silent(folder: Path) -> None:
    assert said_when_let_go(folder, OURS, ends_quietly=False) == ""


def test_a_worker_that_has_seen_our_source_is_silent_under_sparks_daemon(folder: Path) -> None:
    assert said_when_let_go(folder, SPARKS_OWN, ends_quietly=True) == ""


def test_only_a_broken_pipe_passes_in_silence() -> None:
    def fails(_connection: Any, _authenticated: bool) -> int:
        raise ValueError("not this one")

    with socket.socket() as connection:
        with pytest.raises(ValueError, match="not this one"):
            QuietWorker(fails)(connection, True)
        assert QuietWorker(lambda _connection, authenticated: 7 + authenticated)(connection, True)


def test_whoever_is_no_worker_of_spark_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = types.ModuleType("other")
    other.worker = untouched = object()
    monkeypatch.setitem(sys.modules, "__main__", other)
    end_quietly()
    assert other.worker is untouched


def test_workers_of_a_session_are_started_by_our_daemon(spark: Any) -> None:
    """And they are reached without a port."""
    from pyspark.sql.functions import udf

    name = udf(lambda _: __import__("sys").modules["__main__"].__spec__.name, "string")
    (row,) = spark.range(1).select(name("id").alias("daemon")).collect()
    assert row.daemon == OURS
    folder = Path(spark.conf.get("spark.python.unix.domain.socket.dir"))
    assert [each for each in folder.iterdir() if each.is_socket()]
    assert folder.stat().st_mode & 0o077 == 0, "whoever comes in is asked for no secret"


def home(monkeypatch: pytest.MonkeyPatch, parent: Path) -> Path:
    made = parent / "tidemill-spark-home-12345678"
    (made / "s").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(made))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return made


def test_sockets_lie_in_the_home_that_we_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = home(monkeypatch, folder)
    for master in ("local[2]", "spark://127.0.0.1:7077"):
        conf = without_ports(master, {})
        assert conf["spark.python.unix.domain.socket.dir"] == str(made / "s")
        assert conf["spark.python.unix.domain.socket.enabled"] == "true"


def test_ports_stay_where_files_would_not_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home(monkeypatch, folder)
    assert without_ports("local[2]", {})
    assert not without_ports("spark://10.0.0.7:7077", {}), "others have folders of their own"
    assert not without_ports("local[2]", {"spark.pyspark.python": "/usr/bin/python3"})
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert not without_ports("local[2]", {}), "that one may not know our daemon"
    home(monkeypatch, folder / ("long" * 10))
    assert not without_ports("local[2]", {}), "the name would be too long for a socket"
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert not without_ports("local[2]", {}), "a folder of the user's"
