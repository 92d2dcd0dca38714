"""Which partition a record goes to: by the hash of its key, or spread evenly if it has none.

The hash is Kafka's variant of murmur2, so that every client puts a key where every other does.
Records without a key stick to one partition until a batch's worth of bytes went there, then move
on: batches are full even at low rates, and each partition gets the same share in the long run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from struct import Struct

CustomPartitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""(topic, key, value, number of partitions) -> partition."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORD = Struct("<I")
HASHES_KEPT = 65_536
"""Keys repeat: their hashes are kept, since hashing in Python costs more than a lookup."""


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, as an unsigned number."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for (k,) in _WORD.iter_unpack(data[:whole]):
        k = k * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=HASHES_KEPT)
def positive_hash(key: bytes) -> int:
    """The hash without its sign bit, ready for the remainder."""
    return murmur2(key) & 0x7FFFFFFF


class StickyChoice:
    """The partition for records without a key; one per topic.

    `loads` of the partitions - batches that wait - steer the choice: a partition whose broker is
    slow is chosen less often, as much as its queue is longer than the longest one is not.
    """

    __slots__ = ("_left_bytes", "_random", "_stick_bytes", "current")

    def __init__(self, random: Random, stick_bytes: int) -> None:
        self._random = random
        self._stick_bytes = max(stick_bytes, 1)
        self._left_bytes = 0
        self.current = -1

    def take(self, size_bytes: int) -> bool:
        """Count a record on the current partition; False when it is time to choose anew."""
        self._left_bytes -= size_bytes
        return self._left_bytes > 0 and self.current >= 0

    def choose(self, available: Sequence[int], loads: Sequence[int] | None = None) -> int:
        """Stick to one of `available` from now on."""
        self._left_bytes = self._stick_bytes
        if loads is None or len(available) < 2 or max(loads) == min(loads):
            self.current = self._random.choice(available)
        else:
            longest = max(loads) + 1
            weights = list(accumulate(longest - load for load in loads))
            self.current = self._random.choices(available, cum_weights=weights)[0]
        return self.current


class RoundRobin:
    """Each record to the next partition in turn, keys ignored."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: dict[str, int] = {}

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int
    ) -> int:
        chosen = self._next.get(topic)
        if chosen is None:
            chosen = self._random.randrange(partition_count)
        self._next[topic] = chosen + 1
        return chosen % partition_count
