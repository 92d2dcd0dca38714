"""The newest offset of each key in the part of a log that is about to be compacted.

The map is bounded by `log.cleaner.dedupe.buffer.size`: when it is full, this pass covers the log up
to `latest_offset` only, and the next one goes on from there. Keys are kept as they are while they
are short; a longer one is represented by a digest that nobody can make collide, so a hostile key
cannot make another one's record vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

from tidemill.wire.record_spans import RecordSpan

ENTRY_BYTES: Final = 160
"""What one key costs in memory: the table's slot, the key or its digest, and the offset."""

_EXACT_KEY_BYTES_MAX: Final = 32
_DIGEST_BYTES: Final = _EXACT_KEY_BYTES_MAX + 1
"""Longer than any key that stands for itself, so the two kinds never meet."""

_TABLES: Final = 128
_TABLE_MASK: Final = _TABLES - 1
_TABLES_PER_STEP: Final = 8
"""One large table would stop every thread for tens of milliseconds when it grows or goes."""

NOT_FOUND: Final = -1


class OffsetMap:
    """Key to last offset, for at most `keys_max` keys."""

    __slots__ = ("_count", "_tables", "keys_max", "latest_offset")

    def __init__(self, buffer_bytes: int, load_factor: float) -> None:
        self.keys_max = max(1, int(buffer_bytes * load_factor) // ENTRY_BYTES)
        self.latest_offset = NOT_FOUND
        """Everything up to here has been taken in: only that much may be compacted."""
        self._count = 0
        self._tables: list[dict[bytes, int]] = [{} for _ in range(_TABLES)]

    def __len__(self) -> int:
        return self._count

    def put_all(self, spans: Iterable[RecordSpan], base_offset: int, first_offset: int) -> bool:
        """Note where the keys of a batch's records are, from `first_offset` on.

        False when there is no room for a new key: what comes after `latest_offset` is not noted.
        """
        tables = self._tables
        for span in spans:
            key, offset = span.key, base_offset + span.offset_delta
            if key is None or offset < first_offset:
                continue
            if len(key) > _EXACT_KEY_BYTES_MAX:
                key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
            table = tables[hash(key) & _TABLE_MASK]
            if key not in table:
                if self._count >= self.keys_max:
                    return False
                self._count += 1
            table[key] = self.latest_offset = offset
        return True

    def get(self, key: bytes) -> int:
        """The last offset of the key in the covered part; -1 when it has none there."""
        if len(key) > _EXACT_KEY_BYTES_MAX:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._tables[hash(key) & _TABLE_MASK].get(key, NOT_FOUND)

    def release(self) -> Iterator[None]:
        """Give the memory back, a little at each step."""
        while self._tables:
            del self._tables[-_TABLES_PER_STEP:]
            yield
