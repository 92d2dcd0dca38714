"""How a log becomes durable: flushes, saved state, and the writing down at the end.

`flushed_offset` moves only when a flush has completed; a failed one takes the directory offline
(rule E1). What a `FlushJob` does on the disk is in `flusher.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from tidemill.storage.bulk_sync import Unsynced, sync_logs
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.flusher import FlushJob
from tidemill.storage.log_base import LogBase
from tidemill.storage.producer_snapshot import format_snapshot
from tidemill.storage.segment import UNINDEXED_BYTES_MAX, Segment


class DurableLog(LogBase):
    """A log that can be flushed and closed."""

    __slots__ = ()

    def prepare_flush(self) -> FlushJob:
        """What a flush has to do to make everything up to the present end durable."""
        segments = [] if self.is_closed else self._unflushed_segments()
        paths, self._unsynced_paths = self._unsynced_paths + self._paths_under_way(), []
        directories = [self.directory, self.dir.path] if self._is_new else [self.directory]
        writes_epochs = self._epochs_pending or self._epochs_under_way
        write_epochs = self.leader_epochs.prepare_persist() if writes_epochs else None
        self._epochs_pending = False
        job = FlushJob(
            self._files,
            directories,
            segments,
            paths,
            write_epochs,
            target=self.log_end_offset,
            check_online=self.dir.check_online,
        )
        self._flush_jobs.append(job)
        return job

    def _paths_under_way(self) -> list[str]:
        """What another flush is yet to make durable: nobody else may rely on it before."""
        return [path for job in self._flush_jobs for path in job.all_paths]

    @property
    def _epochs_under_way(self) -> bool:
        return any(job.has_epochs for job in self._flush_jobs)

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
            and self._is_saved
            and not self._unsynced_paths
            and not self._flush_jobs
            and not self.epochs_dirty
            and not self._epochs_pending
            and self._active.is_quick_to_open
            and self._active.name_is_durable
        )

    @property
    def _is_saved(self) -> bool:
        """Whether a start knows the producers at once, or after a look at a few batches."""
        newest = max(self._snapshots, default=-1)
        if newest == self.log_end_offset or self.log_end_offset == self._bases[0]:
            return True
        if self.unsaved_bytes > UNINDEXED_BYTES_MAX:
            return False
        # Kafka takes a log without any snapshot for one without producers.
        is_alone = len(self._segments) == 1 and (newest >= 0 or not self.producers.active())
        return is_alone or newest >= self._bases[-1]

    def write_down(self) -> Unsynced:
        """Write all that a clean start needs; what is returned has to be flushed yet."""
        unsynced = Unsynced(self.directory, self.leader_epochs)
        if not self._is_settled:
            self._guarded(lambda: self._write_down(unsynced))
        return unsynced

    def _write_down(self, unsynced: Unsynced) -> None:
        if not self._active.is_quick_to_open:
            self._active.seal()
            unsynced.paths += self._active.index_paths()
        if not self._is_saved:
            self._save_producers()
        if self.flushed_offset < self.log_end_offset or not self._active.name_is_durable:
            for segment in self._unflushed_segments():
                unsynced.paths += segment.take_sync_paths()
        unsynced.paths += self._unsynced_paths + self._paths_under_way()
        unsynced.epochs_changed = (
            self._epochs_pending or self.epochs_dirty or self._epochs_under_way
        )
        unsynced.names_changed = bool(unsynced.paths)

    def _save_producers(self) -> None:
        end_offset = self.log_end_offset
        self._write_snapshot(end_offset, format_snapshot(self.producers.active()))
        self._forget_snapshots(self._snapshots - set(self._bases) - {end_offset})

    def abandon(self) -> None:
        """Let go of the files without writing anything: the partition is deleted or lost."""
        self.is_closed = True
        self.leader_epochs.close()
        for segment in [*self._segments, *(segment for _, segment in self.doomed)]:
            segment.forsake()
            segment.close()
