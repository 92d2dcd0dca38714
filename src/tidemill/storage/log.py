"""One partition's log: append, read, look up, truncate.

A `Log` is synchronous and belongs to the event loop. It is a list of segments, the last one active.
`append_as_leader` is the hot path: one header per batch, one vectored write per request, no work
per record. `flushed_offset` says how much a power cut cannot take away; it never passes the log's
end. `recovery.load` finds out what a directory holds; `LogManager` owns all logs.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.invariant import invariant
from tidemill.storage import lookup, recovery, retention
from tidemill.storage.bulk_sync import Unsynced, sync_logs
from tidemill.storage.checkpoint import PARTITION_METADATA, format_epochs
from tidemill.storage.disk_errors import DiskError, DiskFailedError
from tidemill.storage.epochs import LeaderEpochCache
from tidemill.storage.files import Buffer, Files
from tidemill.storage.flusher import FlushJob
from tidemill.storage.index import TIME_ENTRY_BYTES
from tidemill.storage.log_config import LogConfig
from tidemill.storage.log_dir import LogDir
from tidemill.storage.lookup import TimestampedOffset
from tidemill.storage.producer_snapshot import format_snapshot, snapshot_path
from tidemill.storage.producer_state import BatchMeta, ProducerStates
from tidemill.storage.segment import RELATIVE_OFFSET_MAX, Segment
from tidemill.storage.slice import LogSlice, empty_slice
from tidemill.storage.txn_index import AbortedTransaction
from tidemill.storage.validate import Validated
from tidemill.types import TopicId, TopicPartition
from tidemill.wire.batch import (
    CONTROL_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC_POS,
    BatchHeader,
    crc_matches,
    iter_headers,
)
from tidemill.wire.control import read_marker

_stamp = struct.Struct(">qii")
"""Base offset, length, leader epoch: what the leader assigns stands in front of the magic byte."""


class AppendInfo(NamedTuple):
    """Where an append ended up."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool
    """The same batch was appended before; the offsets are those of that time."""
    flush_due: bool
    """`flush.messages` is reached: the answer waits for a flush, as under `flush.policy=ack`."""


class Log:
    """The durable log of one partition."""

    __slots__ = (
        "_bases",
        "_clock",
        "_cuts",
        "_epochs_pending",
        "_files",
        "_flush_jobs",
        "_is_new",
        "_jitter_ms",
        "_random",
        "_saved_bytes",
        "_segments",
        "_snapshots",
        "_unsynced_paths",
        "config",
        "dir",
        "directory",
        "doomed",
        "epochs_dirty",
        "flushed_offset",
        "is_closed",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_recovery_point_lowered",
        "on_rolled",
        "producers",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        log_dir: LogDir,
        files: Files,
        clock: Clock,
        random: Random,
        *,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        directory: str,
        loaded: recovery.Loaded,
    ) -> None:
        self.dir = log_dir
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.flushed_offset = loaded.flushed_offset
        self.leader_epochs: LeaderEpochCache = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self.doomed: list[tuple[int, Segment]] = []
        """Renamed segments, with the time from which their files may go."""
        self.epochs_dirty = False
        self.is_closed = False
        self.last_flush_ms = clock.monotonic_ms()
        self.on_rolled: Callable[[Log], None] | None = None
        self.on_recovery_point_lowered: Callable[[Log], None] | None = None
        self._files = files
        self._clock = clock
        self._random = random
        self._segments: list[Segment] = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._snapshots: set[int] = loaded.snapshots
        self._unsynced_paths: list[str] = []
        self._cuts = 0
        self._epochs_pending = False
        self._is_new = False
        self._flush_jobs: list[FlushJob] = []
        is_saved = self.log_end_offset in loaded.snapshots
        self._saved_bytes = self._active.size if is_saved else 0
        self._jitter_ms = self._new_jitter()

    def __repr__(self) -> str:
        return f"<Log {self.topic_partition} [{self.log_start_offset}, {self.log_end_offset})>"

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments in order of their base offsets; the last one is active."""
        return self._segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def mark_new(self) -> None:
        """The directory was just made: the first flush makes its name durable, too."""
        self._is_new = True
        self._active.name_is_durable = False
        self._unsynced_paths.append(f"{self.directory}/{PARTITION_METADATA}")
        self._reserve_space()

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config
        self._jitter_ms = self._new_jitter()

    # Appending

    def append_as_leader(
        self, records: Validated | Buffer, *, leader_epoch: int, producer_check: bool = True
    ) -> AppendInfo:
        """Append batches under the next offsets; they are stamped on the way to the file.

        A batch that its producer sent before is not written again (rule G2). Nothing is kept in
        memory that is not in the file: state changes only after the write (rule G4).
        """
        self._check_usable()
        if isinstance(records, Validated):
            data, headers, append_time_ms = records.records, records.headers, records.append_time_ms
        else:
            data, headers, append_time_ms = records, _headers_of(records), -1
        if producer_check and headers[0].producer_id >= 0:
            repeated = self.producers.check(headers[0])
            if repeated is not None:
                return self._duplicate(repeated)
        base_offset = offset = self.log_end_offset
        view = memoryview(data)
        parts: list[Buffer] = []
        position = 0
        for header in headers:
            length = header.batch_length
            end = position + length + LOG_OVERHEAD_BYTES
            parts.append(_stamp.pack(offset, length, leader_epoch))
            parts.append(view[position + MAGIC_POS : end])
            offset += header.last_offset_delta + 1
            position = end
        if leader_epoch > self.leader_epochs.latest:
            self.begin_epoch(leader_epoch)
        self._write(parts, position, offset - 1, headers[-1].max_timestamp)
        self._take_in(view, headers, base_offset)
        return AppendInfo(
            base_offset,
            offset - 1,
            append_time_ms,
            self.log_start_offset,
            False,
            offset - self.flushed_offset >= self.config.flush_messages,
        )

    def begin_epoch(self, epoch: int) -> None:
        """A leader epoch begins at the log's end. The next flush writes it down before any data.

        So it is durable before a record of that epoch is (rule A7), and taking over ten thousand
        partitions costs no flush each. `leader_epochs.assign` is the form that does not wait.
        """
        self._epochs_pending |= self.leader_epochs.note(epoch, self.log_end_offset)

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Append batches as the leader wrote them; a partial one at the end is left out."""
        self._check_usable()
        headers = _headers_of(records)
        self._check_copied(records, headers)
        view = memoryview(records)
        size = sum(header.size_bytes for header in headers)
        self._note_epochs(headers)
        last = headers[-1]
        self._write((view[:size],), size, last.last_offset, last.max_timestamp)
        self._take_in(view, headers, None)
        flush_due = self.log_end_offset - self.flushed_offset >= self.config.flush_messages
        first_offset = headers[0].base_offset
        return AppendInfo(
            first_offset, last.last_offset, -1, self.log_start_offset, False, flush_due
        )

    def _check_copied(self, records: Buffer, headers: Sequence[BatchHeader]) -> None:
        """What comes from a leader must go on where this log ends (rules D6 and E2)."""
        expected, position = self.log_end_offset, 0
        for header in headers:
            follows = header.base_offset == expected
            if not follows and self.config.cleanup_compact:
                follows = header.base_offset > expected
            invariant(
                follows,
                "a fetched batch does not follow the log's end",
                partition=str(self.topic_partition),
                expected=expected,
                base_offset=header.base_offset,
            )
            if not crc_matches(records, position, header):
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"the batch at offset {header.base_offset} of {self.topic_partition} "
                    "fails its checksum",
                )
            expected = header.next_offset
            position += header.size_bytes

    def _note_epochs(self, headers: Sequence[BatchHeader]) -> None:
        latest = self.leader_epochs.latest
        for header in headers:
            if header.partition_leader_epoch > latest:
                latest = header.partition_leader_epoch
                self._epochs_pending |= self.leader_epochs.note(latest, header.base_offset)

    def _write(
        self, parts: Sequence[Buffer], size: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Put the bytes into the active segment, or into a new one when that is full."""
        try:
            self.dir.charge(size)
            segment = self._active
            if segment.size and self._must_roll(segment, size, last_offset, max_timestamp):
                self._roll()
                segment = self._active
            segment.write(parts)
        except DiskError as error:
            self.dir.fail(error)
            raise

    def _take_in(
        self, view: memoryview, headers: Sequence[BatchHeader], base_offset: int | None
    ) -> None:
        """Bring indexes, producers and the log's end up to what was just written.

        `base_offset` is None for batches that carry their own offsets. A failure in the middle
        leaves memory and file apart, so it takes the directory offline whatever it was.
        """
        try:
            self._note_all(view, headers, base_offset)
        except DiskError as error:
            torn = DiskFailedError(f"{self.directory}: half an append was noted: {error.message}")
            self.dir.fail(torn)
            raise torn from error

    def _note_all(
        self, view: memoryview, headers: Sequence[BatchHeader], base_offset: int | None
    ) -> None:
        segment, position = self._active, 0
        offset = self.log_end_offset if base_offset is None else base_offset
        interval_bytes = self.config.index_interval_bytes
        producers = self.producers
        for header in headers:
            if base_offset is None:
                offset = header.base_offset
            size = header.batch_length + LOG_OVERHEAD_BYTES
            last_offset = offset + header.last_offset_delta
            segment.note_batch(offset, last_offset, size, header.max_timestamp, interval_bytes)
            if header.attributes & CONTROL_BIT:
                self._take_in_marker(view, position, header, offset)
            else:
                producers.apply(header, offset)
            offset = last_offset + 1
            position += size
        self.log_end_offset = offset

    def _take_in_marker(
        self, view: memoryview, position: int, header: BatchHeader, offset: int
    ) -> None:
        marker = read_marker(view, position, header)
        if marker is None:
            return
        completed = self.producers.apply_marker(header, offset, marker)
        if completed is not None and completed.is_aborted:
            self._active.txn_index.append(self.producers.aborted_entry(completed))

    def _duplicate(self, batch: BatchMeta) -> AppendInfo:
        flush_due = (
            batch.last_offset >= self.flushed_offset
            and self.log_end_offset - self.flushed_offset >= self.config.flush_messages
        )
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp,
            self.log_start_offset,
            True,
            flush_due,
        )

    def _check_usable(self) -> None:
        if self.dir.failure is not None:
            self.dir.check_online()
        if self.is_closed:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is closed")

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run file work whose failure may take the directory offline."""
        try:
            work()
        except DiskError as error:
            self.dir.fail(error)
            raise

    # Rolling

    def _must_roll(self, segment: Segment, size: int, last_offset: int, max_timestamp: int) -> bool:
        config = self.config
        if segment.size + size > config.segment_bytes:
            return True
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            return True  # Offsets in the indexes are 32-bit distances from the base (rule E9).
        if self._is_too_old(segment, max_timestamp):
            return True
        entries_max = config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        if segment.size < entries_max * config.index_interval_bytes:
            return False
        return segment.index_is_full(config.segment_index_bytes)

    def _is_too_old(self, segment: Segment, max_timestamp: int) -> bool:
        limit_ms = self.config.segment_ms - self._jitter_ms
        first = segment.first_timestamp
        if first is None:
            first = segment.rolling_timestamp()
        if first >= 0 and max_timestamp >= 0:
            return max_timestamp - first > limit_ms
        return self._clock.now_ms() - segment.created_ms > limit_ms

    def _new_jitter(self) -> int:
        """Spread the rolls of many partitions over time."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._random.randrange(jitter_ms) if jitter_ms > 0 else 0

    def roll(self) -> None:
        """Close the active segment and begin a new one at the log's end."""
        self._check_usable()
        if self._active.size:
            self._guarded(self._roll)

    def _roll(self) -> None:
        offset = self.log_end_offset
        self._active.seal()
        self._unsynced_paths += self._active.index_paths()
        self._write_snapshot(offset, format_snapshot(self.producers.active()))
        segment = Segment(
            self._files, self.directory, offset, size=-1, created_ms=self._clock.now_ms()
        )
        segment.create()
        if self.config.preallocate:
            # What the old segment did not use goes back, and the new one gets all it may need.
            self._files.truncate(self._active.log_path, self._active.size)
        self._segments.append(segment)
        self._bases.append(offset)
        self._reserve_space()
        self._saved_bytes = 0
        self._jitter_ms = self._new_jitter()
        if self.on_rolled is not None:
            self.on_rolled(self)

    def _reserve_space(self) -> None:
        if self.config.preallocate:
            self._files.reserve(self._active.log_path, self.config.segment_bytes)

    def _write_snapshot(self, offset: int, data: bytes) -> None:
        """Save the producers' state; the next flush makes it durable."""
        path = snapshot_path(self.directory, offset)
        temporary = path + ".tmp"
        self._files.unlink(temporary)
        self._files.write_at(temporary, 0, (data,))
        self._files.replace(temporary, path)
        self._snapshots.add(offset)
        self._unsynced_paths.append(path)

    def _forget_snapshots(self, stale: set[int]) -> None:
        for offset in stale:
            self._files.unlink(snapshot_path(self.directory, offset))
        self._snapshots -= stale

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
            found = LogSlice(
                self._files,
                segment,
                offset,
                upper_offset=None if upper_offset >= segment_end else upper_offset,
                max_bytes=max_bytes,
                at_least_one=at_least_one,
            )
            if is_last or not found.is_empty:
                return found
            slot, segment, offset = slot + 1, self._segments[slot + 1], segment_end
        return empty_slice(self._files, segment, offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record that is not older than `timestamp`; may run in a thread."""
        return lookup.first_not_older(self._lookup_view(), timestamp)

    def max_timestamp(self) -> TimestampedOffset | None:
        """The record with the largest timestamp; may run in a thread."""
        return lookup.latest(self._lookup_view())

    def _lookup_view(self) -> lookup.LogView:
        return lookup.LogView(
            self._files,
            list(self._segments),
            self.leader_epochs,
            self.log_start_offset,
            self.log_end_offset,
        )

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` and where it ends; (-1, -1) if unknown (rule D2)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where a read_committed reader may read (rule H9)."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

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

    # Durability

    def prepare_flush(self) -> FlushJob:
        """What a flush has to do to make everything up to the present end durable."""
        segments = [] if self.is_closed else self._unflushed_segments()
        paths, self._unsynced_paths = self._unsynced_paths, []
        directories = [self.directory, self.dir.path] if self._is_new else [self.directory]
        epochs = format_epochs(self.leader_epochs.entries) if self._epochs_pending else None
        self._epochs_pending = False
        job = FlushJob(
            self._files, directories, segments, paths, epochs, target=self.log_end_offset
        )
        self._flush_jobs.append(job)
        return job

    def _unflushed_segments(self) -> list[Segment]:
        slot = max(0, bisect_right(self._bases, self.flushed_offset) - 1)
        return self._segments[slot:]

    def finish_flush(self, job: FlushJob) -> None:
        """A flush is done: what it covered is durable."""
        self.flushed_offset = max(self.flushed_offset, min(job.target, self.log_end_offset))
        self._is_new = False
        for segment in job.segments:
            segment.name_is_durable = True
        self.last_flush_ms = self._clock.monotonic_ms()
        self._flush_jobs.remove(job)

    def fail_flush(self, job: FlushJob, error: BaseException) -> None:
        """A flush failed. Either nobody knows what reached the disk (rule E1), and the directory
        goes offline; or it was never tried, and the next one has all of its work to do."""
        self._flush_jobs.remove(job)
        if isinstance(error, DiskError):
            self.dir.fail(error)
        self._unsynced_paths = job.paths + self._unsynced_paths
        self._epochs_pending |= job.has_epochs
        job.give_back()

    def flush(self) -> None:
        """Make everything durable now; blocks, so not for the loop of a serving broker."""
        job = self.prepare_flush()
        try:
            job.run()
        except DiskError as error:
            self.fail_flush(job, error)
            raise
        self.finish_flush(job)

    @property
    def unsaved_bytes(self) -> int:
        """How much recovery would walk through to rebuild indexes and producers."""
        return self._active.size - self._saved_bytes

    def begin_save(self) -> Callable[[], None]:
        """Capture the state now; run the result after the next flush to write it down.

        Recovery then has less to read. The order matters: a snapshot must not describe what a
        crash could still lose.
        """
        offset, cuts, size = self.log_end_offset, self._cuts, self._active.size
        data = format_snapshot(self.producers.active())

        def finish() -> None:
            if self._cuts == cuts and self.flushed_offset >= offset and not self.is_closed:
                self._guarded(lambda: self._save_state(offset, data, size))

        return finish

    def _save_state(self, offset: int, data: bytes, size: int) -> None:
        self._active.write_indexes()
        between = sorted(self._snapshots - set(self._bases) - {offset})
        self._forget_snapshots(set(between[:-1]))  # The checkpointed recovery point may need one.
        self._write_snapshot(offset, data)
        self._saved_bytes = min(size, self._active.size)

    # Cutting

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on, with what belongs to it (rule D8); True if it did."""
        self._check_usable()
        if offset >= self.log_end_offset:
            self.epochs_dirty |= self.leader_epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset <= self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        self._guarded(lambda: self._truncate_to(offset))
        return True

    def _truncate_to(self, offset: int) -> None:
        kept = bisect_right(self._bases, offset)
        dropped = self._segments[kept:]
        del self._segments[kept:], self._bases[kept:]
        for segment in dropped:
            segment.delete_files()
        active = self._active
        position = active.locate(offset, self._files.pread)
        end_offset = min(offset, recovery.offset_at(self._files, active, position, offset))
        active.truncate(position, end_offset)
        self._end_at(end_offset, min(self.log_start_offset, end_offset))
        recovery.rebuild_producers(
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

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on at `offset`; start, end and producers move together (B6)."""
        self._check_usable()
        self._guarded(lambda: self._start_over(offset))

    def _start_over(self, offset: int) -> None:
        for segment in self._segments:
            segment.delete_files()
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
            self.on_recovery_point_lowered(self)

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
        count = retention.deletable(self, now_ms, high_watermark)
        if count:
            self._guarded(lambda: self._drop_first(count, now_ms))
        return count

    def _drop_first(self, count: int, now_ms: int) -> None:
        if count == len(self._segments):
            self._roll()  # A log always has a segment to append to.
        dropped = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        due_ms = now_ms + self.config.file_delete_delay_ms
        for segment in dropped:
            segment.mark_deleted()
            self.doomed.append((due_ms, segment))
        first = self._bases[0]
        self._forget_snapshots({offset for offset in self._snapshots if offset < first})
        self.log_start_offset = max(self.log_start_offset, self._bases[0])
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

    # The end

    def close(self) -> None:
        """Write everything down, durably, and let go of the files."""
        if self.is_closed:
            return
        if not self.dir.is_offline:
            unsynced = self.write_down()
            self._guarded(lambda: sync_logs(self._files, self.dir.path, [unsynced]))
        self.finish_close()

    def finish_close(self) -> None:
        """What `write_down` named has been flushed, or the directory is lost."""
        if not self.dir.is_offline:
            self.flushed_offset = self.log_end_offset
        self.abandon()

    @property
    def _is_settled(self) -> bool:
        """Whether the files already say everything: then closing costs no flush."""
        return (
            self.flushed_offset == self.log_end_offset
            and self.log_end_offset in self._snapshots | {self._bases[0]}
            and not self._unsynced_paths
            and not self.epochs_dirty
            and not self._epochs_pending
            and not self._active.has_unwritten_index
            and self._active.name_is_durable
        )

    def write_down(self) -> Unsynced:
        """Write all that a clean start needs; what is returned has to be flushed yet."""
        unsynced = Unsynced(self.directory, self.leader_epochs)
        if not self._is_settled:
            self._guarded(lambda: self._write_down(unsynced))
        return unsynced

    def _write_down(self, unsynced: Unsynced) -> None:
        self._active.seal()
        end_offset = self.log_end_offset
        if end_offset > self._bases[0] or self.producers.map_end_offset != self._bases[0]:
            self._write_snapshot(end_offset, format_snapshot(self.producers.active()))
        self._forget_snapshots(self._snapshots - set(self._bases) - {end_offset})
        for segment in self._unflushed_segments():
            unsynced.paths += segment.take_sync_paths()
        unsynced.paths += [*self._active.index_paths(), *self._unsynced_paths]
        unsynced.epochs_changed = self._epochs_pending or self.epochs_dirty
        unsynced.names_changed = True

    def abandon(self) -> None:
        """Let go of the files without writing anything: the partition is deleted or lost."""
        self.is_closed = True
        for segment in [*self._segments, *(segment for _, segment in self.doomed)]:
            segment.is_gone = True
            segment.close()


def _headers_of(records: Buffer) -> tuple[BatchHeader, ...]:
    try:
        headers = tuple(header for _, header in iter_headers(records))
    except WireError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if not headers:
        raise ApiError(ErrorCode.INVALID_RECORD, "no whole record batch to append")
    return headers
