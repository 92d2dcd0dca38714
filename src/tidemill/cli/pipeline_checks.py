"""The parts of `tidemill pipeline check` that need more than the file: a broker, and Spark."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tidemill.cli.render import plural, talk
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.cli.connect import Target
    from tidemill.spark.pipeline.load import Problems
    from tidemill.spark.pipeline.model import Pipeline

BROKER_WAIT_S = 3.0


async def check_topics(pipeline: Pipeline, target: Target, problems: Problems) -> None:
    """Look up the topics that the file names; where no broker answers, say so and go on."""
    from tidemill.spark.pipeline.check import check_topics as check

    existing: list[str] | None = None
    with suppress(TidemillError, OSError, TimeoutError):
        async with asyncio.timeout(BROKER_WAIT_S), target.admin() as admin:
            existing = [topic.name for topic in await admin.list_topics()]
    if existing is None:
        talk(f"no broker answers at {target.bootstrap} ({target.source}): topics are not checked")
        return
    check(pipeline, existing, problems)


def check_with_spark(pipeline: Pipeline, target: Target, problems: Problems) -> None:
    """Have Spark judge every expression; nothing is read for that."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        talk("pyspark is not installed: expressions are checked only superficially")
        return
    from tidemill.spark.pipeline.compile import compile_all
    from tidemill.spark.pipeline.inputs import InputsToJudge, TopicInputs
    from tidemill.spark.pipeline.jvm import own_session

    with TemporaryDirectory(prefix="tidemill-check-") as folder:
        spark = own_session(
            "tidemill check",
            master="local[1]",
            conf={"spark.ui.enabled": "false"},
            log=Path(folder) / "spark.log",
        )
        try:
            inputs = InputsToJudge(TopicInputs(spark, target.bootstrap, {}))
            compile_all(pipeline, inputs, problems)
        finally:
            spark.stop()


def summary(pipeline: Pipeline) -> str:
    """What there is in a file with nothing wrong."""
    from tidemill.spark.pipeline.plan import queries

    parts = [
        plural(len(pipeline.source), "source"),
        plural(len(pipeline.table), "table"),
        plural(len(pipeline.stage), "stage"),
        plural(len(pipeline.sink), "sink"),
    ]
    running = [query.group for query in queries(pipeline)]
    return f"{pipeline.path} is all right: {', '.join(parts)}; groups {', '.join(running)}"
