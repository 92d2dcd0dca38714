"""Topics with known contents, and streams whose rows a test can look at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tidemill.client.admin_types import NewTopic
from tidemill.client.blocking import Admin, Producer

WAIT_S = 180
"""A generous limit; a test that passes never waits so long."""


def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(bootstrap) as admin:
        admin.create_topics(
            [NewTopic(topic, partitions=partitions, replication_factor=1, configs=settings)]
        ).raise_first()


def fill(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    partition: int = 0,
    headers: Mapping[str, bytes | None] | None = None,
    timestamp_ms: int | None = None,
    key: Callable[[int], bytes | None] = lambda number: b"key-%d" % number,
) -> int:
    """Write the values in order; returns how many."""
    count = 0
    with Producer(bootstrap) as producer:
        for count, value in enumerate(values, start=1):
            producer.send_soon(
                topic,
                value,
                key=key(count - 1),
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
            )
        producer.flush()
    return count


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


class Seen:
    """What a stream's batches had; hand `take` to `foreachBatch`."""

    def __init__(self, *columns: str) -> None:
        self._columns = columns or ("value",)
        self.batches: list[list[Any]] = []
        self._changed = threading.Condition()

    def take(self, frame: Any, batch_id: int) -> None:
        rows = frame.select(*self._columns).collect()
        with self._changed:
            self.batches.append(rows)
            self._changed.notify_all()

    @property
    def values(self) -> list[bytes]:
        return [bytes(row[0]) for rows in self.batches for row in rows]

    def wait_for(self, count: int, query: Any) -> None:
        """Until so many rows have come; a query that fails first raises its error."""
        with self._changed:
            for _ in range(WAIT_S * 10):
                if len(self.values) >= count or not query.isActive:
                    break
                self._changed.wait(0.1)
        if query.exception() is not None:
            raise query.exception()
        assert len(self.values) >= count


def source(reader: Any, bootstrap: str, **options: object) -> Any:
    """`spark.read` or `spark.readStream` with the options of a topic."""
    reader = reader.format("tidemill").option("kafka.bootstrap.servers", bootstrap)
    for option, value in options.items():
        reader = reader.option(option, str(value))
    return reader


def stream(frame: Any, seen: Seen, checkpoint: Path, **trigger: Any) -> Any:
    """A running query; without a trigger it goes on until it is stopped."""
    writer = frame.writeStream.foreachBatch(seen.take).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def read_what_is_there(frame: Any, checkpoint: Path) -> Seen:
    """One run with the trigger availableNow; raises what the query raised."""
    seen = Seen()
    query = stream(frame, seen, checkpoint, availableNow=True)
    query.awaitTermination(WAIT_S)
    assert not query.isActive
    return seen
