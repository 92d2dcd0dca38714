"""From wrong bytes in a segment to the offsets that they take along.

A reader may have everything up to the first batch that wrong bytes touch, and everything from an
indexed batch behind them on. In between nothing is believed: a wrong length hides where the next
batch begins, so the way back is an index entry whose batch lies in sound bytes and agrees with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.errors import WireError
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.files import Files
from tidemill.storage.index import OffsetIndex
from tidemill.storage.scan import walk_headers
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, read_header

Range = tuple[int, int]
RANGES_MAX = 1000
"""A segment that is broken in more places than this is treated as one from there on."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a closed segment that are not what was written, and what cannot be read for it."""

    base_offset: int
    """Of the segment."""
    start: int
    end: int
    """The wrong bytes are in [start, end) of the file."""
    read_until: int
    """Where the first batch that they touch begins: up to here the file can be read."""
    first_offset: int
    next_offset: int
    """Offsets from the first up to, but not including, the next one cannot be read."""

    def __str__(self) -> str:
        return (
            f"bytes {self.start} to {self.end - 1}, offsets {self.first_offset} to "
            f"{max(self.first_offset, self.next_offset - 1)}"
        )


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Where a closed segment lies and which offsets it holds; enough to look at it in a thread."""

    log_path: str
    index_path: str
    checksums_path: str
    base_offset: int
    end_offset: int
    size: int


class DamageMap:
    """Finds the offsets around wrong bytes of one segment."""

    def __init__(self, files: Files, segment: SegmentFiles, bad: Sequence[Range]) -> None:
        self._files = files
        self._segment = segment
        self._bad = merged(bad)
        self._starts = [start for start, _ in self._bad]
        self._index = OffsetIndex(files, segment.index_path)

    def damage(self) -> list[Damage]:
        """One entry for each stretch of offsets that cannot be read, in order."""
        found: list[Damage] = []
        resume_at = 0
        for start, end in self._bad:
            if found and start < resume_at:
                # It lies in what cannot be read for the last one's sake.
                before = found.pop()
                start, read_until, first = before.start, before.read_until, before.first_offset
            else:
                read_until, first = self._before(start, resume_at)
            next_offset, resume_at = self.after(end)
            base = self._segment.base_offset
            found.append(Damage(base, start, end, read_until, first, max(first, next_offset)))
        return found

    def after(self, end: int) -> tuple[int, int]:
        """An offset that can be read again, and the position of its batch, at or behind `end`."""
        segment = self._segment
        for relative, position in self._index.entries_from(end):
            header = self._header(position)
            if header is not None and header.last_offset == segment.base_offset + relative:
                return header.last_offset, position
        return segment.end_offset, max(segment.size, end)

    def _before(self, start: int, resume_at: int) -> Range:
        """Where the first batch begins that is touched, and the offset after the one before it."""
        segment = self._segment
        position = self._indexed_before(start, resume_at)
        header = self._header(position)
        offset = segment.base_offset if header is None or not position else header.base_offset
        try:
            batches = walk_headers(self._files.pread, segment.log_path, position, start)
            for at, header in batches:
                position, offset = at + header.size_bytes, header.next_offset
        except (WireError, DiskError):
            pass
        return position, offset

    def _indexed_before(self, start: int, resume_at: int) -> int:
        """A sound batch with at least one more between it and `start`, if there is one."""
        entry = self._index.placed_at_most(start)
        while entry is not None and entry.position > resume_at:
            entry = self._index.placed_at_most(entry.position - 1)
            if entry is not None and self._header(entry.position) is not None:
                break
        return max(entry.position if entry else 0, resume_at)

    def _header(self, position: int) -> BatchHeader | None:
        """The header there, unless wrong bytes touch it."""
        slot = bisect_left(self._starts, position + HEADER_BYTES)
        if slot and self._bad[slot - 1][1] > position:
            return None
        try:
            return read_header(self._files.pread(self._segment.log_path, position, HEADER_BYTES))
        except (WireError, DiskError):
            return None


def merged(ranges: Sequence[Range]) -> list[Range]:
    """The same bytes in as few ranges as possible, in order; beyond a limit, with those between."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and (start <= found[-1][1] or len(found) == RANGES_MAX):
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
