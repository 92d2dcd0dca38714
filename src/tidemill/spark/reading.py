"""The executor's side of a query: a range of offsets becomes Arrow batches of Spark's columns.

Keys and values stay where the columnar reader put them; what is the same in every row (topic and
partition) is made once and cut to length. Only the columns that the query's schema has are made.

A Python worker of Spark serves many tasks of many batches, so the reader and its connections are
kept from one task to the next.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidemill.client.columnar import ColumnarReader, OffsetsLost
from tidemill.client.errors import ClientError
from tidemill.errors import ErrorCode
from tidemill.spark.connecting import started
from tidemill.spark.data_loss import report_loss
from tidemill.spark.decoding import Decoding
from tidemill.spark.lookup import BrokerLookup
from tidemill.spark.offsets import OPEN_END, OffsetRange
from tidemill.spark.options import Edge, SourceOptions
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.wire.columns import ColumnBatch

logger = logging.getLogger(__name__)

HEADERS: Final = "headers"

_US_PER_MS: Final = 1_000
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // _US_PER_MS
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def read_range(
    options: SourceOptions, schema: pa.Schema, piece: OffsetRange
) -> Iterator[pa.RecordBatch]:
    """The records of a range, in batches of exactly this schema."""
    if piece.end == OPEN_END:
        piece = _ending_now(options, piece)
    rows = Rows(schema, piece.topic, piece.partition)
    with_headers = HEADERS in schema.names
    value = options.columns.value
    reader = _reader_for(options)
    if value is None:
        for columns in _columns(reader, options, piece, headers=with_headers):
            yield rows.of(columns)
        return
    # A dead letter keeps its own headers, whether or not the query wants to see them.
    with_headers |= options.columns.dead_letter_topic is not None
    with Decoding(options, value, piece) as decoding:
        for columns in _columns(reader, options, piece, headers=with_headers):
            made, keep = decoding.of(columns)
            batch = rows.of(columns, made)
            yield batch if keep is None else batch.filter(keep)


def _ending_now(options: SourceOptions, piece: OffsetRange) -> OffsetRange:
    """The range with the end that its partition has now; what has been deleted since the query was
    planned does not count as lost where it begins with whatever there is."""
    tp = TopicPartition(piece.topic, piece.partition)
    lookup = BrokerLookup(options)
    try:
        first, last = lookup.earliest([tp]), lookup.latest([tp])
    finally:
        lookup.close()
    start = piece.start
    if options.starting is Edge.EARLIEST:
        start = max(start, first.get(tp, start))
    return piece._replace(start=start, end=last.get(tp, start))


def _columns(
    reader: ColumnarReader, options: SourceOptions, piece: OffsetRange, *, headers: bool
) -> Iterator[ColumnBatch]:
    """What there is of a range. What is lost meanwhile is skipped, if the query may go on."""
    start = piece.start
    while start < piece.end:
        try:
            for columns in reader.read(
                piece.topic, piece.partition, start, piece.end, headers=headers
            ):
                start = int(columns.offset[-1]) + 1
                yield columns
            return
        except OffsetsLost as lost:
            report_loss(str(lost), fail=options.fail_on_data_loss)
            start = max(lost.earliest, start + 1)
        except ClientError as error:
            if error.code not in _GONE:
                raise
            report_loss(
                f"{piece.topic}-{piece.partition} was deleted while it was read",
                fail=options.fail_on_data_loss,
            )
            return


class Rows:
    """Makes record batches of one schema from the columns of one partition."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self._schema = schema
        self._same: dict[str, object] = {"topic": topic, "partition": partition}
        self._kept: dict[tuple[str, object], pa.Array] = {}

    def of(
        self, columns: ColumnBatch, made: Mapping[str, pa.Array] | None = None
    ) -> pa.RecordBatch:
        """The columns as Spark wants them; what was `made` of them already is taken as it is."""
        import pyarrow as pa

        ready = made or {}
        arrays = [
            _fitting(ready[field.name], field.type)
            if field.name in ready
            else self._column(field, columns)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, columns: ColumnBatch) -> pa.Array:
        count = len(columns.offset)
        if field.name in self._same:
            return self._repeated(field, self._same[field.name], count)
        if field.name == "timestampType":
            return self._repeated(field, columns.timestamp_type, count)
        return _MAKERS[field.name](columns, field.type)

    def _repeated(self, field: pa.Field, value: object, count: int) -> pa.Array:
        """The same value in every row: cut from an array that is kept."""
        import pyarrow as pa

        kept = self._kept.get((field.name, value))
        if kept is None or len(kept) < count:
            kept = pa.repeat(pa.scalar(value, field.type), count)
            self._kept[field.name, value] = kept
        return kept.slice(0, count)


def _fitting(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _timestamps(columns: ColumnBatch, kind: pa.DataType) -> pa.Array:
    """Null where Spark has no such time: somebody's nanoseconds must neither wrap around into a
    time that looks right, nor stop whoever reads the topic."""
    import numpy as np
    import pyarrow as pa

    given = columns.timestamp_ms
    has_none = (given > _TIMESTAMP_MS_MAX) | (given < -_TIMESTAMP_MS_MAX)
    microseconds = np.where(has_none, 0, given) * _US_PER_MS
    return pa.array(microseconds, mask=has_none if has_none.any() else None).view(kind)


def _offsets(columns: ColumnBatch, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.array(columns.offset, kind)


def _headers(columns: ColumnBatch, kind: pa.DataType) -> pa.Array:
    """As in Spark's own source: null, not an empty list, for a record without headers."""
    import numpy as np
    import pyarrow as pa

    headers = columns.headers
    assert headers is not None, "asked for with every read that needs them"
    offsets = headers.offsets
    empty = np.diff(offsets.to_numpy()) == 0
    if not empty.any():
        return headers.cast(kind)
    return pa.ListArray.from_arrays(offsets, headers.values, mask=pa.array(empty)).cast(kind)


_MAKERS: Mapping[str, Callable[[ColumnBatch, pa.DataType], pa.Array]] = {
    "key": lambda columns, kind: columns.key,
    "value": lambda columns, kind: columns.value,
    "offset": _offsets,
    "timestamp": _timestamps,
    HEADERS: _headers,
}


# --- the worker's reader --------------------------------------------------------------------------

_Identity = tuple[int, str, tuple[tuple[str, str], ...]]
_kept: dict[_Identity, ColumnarReader] = {}
"""The reader of the last task, by process and settings: a fork must not share its sockets."""


def _reader_for(options: SourceOptions) -> ColumnarReader:
    identity = (os.getpid(), options.bootstrap, tuple(sorted(options.client.items())))
    reader = _kept.get(identity)
    if reader is None:
        _forget(identity[0])
        reader = started(
            lambda: ColumnarReader(options.bootstrap, settings=options.client),
            options.api_timeout_ms,
        )
        _kept[identity] = reader
    return reader


def _forget(pid: int) -> None:
    """Close what another query left; what another process opened is not ours to close."""
    for identity, reader in list(_kept.items()):
        del _kept[identity]
        if identity[0] == pid:
            reader.close()
