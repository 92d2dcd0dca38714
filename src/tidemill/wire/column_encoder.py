"""Arrow columns into record batches, and keys into partitions.

`OutgoingColumns` looks at a table of records once: `builders` then encodes any of its rows into
batches of a bounded size, which a producer numbers, compresses and sends like its own.
`encode_columns` makes whole batches at once, for who has no producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemill.wire.batch import HEADER_BYTES, SEQUENCE_MAX
from tidemill.wire.compression import Codec
from tidemill.wire.encode_kernels import (
    MADE_BYTES,
    MADE_FIELDS,
    MADE_MAX_TIMESTAMP,
    encode_records,
    group_rows,
    hash_keys,
)
from tidemill.wire.records import RECORD_OVERHEAD_BYTES_MAX, BatchBuilder

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

HEADER_OVERHEAD_BYTES_MAX: Final = 5 + 5
"""The lengths of a header's name and content."""

TIMESTAMP_MS_MAX: Final = 2**63 - 2
"""So that the difference between any two of them has 64 bits."""

_OWN: Final = ("C_CONTIGUOUS", "WRITEABLE")
"""A kernel is compiled once for each type of its arguments, and a read-only column is a type."""


class _Fields(NamedTuple):
    """A column of byte strings: where each lies in `data`; a length of -1 is null."""

    data: Any
    pos: Any
    length: Any


class _Headers(NamedTuple):
    """The first header and the number of headers of each row, and all headers of all rows."""

    pos: Any
    count: Any
    names: _Fields
    contents: _Fields


def encode_columns(
    keys: pa.BinaryArray | None,
    values: pa.BinaryArray | None,
    headers: pa.ListArray | None,
    timestamps_ms: NDArray[np.int64] | None,
    *,
    codec: Codec,
    batch_bytes_max: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> Iterator[bytes]:
    """The rows in order as batches of at most so many bytes (uncompressed), if a row is not more.

    A column that is None is null in every row; without timestamps, records have none (-1).
    """
    columns = OutgoingColumns(keys, values, headers, timestamps_ms)
    sequence = base_sequence
    for builder in columns.builders(columns.all_rows(), batch_bytes_max):
        yield builder.build(
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
        if sequence >= 0:
            sequence = (sequence + builder.record_count) & SEQUENCE_MAX


def partition_of_keys(keys: pa.BinaryArray, partitions: int) -> NDArray[np.int32]:
    """Where Kafka's clients put records with these keys; -1 for a null."""
    import numpy

    if partitions < 1:
        raise ValueError(f"a topic has partitions, not {partitions}")
    fields = _fields(keys, len(keys))
    found = numpy.empty(len(keys), numpy.int32)
    hash_keys(*fields, partitions, found)
    return found


def rows_by_partition(
    partitions: NDArray[np.int32], partition_count: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The numbers of the rows for each partition that has any, in order."""
    import numpy

    partitions = numpy.require(partitions, numpy.int32, _OWN)
    starts = numpy.zeros(partition_count + 1, numpy.int64)
    rows = numpy.empty(len(partitions), numpy.int64)
    if group_rows(partitions, partition_count, starts, rows) < 0:
        wrong = partitions[(partitions < 0) | (partitions >= partition_count)][0]
        raise ValueError(f"there is no partition {wrong}, only 0 to {partition_count - 1}")
    for partition in numpy.flatnonzero(numpy.diff(starts)):
        yield int(partition), rows[starts[partition] : starts[partition + 1]]


class OutgoingColumns:
    """Records as columns, ready to be encoded; all columns have `row_count` rows."""

    def __init__(
        self,
        keys: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        headers: pa.ListArray | None,
        timestamps_ms: NDArray[np.int64] | None,
    ) -> None:
        import numpy

        given = [column for column in (keys, values, headers, timestamps_ms) if column is not None]
        if not given or len({len(column) for column in given}) != 1:
            raise ValueError("records need at least one column, and all of the same length")
        self.row_count = len(given[0])
        self._keys = _fields(keys, self.row_count)
        self._values = _fields(values, self.row_count)
        self._headers = _header_fields(headers, self.row_count)
        if timestamps_ms is None:
            timestamps_ms = numpy.full(self.row_count, -1, numpy.int64)
        self._timestamps = numpy.require(timestamps_ms, numpy.int64, _OWN)
        if self.row_count:
            earliest, latest = self._timestamps.min(), self._timestamps.max()
            if earliest < -1 or latest > TIMESTAMP_MS_MAX:
                raise ValueError("a timestamp is milliseconds since 1970, or -1 for none")

    def all_rows(self) -> NDArray[np.int64]:
        import numpy

        return numpy.arange(self.row_count, dtype=numpy.int64)

    def builders(self, rows: NDArray[np.int64], batch_bytes_max: int) -> Iterator[BatchBuilder]:
        """These rows in batches of at most so many bytes; a larger row is a batch of its own."""
        import numpy

        made = numpy.empty(MADE_FIELDS, numpy.int64)
        room = numpy.empty(max(batch_bytes_max - HEADER_BYTES, 1), numpy.uint8)
        first = 0
        while first < len(rows):
            out = room
            last = self._encode(rows, first, out, made)
            if last == first:
                out = numpy.empty(self._bytes_max(rows[first]), numpy.uint8)
                last = self._encode(rows[: first + 1], first, out, made)
            yield BatchBuilder.of_encoded(
                out[: made[MADE_BYTES]].tobytes(),
                last - first,
                base_timestamp=int(self._timestamps[rows[first]]),
                max_timestamp=int(made[MADE_MAX_TIMESTAMP]),
            )
            first = last

    def _encode(self, rows: NDArray[np.int64], first: int, out: Any, made: Any) -> int:
        last: int = encode_records(
            rows,
            first,
            self._timestamps,
            *self._keys,
            *self._values,
            self._headers.pos,
            self._headers.count,
            *self._headers.names,
            *self._headers.contents,
            out,
            made,
        )
        return last

    def _bytes_max(self, row: Any) -> int:
        """The most that one row may take."""
        first, count = int(self._headers.pos[row]), int(self._headers.count[row])
        lengths = [self._keys.length[row], self._values.length[row]]
        lengths += self._headers.names.length[first : first + count].tolist()
        lengths += self._headers.contents.length[first : first + count].tolist()
        overhead_bytes = RECORD_OVERHEAD_BYTES_MAX + count * HEADER_OVERHEAD_BYTES_MAX
        return overhead_bytes + sum(max(int(length), 0) for length in lengths)


# --- Arrow's memory -----------------------------------------------------------------------------


def _fields(column: pa.BinaryArray | None, row_count: int) -> _Fields:
    """A column of byte strings (or text) as the kernels want it, its bytes where they are."""
    import numpy
    import pyarrow

    if column is None:
        nothing = numpy.full(row_count, -1, numpy.int32)
        return _Fields(_bytes_of(None), nothing, nothing)
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    if column.type != pyarrow.binary():
        column = column.cast(pyarrow.binary())
    _, offsets, data = column.buffers()
    if offsets is None or not row_count:
        ends = numpy.zeros(row_count + 1, numpy.int32)
    else:
        ends = numpy.frombuffer(memoryview(offsets).toreadonly(), numpy.int32)
        ends = ends[column.offset : column.offset + row_count + 1]
    pos, length = ends[:-1].copy(), numpy.diff(ends)
    if column.null_count:
        length[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return _Fields(_bytes_of(data), pos, length)


def _bytes_of(data: Any) -> Any:
    import numpy

    return numpy.frombuffer(memoryview(data or b"").toreadonly(), numpy.uint8)


def _header_fields(headers: pa.ListArray | None, row_count: int) -> _Headers:
    import numpy
    import pyarrow

    if headers is None:
        none = numpy.zeros(row_count, numpy.int32)
        return _Headers(none, none, _fields(None, 0), _fields(None, 0))
    if isinstance(headers, pyarrow.ChunkedArray):
        headers = headers.combine_chunks()
    names, contents = headers.values.flatten()
    if names.null_count:
        raise ValueError("a header needs a name")
    ends = headers.offsets.to_numpy()
    pos, count = ends[:-1].astype(numpy.int32), numpy.diff(ends).astype(numpy.int32)
    if headers.null_count:
        count[headers.is_null().to_numpy(zero_copy_only=False)] = 0
    return _Headers(pos, count, _fields(names, len(names)), _fields(contents, len(contents)))
