"""Avro records read into columns by compiled code.

A schema is a table of steps, one for each field in the order of its bytes; `read_rows` walks it for
every value and notes each number, and where each text lies. The steps of what is inside a record,
an array or a map follow its own, so that a null one can be stepped over, and an array is walked
once for each item. Columns inside an array have a row for each item, not for each record: that is
their level, of which `counts` knows the rows so far.

As all kernels these are ordinary functions until `use_numba` compiles them; numba checks no bounds,
so they do. That an item takes a byte at least, which bounds every loop, the schema has to ensure.
"""

from __future__ import annotations

from typing import Any, Final

from tidemill.wire.kernels import IS_COMPILED, kernel

# The columns of the table of steps.
KIND: Final = 0
NULL_AT: Final = 1
"""The number of null in a union with one other type; -1 where there is no union."""
SIZE: Final = 2
"""The bytes of a fixed, the symbols of an enum, the level of an array's or map's items."""
NEXT: Final = 3
"""The step after this one and those inside it."""
LEVEL: Final = 4
BASE: Final = 5
"""Where the rows of the step's column begin in what is noted of all columns."""
COLUMNS: Final = 6

RECORD: Final = 0
BOOLEAN: Final = 1
INT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
BYTES: Final = 6
FIXED: Final = 7
ENUM: Final = 8
ARRAY: Final = 9
MAP: Final = 10

_INT32_MAX: Final = 2**31 - 1
_INT32_MIN: Final = -(2**31)
_INT64_MAX: Final = 2**63 - 1


@kernel
def read_long(buf: Any, pos: int, end: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits, and the position after it: -1 if there is none.

    As `read_varlong` of the record kernels, again: a kernel calls kernels of its own file only.
    """
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
def read_block(buf: Any, pos: int, end: int) -> tuple[int, int]:
    """How many items of an array or map follow, and where: -1 if that is damaged."""
    count, pos = read_long(buf, pos, end)
    if pos < 0 or count >= 0:
        return count, pos
    # A negative count is followed by the size of the block in bytes, for those who skip it.
    size, pos = read_long(buf, pos, end)
    if pos < 0 or size < 0 or size > end - pos or count < -_INT64_MAX:
        return 0, -1
    return -count, pos


@kernel
def read_scalar(
    buf: Any, pos: int, end: int, kind: int, size: int, place: int, numbers: Any, lengths: Any
) -> int:
    """Note one value; the position after it, or -1 if it is damaged."""
    if kind == BOOLEAN:
        if pos >= end or buf[pos] > 1:
            return -1
        numbers[place] = buf[pos]
        return pos + 1
    if kind in (FLOAT, DOUBLE):
        width = 4 if kind == FLOAT else 8
        if width > end - pos:
            return -1
        numbers[place] = read_bits(buf, pos, width)
        return pos + width
    if kind == FIXED:
        if size > end - pos:
            return -1
        numbers[place] = pos
        lengths[place] = size
        return pos + size
    value, pos = read_long(buf, pos, end)
    if pos < 0:
        return -1
    if kind == BYTES:
        if value < 0 or value > end - pos:
            return -1
        numbers[place] = pos
        lengths[place] = value
        return int(pos + value)
    if kind == INT and (value < _INT32_MIN or value > _INT32_MAX):
        return -1
    if kind == ENUM and (value < 0 or value >= size):
        return -1
    numbers[place] = value
    return pos


@kernel
def read_row(
    buf: Any,
    pos: int,
    end: int,
    steps: Any,
    stack: Any,
    counts: Any,
    numbers: Any,
    lengths: Any,
    valid: Any,
) -> bool:
    """Note one record; whether its bytes are a record and nothing more.

    `stack` has a row for each array or map that is open: its step, and how many items are left of
    its block. Where there is only one place to note something, the records are only counted.
    """
    noting = len(numbers) > 1
    depth = 0
    step = 0
    stop = len(steps)
    while True:
        if step == stop:
            if depth == 0:
                return pos == end
            owner = int(stack[depth - 1, 0])
            left = int(stack[depth - 1, 1]) - 1
            if left == 0:
                left, pos = read_block(buf, pos, end)
                if pos < 0:
                    return False
            if left == 0:
                depth -= 1
                step = int(steps[owner, NEXT])
                stop = len(steps) if depth == 0 else int(steps[int(stack[depth - 1, 0]), NEXT])
                continue
            stack[depth - 1, 1] = left
        else:
            level = int(steps[step, LEVEL])
            place = int(steps[step, BASE]) + int(counts[level]) - 1 if noting else 0
            null_at = int(steps[step, NULL_AT])
            if null_at >= 0:
                branch, pos = read_long(buf, pos, end)
                if pos < 0 or branch < 0 or branch > 1:
                    return False
                if branch == null_at:
                    step = int(steps[step, NEXT])
                    continue
            valid[place] = True
            kind = int(steps[step, KIND])
            if kind == RECORD:
                step += 1
                continue
            if kind < ARRAY:
                size = int(steps[step, SIZE])
                pos = read_scalar(buf, pos, end, kind, size, place, numbers, lengths)
                if pos < 0:
                    return False
                step += 1
                continue
            left, pos = read_block(buf, pos, end)
            if pos < 0:
                return False
            if left == 0:
                step = int(steps[step, NEXT])
                continue
            owner = step
            stack[depth, 0] = owner
            stack[depth, 1] = left
            depth += 1
            stop = int(steps[owner, NEXT])
        # One more item of the array or map that `owner` is.
        counts[int(steps[owner, SIZE])] += 1
        if noting:
            lengths[int(steps[owner, BASE]) + int(counts[int(steps[owner, LEVEL])]) - 1] += 1
        step = owner + 1


@kernel
def read_rows(
    buf: Any,
    offsets: Any,
    steps: Any,
    stack: Any,
    counts: Any,
    numbers: Any,
    lengths: Any,
    valid: Any,
) -> int:
    """Note all records; the first that is damaged, or -1."""
    for row in range(len(offsets) - 1):
        start = int(offsets[row])
        end = int(offsets[row + 1])
        counts[0] += 1
        if not read_row(buf, start, end, steps, stack, counts, numbers, lengths, valid):
            return row
    return -1


@kernel
def copy_parts(buf: Any, starts: Any, ends: Any, out: Any) -> None:
    """Lay parts of a buffer end to end; `ends` says where each begins and ends in `out`."""
    for row in range(len(starts)):
        first = int(ends[row])
        last = int(ends[row + 1])
        start = int(starts[row])
        to, of = out[first:last], buf[start : start + last - first]
        if IS_COMPILED:  # See `kernels.copy_bytes`; nor can a kernel assign a slice.
            for index in range(last - first):
                to[index] = of[index]
        else:
            to[:] = of
