"""A standalone cluster as users start it; a stream on it outlives a worker and a broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psutil
import pyarrow.dataset
import pytest
from tests.cli.helpers import environment, quick
from tests.cli.ups import Up
from tests.spark.driver import Driver
from tests.spark.processes import executors, listening, words
from tests.spark.traffic import Traffic

from tidemill.children import Running

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

READY_TIMEOUT_S = 300
JOB_TIMEOUT_S = 400
STOP_TIMEOUT_S = 60
TOPIC = "standalone"

JOB = """
import sys
from tidemill.spark import session

both = {"spark.executor.memory": "512m", "spark.scheduler.minRegisteredResourcesRatio": "1"}
spark = session("tiny", master=sys.argv[1], conf=both)
numbers = spark.sparkContext.parallelize(range(10), 2)
archived = numbers.filter(lambda _: ".zip" in __import__("pyspark").__file__)
print(numbers.map(lambda number: number**2).sum(), archived.count(), flush=True)
sys.stdin.read()
spark.stop()
"""


class SparkCluster(Running):
    """`tidemill pipeline cluster up`, as a user runs it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._environment = environment({"TMPDIR": str(folder)})
        self._arguments = arguments
        self._said = ""

    def start(self) -> Self:
        command = [sys.executable, "-m", "tidemill.cli", "pipeline", "cluster", "up"]
        self.process = subprocess.Popen(
            [*command, *self._arguments, "--format", "json"],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        watchdog = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        watchdog.cancel()
        if not line:
            pytest.fail(f"not ready: {self.stop()}")
        self.master = json.loads(line)["ready"]
        self.workers = [each for each in self.family if "worker.Worker" in words(each)]
        return self

    @property
    def family(self) -> list[psutil.Process]:
        """The master, the workers, and whoever these have started."""
        everyone = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in everyone if words(each)]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> str:
        """Ask it to end; what it said on the way."""
        if self.process.returncode is None:
            self.process.send_signal(how)
            _, self._said = self.process.communicate(timeout=STOP_TIMEOUT_S)
        return self._said


def test_a_stream_outlives_a_worker_and_a_broker(tmp_path: Path) -> None:
    """And every record is in the table once."""
    table = tmp_path / "table"
    with (
        Up(tmp_path / "brokers", "--brokers", "3") as brokers,
        Traffic(brokers.bootstrap, TOPIC, partitions=3, rate=200).create_topic(replicas=3) as sent,
        SparkCluster(tmp_path, "--workers", "2", "--memory-mb", "512") as cluster,
        Driver(
            cluster.master,
            brokers.bootstrap,
            TOPIC,
            {"table": f"parquet:{table}"},
            tmp_path,
            batch_records=20_000,
        ) as driver,
    ):
        driver.wait_for_batches(1)
        first, second = cluster.workers
        assert executors(first.pid), "the work is not spread over the workers"
        assert executors(second.pid), "the work is not spread over the workers"

        first.kill()
        driver.wait_for_batches(driver.batches["table"] + 2)

        brokers.kill(leader_port(brokers))
        driver.wait_for_batches(driver.batches["table"] + 2)

        values = sent.all_acked()
        while driver.rows["table"] < len(values):
            driver.wait_for_batches(driver.batches["table"] + 1)
        said = cluster.stop()
    assert f"(pid {first.pid}) was killed by SIGKILL" in said
    found = pyarrow.dataset.dataset(table).to_table(columns=["value"])["value"].to_pylist()
    assert sorted(found, key=int) == values


def leader_port(brokers: Up) -> int:
    """The port of the broker that leads the first partition."""
    leader = brokers.json("topic", "describe", TOPIC)["partitions"][0]["leader"]
    listed = brokers.status()["brokers"]
    return next(int(each["port"]) for each in listed if each["id"] == leader)


def test_jobs_run_on_it_here_only_and_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with SparkCluster(tmp_path, "--memory-mb", "512") as cluster, job(cluster) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "285 0\n", driver.communicate()[1]
        family = [*cluster.family, *psutil.Process(driver.pid).children(recursive=True)]
        assert [len(executors(worker.pid)) for worker in cluster.workers] == [1, 1]
        addresses = {address for each in family for address in listening(each)}
        assert addresses == {"127.0.0.1"}
        driver.communicate()
        assert driver.returncode == 0

        cluster.stop(signal.SIGINT)
        assert cluster.process.returncode == 0
        _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
        assert not alive
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_a_driver_without_the_secret_gets_nothing_done(tmp_path: Path) -> None:
    """As another user's, who cannot read it: the master's port can be reached and does not help."""
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "another-user")}
    one = ("--workers", "1", "--memory-mb", "512")
    with SparkCluster(tmp_path, *one) as cluster, job(cluster, elsewhere) as driver:
        said, complained = driver.communicate()
        assert said == ""
        assert driver.returncode != 0
        assert "All masters are unresponsive" in complained


@contextmanager
def job(
    cluster: SparkCluster, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A driver with a session as users get one; it stays until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", JOB, cluster.master], env=environment(variables), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        watchdog = threading.Timer(JOB_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            process.kill()
            watchdog.cancel()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(("--workers", "0"), "--workers is 1 to 64"), (("--port", "70000"), "--port a port")],
)
def test_what_cannot_be_is_refused_in_words(arguments: tuple[str, ...], complaint: str) -> None:
    ran = quick("pipeline", "cluster", "up", *arguments)
    assert ran.status == 2
    assert complaint in ran.err


def test_a_dry_run_starts_nothing() -> None:
    ran = quick("pipeline", "cluster", "up", "--workers", "3", "--dry-run")
    assert ran.status == 0
    assert "would run a Spark master and 3 workers" in ran.err
