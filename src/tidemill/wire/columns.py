"""Record batches as Arrow columns: `decode_columns` and `columns_of`; `encode_columns` back.

Per batch there is a little Python; per record there are only the kernels of `kernels`, which run
compiled after `use_numba()` and as plain Python before. Keys and values are copied once, from where
they were received (or decompressed to) into the memory of an Arrow array.

Memory is bounded: rows are located a piece at a time, however many a batch declares, a batch is
decompressed to at most `limit_bytes`, and nothing is allocated by a number that was not checked.

numpy and pyarrow are imported where they are used: they come with the `spark` extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemill.errors import WireError
from tidemill.wire.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    InvalidRecordError,
    TimestampType,
    crc_matches,
)
from tidemill.wire.column_encoder import encode_columns, partition_of_keys, rows_by_partition
from tidemill.wire.compression import Codec, decompress
from tidemill.wire.kernels import (
    AT_BATCH,
    AT_FAULT,
    AT_RECORDS_LEFT,
    FAULT_REST,
    HEAD_COUNT,
    HEAD_START,
    gather_bytes,
    locate_batches,
    locate_headers,
    use_numba,
)
from tidemill.wire.messages.fetch import AbortedTransaction
from tidemill.wire.records import RECORD_BYTES_MIN, check_offsets
from tidemill.wire.visible import iter_visible

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = [
    "ColumnBatch",
    "columns_of",
    "decode_columns",
    "encode_columns",
    "partition_of_keys",
    "use_numba",
    "warm",
]

PIECE_ROWS_MAX: Final = 10_000
"""The most rows of one `ColumnBatch`: few enough to stay in the cache, enough for Spark."""

PIECE_BYTES: Final = 4 * 1024 * 1024
"""About how many bytes of records one `ColumnBatch` holds, unless a single batch has more."""

JOIN_BYTES: Final = 32 * 1024
"""Batches smaller than this are copied together: calling a kernel for each would cost more."""

INT32_MAX: Final = 2**31 - 1
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""What a batch may grow to when it is decompressed, unless the caller says otherwise."""


class ColumnBatch(NamedTuple):
    """Some records of one partition, in the order of their offsets.

    `timestamp_ms` is -1 where a record has none; `timestamp_type` (0 set by the producer, 1 by the
    log) holds for all of them. `headers` is None unless asked for; a record without headers has an
    empty list there, never a null.
    """

    key: pa.BinaryArray
    value: pa.BinaryArray
    offset: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]
    timestamp_type: int
    headers: pa.ListArray | None

    @property
    def row_count(self) -> int:
        return len(self.offset)


def decode_columns(
    records: Buffer,
    *,
    first_offset: int,
    end_offset: int,
    headers: bool,
    check_crcs: bool,
    aborted: Sequence[AbortedTransaction] = (),
    limit_bytes: int = BATCH_BYTES_MAX,
) -> tuple[list[ColumnBatch], int]:
    """The records of [first_offset, end_offset) in the whole batches of `records`.

    Returns them with the offset to read on from. A batch that is cut off at the end is left out;
    control batches and what belongs to `aborted` transactions are skipped. A batch that is damaged
    raises `CorruptBatchError`, or `InvalidRecordError`, and says which.
    """
    view = memoryview(records)
    taken: list[tuple[BatchHeader, memoryview]] = []
    next_offset = first_offset
    for pos, header, is_visible in iter_visible(view, aborted, committed_only=bool(aborted)):
        if header.base_offset >= end_offset:
            next_offset = max(next_offset, header.base_offset)
            break
        if check_crcs and not crc_matches(view, pos, header):
            raise CorruptBatchError(
                f"the batch at offset {header.base_offset} does not match its checksum"
            )
        if is_visible:
            taken.append((header, view[pos : pos + header.size_bytes]))
        next_offset = max(next_offset, header.next_offset)
    columns = columns_of(
        taken,
        first_offset=first_offset,
        end_offset=end_offset,
        headers=headers,
        limit_bytes=limit_bytes,
    )
    return list(columns), next_offset


def columns_of(
    batches: Iterable[tuple[BatchHeader, Buffer]],
    *,
    first_offset: int,
    end_offset: int,
    headers: bool,
    limit_bytes: int = BATCH_BYTES_MAX,
) -> Iterator[ColumnBatch]:
    """The records of [first_offset, end_offset) in these batches, which are not looked at twice."""
    wanted = (
        (header, data)
        for header, data in batches
        if header.base_offset < end_offset and header.next_offset > first_offset
    )
    for group in _grouped(_open_batch(header, data, limit_bytes) for header, data in wanted):
        yield from _pieces(group, first_offset, end_offset, with_headers=headers)


# --- batches into groups ------------------------------------------------------------------------


class _Body(NamedTuple):
    """A batch whose records are decompressed."""

    header: BatchHeader
    data: Buffer


def _open_batch(header: BatchHeader, batch: Buffer, limit_bytes: int) -> _Body:
    data: Buffer = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    try:
        codec = header.codec
        if codec is not Codec.NONE:
            data = decompress(codec, data, limit_bytes=min(limit_bytes, INT32_MAX))
        check_offsets(header)
    except WireError as error:
        raise InvalidRecordError(f"the batch at offset {header.base_offset}: {error}") from error
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise InvalidRecordError(
            f"the batch at offset {header.base_offset} declares {header.record_count} records"
            f" in {len(data)} bytes"
        )
    return _Body(header, data)


def _grouped(bodies: Iterable[_Body]) -> Iterator[list[_Body]]:
    """Neighbours that share the kind of timestamp and are not too much together."""
    group: list[_Body] = []
    size_bytes = 0
    for body in bodies:
        size_bytes += len(body.data)
        if group and (size_bytes > PIECE_BYTES or _kind(group[-1]) is not _kind(body)):
            yield group
            group, size_bytes = [], len(body.data)
        group.append(body)
    if group:
        yield group


def _kind(body: _Body) -> TimestampType:
    return body.header.timestamp_type


class _Source(NamedTuple):
    """Bodies that lie in one buffer, and what the kernel has to know of each."""

    buf: Any
    heads: Any
    bodies: list[_Body]


def _sources(group: list[_Body]) -> Iterator[_Source]:
    """Large bodies as they are, runs of small ones copied together."""
    small: list[_Body] = []
    for body in group:
        if len(body.data) < JOIN_BYTES:
            small.append(body)
            continue
        if small:
            yield _source(small)
            small = []
        yield _source([body])
    if small:
        yield _source(small)


def _source(bodies: list[_Body]) -> _Source:
    import numpy

    heads = []
    pos = 0
    for header, data in bodies:
        end = pos + len(data)
        is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        base_time = header.max_timestamp if is_append_time else header.base_timestamp
        heads.append(
            (
                pos,
                end,
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                base_time,
                is_append_time,
            )
        )
        pos = end
    data = bodies[0].data if len(bodies) == 1 else b"".join(body.data for body in bodies)
    # Always read-only: a kernel is compiled once for each type of its arguments.
    buf = numpy.frombuffer(memoryview(data).toreadonly(), numpy.uint8)
    return _Source(buf, numpy.array(heads, numpy.int64), bodies)


# --- groups into columns ------------------------------------------------------------------------


def _pieces(
    group: list[_Body], first_offset: int, end_offset: int, *, with_headers: bool
) -> Iterator[ColumnBatch]:
    import numpy

    record_count = sum(body.header.record_count for body in group)
    rows = _Rows(min(record_count, PIECE_ROWS_MAX), _kind(group[0]), with_headers)
    for source in _sources(group):
        heads = source.heads
        at = numpy.array((0, heads[0, HEAD_START], heads[0, HEAD_COUNT], 0), numpy.int64)
        while at[AT_BATCH] < len(heads):
            rows.locate(source, at, first_offset, end_offset)
            if rows.is_full:
                yield rows.take()
    if rows.count:
        yield rows.take()


class _Rows:
    """Where the fields of up to so many rows lie, in one buffer or several."""

    def __init__(self, capacity: int, kind: TimestampType, with_headers: bool) -> None:
        import numpy

        self.count = 0
        self._capacity = capacity
        self._kind = kind
        self._with_headers = with_headers
        self._parts: list[tuple[Any, int, int]] = []
        """The buffer that rows [first, last) lie in."""
        # No body has 2 GiB, so 32 bits are enough for a place in it; more would leave the cache.
        places = numpy.empty((6, capacity), numpy.int32)
        self._timestamps, self._offsets = numpy.empty((2, capacity), numpy.int64)
        self._columns = (*places, self._timestamps, self._offsets)
        self._key = (places[0], places[1])
        self._value = (places[2], places[3])
        self._header_pos, self._header_count = places[4], places[5]

    @property
    def is_full(self) -> bool:
        return 0 < self._capacity == self.count

    def locate(self, source: _Source, at: Any, first_offset: int, end_offset: int) -> None:
        """Note the next rows of `source`, from where `at` stands."""
        first = self.count
        self.count = locate_batches(
            source.buf, source.heads, at, first_offset, end_offset, *self._columns, first
        )
        if at[AT_FAULT]:
            raise _fault(source.bodies[at[AT_BATCH]].header, at)
        if self.count > first:
            self._parts.append((source.buf, first, self.count))

    def take(self) -> ColumnBatch:
        """The rows as columns; what follows starts with empty ones."""
        count = self.count
        taken = ColumnBatch(
            _binary(self._parts, *self._key, count),
            _binary(self._parts, *self._value, count),
            self._offsets[:count].copy(),
            self._timestamps[:count].copy(),
            int(self._kind),
            self._take_headers() if self._with_headers else None,
        )
        self.count = 0
        self._parts.clear()
        return taken

    def _take_headers(self) -> pa.ListArray:
        import numpy
        import pyarrow

        total = int(self._header_count[: self.count].sum())
        name_pos, name_len, content_pos, content_len = numpy.empty((4, total), numpy.int32)
        ends = numpy.zeros(self.count + 1, numpy.int32)
        parts: list[tuple[Any, int, int]] = []
        for buf, first, last in self._parts:
            start = int(ends[first])
            end = locate_headers(
                buf,
                self._header_pos,
                self._header_count,
                first,
                last,
                ends,
                name_pos,
                name_len,
                content_pos,
                content_len,
            )
            parts.append((buf, start, end))
        names = _text(_binary(parts, name_pos, name_len, total))
        contents = _binary(parts, content_pos, content_len, total)
        entries = pyarrow.StructArray.from_arrays([names, contents], names=["key", "value"])
        kind = pyarrow.list_(pyarrow.field("element", entries.type))
        return pyarrow.ListArray.from_arrays(pyarrow.array(ends), entries, type=kind)


def _fault(header: BatchHeader, at: Any) -> InvalidRecordError:
    where = f"the batch at offset {header.base_offset}"
    if at[AT_FAULT] == FAULT_REST:
        return InvalidRecordError(f"{where} has bytes after its last record")
    number = header.record_count - int(at[AT_RECORDS_LEFT])
    return InvalidRecordError(f"record {number} of {header.record_count} in {where} is damaged")


def _binary(parts: list[tuple[Any, int, int]], pos: Any, length: Any, count: int) -> pa.BinaryArray:
    """The fields of `count` rows, copied together."""
    import numpy
    import pyarrow

    if length[:count].max(initial=-1) < 0:
        return pyarrow.nulls(count, pyarrow.binary())  # As keys often are.
    total_bytes = int(numpy.maximum(length[:count], 0).sum())
    ends = numpy.zeros(count + 1, numpy.int32)
    validity = numpy.full((count + 7) // 8, 0xFF, numpy.uint8)
    data = numpy.empty(total_bytes, numpy.uint8)
    nulls = 0
    for buf, first, last in parts:
        nulls += gather_bytes(buf, pos, length, first, last, ends, validity, data)
    buffers = [pyarrow.py_buffer(validity) if nulls else None]
    buffers += [pyarrow.py_buffer(ends), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), count, buffers, nulls)


def _text(names: pa.BinaryArray) -> pa.StringArray:
    """Header names as text; what is not UTF-8 is replaced, as Kafka's readers do."""
    import pyarrow

    try:
        return names.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        replaced = [name.decode("utf-8", "replace") for name in names.to_pylist()]
        return pyarrow.array(replaced, pyarrow.string())


def warm() -> None:
    """Compile every kernel for the types it is used with, and so fill numba's disk cache."""
    import pyarrow

    use_numba()
    some = pyarrow.array([b"key", None], pyarrow.binary())
    kind = pyarrow.list_(pyarrow.struct({"key": pyarrow.string(), "value": pyarrow.binary()}))
    headers = pyarrow.array([[("name", b"content")], []], kind)
    list(rows_by_partition(partition_of_keys(some[:1], 2), 2))
    for batch in encode_columns(some, some, headers, None, codec=Codec.NONE, batch_bytes_max=1024):
        decode_columns(batch, first_offset=0, end_offset=2, headers=True, check_crcs=True)
