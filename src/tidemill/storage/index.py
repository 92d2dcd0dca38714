"""The sparse indexes of a segment: where a batch lies by its offset, and by its timestamp.

An index is a hint: it names the start of some batch at or before what is sought, and the reader
scans on from there. So a short or lost index costs time, never correctness. Entries live in arrays
in memory, read from the file on first use, and reach the file in groups, not one write each.

Formats (big endian): `.index` is (offset - base: int32, position: int32), where the offset is the
last one of the batch that starts at the position. `.timeindex` is (timestamp: int64, offset - base:
int32): no record before that offset has a later timestamp.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from operator import lt
from typing import NamedTuple, Protocol

from tidemill.storage.disk_errors import FileMissingError
from tidemill.storage.files import Files, read_if_there

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
_offset_entry = struct.Struct(">ii")
_time_entry = struct.Struct(">qi")


class OffsetIndex:
    """Offsets to positions, both strictly growing."""

    __slots__ = ("_files", "_in_file", "_loaded", "_offsets", "_positions", "_written", "path")

    def __init__(self, files: Files, path: str, *, empty: bool = False) -> None:
        self._files = files
        self.path = path
        self._offsets = array("i")
        self._positions = array("i")
        self._written = self._in_file = 0
        self._loaded = empty

    def __len__(self) -> int:
        self._load()
        return len(self._offsets)

    @property
    def is_loaded(self) -> bool:
        """Whether a lookup works from memory alone."""
        return self._loaded

    def size_bytes(self) -> int:
        """How large the index is, or its file where it has not been read."""
        if self._loaded:
            return len(self) * OFFSET_ENTRY_BYTES
        return self._files.size(self.path) if self._files.exists(self.path) else 0

    @property
    def unwritten(self) -> int:
        """How many entries the file has yet to get, or to lose."""
        return max(len(self._offsets), self._in_file) - self._written if self._loaded else 0

    @property
    def has_file(self) -> bool:
        """Whether there is anything in the file."""
        if self._loaded:
            return self._in_file > 0
        return self._files.exists(self.path) and self._files.size(self.path) > 0

    def append(self, relative_offset: int, position: int) -> None:
        self._load()
        if self._offsets and relative_offset <= self._offsets[-1]:
            return
        self._offsets.append(relative_offset)
        self._positions.append(position)

    def floor(self, relative_offset: int) -> int:
        """The position of a batch that ends at or before the offset; 0 if there is none."""
        self._load()
        slot = bisect_right(self._offsets, relative_offset)
        return self._positions[slot - 1] if slot else 0

    def position_at_most(self, position: int) -> int:
        """The last indexed batch boundary at or before `position`; 0 if there is none."""
        self._load()
        slot = bisect_right(self._positions, position)
        return self._positions[slot - 1] if slot else 0

    def entries_from(self, position: int) -> Iterator[tuple[int, int]]:
        """Relative offset and position of the entries at or after `position`."""
        self._load()
        first = bisect_left(self._positions, position)
        return zip(self._offsets[first:], self._positions[first:], strict=True)

    def last_position(self) -> int:
        """The last indexed position, 0 without one; reads one entry, not the file."""
        if not self._loaded:
            entry = read_settled(
                self, lambda path: _last_entry(self._files, path, OFFSET_ENTRY_BYTES)
            )
            offset, position = _offset_entry.unpack(entry) if entry else (0, 0)
            if offset > 0 and position > 0:
                return int(position)
        self._load()
        return self._positions[-1] if self._positions else 0

    def truncate(self, position: int) -> None:
        """Forget the batches that start at or after `position`; `write` tells the file."""
        self._load()
        kept = bisect_left(self._positions, position)
        del self._offsets[kept:]
        del self._positions[kept:]
        self._written = min(self._written, kept)

    def write(self) -> None:
        """Make the file say what memory does; durable after a sync."""
        if not self._loaded:
            return
        start = self._written
        pairs = zip(self._offsets[start:], self._positions[start:], strict=True)
        data = b"".join(_offset_entry.pack(*pair) for pair in pairs)
        self._files.write_at(self.path, start * OFFSET_ENTRY_BYTES, (data,))
        self._written = len(self._offsets)
        if self._in_file > self._written:
            self._files.truncate(self.path, self._written * OFFSET_ENTRY_BYTES)
        self._in_file = self._written

    def unload(self) -> None:
        """Give the memory back; everything must have been written."""
        if self._loaded and not self.unwritten:
            self._offsets, self._positions, self._loaded = array("i"), array("i"), False

    def _load(self) -> None:
        if self._loaded:
            return
        data = read_settled(self, lambda path: _entries_of(self._files, path, OFFSET_ENTRY_BYTES))
        flat = array("i", data)
        if sys.byteorder == "little":
            flat.byteswap()
        offsets, positions = flat[0::2], flat[1::2]
        count = _growing(offsets, positions)
        self._offsets, self._positions = offsets[:count], positions[:count]
        self._written = self._in_file = count
        self._loaded = True  # Last: another thread may be asking, too.


class TimestampOffset(NamedTuple):
    """A timestamp and the offset it was seen at."""

    timestamp: int
    offset: int


class TimeIndex:
    """Timestamps to relative offsets; timestamps strictly grow, offsets grow."""

    __slots__ = ("_files", "_in_file", "_loaded", "_offsets", "_times", "_written", "path")

    def __init__(self, files: Files, path: str, *, empty: bool = False) -> None:
        self._files = files
        self.path = path
        self._times = array("q")
        self._offsets = array("i")
        self._written = self._in_file = 0
        self._loaded = empty

    def __len__(self) -> int:
        self._load()
        return len(self._times)

    def size_bytes(self) -> int:
        """How large the index is, or its file where it has not been read."""
        if self._loaded:
            return len(self) * TIME_ENTRY_BYTES
        return self._files.size(self.path) if self._files.exists(self.path) else 0

    @property
    def unwritten(self) -> int:
        """How many entries the file has yet to get, or to lose."""
        return max(len(self._times), self._in_file) - self._written if self._loaded else 0

    @property
    def has_file(self) -> bool:
        """Whether there is anything in the file."""
        if self._loaded:
            return self._in_file > 0
        return self._files.exists(self.path) and self._files.size(self.path) > 0

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if it says something new."""
        self._load()
        if timestamp < 0 or (self._times and timestamp <= self._times[-1]):
            return
        self._times.append(timestamp)
        self._offsets.append(relative_offset)

    def floor(self, timestamp: int) -> int:
        """A relative offset before which every record is older than `timestamp`; 0 if unknown."""
        self._load()
        slot = bisect_left(self._times, timestamp)
        return self._offsets[slot - 1] if slot else 0

    def last(self) -> TimestampOffset | None:
        """The largest timestamp noted, with its relative offset; reads one entry, not the file."""
        if not self._loaded:
            return self._last_in_file()
        return TimestampOffset(self._times[-1], self._offsets[-1]) if self._times else None

    def truncate(self, relative_offset: int) -> None:
        """Forget what points at or after the offset; `write` tells the file."""
        self._load()
        kept = bisect_left(self._offsets, relative_offset)
        del self._times[kept:]
        del self._offsets[kept:]
        self._written = min(self._written, kept)

    def write(self) -> None:
        """Make the file say what memory does; durable after a sync."""
        if not self._loaded:
            return
        start = self._written
        pairs = zip(self._times[start:], self._offsets[start:], strict=True)
        data = b"".join(_time_entry.pack(*pair) for pair in pairs)
        self._files.write_at(self.path, start * TIME_ENTRY_BYTES, (data,))
        self._written = len(self._times)
        if self._in_file > self._written:
            self._files.truncate(self.path, self._written * TIME_ENTRY_BYTES)
        self._in_file = self._written

    def unload(self) -> None:
        """Give the memory back; everything must have been written."""
        if self._loaded and not self.unwritten:
            self._times, self._offsets, self._loaded = array("q"), array("i"), False

    def _last_in_file(self) -> TimestampOffset | None:
        data = read_settled(self, lambda path: _last_entry(self._files, path, TIME_ENTRY_BYTES))
        if not data:
            return None
        entry = TimestampOffset(*_time_entry.unpack(data))
        if entry.timestamp > 0:
            return entry
        # Zeros at the end are preallocated space: the file was not closed by its writer.
        self._load()
        return self.last()

    def _load(self) -> None:
        if self._loaded:
            return
        data = read_settled(self, lambda path: _entries_of(self._files, path, TIME_ENTRY_BYTES))
        times, offsets = array("q"), array("i")
        time_before, offset_before = -1, 0
        for timestamp, offset in _time_entry.iter_unpack(data):
            if timestamp <= time_before or offset < offset_before or not (timestamp or offset):
                break
            times.append(timestamp)
            offsets.append(offset)
            time_before, offset_before = timestamp, offset
        self._times, self._offsets = times, offsets
        self._written = self._in_file = len(times)
        self._loaded = True  # Last: another thread may be asking, too.


class _HasPath(Protocol):
    path: str


def read_settled(owner: _HasPath, read: Callable[[str], bytes]) -> bytes:
    """What `read` finds at the owner's path, while nobody renames the file under it.

    Compaction lets a new file take an old one's name, after it told the old one's owner that it has
    moved. So bytes are the owner's if its path is still the same after they were read.
    """
    while True:
        path = owner.path
        try:
            data = read(path)
        except FileMissingError:
            if path == owner.path:
                raise
            continue
        if path == owner.path:
            return data


def _entries_of(files: Files, path: str, entry_bytes: int) -> bytes:
    """The file's whole entries; nothing when there is no file."""
    data = read_if_there(files, path) or b""
    return data[: len(data) - len(data) % entry_bytes]


def _last_entry(files: Files, path: str, entry_bytes: int) -> bytes:
    """The last whole entry of the file; nothing when there is none."""
    if not files.exists(path):
        return b""
    count = files.size(path) // entry_bytes
    return files.pread(path, (count - 1) * entry_bytes, entry_bytes) if count else b""


def _growing(offsets: array[int], positions: array[int]) -> int:
    """How many entries from the first on make sense: preallocated or torn ones do not grow.

    The batch at position 0 is never indexed, so neither field of a real entry is 0.
    """
    if _all_grow(offsets) and _all_grow(positions):
        return len(offsets)  # Checked at the speed of C: a full index has 262,144 entries.
    offset_before = position_before = 0
    for slot, (offset, position) in enumerate(zip(offsets, positions, strict=True)):
        if offset <= offset_before or position <= position_before:
            return slot
        offset_before, position_before = offset, position
    return len(offsets)


def _all_grow(values: array[int]) -> bool:
    return not values or (values[0] > 0 and all(map(lt, values, islice(values, 1, None))))
