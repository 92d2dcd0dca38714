"""Columnar encoding, the inner loops: rows into record batches, keys into partitions.

The other direction, and what a kernel is: `tidemill.wire.kernels`. A column is given as positions
and lengths (-1 for null) in one buffer, so that the memory of an Arrow array is read as it stands.
"""

from __future__ import annotations

from typing import Any, Final

from tidemill.wire.kernels import IS_COMPILED, kernel

# Numba's cache looks at the age of this file, not at what `Kernel.compile` asks of the compiler. So
# that is said here, to be changed along with it: nogil, forceinline, no counting of references.

_57_BITS: Final = 2**57 - 1
_32_BITS: Final = 2**32 - 1
_31_BITS: Final = 2**31 - 1
_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_M: Final = 0x5BD1E995

# What `encode_records` answers besides the row where it stopped.
MADE_BYTES: Final = 0
MADE_MAX_TIMESTAMP: Final = 1
MADE_FIELDS: Final = 2


# --- records ------------------------------------------------------------------------------------


@kernel
def varint_bytes(value: int) -> int:
    """How long a signed number of 64 bits is as a zigzag varint."""
    encoded = (value << 1) ^ (value >> 63)
    size = 1
    while encoded > 0x7F or encoded < 0:  # Below 0: the 64th bit is in use.
        encoded = (encoded >> 7) & _57_BITS
        size += 1
    return size


@kernel
def write_varint(out: Any, pos: int, value: int) -> int:
    """Write a zigzag varint; the position after it."""
    encoded = (value << 1) ^ (value >> 63)
    while encoded > 0x7F or encoded < 0:
        out[pos] = (encoded & 0x7F) | 0x80
        encoded = (encoded >> 7) & _57_BITS
        pos += 1
    out[pos] = encoded
    return pos + 1


@kernel
def field_bytes(length: int) -> int:
    """The size of a field with its length; -1 is null."""
    size: int = varint_bytes(length) + max(length, 0)
    return size


@kernel
def write_field(out: Any, pos: int, data: Any, start: int, length: int) -> int:
    """Write a field with its length; the position after it."""
    pos = write_varint(out, pos, length)
    if length <= 0:
        return pos
    to, of = out[pos : pos + length], data[start : start + length]
    if IS_COMPILED:  # See `kernels.copy_bytes`.
        for index in range(length):
            to[index] = of[index]
    else:
        to[:] = of
    return pos + length


@kernel
def encode_records(
    rows: Any,
    first: int,
    timestamps: Any,
    key_data: Any,
    key_pos: Any,
    key_len: Any,
    value_data: Any,
    value_pos: Any,
    value_len: Any,
    header_pos: Any,
    header_count: Any,
    name_data: Any,
    name_pos: Any,
    name_len: Any,
    content_data: Any,
    content_pos: Any,
    content_len: Any,
    out: Any,
    made: Any,
) -> int:
    """Encode `rows[first:]` one after the other while they fit into `out`; where that ended."""
    at = 0
    base_time = int(timestamps[rows[first]])
    latest = base_time
    index = first
    while index < len(rows):
        row = rows[index]
        timestamp = int(timestamps[row])
        headers = int(header_pos[row])
        headers_end = headers + int(header_count[row])
        size = (
            1
            + varint_bytes(timestamp - base_time)
            + varint_bytes(index - first)
            + field_bytes(int(key_len[row]))
            + field_bytes(int(value_len[row]))
            + varint_bytes(headers_end - headers)
        )
        for header in range(headers, headers_end):
            size += field_bytes(int(name_len[header])) + field_bytes(int(content_len[header]))
        if varint_bytes(size) + size > len(out) - at:
            break
        at = write_varint(out, at, size)
        out[at] = 0
        at = write_varint(out, at + 1, timestamp - base_time)
        at = write_varint(out, at, index - first)
        at = write_field(out, at, key_data, int(key_pos[row]), int(key_len[row]))
        at = write_field(out, at, value_data, int(value_pos[row]), int(value_len[row]))
        at = write_varint(out, at, headers_end - headers)
        for header in range(headers, headers_end):
            at = write_field(out, at, name_data, int(name_pos[header]), int(name_len[header]))
            at = write_field(
                out, at, content_data, int(content_pos[header]), int(content_len[header])
            )
        latest = max(latest, timestamp)
        index += 1
    made[MADE_BYTES] = at
    made[MADE_MAX_TIMESTAMP] = latest
    return index


# --- partitions ---------------------------------------------------------------------------------


@kernel
def murmur2(data: Any, start: int, length: int) -> int:
    """Kafka's 32-bit murmur2, as an unsigned number."""
    h = (_MURMUR_SEED ^ length) & _32_BITS
    whole = length - length % 4
    for pos in range(start, start + whole, 4):
        k = (
            int(data[pos])
            | int(data[pos + 1]) << 8
            | int(data[pos + 2]) << 16
            | int(data[pos + 3]) << 24
        )
        k = k * _MURMUR_M & _32_BITS
        k = (k ^ k >> 24) * _MURMUR_M & _32_BITS
        h = (h * _MURMUR_M & _32_BITS) ^ k
    if whole < length:
        tail = 0
        for index in range(length - whole):
            tail |= int(data[start + whole + index]) << 8 * index
        h = (h ^ tail) * _MURMUR_M & _32_BITS
    h = (h ^ h >> 13) * _MURMUR_M & _32_BITS
    return h ^ h >> 15


@kernel
def hash_keys(data: Any, pos: Any, length: Any, partition_count: int, out: Any) -> int:
    """The partition of each key, -1 for null; returns how many are null."""
    nulls = 0
    for row in range(len(out)):
        if length[row] < 0:
            out[row] = -1
            nulls += 1
        else:
            hashed = murmur2(data, int(pos[row]), int(length[row])) & _31_BITS
            out[row] = hashed % partition_count
    return nulls


@kernel
def group_rows(groups: Any, group_count: int, starts: Any, rows: Any) -> int:
    """Sort row numbers by group, each group in its order; -1 if a row has no such group.

    The rows of group `g` are `rows[starts[g]:starts[g + 1]]`.
    """
    for row in range(len(groups)):
        if groups[row] < 0 or groups[row] >= group_count:
            return -1
        starts[groups[row] + 1] += 1
    for group in range(group_count):
        starts[group + 1] += starts[group]
    for row in range(len(groups)):
        group = int(groups[row])
        rows[starts[group]] = row
        starts[group] += 1
    # Each start has moved on to the next one's place by now.
    for group in range(group_count, 0, -1):
        starts[group] = starts[group - 1]
    starts[0] = 0
    return 0
