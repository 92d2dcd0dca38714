"""Brokers that die while Spark reads."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import WAIT_S, Seen, create, fill, numbers, source, stream

from tidemill.testing.process import BrokerProcess

RECORDS = 40_000
ROWS_AT_A_TIME = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "mortal") as process:
        yield process


def restart_when_dead(broker: BrokerProcess) -> threading.Thread:
    """Starts the broker again, on the same data and port, when somebody has killed it."""

    def wait_and_start() -> None:
        while broker.running:
            time.sleep(0.02)
        broker.kill()
        broker.start()

    thread = threading.Thread(target=wait_and_start, daemon=True)
    thread.start()
    return thread


def test_a_broker_dies_in_the_middle_of_a_read(
    spark: Any, mortal: BrokerProcess, tmp_path: Path
) -> None:
    """The row that kills it is counted like all others: nothing is missing, nothing twice."""
    create(mortal.bootstrap, "t")
    fill(mortal.bootstrap, "t", (b"%d" % n + b"." * 500 for n in range(RECORDS)))
    pid, mark = mortal.pid, str(tmp_path / "killed")

    def kill_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                os.kill(pid, signal.SIGKILL)
            except FileExistsError:
                pass
            yield batch.select(["offset"])

    reader = source(
        spark.read,
        mortal.bootstrap,
        **{
            "subscribe": "t",
            "kafka.prefetch.max.bytes": 1_000_000,
            "kafka.max.partition.fetch.bytes": 200_000,
        },
    )
    frame = reader.schema("offset bigint, value binary").load()
    again = restart_when_dead(mortal)
    # The first rows reach whoever kills while most of the topic is still to be fetched.
    spark.conf.set(ROWS_AT_A_TIME, "500")
    try:
        rows = frame.mapInArrow(kill_once, "offset bigint").collect()
    finally:
        spark.conf.unset(ROWS_AT_A_TIME)
    again.join(WAIT_S)
    assert Path(mark).exists()
    assert sorted(row.offset for row in rows) == list(range(RECORDS))


def test_a_stream_outlives_its_broker(spark: Any, mortal: BrokerProcess, tmp_path: Path) -> None:
    """Killed between batches, when the driver asks how far it may go."""
    create(mortal.bootstrap, "t")
    fill(mortal.bootstrap, "t", numbers(0, 3_000))
    frame = source(
        spark.readStream,
        mortal.bootstrap,
        subscribe="t",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=1_000,
        commitOffsets="g",
    ).load()
    seen = Seen()
    query = stream(frame, seen, tmp_path / "c")
    try:
        seen.wait_for(1_000, query)
        mortal.kill()
        mortal.start()
        fill(mortal.bootstrap, "t", numbers(3_000, 4_000))
        seen.wait_for(4_000, query)
    finally:
        query.stop()
    assert sorted(seen.values, key=int) == numbers(0, 4_000)
