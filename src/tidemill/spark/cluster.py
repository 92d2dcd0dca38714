"""A real Spark cluster on this machine: one master, some workers, started from pyspark's wheel.

    with StandaloneCluster(folder, workers=2) as cluster:
        spark = session(master=cluster.url)

Each is a process of its own (`spark-class`), as on a cluster of machines, so what is tried here
meets what is met there: executors are other processes, and they die alone. Everything listens on
127.0.0.1 only, on ports that the system chose; the REST server for submissions is off, and nobody
without the cluster's secret can submit a job (`access.py`). All that the processes write, their
logs included, goes below one folder. They stop with whoever started them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tidemill.children import Running, stopping_with_parent
from tidemill.errors import TidemillError
from tidemill.spark import access
from tidemill.spark.home import home_without_archive
from tidemill.spark.needs import missing

T = TypeVar("T")

HOST = "127.0.0.1"
WORKERS_MAX = 64
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
PAGE_TIMEOUT_S = 5.0
POLL_S = 0.1
LAST_WORDS_BYTES = 2_000

_MASTER_CLASS = "org.apache.spark.deploy.master.Master"
_WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
# What the master and the workers say of themselves once they have their ports.
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_PAGE_URL = re.compile(r"started at (http://\S+)")
# They only pass messages around: a small heap and a quick start suit them.
_DAEMON_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false"
_DAEMON_MEMORY = "256m"


class ClusterError(TidemillError):
    """The cluster could not be started; the message says why and where to look."""


@dataclass
class Daemon:
    """The master or a worker: a process and the file it writes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> int | None:
        """None while it runs, else its exit status, below nought for the signal that killed it."""
        return self.process.poll()

    def said(self) -> str:
        return self.log.read_text(errors="replace")


class StandaloneCluster(Running):
    """One master and `workers` workers, each of which offers its cores and memory to executors."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory_mb: int = 1024,
        port: int = 0,
        told_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Port 0 takes a free one. `told_to_stop` is asked while it waits for the start."""
        if not 1 <= workers <= WORKERS_MAX:
            raise ClusterError(f"a cluster here has 1 to {WORKERS_MAX} workers, not {workers}")
        self.folder = folder.absolute()
        self.url = ""
        """What `--master` takes."""
        self.page = ""
        """The address of the master's web page."""
        self.workers: list[Daemon] = []
        self._master: Daemon | None = None
        self._count = workers
        self._cores = cores
        self._memory_mb = memory_mb
        self._port = port
        self._told_to_stop = told_to_stop
        self._home = spark_home()

    @property
    def master(self) -> Daemon:
        if self._master is None:
            raise ClusterError("the cluster was not started")
        return self._master

    @property
    def daemons(self) -> list[Daemon]:
        return [*([self._master] if self._master else []), *self.workers]

    # Coming up.

    def start(self) -> Self:
        """Return once every worker has registered with the master."""
        for name in ("logs", "conf", "work", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        access.write_secret(self.folder / "conf")
        ports = ("--port", str(self._port), "--webui-port", "0")
        self._home = home_without_archive() or self._home
        self._master = self._spawn("master", _MASTER_CLASS, *ports)
        self.url = self._wait_for(lambda: _found(_MASTER_URL, self.master.said()))
        self.page = self._wait_for(lambda: _found(_PAGE_URL, self.master.said()))
        for number in range(1, self._count + 1):
            self.workers.append(self._spawn_worker(number))
        self._wait_for(lambda: len(self.registered()) >= self._count)
        access.publish(self.url, self.folder / "conf")
        return self

    def _spawn_worker(self, number: int) -> Daemon:
        name = f"worker-{number}"
        offers = ("--cores", str(self._cores), "--memory", f"{self._memory_mb}m")
        place = ("--work-dir", str(self.folder / "work" / name))
        ports = ("--port", "0", "--webui-port", "0")
        return self._spawn(name, _WORKER_CLASS, *ports, *offers, *place, self.url)

    def _spawn(self, name: str, main_class: str, *arguments: str) -> Daemon:
        log = self.folder / "logs" / f"{name}.log"
        command = [str(self._home / "bin" / "spark-class"), main_class, "--host", HOST, *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=stopping_with_parent(),
            )
        return Daemon(name, process, log)

    def _environment(self) -> dict[str, str]:
        """Nothing of a Spark that the user has elsewhere; executors inherit it from the workers."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("SPARK_")}
        return kept | {
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_HOSTNAME": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": _python_path(kept),
        }

    def _wait_for(self, look: Callable[[], T]) -> T:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (found := look()):
            if self._told_to_stop():
                raise ClusterError("stopped before the cluster was ready")
            for daemon in self.daemons:
                if daemon.status is not None:
                    raise ClusterError(f"{daemon.name} did not start: {_last_words(daemon)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the cluster is not ready after {START_TIMEOUT_S:g} s; "
                    f"see {self.folder / 'logs'}"
                )
            time.sleep(POLL_S)
        return found

    # While it runs.

    def registered(self) -> list[Mapping[str, Any]]:
        """The workers that the master counts on, as its web page lists them."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=PAGE_TIMEOUT_S) as answer:
                workers = json.load(answer)["workers"]
        except OSError:
            return []
        return [worker for worker in workers if worker["state"] == "ALIVE"]

    # Going down.

    def stop(self) -> None:
        """Ask them all at once and wait; a worker takes its executors with it."""
        if self.url:
            access.withdraw(self.url)
        for daemon in self.daemons:
            if daemon.status is None:
                daemon.process.send_signal(signal.SIGTERM)
                daemon.process.send_signal(signal.SIGCONT)  # One that is paused has to hear it.
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for daemon in self.daemons:
            try:
                daemon.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.process.kill()
                daemon.process.wait()
        self._master, self.workers = None, []


def spark_home() -> Path:
    """The folder of the pyspark that is installed here; it holds all of Spark."""
    lacking = missing()
    if lacking is not None:
        raise ClusterError(f"{lacking.what}; {lacking.remedy}")
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


def _python_path(environment: Mapping[str, str]) -> str:
    """Executors import Tidemill from where it was imported here, installed for them or not."""
    ours = str(Path(__file__).resolve().parents[2])
    theirs = environment.get("PYTHONPATH", "")
    return os.pathsep.join([ours, *(each for each in theirs.split(os.pathsep) if each)])


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _last_words(daemon: Daemon) -> str:
    lines = daemon.said()[-LAST_WORDS_BYTES:].strip().splitlines()
    return " | ".join(lines[-3:]) or f"exit status {daemon.status}"
