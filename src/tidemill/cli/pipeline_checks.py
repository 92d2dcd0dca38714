"""The parts of `tidemill pipeline check` that need more than the file: a broker, and Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.render import plural, talk
from tidemill.errors import ErrorCode
from tidemill.spark import needs

if TYPE_CHECKING:
    from tidemill.cli.connect import Target
    from tidemill.spark.pipeline.load import Problems
    from tidemill.spark.pipeline.model import Pipeline

BROKER_WAIT_S = 10.0


async def check_topics(pipeline: Pipeline, target: Target, problems: Problems) -> None:
    """Look up the topics that the file names. That no broker answers is an error where somebody
    has said which one to ask; else it is told, and the file is checked by itself."""
    from tidemill.client.errors import RequestTimeoutError, UnreachableError
    from tidemill.spark.pipeline.check import check_topics as check
    from tidemill.spark.pipeline.check import named_topics

    try:
        async with asyncio.timeout(_wait_s(target)), target.admin() as admin:
            existing = [topic.name for topic in await admin.list_topics()]
            hidden = named_topics(pipeline) - set(existing)
            answers = await admin.describe_topics(sorted(hidden))
    except (UnreachableError, RequestTimeoutError, TimeoutError, OSError):
        if not target.is_default:
            raise CommandError(
                f"no broker answers at {target.bootstrap} ({target.source})",
                Exit.UNREACHABLE,
                "--no-broker checks the file without looking up its topics",
            ) from None
        talk(f"no broker answers at {target.bootstrap} ({target.source}): topics are not checked")
        return
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    forbidden = {name for name, error in answers.errors().items() if error.code is denied}
    check(pipeline, existing, problems, forbidden=forbidden)


def _wait_s(target: Target) -> float:
    return BROKER_WAIT_S if target.timeout_ms is None else target.timeout_ms / 1000


def check_with_spark(pipeline: Pipeline, target: Target, problems: Problems) -> None:
    """Have Spark judge every expression; nothing is read for that."""
    if (lacking := needs.missing()) is not None:
        talk(f"{lacking.what}: expressions are checked only superficially; {lacking.remedy}")
        return
    from tidemill.spark.pipeline.compile import compile_all
    from tidemill.spark.pipeline.inputs import InputsToJudge, TopicInputs
    from tidemill.spark.pipeline.jvm import own_session
    from tidemill.spark.pipeline.spark_errors import SparkFailedError, is_sparks, root_cause
    from tidemill.spark.sessions import SHORT_LIVED

    with TemporaryDirectory(prefix="tidemill-check-") as folder:
        spark = own_session(
            "tidemill check",
            master="local[1]",
            conf={**SHORT_LIVED, "spark.ui.enabled": "false"},
            log=Path(folder) / "spark.log",
        )
        try:
            inputs = InputsToJudge(TopicInputs(spark, target.bootstrap, {}))
            compile_all(pipeline, inputs, problems)
        except Exception as error:
            if not is_sparks(error):
                raise
            cause = root_cause(str(error)) or type(error).__name__
            raise SparkFailedError(f"Spark cannot judge the pipeline: {cause}") from error
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
