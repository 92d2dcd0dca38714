"""Which partition of the offsets topic a group lives in: Java's string hash, as Kafka computes it.

Every client and every broker must agree on it, and so must a log that was written by Kafka.
"""

from __future__ import annotations

from functools import lru_cache

_REMEMBERED_MAX = 16_384
_REMEMBERED_LENGTH_MAX = 256
"""Names are asked for all the time: 16 MiB of them at most, and no long ones, are remembered."""

_MASK = 0xFFFFFFFF


def java_string_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, in 32 bits with a sign."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(data), 2):
        unit = (data[position] << 8) | data[position + 1]
        value = (value * 31 + unit) & _MASK
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(group_id: str, partition_count: int) -> int:
    """The group's partition; the one number without an absolute value counts as zero."""
    is_short = len(group_id) <= _REMEMBERED_LENGTH_MAX
    value = _remembered_hash(group_id) if is_short else java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


@lru_cache(_REMEMBERED_MAX)
def _remembered_hash(text: str) -> int:
    return java_string_hash(text)
