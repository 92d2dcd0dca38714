"""Spark's own Kafka connector: the jars that make `format("kafka")` work in a session.

They are fetched one by one: the connector's release names a token provider of the same version that
repositories lack, and the one of an earlier release serves it as well.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from tests.reference.jars import JarSet

CONNECTOR_VERSION: Final = "4.2.0"

_JARS: Final = JarSet(
    name="spark-kafka",
    version=CONNECTOR_VERSION,
    variable="TIDEMILL_SPARK_KAFKA_JARS",
    first_jar=f"spark-sql-kafka-0-10_2.13-{CONNECTOR_VERSION}.jar",
    artifacts=(
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    transitive=False,
)


@functools.cache
def _find_jars() -> Path | str:
    """Asked once per process."""
    return _JARS.find()


def connector_jars() -> str | None:
    """The jars as `spark.jars` takes them, or None; `connector_missing` then says why."""
    found = _find_jars()
    if isinstance(found, str):
        return None
    return ",".join(str(path) for path in sorted(found.glob("*.jar")))


def connector_missing() -> str:
    """Why `connector_jars` has no answer; empty when it has one."""
    found = _find_jars()
    return found if isinstance(found, str) else ""
