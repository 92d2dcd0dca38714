"""A Spark driver in a process of its own: streams from a topic into tables, until it is killed.

It prints one line of JSON for each batch that a query finished. `driver.py` starts and kills it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.spark.table_kinds import UPSERT, UPSERT_KEYS

from tidemill.spark import session
from tidemill.spark.pipeline.spark_errors import is_impatience
from tidemill.spark.sessions import SHORT_LIVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.1
CONF = {
    **SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED["spark.driver.extraJavaOptions"],
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", action="append", required=True, help="NAME=TABLE")
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--batch-records", type=int, required=True)
    parser.add_argument("--until-caught-up", action="store_true")
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE")
    arguments = parser.parse_args()
    conf = CONF | dict(each.split("=", 1) for each in arguments.conf)
    spark = session("tidemill-test", master=arguments.master, conf=conf)
    tables = dict(each.split("=", 1) for each in arguments.table)
    starts: dict[str, Callable[[], StreamingQuery]] = {
        name: partial(start, spark, name, table, arguments) for name, table in tables.items()
    }
    report(starts)


def start(
    spark: SparkSession, name: str, table: str, arguments: argparse.Namespace
) -> StreamingQuery:
    stream = (
        spark.readStream.format("tidemill")
        .option("kafka.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", arguments.batch_records)
        .load()
        .selectExpr("partition", "offset", "cast(value as string) as value")
    )
    if name == UPSERT:
        stream = stream.selectExpr("*", f"cast(value as bigint) % {UPSERT_KEYS} as key")
    writer = (
        stream.writeStream.format("tidemill")
        .queryName(name)
        .option("table", table)
        .option("checkpointLocation", f"{arguments.checkpoints}/{name}")
    )
    if name == UPSERT:
        writer = writer.option("mode", "upsert").option("keys", "key")
    if arguments.until_caught_up:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def report(starts: dict[str, Callable[[], StreamingQuery]]) -> None:
    """Say which batches were finished, until no query runs; a query's failure is ours.

    Spark gives the Python of a source ten seconds to come up, which on a busy machine is little:
    so queries start one after the other, and one that was too slow starts again."""
    running: dict[str, StreamingQuery] = {}
    for name, begin in starts.items():
        running[name] = begin()
        while running[name].isActive and running[name].lastProgress is None:
            time.sleep(POLL_S)
    said = dict.fromkeys(starts, -1)
    while running:
        time.sleep(POLL_S)
        # Looked at first: what a query did before it ended is said, too.
        ended = [name for name, query in running.items() if not query.isActive]
        for name, query in running.items():
            for progress in query.recentProgress:
                if progress.batchId > said[name] and progress.numInputRows:
                    said[name] = progress.batchId
                    say(table=name, batch=progress.batchId, rows=progress.numInputRows)
        for name in ended:
            query = running.pop(name)
            if is_impatience(str(query.exception() or "")):
                running[name] = starts[name]()
            else:
                query.awaitTermination()


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
