"""Rows become records: columns `value`, `key`, `topic`, `partition`, `headers`, `timestamp`.

`value` is bytes or text, or with `valueFormat` a struct that each task encodes.

A task sends its rows through an idempotent producer and reports, once everything is acknowledged,
how far each partition got: the prepared message. The driver's `commit` gets the messages of all
tasks. Today there is nothing left to decide by then, so a task that Spark repeats writes its rows
again. With transactions the tasks will leave theirs open and name them in the message, and `commit`
will write down its decision before it completes them; nothing else here has to change.

Producers are kept from batch to batch, since connecting and asking for a producer id costs more
than a small batch does; see `Producers`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.clock import Clock, SystemClock
from tidemill.errors import TidemillError
from tidemill.spark.formats import FormatOptions, ValueFormat, pinned, value_format
from tidemill.spark.tables.target import BatchId, TaskIdentity
from tidemill.types import TopicPartition

PRODUCERS_MAX: Final = 4
NO_PARTITION: Final = -1

HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", HEADER))


class SinkColumnError(ValueError):
    """A column of the query cannot be written to a topic; says what is wanted instead."""


class Send(NamedTuple):
    """Rows for one topic, in their order; what a columnar producer takes."""

    topic: str
    partitions: np.ndarray[Any, np.dtype[np.int32]] | None
    keys: pa.BinaryArray | None
    values: pa.BinaryArray
    headers: pa.ListArray | None
    timestamps_ms: np.ndarray[Any, np.dtype[np.int64]]


# --- columns --------------------------------------------------------------------------------------


def check_columns(schema: pa.Schema, topic: str | None, value: FormatOptions | None = None) -> None:
    """Says at once what would fail in every task; columns with other names are ignored."""
    if "value" not in schema.names:
        found = ", ".join(schema.names) or "none"
        raise SinkColumnError(f"a topic needs a column `value`; the query has: {found}")
    if topic is None and "topic" not in schema.names:
        raise SinkColumnError("which topic? Set the option `topic`, or give a column `topic`")
    for name, fits, wanted in _WANTED:
        if name == "value" and value is not None:
            continue
        if name in schema.names and not fits(schema.field(name).type):
            raise SinkColumnError(
                f"column {name} must be {wanted}, and is {schema.field(name).type}; cast it"
            )
    if value is not None:
        _check_struct(schema.field("value").type, value)


def _check_struct(kind: pa.DataType, value: FormatOptions) -> None:
    if not pa.types.is_struct(kind):
        raise SinkColumnError(
            f"column value must be a struct to be written as {value.format}, and is {kind}; "
            "make it one with struct(...), or leave `valueFormat` out"
        )
    value_format(value).encode(pa.array([], kind))


def encoded(batch: pa.RecordBatch, form: ValueFormat) -> pa.RecordBatch:
    """The same rows, `value` as the bytes of its struct."""
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, "value", form.encode(batch.column(at)))


def _is_bytes(kind: pa.DataType) -> bool:
    return _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {each.name: each.type for each in kind.value_type}
    return (
        set(fields) == {"key", "value"} and _is_text(fields["key"]) and _is_bytes(fields["value"])
    )


_WANTED: Final[Sequence[tuple[str, Callable[[pa.DataType], bool], str]]] = (
    ("value", _is_bytes, "binary or string"),
    ("key", _is_bytes, "binary or string"),
    ("topic", _is_text, "string"),
    ("partition", pa.types.is_int32, "int"),
    ("headers", _is_headers, "array<struct<key: string, value: binary>>"),
    ("timestamp", pa.types.is_timestamp, "timestamp"),
)


def sends(batch: pa.RecordBatch, topic: str | None, now_ms: int) -> Iterator[Send]:
    """What to send for a record batch, topic by topic."""
    if topic is not None:
        yield _send(batch, topic, now_ms)
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise SinkColumnError("column topic is null in a row, and there is no option `topic`")
    found = pc.unique(topics).to_pylist()
    for name in found:
        rows = batch if len(found) == 1 else batch.filter(pc.equal(topics, name))
        yield _send(rows, name, now_ms)


def _send(batch: pa.RecordBatch, topic: str, now_ms: int) -> Send:
    columns = {name: batch.column(name) for name in batch.schema.names}
    partitions = columns.get("partition")
    key = columns.get("key")
    return Send(
        topic,
        None if partitions is None else _partitions(partitions),
        None if key is None else key.cast(pa.binary()),
        columns["value"].cast(pa.binary()),
        _headers(columns.get("headers")),
        _timestamps_ms(columns.get("timestamp"), batch.num_rows, now_ms),
    )


def _partitions(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    found: np.ndarray[Any, np.dtype[np.int32]]
    found = pc.fill_null(column, NO_PARTITION).to_numpy(zero_copy_only=False)
    if len(found) and int(found.min()) < NO_PARTITION:
        raise SinkColumnError(f"column partition is {int(found.min())} in a row")
    return found


def _headers(column: pa.Array | None) -> pa.ListArray | None:
    if column is None or column.null_count == len(column):
        return None
    headers = column.cast(HEADERS)
    each = headers.flatten()
    if each.null_count or each.field("key").null_count:
        raise SinkColumnError("column headers has a header without a key in a row")
    return headers


def _timestamps_ms(
    column: pa.Array | None, rows: int, now_ms: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    if column is None or column.null_count == rows:
        return np.full(rows, now_ms, dtype=np.int64)
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).view(pa.int64())
    filled: np.ndarray[Any, np.dtype[np.int64]]
    filled = pc.fill_null(micros, now_ms * 1000).to_numpy(zero_copy_only=False)
    return filled // 1000


# --- producers ------------------------------------------------------------------------------------


class RecordProducer(Protocol):
    """What a task needs of a columnar producer."""

    def send(
        self,
        topic: str,
        partitions: np.ndarray[Any, np.dtype[np.int32]] | None,
        keys: pa.BinaryArray | None,
        values: pa.BinaryArray,
        headers: pa.ListArray | None,
        timestamps_ms: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None: ...

    def flush(self) -> dict[TopicPartition, int]: ...

    def close(self) -> None: ...


P = TypeVar("P", bound=RecordProducer)
Setup = tuple[str, tuple[tuple[str, str], ...]]
"""Brokers and settings: which producers are alike."""


class Producers(Generic[P]):
    """The producers of this process, a few at most, each lent to one task at a time.

    One that failed is closed rather than kept: what it still had to send is unknown. A forked
    process must not use what its parent opened, so the process is part of what is kept.
    """

    def __init__(self, make: Callable[[Setup], P], *, limit: int = PRODUCERS_MAX) -> None:
        self._make = make
        self._limit = limit
        self._idle: OrderedDict[tuple[int, Setup], P] = OrderedDict()

    @contextmanager
    def lend(self, setup: Setup) -> Iterator[P]:
        name = (os.getpid(), setup)
        producer = self._idle.pop(name, None) or self._make(setup)
        try:
            yield producer
        except BaseException:
            with suppress(TidemillError, OSError):
                producer.close()
            raise
        spare = self._idle.pop(name, None)
        self._idle[name] = producer
        if spare is not None:
            spare.close()
        while len(self._idle) > self._limit:
            (process, _), oldest = self._idle.popitem(last=False)
            if process == os.getpid():
                oldest.close()


def _columnar(setup: Setup) -> RecordProducer:
    from tidemill.client.columnar import ColumnarProducer

    bootstrap, settings = setup
    producer = ColumnarProducer(bootstrap, settings=dict(settings))
    producer.start()
    return producer


_PRODUCERS: Final = Producers(_columnar)


# --- the sink -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicWritten:
    """A task's prepared message: its records are acknowledged up to these offsets."""

    task: TaskIdentity
    records: int
    last_offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class TopicWriter:
    """The half that travels to executors."""

    bootstrap: str
    settings: tuple[tuple[str, str], ...]
    topic: str | None
    value: FormatOptions | None = None

    def write(
        self,
        batches: Iterator[pa.RecordBatch],
        task: TaskIdentity,
        *,
        producers: Producers[RecordProducer] = _PRODUCERS,
        clock: Clock | None = None,
    ) -> TopicWritten:
        clock = clock or SystemClock()
        form = value_format(self.value) if self.value is not None else None
        records = 0
        with producers.lend((self.bootstrap, self.settings)) as producer:
            for batch in batches:
                if batch.num_rows:
                    rows = batch if form is None else encoded(batch, form)
                    for send in sends(rows, self.topic, clock.now_ms()):
                        producer.send(*send)
                    records += batch.num_rows
            return TopicWritten(task, records, dict(producer.flush()))


class TopicTarget:
    """The half that stays with the driver."""

    def __init__(
        self,
        bootstrap: str,
        settings: Mapping[str, str],
        topic: str | None,
        value: FormatOptions | None = None,
    ) -> None:
        self._writer = TopicWriter(bootstrap, tuple(sorted(settings.items())), topic, value)

    def prepare(self, schema: pa.Schema) -> TopicWriter:
        value = pinned(self._writer.value) if self._writer.value is not None else None
        check_columns(schema, self._writer.topic, value)
        return replace(self._writer, value=value)

    def commit(self, written: Sequence[TopicWritten], batch: BatchId) -> bool:
        """Every record is acknowledged already; transactions would be completed here."""
        return any(each.records for each in written)

    def abort(self, written: Sequence[TopicWritten]) -> None:
        """What is in a topic stays there; open transactions would be aborted here."""
