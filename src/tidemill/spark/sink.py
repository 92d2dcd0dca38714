"""The writing half of `format("tidemill")`: an option says where rows go, a topic or a table.

Spark asks for a writer once per batch, in a process of the driver, sends it to executors, and later
calls `commit` or `abort` of a copy in another process of the driver. So a writer carries only what
it was told; what a batch has done so far is in the tasks' messages. A streaming task learns its
query and batch from local properties of its job, since the interface does not pass them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidemill.spark.option_values import OptionError
from tidemill.spark.options import SinkOptions
from tidemill.spark.settling import settle
from tidemill.spark.tables.target import BatchId, TableOptions, TaskIdentity, open_target
from tidemill.spark.topic_sink import TopicTarget

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task says to the driver: `FilesWritten` or `TopicWritten`."""

    what: Any


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, as a value: opened anew in every process that needs it."""

    options: SinkOptions
    overwrite: bool

    def open(self) -> Any:
        if self.options.table is None:
            options = self.options
            return TopicTarget(options.bootstrap, options.client, options.topic, options.value)
        return open_target(self.table_options())

    def table_options(self) -> TableOptions:
        return TableOptions.parse(self.options, overwrite=self.overwrite)


def writer_for(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool
) -> DataSourceArrowWriter | DataSourceStreamArrowWriter:
    """The writer for a batch (`streaming`: a micro-batch) of rows with this schema.

    `overwrite` is the save mode overwrite, or the output mode complete of a stream: a table is
    replaced; to a topic a stream's result is sent anew, and a batch query must append.
    """
    target = Target(SinkOptions.parse(options), overwrite)
    if target.options.table is None and overwrite and not streaming:
        raise OptionError("mode", "overwrite", "a topic can only be appended to: mode('append')")
    writer = target.open().prepare(to_arrow_schema(schema, timezone="UTC"))
    settle()
    if streaming:
        return StreamSink(target, writer)
    once = target.table_options().once if target.options.table is not None else None
    return BatchSink(target, writer, once or BatchId(f"write-{secrets.token_hex(8)}", 0, False))


class BatchSink(DataSourceArrowWriter):  # type: ignore[misc]
    """One write of a DataFrame."""

    def __init__(self, target: Target, writer: Any, batch: BatchId) -> None:
        self._target = target
        self._writer = writer
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._writer, iterator, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._target, _written(messages), self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._target, messages)


class StreamSink(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """One micro-batch of a stream."""

    def __init__(self, target: Target, writer: Any) -> None:
        self._target = target
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY)
        batch = BatchId(query, int(context.getLocalProperty(BATCH_PROPERTY)))
        return _write(self._writer, iterator, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = _written(messages)
        if written:
            query = written[0].task.batch.query
            _commit(self._target, written, BatchId(query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._target, messages)


def _write(writer: Any, iterator: Iterator[pa.RecordBatch], batch: BatchId) -> Written:
    written = Written(writer.write(iterator, _task(batch)))
    settle()
    return written


def _commit(target: Target, written: list[Any], batch: BatchId) -> None:
    target.open().commit(written, batch)
    settle()


def _task(batch: BatchId) -> TaskIdentity:
    # From the system's own randomness: workers are forked and would share a seeded generator.
    return TaskIdentity(batch, TaskContext.get().partitionId(), secrets.token_hex(8))


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Any]:
    return [message.what for message in messages if isinstance(message, Written)]


def _abort(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Deletes what tasks wrote, unless a commit may have gone through.

    Spark also aborts when the commit itself failed, and then it is not known whether the table has
    the files; they are left, for the next attempt to recognise or for the clean-up of orphans. When
    a task failed its message is missing, and nothing was ever committed.
    """
    if any(message is None for message in messages):
        target.open().abort(_written(messages))
