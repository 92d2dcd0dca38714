"""The batches that an offset index names.

The index of the active segment is not flushed, so a power cut may leave an entry of which some
bytes are new and some are not, and more entries after it. Recovery makes those anew that lie behind
the recovery point; to look at all others would be to read the whole file. So an entry is looked at
when somebody goes by it: it counts if a batch is where it says, and else the one before it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from tidemill.errors import WireError
from tidemill.storage.index import IndexEntry, OffsetIndex
from tidemill.storage.scan import Read, WouldBlockError, walk_headers
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, read_header

WRONG_ENTRIES_MAX = 16
"""After so many in a row the index is taken for worthless: to walk from the start costs less."""


class IndexedBatch(NamedTuple):
    """Where a batch begins, and with which offset."""

    position: int
    base_offset: int


@dataclass(slots=True)  # Not frozen: one is made for each read, and that would take thrice as long.
class IndexedFile:
    """A segment's file up to `end`, its index, and a way to read it."""

    index: OffsetIndex
    read: Read
    path: str
    base_offset: int
    end: int

    def by_offset(self, offset: int) -> IndexedBatch:
        """The last batch that is indexed and begins at or before `offset`; the first, if none is.

        Raises `WouldBlockError` when `read` says so.
        """
        asked = self.index.at_most(offset - self.base_offset)
        return self._sound(asked, lambda entry: self.index.at_most(entry.offset - 1))

    def batches_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers from the one that `by_offset` finds on, without an extra read."""
        entry = self.index.at_most(offset - self.base_offset)
        for _ in range(WRONG_ENTRIES_MAX):
            if entry is None:
                break
            batches = walk_headers(self.read, self.path, entry.position, self.end)
            try:
                first = next(batches, None)
            except WireError:
                first = None
            if first is not None and self._is_named(first[1], entry):
                return chain((first,), batches)
            entry = self.index.at_most(entry.offset - 1)
        return walk_headers(self.read, self.path, 0, self.end)

    def by_position(self, position: int) -> IndexedBatch:
        """The same for the last that begins at or before a position in the file."""
        return self._sound(self.index.placed_at_most(position), self._placed_before)

    def last(self) -> IndexedBatch:
        """The same for the last of all; reads one entry of the index file, and not all."""
        return self._sound(self.index.last(), self._placed_before)

    def _placed_before(self, entry: IndexEntry) -> IndexEntry | None:
        return self.index.placed_at_most(entry.position - 1)

    def _sound(
        self, entry: IndexEntry | None, before: Callable[[IndexEntry], IndexEntry | None]
    ) -> IndexedBatch:
        for _ in range(WRONG_ENTRIES_MAX):
            if entry is None:
                break
            header = self._header(entry.position)
            if header is not None and self._is_named(header, entry):
                return IndexedBatch(entry.position, header.base_offset)
            entry = before(entry)
        return IndexedBatch(0, self.base_offset)

    def _is_named(self, header: BatchHeader, entry: IndexEntry) -> bool:
        """Whether the entry can be about this batch.

        It ends with the entry's offset in our indexes. Apache Kafka writes one entry for several
        batches, with the place of the first and the offset of the last.
        """
        begins, ends = header.base_offset - self.base_offset, header.last_offset - self.base_offset
        return entry.after < begins and ends <= entry.offset

    def _header(self, position: int) -> BatchHeader | None:
        if position > self.end - HEADER_BYTES:
            return None
        data = self.read(self.path, position, HEADER_BYTES)
        if data is None:
            raise WouldBlockError(self.path)
        try:
            return read_header(data)
        except WireError:
            return None
