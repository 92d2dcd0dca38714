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
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from operator import lt
from typing import ClassVar, NamedTuple, Protocol

from tidemill.storage.disk_errors import FileMissingError
from tidemill.storage.files import Files, read_if_there

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
_offset_entry = struct.Struct(">ii")
_time_entry = struct.Struct(">qi")


changing = threading.Lock()
"""Held for some instructions while an index gets other entries; never while a file is read."""

renaming = threading.Lock()
"""Held by the loop while segments change their names, and by those who read for a look at a name: a
thread that did not find a file waits for its other name here, instead of trying again and again.
Nobody may be told of anything meanwhile, who might want to read."""


class _Entries:
    """Pairs of numbers. They only get more: a cut makes new ones, so that a thread may go on with
    those that it took."""

    __slots__ = ("first", "second")

    def __init__(self, first: array[int], second: array[int]) -> None:
        self.first = first
        self.second = second

    def __len__(self) -> int:
        return len(self.first)

    def append(self, first: int, second: int) -> None:
        self.second.append(second)
        self.first.append(first)  # Last: a thread that finds it looks for the other one.

    def head(self, count: int) -> _Entries:
        return _Entries(self.first[:count], self.second[:count])


class _Index:
    """Entries in memory, and in a file that they are read from when they are needed.

    The loop changes an index; threads look things up, and may be the first to. What a thread has
    read counts only if nobody had the entries in memory since it began: they, and then the file,
    may be others by now.
    """

    __slots__ = ("_entries", "_files", "_generation", "_in_file", "_written", "path")

    _entry: ClassVar[struct.Struct]

    def __init__(self, files: Files, path: str, *, empty: bool = False) -> None:
        self._files = files
        self.path = path
        self._written = self._in_file = 0
        self._generation = 0
        """How often entries came into memory."""
        self._entries = self._parse(b"") if empty else None

    def __len__(self) -> int:
        return len(self._load())

    @property
    def is_loaded(self) -> bool:
        """Whether a lookup works from memory alone."""
        return self._entries is not None

    def size_bytes(self) -> int:
        """How large the index is, or its file where it has not been read."""
        entries = self._entries
        if entries is not None:
            return len(entries) * self._entry.size
        return self._files.size(self.path) if self._files.exists(self.path) else 0

    @property
    def unwritten(self) -> int:
        """How many entries the file has yet to get, or to lose."""
        entries = self._entries
        return 0 if entries is None else max(len(entries), self._in_file) - self._written

    @property
    def has_file(self) -> bool:
        """Whether there is anything in the file."""
        if self._entries is not None:
            return self._in_file > 0
        return self._files.exists(self.path) and self._files.size(self.path) > 0

    def write(self) -> None:
        """Make the file say what memory does; durable after a sync."""
        entries = self._entries
        if entries is None:
            return
        start, count = self._written, len(entries)
        pairs = zip(entries.first[start:count], entries.second[start:count], strict=True)
        data = b"".join(self._entry.pack(*pair) for pair in pairs)
        self._files.write_at(self.path, start * self._entry.size, (data,))
        self._written = count
        if self._in_file > count:
            self._files.truncate(self.path, count * self._entry.size)
        self._in_file = count

    def unload(self) -> None:
        """Give the memory back; everything must have been written."""
        if not self.unwritten:
            self._entries = None

    def _keep(self, entries: _Entries, count: int) -> None:
        """Forget all but the first `count` of the entries; `write` tells the file."""
        if count < len(entries):
            self._entries = entries.head(count)
        self._written = min(self._written, count)

    def _load(self) -> _Entries:
        while True:
            entries = self._entries
            if entries is not None:
                return entries
            generation = self._generation
            data = read_settled(self, lambda path: _entries_of(self._files, path, self._entry.size))
            entries = self._parse(data)
            with changing:
                if self._entries is None and self._generation == generation:
                    self._written = len(entries)
                    # What makes no sense is in the file all the same, until `write` cuts it off.
                    self._in_file = len(data) // self._entry.size
                    self._generation += 1
                    self._entries = entries
                    return entries

    @staticmethod
    def _parse(data: bytes) -> _Entries:
        """The entries that make sense, from the first on."""
        raise NotImplementedError


class IndexEntry(NamedTuple):
    """A batch's place: its last offset, relative to the segment's, and where it begins."""

    offset: int
    position: int
    after: int
    """The last offset of the batch that the entry before names, so the batch begins behind it."""


class OffsetIndex(_Index):
    """Offsets to positions, both strictly growing."""

    __slots__ = ()

    _entry = _offset_entry

    def append(self, relative_offset: int, position: int) -> None:
        entries = self._load()
        with changing:
            if not entries.first or relative_offset > entries.first[-1]:
                entries.append(relative_offset, position)

    def at_most(self, relative_offset: int) -> IndexEntry | None:
        """The last batch that ends at or before the offset."""
        entries = self._load()
        return _entry_in(entries, bisect_right(entries.first, relative_offset) - 1)

    def placed_at_most(self, position: int) -> IndexEntry | None:
        """The last batch that begins at or before the position."""
        entries = self._load()
        slot = bisect_right(entries.second, position) - 1
        return _entry_in(entries, min(slot, len(entries) - 1))

    def entries_from(self, position: int) -> Iterator[tuple[int, int]]:
        """Relative offset and position of the entries at or after `position`."""
        entries = self._load()
        end = len(entries)
        start = min(bisect_left(entries.second, position), end)
        return zip(entries.first[start:end], entries.second[start:end], strict=True)

    def last(self) -> IndexEntry | None:
        """The last entry; reads that one, not the file."""
        if self._entries is None:
            data = read_settled(
                self, lambda path: _last_entry(self._files, path, OFFSET_ENTRY_BYTES)
            )
            offset, position = _offset_entry.unpack(data) if data else (0, 0)
            if offset > 0 and position > 0:
                return IndexEntry(offset, position, 0)
        entries = self._load()
        return _entry_in(entries, len(entries) - 1)

    def truncate(self, position: int) -> None:
        """Forget the batches that start at or after `position`; `write` tells the file."""
        entries = self._load()
        self._keep(entries, bisect_left(entries.second, position))

    @staticmethod
    def _parse(data: bytes) -> _Entries:
        flat = array("i", data)
        if sys.byteorder == "little":
            flat.byteswap()
        offsets, positions = flat[0::2], flat[1::2]
        return _Entries(offsets, positions).head(_growing(offsets, positions))


class TimestampOffset(NamedTuple):
    """A timestamp and the offset it was seen at."""

    timestamp: int
    offset: int


class TimeIndex(_Index):
    """Timestamps to relative offsets; timestamps strictly grow, offsets grow."""

    __slots__ = ()

    _entry = _time_entry

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if it says something new."""
        entries = self._load()
        with changing:
            if timestamp >= 0 and (not entries.first or timestamp > entries.first[-1]):
                entries.append(timestamp, relative_offset)

    def floor(self, timestamp: int) -> int:
        """A relative offset before which every record is older than `timestamp`; 0 if unknown."""
        entries = self._load()
        slot = bisect_left(entries.first, timestamp)
        return entries.second[slot - 1] if slot else 0

    def last(self) -> TimestampOffset | None:
        """The largest timestamp noted, with its relative offset; reads one entry, not the file."""
        entries = self._entries
        return self._last_in_file() if entries is None else _last_time(entries)

    def truncate(self, relative_offset: int) -> None:
        """Forget what points at or after the offset; `write` tells the file."""
        entries = self._load()
        self._keep(entries, bisect_left(entries.second, relative_offset))

    def _last_in_file(self) -> TimestampOffset | None:
        data = read_settled(self, lambda path: _last_entry(self._files, path, TIME_ENTRY_BYTES))
        if not data:
            return None
        entry = TimestampOffset(*_time_entry.unpack(data))
        if entry.timestamp > 0:
            return entry
        # Zeros at the end are preallocated space: the file was not closed by its writer.
        return _last_time(self._load())

    @staticmethod
    def _parse(data: bytes) -> _Entries:
        entries = _Entries(array("q"), array("i"))
        time_before, offset_before = -1, 0
        for timestamp, offset in _time_entry.iter_unpack(data):
            if timestamp <= time_before or offset < offset_before or not (timestamp or offset):
                break
            entries.append(timestamp, offset)
            time_before, offset_before = timestamp, offset
        return entries


def _entry_in(entries: _Entries, slot: int) -> IndexEntry | None:
    if slot < 0:
        return None
    # The first batch of a segment is never indexed: what is begins behind the base offset.
    after = entries.first[slot - 1] if slot else 0
    return IndexEntry(entries.first[slot], entries.second[slot], after)


def _last_time(entries: _Entries) -> TimestampOffset | None:
    slot = len(entries) - 1
    return TimestampOffset(entries.first[slot], entries.second[slot]) if slot >= 0 else None


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
            if path == _settled_path(owner):
                raise
            continue
        if path == _settled_path(owner):
            return data


def _settled_path(owner: _HasPath) -> str:
    with renaming:
        return owner.path


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
