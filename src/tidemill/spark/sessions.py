"""A Spark session with the settings that topics want.

    import tidemill.spark

    spark = tidemill.spark.session("clicks")
    spark.read.format("tidemill").option("subscribe", "clicks")...

A session of your own works as well: give it `recommended_conf()`, and set `PYSPARK_PYTHON` to the
interpreter that has Tidemill installed, or Spark's workers take whatever `python3` is on the path.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemill.spark import access
from tidemill.spark.home import home_without_archive, sockets_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"

HERE = "127.0.0.1"

SHORT_LIVED: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a JVM of the driver that is to give answers soon and has little data: compiled once, lightly,
and without threads for collecting garbage, it takes half the time until the first rows."""

_PYTHON: Final = "spark.pyspark.python"
_LOCAL = re.compile(r"local(\[.*\])?")
_CLUSTER_HERE = re.compile(r"spark://(localhost|127(\.\d+){3})(:\d+)?")


def recommended_conf(master: str = DEFAULT_MASTER) -> dict[str, str]:
    """What makes a difference, and why; whoever knows better overrides it."""
    conf = {
        # Spark measures a batch for Python after every row, which is quadratic where an array (such
        # as `headers`) is null. Without the limit in bytes, the one in records holds: 10,000 rows.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        # Times reach Python sinks labelled with this zone, and table formats want UTC.
        "spark.sql.session.timeZone": "UTC",
        # A third less latency per batch than the default on local disks; renames are as atomic.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileSystemBasedCheckpointFileManager"
        ),
        # State that outgrows the memory goes to disk.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.ui.showConsoleProgress": "false",
    }
    if is_here(master):
        # Nobody outside has to reach the driver, and nobody should.
        conf |= {"spark.driver.host": HERE, "spark.driver.bindAddress": HERE}
    if _LOCAL.fullmatch(master):
        # Everything is in this process: 200 tiny shuffle partitions only cost.
        conf["spark.sql.shuffle.partitions"] = str(_cores(master))
        # With a heap as small as a driver's, throughput counts more than short pauses.
        conf["spark.driver.extraJavaOptions"] = "-XX:+UseParallelGC"
    return conf


def is_here(master: str) -> bool:
    """Whether all of Spark runs on this machine: in this process, or on a cluster on loopback."""
    return bool(_LOCAL.fullmatch(master) or _CLUSTER_HERE.fullmatch(master))


def set_environment(master: str) -> None:
    """What a JVM takes over when it starts; what the user has set already stays."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", HERE)  # The web page has no setting of its own.
    conf = access.conf_of(master) if _CLUSTER_HERE.fullmatch(master) else None
    if conf is not None:
        os.environ.setdefault("SPARK_CONF_DIR", str(conf))  # It has the cluster's secret.
    if is_here(master) and "SPARK_HOME" not in os.environ:
        home = home_without_archive()
        if home is not None:
            os.environ["SPARK_HOME"] = str(home)


def session(
    name: str = "tidemill",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the recommended settings, `conf` on top; workers run this interpreter."""
    from pyspark.sql import SparkSession

    target = master or DEFAULT_MASTER
    set_environment(target)
    builder = SparkSession.builder.appName(name).master(target)
    given = conf or {}
    for key, value in {**recommended_conf(target), **without_ports(target, given), **given}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def without_ports(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Have Spark and its Python workers talk through files, where all of that is here and ours.

    On a port each task waits for the network's timers; see `daemon`. Spark asks nobody who comes
    by a file for a secret, so that has to lie where nobody else comes.
    """
    folder = sockets_folder()
    runs_us = os.environ.get("PYSPARK_PYTHON") == sys.executable and _PYTHON not in given
    if folder is None or not runs_us or not is_here(master):
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
        "spark.python.daemon.module": "tidemill.spark.daemon",
    }


def _cores(master: str) -> int:
    given = re.search(r"\[(\d+)", master)
    if given:
        return int(given[1])
    return (os.cpu_count() or 1) if "*" in master else 1
