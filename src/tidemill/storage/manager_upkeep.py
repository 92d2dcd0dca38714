"""What a broker's logs need now and then: flushes, retention, checkpoints, removal of old files.

Called from the broker's loop; whatever touches the disk for long goes to the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from tidemill.storage.disk_errors import DiskError
from tidemill.storage.log import Log
from tidemill.storage.log_config import FOREVER_MS
from tidemill.storage.log_place import Place
from tidemill.storage.manager_base import HighWatermarks, ManagedLogs
from tidemill.storage.segment import Segment

UNFLUSHED_BYTES_MAX = 64 << 20
"""More than this is flushed in the background under any policy: it bounds a recovery."""
UNSAVED_BYTES_MAX = 1 << 20
SAVES_PER_CHECKPOINT_MAX = 64
RETENTION_STEP_LOGS = 100


class LogUpkeep(ManagedLogs):
    """Housekeeping over all logs."""

    def flush_overdue(self) -> None:
        """Request a flush for the logs whose `flush.ms` has passed."""
        now_ms = self._clock.monotonic_ms()
        for log in self.logs.values():
            if log.config.flush_ms == FOREVER_MS or log.flushed_offset == log.log_end_offset:
                continue
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                self.request_flush(log)

    def run_retention(self, high_watermarks: HighWatermarks) -> int:
        """Delete what retention no longer keeps, in all logs; how many segments."""
        return sum(self.retention_steps(high_watermarks))

    def retention_steps(self, high_watermarks: HighWatermarks) -> Iterator[int]:
        """As `run_retention`, some logs at a time, so that the loop can serve in between."""
        self.remove_doomed()
        logs = list(self.logs.values())
        for start in range(0, len(logs), RETENTION_STEP_LOGS):
            count = 0
            for log in logs[start : start + RETENTION_STEP_LOGS]:
                if not log.is_closed and not log.dir.is_offline:
                    count += self._retain(log, high_watermarks)
            yield count

    def _retain(self, log: Log, high_watermarks: HighWatermarks) -> int:
        now_ms = self._clock.now_ms()
        log.expire_producers(now_ms, self.producer_expiration_ms)
        log.release_memory()
        high_watermark = high_watermarks.get(log.topic_partition, log.log_start_offset)
        try:
            return log.delete_old_segments(now_ms, high_watermark)
        except DiskError:
            return 0  # The log has told its directory; the next run tries again if it may.

    def remove_doomed(self) -> None:
        """Hand deleted files whose `file.delete.delay.ms` has passed to the executor."""
        now_ms = self._clock.now_ms()
        segments: list[Segment] = []
        for log in self.logs.values():
            if log.doomed:
                segments += log.take_doomed(now_ms)
        dirs = [path for due_ms, path in self._doomed_dirs if due_ms <= now_ms]
        self._doomed_dirs = [(due, path) for due, path in self._doomed_dirs if due > now_ms]
        if not segments and not dirs:
            return
        try:
            self._executor.submit(lambda: self._remove_files(segments, dirs), _ignore)
        except RuntimeError:
            # No thread can be started now. Segments wait for the next start, directories need not.
            self._doomed_dirs += [(now_ms, path) for path in dirs]

    def _remove_files(self, segments: list[Segment], dirs: list[str]) -> None:
        """What cannot be removed is tried again after the next start; the rest goes."""
        for segment in segments:
            with suppress(DiskError):
                segment.delete_files()
        for path in dirs:
            with suppress(DiskError):
                self._remove_dir(path)

    def _remove_dir(self, path: str) -> None:
        for name in self._files.listdir(path):
            self._files.unlink(f"{path}/{name}")
        self._files.rmdir(path)

    def write_checkpoints(
        self, high_watermarks: HighWatermarks, then: Callable[[], None] | None = None
    ) -> None:
        """Note recovery points, log starts and high watermarks, off the loop (rule B7)."""
        self._note_high_watermarks(high_watermarks)
        self._bound_recovery()
        for place in self._places.values():
            if place.dir.is_offline or place.checkpoints is None:
                continue
            place.dir.forget_allowance()
            work = place.checkpoints.prepare(self._checkpoint_offsets(place))
            self._executor.submit(work, self._checkpoint_done(place, then))

    def _checkpoint_done(
        self, place: Place, then: Callable[[], None] | None
    ) -> Callable[[None, BaseException | None], None]:
        def done(_: None, error: BaseException | None) -> None:
            if isinstance(error, DiskError):
                place.dir.fail(error)
            if then is not None:
                then()

        return done

    def _bound_recovery(self) -> None:
        """Keep the tail that a crash would make us read short, whatever the flush policy."""
        growing: list[tuple[int, Log]] = []
        for log in self.logs.values():
            if log.dir.is_offline:
                continue
            if log.unsaved_bytes > UNSAVED_BYTES_MAX:
                growing.append((log.unsaved_bytes, log))
        growing.sort(key=lambda pair: -pair[0])
        for size, log in growing[:SAVES_PER_CHECKPOINT_MAX]:
            if log.config.flush_policy == "ack" or size > UNFLUSHED_BYTES_MAX:
                self._save(log)

    def _save(self, log: Log) -> None:
        finish = log.begin_save()

        def flushed(error: BaseException | None) -> None:
            if error is None:
                # Without it recovery has more to read, no more: the next checkpoint tries again.
                with suppress(DiskError):
                    finish()

        self.request_flush(log, flushed)


def _ignore(_: object, error: BaseException | None) -> None:
    """Whatever went wrong, nobody waits for it."""
