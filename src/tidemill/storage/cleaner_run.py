"""One pass of compaction over one log, as a sequence of small pieces of work.

`CleaningRun.steps` is a generator that runs in a thread, one piece at a time: it fills the map of
newest offsets from the dirty part of the log, then writes each group of segments anew. It changes
nothing of the log itself. Where a new segment is ready it yields the `Swap`, and is resumed when
the loop has carried it out. Whoever drives it can stop at any piece; `discard` tidies up.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from tidemill.storage.cleaner_filter import BatchFilter, Kept
from tidemill.storage.cleaner_map import OffsetMap
from tidemill.storage.cleaner_plan import Plan, groups
from tidemill.storage.cleaner_source import (
    DamagedSegmentError,
    SuspectSegmentError,
    sound_batches,
)
from tidemill.storage.cleaner_txns import TransactionTracker
from tidemill.storage.disk_errors import FileMissingError
from tidemill.storage.files import Files
from tidemill.storage.log_replace import Swap, discard_cleaned
from tidemill.storage.scan import ScannedBatch
from tidemill.storage.segment import CLEANED, SWAP, Segment
from tidemill.storage.segment_check import SegmentCheck
from tidemill.storage.validate import DECOMPRESSED_BYTES_MAX
from tidemill.wire.control import read_marker
from tidemill.wire.record_spans import iter_spans
from tidemill.wire.records import records_body

PIECE_BYTES = 128 * 1024
PIECE_RECORDS = 1500
"""How much work one piece is: a few milliseconds, in which the loop shares the interpreter."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The broker's `log.cleaner.*` settings, as one run obeys them."""

    is_enabled: bool = True
    dedupe_buffer_bytes: int = 128 << 20
    io_buffer_bytes: int = 512 << 10
    load_factor: float = 0.9
    io_bytes_per_second_max: float = float("inf")


@dataclass(slots=True)
class RunStats:
    """What a pass did, for the log line and the curious."""

    map_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keys: int = 0
    swaps: int = 0


Step = int | Swap
"""Bytes that a piece of work has read and written, or a segment that is ready to be swapped in."""


class CleaningRun:
    """The pass over one log that a plan describes."""

    def __init__(self, files: Files, plan: Plan, settings: CleanerSettings) -> None:
        self.plan = plan
        self.stats = RunStats()
        self.offsets = OffsetMap(settings.dedupe_buffer_bytes, settings.load_factor)
        self._files = files
        self._buffer_bytes = max(16 * 1024, settings.io_buffer_bytes // 2)
        self._unfinished: Segment | None = None
        self._pending = list(plan.segments)
        ends = [segment.base_offset for segment in plan.segments[1:]] + [plan.upper_offset]
        self._end_offsets = dict(zip(plan.segments, ends, strict=True))

    @property
    def has_lost_segments(self) -> bool:
        """Whether retention took a segment that the pass has yet to read or to replace."""
        return any(segment.is_gone for segment in self._pending)

    def forget(self, swap: Swap) -> None:
        """These segments are replaced: that they are gone is as it should be."""
        replaced = set(swap.replaced)
        self._pending = [segment for segment in self._pending if segment not in replaced]

    @property
    def end_offset(self) -> int:
        """Where the compacted part ends; the next pass begins there."""
        return max(self.offsets.latest_offset + 1, self.plan.first_dirty_offset)

    def steps(self) -> Iterator[Step]:
        """All of the pass; see the module's docstring."""
        try:
            yield from self._compact()
        except SuspectSegmentError as error:
            yield from self._examine(error)

    def _examine(self, suspect: SuspectSegmentError) -> Iterator[int]:
        """Find out what is wrong with a segment; the pass ends with that (rules E2 and I6)."""
        check = SegmentCheck(self._files, suspect.segment.as_files(suspect.end_offset))
        while not check.is_done:
            yield check.step(PIECE_BYTES)
        if not check.damage:
            raise suspect
        raise DamagedSegmentError(suspect.segment, check.damage)

    def _compact(self) -> Iterator[Step]:
        yield from self._fill_map()
        self.stats.keys = len(self.offsets)
        plan = self.plan
        batches = BatchFilter(
            self.offsets,
            TransactionTracker(plan.aborted),
            plan.producers,
            upper_offset=plan.upper_offset,
            now_ms=plan.now_ms,
            delete_retention_ms=plan.config.delete_retention_ms,
        )
        for group in groups(plan, self.end_offset):
            yield from self._clean_group(group, batches)
        self.stats.records_read = batches.stats.records_read
        self.stats.records_kept = batches.stats.records_kept
        for _ in self.offsets.release():
            yield 0

    def release_memory(self) -> None:
        """Give back what the map of an abandoned pass takes, without stopping the other threads."""
        for _ in self.offsets.release():
            pass

    def discard(self) -> None:
        """Remove what an abandoned pass left behind."""
        if self._unfinished is not None:
            try:
                discard_cleaned(self._files, self.plan.directory, self._unfinished)
            except FileMissingError:
                pass  # The whole directory is gone.
            self._unfinished = None

    # The newest offset of each key

    def _fill_map(self) -> Iterator[int]:
        plan, offsets = self.plan, self.offsets
        transactions = TransactionTracker(
            aborted for aborted in plan.aborted if aborted.last_offset >= plan.first_dirty_offset
        )
        for segment, end_offset in self._end_offsets.items():
            if end_offset <= plan.first_dirty_offset:
                continue
            if not (yield from self._map_segment(segment, transactions)):
                return
            offsets.latest_offset = end_offset - 1  # Compaction may have left gaps at the end.

    def _map_segment(
        self, segment: Segment, transactions: TransactionTracker
    ) -> Generator[int, None, bool]:
        """Take in one segment's keys; False when the map was full before its end."""
        start = segment.locate(self.plan.first_dirty_offset, self._files.pread)
        done_bytes = done_records = 0
        for batch in self._batches(segment, start):
            if not self._map_batch(batch, transactions):
                self.stats.map_bytes += done_bytes
                return False
            done_bytes += batch.header.size_bytes
            done_records += batch.header.record_count
            if done_bytes >= PIECE_BYTES or done_records >= PIECE_RECORDS:
                self.stats.map_bytes += done_bytes
                yield done_bytes
                done_bytes = done_records = 0
        self.stats.map_bytes += done_bytes
        yield done_bytes
        return True

    def _map_batch(self, batch: ScannedBatch, transactions: TransactionTracker) -> bool:
        header, first_dirty = batch.header, self.plan.first_dirty_offset
        data = batch.buffer[batch.buffer_pos : batch.buffer_pos + header.size_bytes]
        if header.is_control:
            marker = read_marker(data, 0, header) if header.record_count else None
            transactions.reads_marker(header, marker)
        elif not transactions.reads_data(header):
            body = records_body(data, 0, header, limit_bytes=DECOMPRESSED_BYTES_MAX)
            spans = iter_spans(body, header)
            if not self.offsets.put_all(spans, header.base_offset, first_dirty):
                return False
        if header.last_offset >= first_dirty:
            self.offsets.latest_offset = header.last_offset
        return True

    # Writing segments anew

    def _clean_group(self, group: Sequence[Segment], batches: BatchFilter) -> Iterator[Step]:
        """Write what stays of the group into one new segment, and hand it over."""
        cleaned = self._unfinished = Segment(
            self._files,
            self.plan.directory,
            group[0].base_offset,
            size=-1,
            created_ms=group[0].created_ms,
            suffix=CLEANED,
        )
        cleaned.create()
        writer = _Writer(cleaned, self.plan.config.index_interval_bytes)
        for segment in group:
            yield from self._copy_segment(segment, batches, writer)
        writer.flush()
        self.stats.bytes_written += cleaned.size
        if len(group) == 1 and not writer.has_changes:
            self.discard()
            return
        self._settle(cleaned)
        self.stats.swaps += 1
        yield Swap(cleaned, tuple(group))
        self._files.fsync_dir(self.plan.directory)
        self._unfinished = None

    def _copy_segment(
        self, segment: Segment, batches: BatchFilter, writer: _Writer
    ) -> Iterator[int]:
        done_bytes = done_records = 0
        for batch in self._batches(segment, 0):
            kept = batches.apply(batch.buffer, batch.buffer_pos, batch.header)
            if kept is not None:
                writer.add(kept)
                done_bytes += len(kept.data)
            writer.has_changes |= kept is None or kept.header is not batch.header
            writer.take_aborted(batches)
            self.stats.bytes_read += batch.header.size_bytes
            done_bytes += batch.header.size_bytes
            done_records += batch.header.record_count
            if done_bytes >= PIECE_BYTES or done_records >= PIECE_RECORDS:
                writer.flush()  # The batches lie in a buffer that the next ones overwrite.
                yield done_bytes
                done_bytes = done_records = 0
        writer.flush()
        yield done_bytes

    def _settle(self, cleaned: Segment) -> None:
        """Make the new segment durable, up to the point where one rename decides for it."""
        cleaned.seal()
        cleaned.txn_index.touch()
        for path in cleaned.paths():
            if self._files.exists(path):
                self._files.fdatasync(path)
        self._files.fsync_dir(self.plan.directory)
        cleaned.rename_indexes(SWAP)
        self._files.fsync_dir(self.plan.directory)

    def _batches(self, segment: Segment, start: int) -> Iterator[ScannedBatch]:
        """The segment's batches from `start` on; a bad one ends the pass (rule I6)."""
        end_offset = self._end_offsets[segment]
        return sound_batches(
            self._files, segment, end_offset, start, chunk_bytes=self._buffer_bytes
        )


class _Writer:
    """Collects what stays and appends it to the new segment in large writes."""

    def __init__(self, segment: Segment, index_interval_bytes: int) -> None:
        self.has_changes = False
        self._segment = segment
        self._index_interval_bytes = index_interval_bytes
        self._kept: list[Kept] = []

    def add(self, kept: Kept) -> None:
        self._kept.append(kept)

    def take_aborted(self, batches: BatchFilter) -> None:
        for aborted in batches.retained_aborted:
            self._segment.txn_index.append(aborted)
        batches.retained_aborted.clear()

    def flush(self) -> None:
        if not self._kept:
            return
        self._segment.write([kept.data for kept in self._kept])
        for _, header in self._kept:
            self._segment.note_batch(
                header.base_offset,
                header.last_offset,
                header.size_bytes,
                header.max_timestamp,
                self._index_interval_bytes,
            )
        self._kept.clear()
