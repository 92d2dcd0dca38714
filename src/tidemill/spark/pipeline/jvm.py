"""The JVM of a pipeline's driver: in a session of its own, its talk in a file.

Spark's JVM would otherwise share our terminal: a Ctrl-C there would reach its Python workers in the
middle of a batch, and its log lines would write over the progress. It still ends with us, however
we end, for it watches the pipe to us.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_BYTES_MAX = 16 << 20


def own_session(name: str, *, master: str, conf: Mapping[str, str], log: Path) -> SparkSession:
    """A session on a new JVM whose output goes to `log`; the last run's is kept beside it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    from tidemill.spark.sessions import recommended_conf, session, set_environment

    set_environment(master)
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    settings = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    for key, value in {**recommended_conf(master), **conf}.items():
        settings.set(key, value)
    with log.open("ab") as output:
        kwargs = {"stdout": output, "stderr": output, "start_new_session": True}
        gateway = launch_gateway(settings, kwargs)
    SparkContext._ensure_initialized(gateway=gateway)
    return session(name, master=master, conf=conf)
