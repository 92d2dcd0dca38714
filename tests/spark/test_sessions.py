"""The settings of a session: where all of Spark is on this machine, nobody outside reaches it."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill.spark
from tidemill.spark import settling
from tidemill.spark.sessions import recommended_conf


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "spark://127.0.0.1:7077", "spark://localhost:7077"]
)
def test_the_driver_listens_here_only_if_all_of_spark_is_here(master: str) -> None:
    conf = recommended_conf(master)
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize(
    "master",
    ["spark://10.0.0.7:7077", "spark://127.0.0.1.example.org:7077", "spark://127.0.0.1,far:7077"],
)
def test_executors_elsewhere_can_reach_the_driver(master: str) -> None:
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & recommended_conf(master).keys()


def test_only_a_session_within_one_process_has_as_few_shuffle_partitions_as_cores() -> None:
    assert recommended_conf("local[3]")["spark.sql.shuffle.partitions"] == "3"
    assert "spark.sql.shuffle.partitions" not in recommended_conf("spark://127.0.0.1:7077")


def test_workers_import_the_installed_package_and_not_an_archive(spark: Any) -> None:
    """Python keeps no bytecode of what is in an archive, so each would compile all of it."""
    from pyspark.sql.functions import udf

    where = udf(lambda _: __import__("pyspark").__file__, "string")
    (row,) = spark.range(1).select(where("id").alias("file")).collect()
    assert ".zip" not in row.file
    assert row.file == __import__("pyspark").__file__


ASKS_FOR_ONE = """
import sys
import tidemill.spark
assert not {"pyspark", "pyarrow"} & set(sys.modules), "whoever needs no Spark does not pay for it"
spark = tidemill.spark.session()
print(spark.range(3).count(), spark.conf.get("spark.sql.session.timeZone"))
spark.stop()
import tidemill.spark.sessions
assert callable(tidemill.spark.session)
"""


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_session_is_one_call() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASKS_FOR_ONE], capture_output=True, text=True, timeout=280
    )
    assert (ran.returncode, ran.stdout) == (0, "3 UTC\n"), ran.stderr


def test_the_package_has_nothing_else_to_offer() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        tidemill.spark.__getattr__("sesion")


MAKES_ONE = """
import os, signal, sys
from tidemill.spark.home import home_without_archive
print(home_without_archive(), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


def a_home(how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKES_ONE, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_a_killed_driver_left_is_cleared_away_by_the_next_and_nothing_else() -> None:
    with a_home("lives") as living:
        assert living.stdout is not None
        in_use = Path(living.stdout.readline().strip())
        killed, _ = a_home("killed").communicate(timeout=60)
        left = Path(killed.strip())
        assert left.is_dir()
        made, _ = a_home("ends").communicate("", timeout=60)
        assert not left.exists()
        assert not Path(made.strip()).exists()
        assert (in_use / "jars").is_dir()
        living.communicate("", timeout=60)
    assert not in_use.exists()


def test_a_process_sets_aside_what_it_has_loaded_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes after the first pieces of work is garbage in time, and has to be collected."""
    frozen: list[int] = []
    monkeypatch.setattr(settling, "_done", itertools.count(1))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    for _ in range(10):
        settling.settle()
    assert len(frozen) == settling.PIECES_OF_WORK
