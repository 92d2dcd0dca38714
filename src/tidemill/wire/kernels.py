"""Columnar record decoding: where each record's parts lie, found by a compiled loop.

`locate` takes the (decompressed) body of a batch and answers `RecordColumns`: positions and lengths
of keys, values and headers, timestamps and offsets, one column each. Nothing is copied; who wants
Arrow columns or a few fields takes them from the body by position.

A kernel is an ordinary function under `@kernel`. It runs as plain Python until `use_numba` is
called, which compiles every kernel (without the interpreter lock, cached on disk) from the same
source. Importing this module imports neither numba nor numpy: a command that decodes ten records
must not pay a second for it. `python -m tidemill.wire.kernels` fills the disk cache.

Numba does not check array bounds, so kernels do: nothing is read at or beyond `end`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, MutableSequence
from types import FunctionType
from typing import Any, Final, NamedTuple, cast

from tidemill.wire.batch import BatchHeader, InvalidRecordError, TimestampType
from tidemill.wire.records import RECORD_BYTES_MIN, check_offsets

IntColumn = MutableSequence[int]
"""64-bit integers: a numpy array once numba is in use, an `array` before."""

_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_UINT32_MAX: Final = 2**32 - 1


class Kernel:
    """A function that runs as it stands, or compiled once `use_numba` was called."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.compiled: Any = None
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any) -> Any:
        return (self.compiled or self.function)(*args)

    def compile(self) -> Any:
        """The numba dispatcher; kernels that this one calls are compiled first."""
        if self.compiled is None:
            import numba

            names = self.function.__globals__
            called = {name: k.compile() for name, k in names.items() if self._calls(name, k)}
            bound = FunctionType(self.function.__code__, {**names, **called})
            bound.__qualname__ = self.function.__qualname__
            self.compiled = numba.njit(nogil=True, cache=True)(bound)
        return self.compiled

    def _calls(self, name: str, value: object) -> bool:
        is_other = isinstance(value, Kernel) and value is not self
        return is_other and name in self.function.__code__.co_names


_KERNELS: Final[list[Kernel]] = []


def kernel(function: Callable[..., Any]) -> Kernel:
    """Make a kernel of a function that uses integers, buffers and columns only."""
    if not isinstance(function, FunctionType):
        raise TypeError("a kernel is made of a plain function")
    made = Kernel(function)
    _KERNELS.append(made)
    return made


def use_numba() -> None:
    """Compile the kernels from now on; raises ImportError where numba is not installed."""
    for each in _KERNELS:
        each.compile()


def numba_in_use() -> bool:
    return all(each.compiled is not None for each in _KERNELS)


# --- kernels: only arithmetic that means the same on Python's and on 64-bit integers ------------


@kernel
def read_varint(buf: Any, pos: int, end: int) -> tuple[int, int]:
    """A zigzag varint of at most 32 bits, and the position after it: -1 if there is none."""
    encoded = 0
    shift = 0
    while pos < end and shift < 35:
        byte = int(buf[pos])
        pos += 1
        encoded |= (byte & 0x7F) << shift
        if byte < 0x80:
            if encoded > _UINT32_MAX:
                return 0, -1
            return (encoded >> 1) ^ -(encoded & 1), pos
        shift += 7
    return 0, -1


@kernel
def read_varlong(buf: Any, pos: int, end: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits, and the position after it: -1 if there is none."""
    encoded = 0
    shift = 0
    while pos < end and shift < 70:
        byte = int(buf[pos])
        pos += 1
        if shift == 63 and byte > 1:
            return 0, -1
        encoded |= (byte & 0x7F) << shift
        if byte < 0x80:
            # The mask makes the shift a logical one where integers have 64 bits.
            return ((encoded >> 1) & _INT64_MAX) ^ -(encoded & 1), pos
        shift += 7
    return 0, -1


@kernel
def skip_bytes(buf: Any, pos: int, end: int, null_allowed: bool) -> tuple[int, int, int]:
    """Start, length (-1 for null) and end of a field with a length; the end is -1 on error."""
    length, pos = read_varint(buf, pos, end)
    if pos < 0:
        return 0, 0, -1
    if length == -1 and null_allowed:
        return pos, -1, pos
    if length < 0 or length > end - pos:
        return 0, 0, -1
    return pos, length, pos + length


@kernel
def skip_headers(buf: Any, pos: int, end: int, count: int) -> int:
    """The position after `count` headers, or -1."""
    for _ in range(count):
        _, _, pos = skip_bytes(buf, pos, end, False)
        if pos < 0:
            return -1
        _, _, pos = skip_bytes(buf, pos, end, True)
        if pos < 0:
            return -1
    return pos


@kernel
def add_delta(base: int, delta: int) -> tuple[int, bool]:
    """Their sum, and whether it fits into 64 bits."""
    if delta > 0 and base > _INT64_MAX - delta:
        return 0, False
    if delta < 0 and base < _INT64_MIN - delta:
        return 0, False
    return base + delta, True


@kernel
def locate_records(
    buf: Any,
    pos: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    key_pos: Any,
    key_len: Any,
    value_pos: Any,
    value_len: Any,
    header_pos: Any,
    header_count: Any,
    timestamps: Any,
    offsets: Any,
    at: int,
) -> int:
    """Fill the columns from index `at` on; returns how many records were sound (all, or fewer)."""
    for index in range(at, at + count):
        length, pos = read_varint(buf, pos, end)
        if pos < 0 or length < 1 or length > end - pos:
            return index - at
        record_end = pos + length
        delta, pos = read_varlong(buf, pos + 1, record_end)
        if pos < 0:
            return index - at
        timestamps[index], fits = add_delta(base_timestamp, delta)
        if not fits:
            return index - at
        delta, pos = read_varint(buf, pos, record_end)
        if pos < 0 or delta < 0 or delta > last_offset_delta:
            return index - at
        offsets[index] = base_offset + delta
        key_pos[index], key_len[index], pos = skip_bytes(buf, pos, record_end, True)
        if pos < 0:
            return index - at
        value_pos[index], value_len[index], pos = skip_bytes(buf, pos, record_end, True)
        if pos < 0:
            return index - at
        headers, pos = read_varint(buf, pos, record_end)
        if pos < 0 or headers < 0 or headers > (record_end - pos) // 2:
            return index - at
        header_pos[index] = pos
        header_count[index] = headers
        pos = skip_headers(buf, pos, record_end, headers)
        if pos != record_end:
            return index - at
    return count if pos == end else -1


# --- the kernels' use ---------------------------------------------------------------------------


class RecordColumns(NamedTuple):
    """Positions in a body, and what a record says about itself; a length of -1 is null."""

    key_pos: IntColumn
    key_len: IntColumn
    value_pos: IntColumn
    value_len: IntColumn
    header_pos: IntColumn
    header_count: IntColumn
    timestamps: IntColumn
    offsets: IntColumn


def new_columns(count: int) -> RecordColumns:
    """Columns for `count` records, to be filled by `locate_into`."""
    return RecordColumns(*(_new_column(count) for _ in RecordColumns._fields))


def _new_column(count: int) -> IntColumn:
    if numba_in_use():
        import numpy

        column: Any = numpy.zeros(count, numpy.int64)
        return cast(IntColumn, column)
    return array("q", bytes(8 * count))


def locate(body: bytes, header: BatchHeader) -> RecordColumns:
    """The records of `records_body(...)`; raises `InvalidRecordError` as `iter_records` does."""
    if not 0 <= header.record_count <= len(body) // RECORD_BYTES_MIN:
        raise InvalidRecordError(f"batch declares {header.record_count} records")
    columns = new_columns(header.record_count)
    locate_into(columns, 0, body, header)
    return columns


def locate_into(columns: RecordColumns, at: int, body: bytes, header: BatchHeader) -> None:
    """As `locate`, but into the middle of columns that several batches share."""
    count = header.record_count
    if count < 0 or at < 0 or at + count > len(columns.offsets):
        raise InvalidRecordError(f"{count} records do not fit into the columns at {at}")
    check_offsets(header)
    buf: Any = memoryview(body).toreadonly()
    if numba_in_use():
        import numpy

        buf = numpy.frombuffer(buf, numpy.uint8)
    found = locate_records(
        buf,
        0,
        len(body),
        count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        *columns,
        at,
    )
    if found < 0:
        raise InvalidRecordError("record batch has bytes after its last record")
    if found != count:
        raise InvalidRecordError(f"record {found} of {count} is damaged")
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        _fill(columns.timestamps, at, count, header.max_timestamp)


def _fill(column: Any, at: int, count: int, value: int) -> None:
    filled = value if numba_in_use() else array("q", [value]) * count
    column[at : at + count] = filled


def warm() -> None:
    """Compile every kernel for the types it is used with, and so fill numba's disk cache."""
    use_numba()
    body = bytes((0x0C, 0, 0, 0, 1, 1, 0))  # One record: all null.
    header = BatchHeader(0, 49 + len(body), 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    locate(body, header)


if __name__ == "__main__":
    warm()
