"""One partition's log: append, read, look up, truncate.

A `Log` is synchronous and belongs to the event loop. It is a list of segments, the last one active.
Its layers are in `log_base.py` (state, rolling), `log_durable.py` (flushing, closing) and
`log_append.py` (the hot path); what is known of damage is in `log_damage.py`, how compaction puts
new segments in place in `log_replace.py`; here is what reads and what cuts. `flushed_offset` says
how much a power cut cannot take away; it never passes the log's end. `recovery.load` finds out what
a directory holds; `LogManager` owns all logs.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress

from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.storage import lookup, retention
from tidemill.storage.disk_errors import DiskFullError, FileMissingError
from tidemill.storage.files import Files
from tidemill.storage.index import renaming
from tidemill.storage.log_append import AppendInfo
from tidemill.storage.log_damage import CheckedLog
from tidemill.storage.log_replace import ReplaceableLog
from tidemill.storage.lookup import TimestampedOffset
from tidemill.storage.recovery_state import rebuild_producers
from tidemill.storage.scan import walk_headers
from tidemill.storage.segment import Segment
from tidemill.storage.slice import LogSlice, empty_slice
from tidemill.storage.txn_index import AbortedTransaction
from tidemill.wire.batch import HEADER_BYTES, read_header

__all__ = ["AppendInfo", "Log"]

LOOKUPS_MAX = 10

_log = logging.getLogger(__name__)


_ROOM_TO_CUT_BYTES = 64 << 10


class Log(CheckedLog, ReplaceableLog):
    """The durable log of one partition."""

    __slots__ = ()

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, upper_offset: int, at_least_one: bool = True
    ) -> LogSlice:
        """Whole batches from `offset` on, below `upper_offset`, out of one segment."""
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self.topic_partition} is not within "
                f"[{self.log_start_offset}, {end_offset}]",
            )
        upper_offset = min(upper_offset, end_offset)
        slot = bisect_right(self._bases, offset) - 1
        segment = self._segments[slot]
        while offset < upper_offset:
            is_last = slot + 1 == len(self._segments)
            segment_end = end_offset if is_last else self._bases[slot + 1]
            stop_at = self._damage_ahead(offset, upper_offset, segment) if self.damage else None
            is_whole = upper_offset >= segment_end or stop_at is not None
            if is_last and stop_at is None:
                stop_at = segment.size  # As of now: what comes later is above the bound.
            found = LogSlice(
                self._files,
                segment,
                offset,
                upper_offset=None if is_whole else upper_offset,
                max_bytes=max_bytes,
                at_least_one=at_least_one,
                end_position=stop_at,
            )
            if is_last or not found.is_empty:
                return found
            slot, segment, offset = slot + 1, self._segments[slot + 1], segment_end
        return empty_slice(self._files, segment, offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record that is not older than `timestamp`; may run in a thread."""
        return self._look_up(lambda view: lookup.first_not_older(view, timestamp))

    def max_timestamp(self) -> TimestampedOffset | None:
        """The record with the largest timestamp; may run in a thread."""
        return self._look_up(lookup.latest)

    def _look_up(
        self, find: Callable[[lookup.LogView], TimestampedOffset | None]
    ) -> TimestampedOffset | None:
        """Look at the log as it is, and again if segments were replaced or cut meanwhile."""
        for _ in range(LOOKUPS_MAX):
            with renaming:  # While segments are replaced, half of them are gone.
                view = self._lookup_view()
            try:
                found = find(view)
            except FileMissingError:
                if not view.is_stale:
                    raise
            except WireError as error:
                if not view.is_stale:
                    message = f"{self.topic_partition} is damaged on disk: {error}"
                    # Without the frames, which hold all that was decompressed.
                    error = error.with_traceback(None)
                    raise ApiError(ErrorCode.CORRUPT_MESSAGE, message) from error
            else:
                if not view.is_stale:
                    return found
        raise ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the segments of {self.topic_partition} change too fast to look a time up; try again",
        )

    def _lookup_view(self) -> lookup.LogView:
        return lookup.view_of(
            self._files,
            self._segments,
            self.leader_epochs,
            self.log_start_offset,
            self.log_end_offset,
            self.damage,
        )

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` and where it ends; (-1, -1) if unknown (rule D2)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where a read_committed reader may read (rule H9)."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        # What lies below the log's start is gone: its transaction holds back what is left.
        return min(max(unstable, self.log_start_offset), high_watermark)

    def aborted_transactions(
        self, start_offset: int, upper_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, upper) (rule H10)."""
        found: list[AbortedTransaction] = []
        first_slot = max(0, bisect_right(self._bases, start_offset) - 1)
        for segment in self._segments[first_slot:]:
            for aborted in segment.txn_index.entries():
                if aborted.last_offset >= start_offset and aborted.first_offset < upper_offset:
                    found.append(aborted)
                if aborted.last_stable_offset >= upper_offset:
                    return found
        return found

    # Cutting

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on, with what belongs to it (rule D8); True if it did."""
        self._check_usable()
        if offset >= self.log_end_offset:
            if self.leader_epochs.truncate_from_end(self.log_end_offset):
                # At once: an epoch that came back after a crash would claim others' records.
                self._guarded(self.leader_epochs.persist)
            return False
        if offset <= self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        self._guarded(lambda: self._truncate_to(offset))
        return True

    def _find_room(self) -> None:
        """A cut writes a little, too, and must not stop half way for want of room (rule E8)."""
        free_bytes = self.dir.space().free_bytes
        if free_bytes < _ROOM_TO_CUT_BYTES:
            raise DiskFullError(
                f"{free_bytes} bytes are left in {self.dir.path}: too few to cut a log"
            )

    def _truncate_to(self, offset: int) -> None:
        self._find_room()
        self._drop_swap()
        kept = bisect_right(self._bases, offset)
        position, end_offset = self._place_of_cut(self._segments[kept - 1], offset)
        if kept < len(self._segments) or self._segments[-1].txn_index.reaches(end_offset):
            # Of several files, a crash may keep what was cut off one and not what was cut off
            # another: a start must look at all that is behind the cut.
            self._lower_recovery_point(end_offset)
        self._unbroken(lambda: self._cut(kept, position, end_offset))

    def _cut(self, kept: int, position: int, end_offset: int) -> None:
        """Keep so many segments, and the last of them up to a position."""
        dropped = self._segments[kept:]
        del self._segments[kept:], self._bases[kept:]
        self._remove_segments(dropped)
        active = self._active
        active.drop_checksums()
        # Now, and not with the cut: of the two, a crash must not keep the cut alone, and then find
        # a hole between this segment and the next.
        self._files.fsync_dir(self.directory)
        with suppress(WireError):  # It is cut; only the look for the latest time met damage.
            active.truncate(position, end_offset)
        self._end_at(end_offset, min(self.log_start_offset, end_offset))
        rebuild_producers(
            self._files,
            self.directory,
            self._segments,
            self.producers,
            self._snapshots,
            start_offset=self.log_start_offset,
            end_offset=end_offset,
            snapshot_max=end_offset,
            txn_from=end_offset,
        )
        self._settle_truncation()

    def _place_of_cut(self, segment: Segment, offset: int) -> tuple[int, int]:
        """Where a cut before `offset` falls, and the offset at which the log then ends.

        It is found before anything is deleted. Damage in front of it hides it: then the cut is at
        the damage, and replication copies what this takes along from the leader again.
        """
        try:
            position = segment.locate(offset, self._files.pread)
            if position < segment.size:
                header = read_header(self._files.pread(segment.log_path, position, HEADER_BYTES))
                return position, min(offset, header.base_offset)
            reason = "a batch that is longer than its file"
        except WireError as error:
            reason = str(error)
        position, end = _sound_end(self._files, segment, offset)
        if position == segment.size:
            return position, offset  # Compaction took what was between this and the next segment.
        _log.error(
            "%s is damaged on disk (%s): it is cut at offset %d instead of %d",
            self.topic_partition,
            reason,
            end,
            offset,
        )
        return position, end

    def _lower_recovery_point(self, offset: int) -> None:
        """Before segments go: a start after a crash in between looks for the hole from here on."""
        self.flushed_offset = min(self.flushed_offset, offset)
        if self.on_recovery_point_lowered is not None:
            self.on_recovery_point_lowered()

    def _remove_segments(self, dropped: list[Segment]) -> None:
        """Delete the last segments from the end of the log down."""
        for segment in reversed(dropped):
            segment.forsake()
            segment.delete_files()
            if self.config.cleanup_compact:
                # No start can tell a hole from what compaction took: there must never be one.
                self._files.fsync_dir(self.directory)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on at `offset`; start, end and producers move together (B6)."""
        self._check_usable()
        self._guarded(lambda: self._start_over(offset))

    def _start_over(self, offset: int) -> None:
        self._find_room()
        self._drop_swap()
        self._lower_recovery_point(min(offset, self._bases[0]))
        self._unbroken(lambda: self._begin_anew(offset))

    def _begin_anew(self, offset: int) -> None:
        with renaming:  # Whoever looks something up waits for the segment that there will be.
            self._remove_segments(self._segments)
            self._forget_snapshots(set(self._snapshots))
            # What is gone must not come back beside the new segment.
            self._files.fsync_dir(self.directory)
            segment = Segment(
                self._files, self.directory, offset, size=-1, created_ms=self._clock.now_ms()
            )
            segment.create()
            self._segments[:] = [segment]
            self._bases[:] = [offset]
        self._reserve_space()
        self.producers.reset((), offset)
        self.leader_epochs.clear()
        self._end_at(offset, offset)
        self._settle_truncation()

    def _end_at(self, end_offset: int, log_start_offset: int) -> None:
        self.log_end_offset = end_offset
        self.log_start_offset = log_start_offset
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._cuts += 1
        self._forget_damage(log_start_offset, end_offset)
        for job in self._flush_jobs:
            job.target = min(job.target, end_offset)
        self._saved_bytes = 0
        self._forget_snapshots({offset for offset in self._snapshots if offset > end_offset})
        self.leader_epochs.truncate_from_end(end_offset)
        self.leader_epochs.truncate_from_start(log_start_offset)

    def _settle_truncation(self) -> None:
        """Make the cut durable: appends that follow must never meet the old tail again."""
        self._active.write_indexes()
        self._unsynced_paths += self._active.index_paths()
        self.leader_epochs.persist()
        self.epochs_dirty = self._epochs_pending = False
        self.flush()
        self._files.fsync_dir(self.directory)
        if self.on_recovery_point_lowered is not None:
            self.on_recovery_point_lowered()

    def advance_log_start(self, offset: int) -> bool:
        """Hide everything below `offset` (DeleteRecords); the files go with the next retention."""
        self._check_usable()
        if offset > self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot move the start of {self.topic_partition} to {offset}: it ends at "
                f"{self.log_end_offset}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs_dirty |= self.leader_epochs.truncate_from_start(offset)
        return True

    # Retention

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> int:
        """Let go of the segments that retention no longer keeps; how many."""
        self._check_usable()
        if self._swap is not None:
            return 0  # Some of them are about to be replaced: the next run comes soon enough.
        count = retention.deletable(self, now_ms, high_watermark)
        if count:
            self._guarded(lambda: self._drop_first(count, now_ms))
        return count

    def _drop_first(self, count: int, now_ms: int) -> None:
        if count == len(self._segments):
            self._roll(self.log_end_offset)  # A log always has a segment to append to.
        dropped = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        # With the segments: a reader who asked for what they held would be sent to the last one.
        self.log_start_offset = max(self.log_start_offset, self._bases[0])
        with renaming:
            self._doom(dropped, now_ms)
        first = self._bases[0]
        self._forget_damage(first, self.log_end_offset)
        self._forget_snapshots({offset for offset in self._snapshots if offset < first})
        self.epochs_dirty |= self.leader_epochs.truncate_from_start(self.log_start_offset)

    def take_doomed(self, now_ms: int) -> list[Segment]:
        """Deleted segments whose files may go now; the caller removes them off the loop."""
        due = [segment for due_ms, segment in self.doomed if due_ms <= now_ms]
        self.doomed = [(due_ms, segment) for due_ms, segment in self.doomed if due_ms > now_ms]
        return due

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        return self.producers.expire(now_ms, expiration_ms)

    def release_memory(self) -> None:
        """Forget the loaded indexes of closed segments; a lookup reads them again."""
        for segment in self._segments[:-1]:
            segment.release_memory()


def _sound_end(files: Files, segment: Segment, offset: int) -> tuple[int, int]:
    """Position and offset behind the last batch below `offset` that no wrong header hides."""
    position, end_offset = 0, segment.base_offset
    try:
        for at, header in walk_headers(files.pread, segment.log_path, 0, segment.size):
            if header.base_offset < end_offset or header.last_offset >= offset:
                break
            position, end_offset = at + header.size_bytes, header.next_offset
    except WireError:
        pass
    return position, end_offset
