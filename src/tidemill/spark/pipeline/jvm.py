"""The JVM of a pipeline's driver: in a session of its own, its talk in a file.

Spark's JVM would otherwise share our terminal: a Ctrl-C there would reach its Python workers in the
middle of a batch, and its log lines would write over the progress. It still ends with us, however
we end, for it watches the pipe to us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.spark.pipeline.spark_errors import SparkFailedError, is_sparks, root_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_BYTES_MAX = 16 << 20
LAST_WORDS_BYTES = 8_000
_LAST_WORDS = re.compile(
    r"^(?:Error|Exception in thread \"main\" [\w.$]+|Error occurred during [\w ]+): *(.+)$",
    re.MULTILINE,
)


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
    began_at = log.stat().st_size if log.exists() else 0
    try:
        with log.open("ab") as output:
            kwargs = {"stdout": output, "stderr": output, "start_new_session": True}
            gateway = launch_gateway(settings, kwargs)
        SparkContext._ensure_initialized(gateway=gateway)
        return session(name, master=master, conf=conf)
    except Exception as error:
        if not is_sparks(error):
            raise
        cause = _last_words(log, began_at) or root_cause(str(error)) or type(error).__name__
        raise SparkFailedError(f"Spark does not start on {master}: {cause}") from error


def _last_words(log: Path, began_at: int) -> str | None:
    """Why a JVM ended before it could tell us itself; None if it did, or does not say."""
    with log.open("rb") as file:
        file.seek(max(began_at, log.stat().st_size - LAST_WORDS_BYTES))
        found = _LAST_WORDS.findall(file.read().decode(errors="replace"))
    return found[-1].strip() if found else None
