"""One segment: a `.log` file of record batches and the indexes beside it.

The last segment of a log is the active one and grows; the others never change again until they are
deleted. Opening a closed segment costs one `stat`: its indexes are read when somebody looks
something up. The active segment remembers where its latest batches lie, so that readers at the end
of the log need neither index nor disk to find their place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress

from tidemill.errors import WireError
from tidemill.storage.checksums import CHECKSUMS
from tidemill.storage.damage import SegmentFiles
from tidemill.storage.disk_errors import DiskError, DiskFailedError, DiskFullError
from tidemill.storage.files import Buffer, Files
from tidemill.storage.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    renaming,
)
from tidemill.storage.indexed import IndexedFile
from tidemill.storage.scan import Read, walk_headers
from tidemill.storage.txn_index import TransactionIndex
from tidemill.wire.batch import BatchHeader

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
INDEX_SUFFIXES = (INDEX, TIME_INDEX, TXN_INDEX)
SEGMENT_SUFFIXES = (LOG, *INDEX_SUFFIXES, CHECKSUMS)

RELATIVE_OFFSET_MAX = 2**31 - 1
RECENT_BATCHES_MAX = 512
INDEX_ENTRIES_UNWRITTEN_MAX = 256
UNINDEXED_BYTES_MAX = 64 * 1024
"""Up to this size an active segment needs no index files: a start reads its batches instead."""


def offset_name(offset: int) -> str:
    """The file name, less its suffix, of what begins at `offset`."""
    return f"{offset:020d}"


class _RecentBatches:
    """Where the latest batches lie. Lists only grow: a thread may be reading them."""

    __slots__ = ("floor", "last_offsets", "positions")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.last_offsets: list[int] = []
        self.positions: list[int] = []

    def covers(self, offset: int) -> bool:
        return offset >= self.floor and bool(self.last_offsets)

    def younger_half(self) -> _RecentBatches:
        half = len(self.last_offsets) // 2
        younger = _RecentBatches(self.last_offsets[half - 1] + 1)
        younger.last_offsets = self.last_offsets[half:]
        younger.positions = self.positions[half:]
        return younger


class Segment:
    """The batches from `base_offset` up to the next segment's."""

    __slots__ = (
        "_bytes_since_index",
        "_files",
        "_recent",
        "_sealed_size",
        "_stem",
        "_suffix",
        "base_offset",
        "created_ms",
        "cuts",
        "first_timestamp",
        "is_gone",
        "log_path",
        "lowest_cut",
        "max_timestamp",
        "max_timestamp_offset",
        "name_is_durable",
        "offset_index",
        "size",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        size: int,
        created_ms: int,
        suffix: str = "",
    ) -> None:
        """`size` -1 makes a new, empty segment; files appear with the first write to each.

        `suffix` is for one that is not the log's yet: it is being compacted into.
        """
        is_new = size < 0
        stem = f"{directory}/{offset_name(base_offset)}"
        self._files = files
        self._stem = stem
        self._suffix = suffix
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.log_path = stem + LOG + suffix
        self.size = max(0, size)
        self.offset_index = OffsetIndex(files, stem + INDEX + suffix, empty=is_new)
        self.time_index = TimeIndex(files, stem + TIME_INDEX + suffix, empty=is_new)
        self.txn_index = TransactionIndex(files, stem + TXN_INDEX + suffix, empty=is_new)
        self.first_timestamp: int | None = None
        self.max_timestamp: int | None = -1 if is_new else None
        self.max_timestamp_offset = base_offset
        self.name_is_durable = not is_new
        self.is_gone = False
        """Deleted, or its directory is: a missing file is no fault of the disk then."""
        self.cuts = 0
        """Changes when a cut begins and when it is done, and with `forsake`; `lowest_cut` is the
        lowest position from which bytes may be others, or another's, since."""
        self.lowest_cut = 0
        self._bytes_since_index = 0
        self._sealed_size = -1
        self._recent = _RecentBatches(base_offset)

    def note_missing_indexes(self, names: Collection[str]) -> None:
        """Of these files in its directory: an index that is not there need not be looked for."""
        stem = offset_name(self.base_offset)
        if stem + INDEX not in names:
            self.offset_index = OffsetIndex(self._files, self._stem + INDEX, empty=True)
        if stem + TIME_INDEX not in names:
            self.time_index = TimeIndex(self._files, self._stem + TIME_INDEX, empty=True)

    # Writing

    def create(self) -> None:
        """Make the `.log` file, empty; leftovers of an earlier life under this name are cut."""
        self._files.write_at(self.log_path, 0, (b"",))
        if self._files.size(self.log_path):
            self._files.truncate(self.log_path, 0)
        for path in (self.offset_index.path, self.time_index.path, self.txn_index.path):
            self._files.unlink(path)
        self.drop_checksums()

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append bytes; on failure the file is as before, or the error takes the dir offline."""
        if self.max_timestamp is None:
            self._recall_timestamps()
        try:
            self._files.write_at(self.log_path, self.size, parts)
        except DiskError as error:
            if not error.takes_dir_offline:
                self._cut_back(error)
            raise

    def _recall_timestamps(self) -> None:
        """Before the first batch since a start: those before it may have later timestamps."""
        with suppress(WireError):  # Damaged bytes are for those who read them.
            self.largest_timestamp()

    def _cut_back(self, cause: DiskError) -> None:
        try:
            self._files.truncate(self.log_path, self.size)
        except DiskError as error:
            raise DiskFailedError(
                f"A failed write to {self.log_path} cannot be undone: {error.message}"
            ) from cause

    def note_batch(
        self, base_offset: int, last_offset: int, size: int, max_timestamp: int, interval_bytes: int
    ) -> None:
        """Take a batch that was just written into account: size, time and index."""
        position = self.size
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        if max_timestamp > (self.max_timestamp or -1):
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index > interval_bytes and position:
            self._index(last_offset, position)
        self._bytes_since_index += size
        self.size = position + size
        recent = self._recent
        last_offsets = recent.last_offsets
        if not last_offsets:
            recent.floor = base_offset
        recent.positions.append(position)
        last_offsets.append(last_offset)
        if len(last_offsets) > RECENT_BATCHES_MAX:
            self._recent = recent.younger_half()

    def _index(self, last_offset: int, position: int) -> None:
        self.offset_index.append(last_offset - self.base_offset, position)
        self._note_time()
        self._bytes_since_index = 0
        if self.offset_index.unwritten >= INDEX_ENTRIES_UNWRITTEN_MAX:
            self._try_to_write_indexes()

    def _try_to_write_indexes(self) -> None:
        """A full disk does not fail an append that is already in the log: memory has the rest."""
        try:
            self.write_indexes()
        except DiskError as error:
            if error.takes_dir_offline:
                raise

    def _note_time(self) -> None:
        if self.max_timestamp is not None:
            relative = self.max_timestamp_offset - self.base_offset
            self.time_index.append(self.max_timestamp, relative)

    def write_indexes(self) -> None:
        """Bring the index files up to date with memory; they are durable after a sync."""
        self.offset_index.write()
        self.time_index.write()

    def seal(self) -> None:
        """The segment gets no more batches: note its last timestamp and write its indexes."""
        self._note_time()
        self.write_indexes()
        self.note_sealed()
        self._recent = _RecentBatches(self.base_offset)

    def note_sealed(self) -> None:
        """Its index files, if it has any, say all that there is to say."""
        self._sealed_size = self.size

    @property
    def is_quick_to_open(self) -> bool:
        """Whether a start finds its way: the indexes are complete, or few batches are in no index.

        Files that are there must be complete, since the last entry of the time index is believed.
        """
        if self._sealed_size == self.size and not self.has_unwritten_index:
            return True
        return self.size <= UNINDEXED_BYTES_MAX and not self.has_index_file

    @property
    def has_index_file(self) -> bool:
        return self.offset_index.has_file or self.time_index.has_file

    @property
    def has_unwritten_index(self) -> bool:
        return self.offset_index.unwritten > 0 or self.time_index.unwritten > 0

    def index_is_full(self, index_bytes: int) -> bool:
        """Whether one more entry might not fit, counted as Kafka counts."""
        return (
            len(self.offset_index) >= index_bytes // OFFSET_ENTRY_BYTES - 1
            or len(self.time_index) >= index_bytes // TIME_ENTRY_BYTES - 1
        )

    def take_sync_paths(self) -> list[str]:
        """The files to flush so that the batches, and what cannot be had from them, are durable.

        The indexes of the active segment are not among them: recovery makes them again.
        """
        if not self.txn_index.dirty:
            return [self.log_path]
        self.txn_index.dirty = False
        if self.txn_index.is_new_file:
            self.txn_index.is_new_file = False
            self.name_is_durable = False  # The flush has to make the new name durable, too.
        return [self.log_path, self.txn_index.path]

    def index_paths(self) -> list[str]:
        """What is flushed once, when the segment has got its last batch."""
        return [self.offset_index.path, self.time_index.path]

    # Reading

    def locate(self, offset: int, read: Read) -> int:
        """Where the batch with `offset`, or the first one after it, begins; `size` if none."""
        end, recent = self.size, self._recent
        if recent.covers(offset):
            slot = bisect_left(recent.last_offsets, offset)
            return recent.positions[slot] if slot < len(recent.last_offsets) else end
        for position, header in self.indexed(read).batches_from(offset):
            if header.last_offset >= offset:
                return position
        return end

    def knows_without_disk(self, offset: int) -> bool:
        """Whether `locate` needs no index file for this offset."""
        return self.offset_index.is_loaded or self._recent.covers(offset)

    def indexed(self, read: Read) -> IndexedFile:
        """The batches that the offset index names."""
        return IndexedFile(self.offset_index, read, self.log_path, self.base_offset, self.size)

    def last_batch(self, read: Read) -> tuple[int, BatchHeader] | None:
        """The last whole batch and its position, found from the end of the index."""
        start = self.indexed(read).last().position
        tail = deque(walk_headers(read, self.log_path, start, self.size), maxlen=1)
        return tail[0] if tail else None

    def first_batch(self) -> BatchHeader | None:
        for _, header in walk_headers(self._files.pread, self.log_path, 0, self.size):
            return header
        return None

    def largest_timestamp(self) -> TimestampOffset:
        """The largest timestamp and the last offset of its batch; the index's end says it."""
        if self.max_timestamp is not None:
            return TimestampOffset(self.max_timestamp, self.max_timestamp_offset)
        last = self.time_index.last()
        if last is not None:
            found = TimestampOffset(last.timestamp, self.base_offset + last.offset)
        else:
            found = self._scan_timestamps()
        if self.max_timestamp is None:  # A cut may have set it while a thread was reading.
            self.max_timestamp_offset = found.offset
            self.max_timestamp = found.timestamp
        return found

    def _scan_timestamps(self) -> TimestampOffset:
        """The time index is lost: look at every header once, and write a new one."""
        largest, at = -1, self.base_offset
        for _, header in walk_headers(self._files.pread, self.log_path, 0, self.size):
            if header.max_timestamp > largest:
                largest, at = header.max_timestamp, header.last_offset
                self.time_index.append(largest, at - self.base_offset)
        return TimestampOffset(largest, at)

    def retention_timestamp(self) -> int:
        """What time-based retention goes by: the records' time, or the file's without any."""
        largest = self.largest_timestamp().timestamp
        return largest if largest >= 0 else self._files.modified_ms(self.log_path)

    def rolling_timestamp(self) -> int:
        """The first batch's timestamp, from which `segment.ms` counts; -1 without one."""
        if self.first_timestamp is None:
            header = self.first_batch() if self.size else None
            if header is None:
                return -1
            self.first_timestamp = header.max_timestamp
        return self.first_timestamp

    # Cutting and deleting

    def truncate(self, position: int, offset: int) -> None:
        """Drop everything from `position` on, where the batch of `offset` begins."""
        self._note_cut(position)
        self.drop_checksums()
        self.offset_index.truncate(position)
        self.time_index.truncate(offset - self.base_offset)
        self.txn_index.truncate(offset)
        self._files.truncate(self.log_path, position)
        self.size = position
        self._sealed_size = -1  # It may grow to that size again, with other batches.
        self._bytes_since_index = 0
        self._recent = _RecentBatches(self.base_offset)
        try:
            self.reload_timestamps()
        finally:
            self.cuts += 1  # Once more: a thread may have begun to read in between.

    def _note_cut(self, position: int) -> None:
        """Before anything is cut: a thread that has read something asks for these afterwards."""
        self.lowest_cut = min(self.lowest_cut, position) if self.cuts else position
        self.cuts += 1

    def forsake(self) -> None:
        """The log lets go of the segment, and another may get its names: who still reads finds
        nothing rather than somebody else's bytes."""
        self.is_gone = True
        self._note_cut(0)

    def reload_timestamps(self) -> None:
        """Find the largest timestamp anew: the time index, then the batches after its end."""
        last = self.time_index.last()
        largest = last.timestamp if last else -1
        at = self.base_offset + (last.offset if last else 0)
        start = self.indexed(self._files.pread).by_offset(at).position
        try:
            for _, header in walk_headers(self._files.pread, self.log_path, start, self.size):
                if header.max_timestamp > largest:
                    largest, at = header.max_timestamp, header.last_offset
        finally:
            self.max_timestamp, self.max_timestamp_offset = largest, at
        if not self.size:
            self.first_timestamp = None

    def restart_indexes(self, position: int, offset: int) -> None:
        """Forget index entries from `position` on, before a scan adds them again."""
        self.offset_index.truncate(position)
        self.time_index.truncate(offset - self.base_offset)
        self._bytes_since_index = 0

    def reset_end(self, position: int) -> None:
        """Begin a scan at `position`: what lies before it is known from the indexes.

        The time index may know less of it than the other, since a crash keeps any part of a file.
        """
        self.size = position
        self._recent = _RecentBatches(self.base_offset)
        with suppress(WireError):  # Damaged bytes are for those who read them.
            self.reload_timestamps()

    @property
    def checksums_path(self) -> str:
        return self._stem + CHECKSUMS + self._suffix

    def drop_checksums(self) -> None:
        """The segment will change: what was said of its bytes does not hold any more."""
        self._files.unlink(self.checksums_path)

    def as_files(self, end_offset: int) -> SegmentFiles:
        """What a thread needs to look at the segment once it is closed."""
        return SegmentFiles(
            self.log_path,
            self.offset_index.path,
            self.checksums_path,
            self.base_offset,
            end_offset,
            self.size,
        )

    def paths(self) -> list[str]:
        """Every file the segment may have, under its present name."""
        return [self._stem + suffix + self._suffix for suffix in SEGMENT_SUFFIXES]

    def mark_deleted(self, number: int) -> None:
        """Rename the files, so that a restart does not take them for the log's.

        No other segment may ever get the same number: what is compacted again and again is deleted
        under one offset again and again, and each has readers. The caller holds `renaming`.
        """
        self.is_gone = True
        suffix = f".{number}{DELETED}"
        try:
            for path in self.paths():
                if self._files.exists(path):
                    self._files.replace(path, path + suffix)
        except DiskFullError:
            # There is no room for a longer name, and this is what makes room: it goes at once.
            for path in self.paths():
                self._files.unlink(path)
                self._files.unlink(path + suffix)
        self._point_at(suffix)

    def settled_log_path(self) -> str:
        """The name of the log file, as soon as nobody is changing it."""
        with renaming:
            return self.log_path

    def rename_indexes(self, suffix: str) -> None:
        """Move the indexes, which must all exist, to names with another suffix."""
        for kind in INDEX_SUFFIXES:
            self._files.replace(self._stem + kind + self._suffix, self._stem + kind + suffix)
        self.offset_index.path = self._stem + INDEX + suffix
        self.time_index.path = self._stem + TIME_INDEX + suffix
        self.txn_index.path = self._stem + TXN_INDEX + suffix

    def rename_log(self, suffix: str) -> None:
        """Move the batches after their indexes: a log file's name says what the segment is."""
        self._files.replace(self.log_path, self._stem + LOG + suffix)
        self._point_at(suffix)

    def _point_at(self, suffix: str) -> None:
        """Go by other names from now on. A thread that reads looks at its path again afterwards,
        so these change before anything else may take the old names."""
        self._suffix = suffix
        self.log_path = self._stem + LOG + suffix
        self.offset_index.path = self._stem + INDEX + suffix
        self.time_index.path = self._stem + TIME_INDEX + suffix
        self.txn_index.path = self._stem + TXN_INDEX + suffix

    def delete_files(self) -> None:
        self.is_gone = True
        for path in self.paths():
            self._files.unlink(path)

    def close(self) -> None:
        """Let go of the file descriptors."""
        for path in self.paths():
            self._files.close(path)

    def release_memory(self) -> None:
        """Drop what a closed segment can read again from its files."""
        self.offset_index.unload()
        self.time_index.unload()
