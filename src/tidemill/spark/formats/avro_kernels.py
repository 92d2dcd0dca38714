"""Avro records without arrays and maps, read into columns by compiled code.

A schema is a table of steps, one for each field in the order of its bytes; `read_rows` walks it for
every value and notes each number, and where each text lies. A nested record is a step before those
of its fields, so that a null one can be stepped over. As all kernels these are ordinary functions
until `use_numba` compiles them; numba checks no bounds, so they do.
"""

from __future__ import annotations

from typing import Any, Final

from tidemill.wire.kernels import kernel

# The columns of the table of steps.
KIND: Final = 0
NULL_AT: Final = 1
"""The number of null in a union with one other type; -1 where there is no union."""
SIZE: Final = 2
"""The bytes of a fixed, the symbols of an enum."""
NEXT: Final = 3
"""The step after this one and those inside it."""
COLUMNS: Final = 4

RECORD: Final = 0
BOOLEAN: Final = 1
INT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
BYTES: Final = 6
FIXED: Final = 7
ENUM: Final = 8

_INT32_MAX: Final = 2**31 - 1
_INT32_MIN: Final = -(2**31)
_INT64_MAX: Final = 2**63 - 1


@kernel
def read_long(buf: Any, pos: int, end: int) -> tuple[int, int]:
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
def read_bits(buf: Any, pos: int, size: int) -> int:
    """Bytes as a number, the first one lowest; eight of them give a signed one."""
    bits = 0
    for at in range(size - 1):
        bits |= int(buf[pos + at]) << (8 * at)
    last = int(buf[pos + size - 1])
    if size == 8:
        last = (last ^ 0x80) - 0x80
    return bits | (last << (8 * (size - 1)))


@kernel
def read_scalar(
    buf: Any, pos: int, end: int, kind: int, size: int, row: int, numbers: Any, lengths: Any
) -> int:
    """Note one value; the position after it, or -1 if it is damaged."""
    if kind == BOOLEAN:
        if pos >= end or buf[pos] > 1:
            return -1
        numbers[row] = buf[pos]
        return pos + 1
    if kind in (FLOAT, DOUBLE):
        width = 4 if kind == FLOAT else 8
        if width > end - pos:
            return -1
        numbers[row] = read_bits(buf, pos, width)
        return pos + width
    if kind == FIXED:
        if size > end - pos:
            return -1
        numbers[row] = pos
        lengths[row] = size
        return pos + size
    value, pos = read_long(buf, pos, end)
    if pos < 0:
        return -1
    if kind == BYTES:
        if value < 0 or value > end - pos:
            return -1
        numbers[row] = pos
        lengths[row] = value
        return int(pos + value)
    if kind == INT and (value < _INT32_MIN or value > _INT32_MAX):
        return -1
    if kind == ENUM and (value < 0 or value >= size):
        return -1
    numbers[row] = value
    return pos


@kernel
def read_row(
    buf: Any, pos: int, end: int, steps: Any, row: int, numbers: Any, lengths: Any, valid: Any
) -> bool:
    """Note one record; whether its bytes are a record and nothing more."""
    step = 0
    while step < len(steps):
        null_at = int(steps[step, NULL_AT])
        if null_at >= 0:
            branch, pos = read_long(buf, pos, end)
            if pos < 0 or branch < 0 or branch > 1:
                return False
            if branch == null_at:
                step = int(steps[step, NEXT])
                continue
        valid[step, row] = True
        kind = int(steps[step, KIND])
        if kind != RECORD:
            size = int(steps[step, SIZE])
            pos = read_scalar(buf, pos, end, kind, size, row, numbers[step], lengths[step])
            if pos < 0:
                return False
        step += 1
    return pos == end


@kernel
def read_rows(buf: Any, offsets: Any, steps: Any, numbers: Any, lengths: Any, valid: Any) -> int:
    """Note all records; the first that is damaged, or -1."""
    for row in range(len(offsets) - 1):
        start = int(offsets[row])
        end = int(offsets[row + 1])
        if not read_row(buf, start, end, steps, row, numbers, lengths, valid):
            return row
    return -1


@kernel
def copy_parts(buf: Any, starts: Any, ends: Any, out: Any) -> None:
    """Lay parts of a buffer end to end; `ends` says where each begins and ends in `out`."""
    for row in range(len(starts)):
        first = int(ends[row])
        last = int(ends[row + 1])
        start = int(starts[row])
        out[first:last] = buf[start : start + last - first]
