"""Columnar decoding, the inner loops: where each record's parts lie, and how they become columns.

`locate_batches` walks the records of several (decompressed) batches in one buffer and notes, column
by column, where keys, values and headers lie; `gather_bytes` copies one such column into the memory
of an Arrow array. `tidemill.wire.columns` is their user, and knows numpy and Arrow.

A kernel is an ordinary function under `@kernel`. It runs as plain Python until `use_numba` is
called, which compiles every kernel (without the interpreter lock, cached on disk) from the same
source. Importing this module imports neither numba nor numpy: a command that decodes ten records
must not pay a second for it. `python -m tidemill.wire.kernels` fills the disk cache.

Numba does not check array bounds, so kernels do: nothing is read at or beyond `end`. Its cache
looks at the age of one file only, so a kernel calls kernels of its own file only. Nor does it know
what the compiler was asked for: whoever changes that changes each file that has kernels, be it in a
comment, or those that are cached go on as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_UINT32_MAX: Final = 2**32 - 1

# What `locate_batches` is told of each batch: a row of numbers.
HEAD_START: Final = 0
HEAD_END: Final = 1
HEAD_COUNT: Final = 2
HEAD_BASE_OFFSET: Final = 3
HEAD_LAST_DELTA: Final = 4
HEAD_BASE_TIME: Final = 5
HEAD_IS_APPEND_TIME: Final = 6

# Where `locate_batches` stands, so that it can go on with empty columns.
AT_BATCH: Final = 0
AT_POSITION: Final = 1
AT_RECORDS_LEFT: Final = 2
AT_FAULT: Final = 3

FAULT_RECORD: Final = 1
FAULT_REST: Final = 2


IS_COMPILED: Final = False
"""True in the eyes of a compiled kernel; what it decides costs nothing there."""


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
            known = {**names, **called, "IS_COMPILED": True}
            bound = FunctionType(self.function.__code__, known)
            bound.__qualname__ = self.function.__qualname__
            # A kernel allocates nothing and keeps nothing, so nobody has to count who refers to its
            # arrays (`_nrt`): with each call inside a kernel that took four fifths of all time.
            options = {"nogil": True, "cache": True, "forceinline": True, "_nrt": False}
            self.compiled = numba.njit(**options)(bound)
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
    from tidemill.wire import encode_kernels

    assert encode_kernels  # Imported for the kernels in it.
    for each in _KERNELS:
        each.compile()


# --- numbers: only arithmetic that means the same on Python's and on 64-bit integers ------------


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
def add_delta(base: int, delta: int) -> tuple[int, bool]:
    """Their sum, and whether it fits into 64 bits."""
    if delta > 0 and base > _INT64_MAX - delta:
        return 0, False
    if delta < 0 and base < _INT64_MIN - delta:
        return 0, False
    return base + delta, True


# --- where the fields lie -----------------------------------------------------------------------


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
def locate_record(
    buf: Any,
    pos: int,
    end: int,
    base_offset: int,
    last_delta: int,
    base_time: int,
    is_append_time: bool,
    key_pos: Any,
    key_len: Any,
    value_pos: Any,
    value_len: Any,
    header_pos: Any,
    header_count: Any,
    timestamps: Any,
    offsets: Any,
    row: int,
) -> int:
    """Note one record's parts in `row`; the position after it, or -1 if it is damaged."""
    length, pos = read_varint(buf, pos, end)
    if pos < 0 or length < 1 or length > end - pos:
        return -1
    record_end = pos + length
    delta, pos = read_varlong(buf, pos + 1, record_end)
    if pos < 0:
        return -1
    timestamp, fits = add_delta(base_time, 0 if is_append_time else delta)
    if not fits:
        return -1
    timestamps[row] = timestamp
    delta, pos = read_varint(buf, pos, record_end)
    if pos < 0 or delta < 0 or delta > last_delta:
        return -1
    offsets[row] = base_offset + delta
    key_pos[row], key_len[row], pos = skip_bytes(buf, pos, record_end, True)
    if pos < 0:
        return -1
    value_pos[row], value_len[row], pos = skip_bytes(buf, pos, record_end, True)
    if pos < 0:
        return -1
    headers, pos = read_varint(buf, pos, record_end)
    if pos < 0 or headers < 0 or headers > (record_end - pos) // 2:
        return -1
    header_pos[row] = pos
    header_count[row] = headers
    pos = skip_headers(buf, pos, record_end, headers)
    return record_end if pos == record_end else -1


@kernel
def locate_batches(
    buf: Any,
    heads: Any,
    at: Any,
    first_offset: int,
    end_offset: int,
    key_pos: Any,
    key_len: Any,
    value_pos: Any,
    value_len: Any,
    header_pos: Any,
    header_count: Any,
    timestamps: Any,
    offsets: Any,
    row: int,
) -> int:
    """Fill rows from `row` on with records of [first_offset, end_offset); how many rows are full.

    Begins and ends where `at` says: after the last batch, at a fault, or where the columns were
    full. `at[AT_FAULT]` tells what is wrong with the batch `at[AT_BATCH]`.
    """
    batch = int(at[AT_BATCH])
    pos = int(at[AT_POSITION])
    left = int(at[AT_RECORDS_LEFT])
    fault = 0
    while batch < len(heads) and fault == 0:
        end = int(heads[batch, HEAD_END])
        base_offset = int(heads[batch, HEAD_BASE_OFFSET])
        last_delta = int(heads[batch, HEAD_LAST_DELTA])
        base_time = int(heads[batch, HEAD_BASE_TIME])
        is_append_time = heads[batch, HEAD_IS_APPEND_TIME] != 0
        while left > 0 and row < len(offsets):
            after = locate_record(
                buf,
                pos,
                end,
                base_offset,
                last_delta,
                base_time,
                is_append_time,
                key_pos,
                key_len,
                value_pos,
                value_len,
                header_pos,
                header_count,
                timestamps,
                offsets,
                row,
            )
            if after < 0:
                fault = FAULT_RECORD
                break
            pos = after
            left -= 1
            if first_offset <= offsets[row] < end_offset:
                row += 1
        if left > 0:
            break
        if pos != end:
            fault = FAULT_REST
            break
        batch += 1
        if batch < len(heads):
            pos = int(heads[batch, HEAD_START])
            left = int(heads[batch, HEAD_COUNT])
    at[AT_BATCH] = batch
    at[AT_POSITION] = pos
    at[AT_RECORDS_LEFT] = left
    at[AT_FAULT] = fault
    return row


@kernel
def locate_headers(
    buf: Any,
    header_pos: Any,
    header_count: Any,
    first: int,
    last: int,
    ends: Any,
    name_pos: Any,
    name_len: Any,
    content_pos: Any,
    content_len: Any,
) -> int:
    """Where the headers of rows [first, last) lie; `ends` counts them, row by row."""
    index = int(ends[first])
    for row in range(first, last):
        pos = int(header_pos[row])
        for _ in range(header_count[row]):
            name_pos[index], name_len[index], pos = skip_bytes(buf, pos, len(buf), False)
            content_pos[index], content_len[index], pos = skip_bytes(buf, pos, len(buf), True)
            index += 1
        ends[row + 1] = index
    return index


# --- copying them together ----------------------------------------------------------------------


@kernel
def copy_bytes(out: Any, at: int, buf: Any, start: int, size: int) -> None:
    """Copy `size` bytes; compiled, a loop takes a tenth of the time that a slice takes."""
    to, of = out[at : at + size], buf[start : start + size]
    if IS_COMPILED:
        for index in range(size):
            to[index] = of[index]
    else:
        to[:] = of


@kernel
def gather_bytes(
    buf: Any,
    pos: Any,
    length: Any,
    first: int,
    last: int,
    ends: Any,
    validity: Any,
    out: Any,
) -> int:
    """Copy the fields of rows [first, last) behind `ends[first]`; returns how many are null."""
    nulls = 0
    at = int(ends[first])
    for row in range(first, last):
        size = int(length[row])
        if size < 0:
            validity[row >> 3] = int(validity[row >> 3]) & (0xFF - (1 << (row & 7)))
            nulls += 1
        else:
            copy_bytes(out, at, buf, int(pos[row]), size)
            at += size
        ends[row + 1] = at
    return nulls


if __name__ == "__main__":
    # This file runs as `__main__` here: what has to be compiled are the kernels that others import.
    from tidemill.wire.columns import warm

    warm()
