"""Compaction in the background: for each key the last record stays, and the rest goes.

`LogCleaner.run` is one round: it looks for the dirtiest log, compacts it, and looks again, until no
log is worth a pass. A pass (`cleaner_run.py`) is cut into small pieces that run in the executor;
between two of them the loop serves its clients, and a pause keeps within
`log.cleaner.io.max.bytes.per.second`. One log at a time: threads of one interpreter would only get
in each other's way.

Appends go on meanwhile. What else changes a log - a truncation, a deletion, retention - ends the
pass, and a later round tries again. A log that cannot be compacted is put aside and said so once;
the others are not held up by it (rule I6), nor by one that there is no room for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tidemill.clock import Clock
from tidemill.executor import Executor, Then
from tidemill.storage.cleaner_plan import Candidate, assess, plan
from tidemill.storage.cleaner_run import CleanerSettings, CleaningRun, RunStats, Step
from tidemill.storage.cleaner_source import DamagedSegmentError
from tidemill.storage.disk_errors import DiskError, DiskFullError
from tidemill.storage.log import Log
from tidemill.storage.log_dir import LogDir
from tidemill.storage.log_replace import Swap
from tidemill.storage.manager_base import HighWatermarks, ManagedLogs

_log = logging.getLogger(__name__)

PAUSE_MS = 1
"""Between two pieces of work the loop has at least this long for itself."""
RETRY_MS = 100
"""How long to wait when no thread can be started."""
LOGS_PER_STEP = 100
UNCLEANABLE_MAX = 10_000

T = TypeVar("T")
CallLater = Callable[[int, Callable[[], None]], object]
Done = Callable[[], None]


@dataclass(slots=True)
class CleanerTotals:
    """What the cleaner has done since the start."""

    passes: int = 0
    aborted_passes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(slots=True)
class _Pass:
    """The pass under way."""

    log: Log
    run: CleaningRun
    steps: Iterator[Step]
    done: Done
    started_ms: int
    turn_ms: int = 0


class LogCleaner:
    """Compacts the logs of a broker, one at a time."""

    def __init__(
        self,
        logs: ManagedLogs,
        *,
        clock: Clock,
        executor: Executor,
        call_later: CallLater,
        settings: Callable[[], CleanerSettings],
        high_watermarks: Callable[[], HighWatermarks],
        on_damage: Callable[[Log], None] | None = None,
    ) -> None:
        """`call_later(delay_ms, callback)` is the broker's timing wheel.

        `on_damage(log)` is told when a pass has found wrong bytes in a log.
        """
        self.uncleanable: dict[Log, str] = {}
        """Logs whose compaction failed, and why; they are left alone until a restart."""
        self.totals = CleanerTotals()
        self._logs = logs
        self._files = logs.files
        self._clock = clock
        self._executor = executor
        self._call_later = call_later
        self._settings = settings
        self._high_watermarks = high_watermarks
        self._on_damage = on_damage
        self._stopped = False
        self._put_off: set[Log] = set()
        """Logs whose pass ended early in this round; the next one tries them again."""
        self._refused_bytes: dict[LogDir, int] = {}
        """The smallest segment that a directory had no room for in this round."""

    def run(self, done: Done) -> None:
        """Compact until nothing is worth it; `done` is called when the round is over."""
        self._put_off.clear()
        self._refused_bytes.clear()
        self._go_on(done)

    def _go_on(self, done: Done) -> None:
        if self._stopped or not self._settings().is_enabled:
            done()
            return
        self._forget_gone()
        watermarks = self._high_watermarks()
        self._survey(self._compacted(), watermarks, None, done)

    def stop(self) -> None:
        """Begin nothing new; the piece of work under way is the last."""
        self._stopped = True

    # Finding the dirtiest log

    def _compacted(self) -> list[Log]:
        return [log for log in self._logs.logs.values() if log.config.cleanup_compact]

    def _forget_gone(self) -> None:
        for log in [log for log in self.uncleanable if log.is_closed]:
            del self.uncleanable[log]

    def _survey(
        self, logs: list[Log], watermarks: HighWatermarks, best: Candidate | None, done: Done
    ) -> None:
        """Look at some logs per turn of the loop, then clean the dirtiest of all."""
        for log in logs[:LOGS_PER_STEP]:
            found = self._assess(log, watermarks)
            if found is not None and (best is None or found.dirty_ratio > best.dirty_ratio):
                best = found
        rest = logs[LOGS_PER_STEP:]
        if rest and not self._stopped:
            self._call_later(PAUSE_MS, lambda: self._survey(rest, watermarks, best, done))
        elif best is None or self._stopped:
            done()
        else:
            self._begin(best, done)

    def _assess(self, log: Log, watermarks: HighWatermarks) -> Candidate | None:
        """How dirty the log is; None when it is not worth a pass, or may not have one."""
        if log.is_closed or log.dir.is_offline or log.damage:
            return None
        if log in self.uncleanable or log in self._put_off:
            return None
        watermark = watermarks.get(log.topic_partition)
        if watermark is None:
            return None
        try:
            found = assess(log, self._logs.cleaned_offset(log), watermark, self._clock.now_ms())
        except Exception as error:  # noqa: BLE001 - one bad log must not stop the others
            self._give_up(log, error)
            return None
        return found if found.is_worth_it and self._may_have_room(found) else None

    def _may_have_room(self, candidate: Candidate) -> bool:
        refused_bytes = self._refused_bytes.get(candidate.log.dir)
        return refused_bytes is None or _room_bytes(candidate) < refused_bytes

    # One pass

    def _begin(self, surveyed: Candidate, done: Done) -> None:
        log = surveyed.log
        candidate = self._assess(log, self._high_watermarks())
        if candidate is None:  # The survey took several turns, and the log has changed meanwhile.
            self._put_off.add(log)
            self._later(done)
            return
        try:
            self._check_room(candidate)
            planned = plan(candidate, self._clock.now_ms())
        except Exception as error:  # noqa: BLE001 - see `_failed`
            self._failed(log, error)
            self._put_off.add(log)
            self._later(done)
            return
        run = CleaningRun(self._files, planned, self._settings())
        self._next(_Pass(log, run, run.steps(), done, self._clock.monotonic_ms()))

    def _check_room(self, candidate: Candidate) -> None:
        """The new segment needs room beside the old ones, out of what is not reserved (E8)."""
        size_bytes = _room_bytes(candidate)
        try:
            candidate.log.dir.charge(size_bytes)
        except DiskFullError:
            self._refused_bytes[candidate.log.dir] = size_bytes  # Smaller ones may do.
            raise

    def _later(self, done: Done) -> None:
        """Go on with the round when the loop has had its turn."""
        self._call_later(PAUSE_MS, lambda: self._go_on(done))

    def _next(self, work: _Pass) -> None:
        """Do the next piece in a thread, unless something has made the pass void."""
        if not self._is_valid(work):
            self._abort(work)
            return
        work.turn_ms = self._clock.monotonic_ms()
        self._submit(work, lambda: next(work.steps, None), self._stepped)

    def _is_valid(self, work: _Pass) -> bool:
        log = work.log
        return not (
            self._stopped
            or log.is_closed
            or log.dir.is_offline
            or log.damage
            or log.cuts != work.run.plan.cuts
            or work.run.has_lost_segments
        )

    def _submit(
        self, work: _Pass, piece: Callable[[], T], then: Callable[[_Pass, T | None], None]
    ) -> None:
        def finished(result: T | None, error: BaseException | None) -> None:
            if error is None:
                then(work, result)
            elif self._is_valid(work):
                self._failed(work.log, error)
                self._abort(work)
            else:
                self._abort(work)

        self._start(piece, finished)

    def _start(self, piece: Callable[[], T], then: Then[T]) -> None:
        """Do it in a thread; if none can be started, try again, unless the broker is going down."""
        try:
            self._executor.submit(piece, then)
        except RuntimeError as error:
            if not self._stopped:
                _log.warning("compaction waits for a thread: %s", error)
                self._call_later(RETRY_MS, lambda: self._start(piece, then))

    def _stepped(self, work: _Pass, step: Step | None) -> None:
        if step is None:
            self._complete(work)
        elif isinstance(step, Swap):
            self._swap(work, step)
        else:
            self._call_later(self._pause_ms(work, step), lambda: self._next(work))

    def _pause_ms(self, work: _Pass, step_bytes: int) -> int:
        """How long to wait so that no more than the limit is read and written per second."""
        spent_ms = self._clock.monotonic_ms() - work.turn_ms
        due_ms = int(step_bytes * 1000 / max(1.0, self._settings().io_bytes_per_second_max))
        return max(PAUSE_MS, due_ms - spent_ms)

    # Putting a new segment in place: see `log_replace.py` for the order

    def _swap(self, work: _Pass, swap: Swap) -> None:
        if not self._is_valid(work):
            self._abort(work)
            return
        note = self._logs.prepare_recovery_point(work.log, work.run.plan.upper_offset)

        def noted(work: _Pass, _: object) -> None:
            if self._is_valid(work) and self._guarded(work, lambda: work.log.begin_swap(swap)):
                self._submit(work, lambda: self._flush_names(work), self._swapped)
            else:
                self._abort(work)

        if note is None:
            noted(work, None)
        else:
            # Gaps above the recovery point look like lost records to a log that is not compacted,
            # which this one may no longer be after the next restart.
            self._submit(work, note, noted)

    def _flush_names(self, work: _Pass) -> None:
        self._files.fsync_dir(work.run.plan.directory)

    def _swapped(self, work: _Pass, _: object) -> None:
        pending = work.log.pending_swap
        if pending is not None and self._guarded(work, work.log.finish_swap):
            work.run.forget(pending)
            self._logs.sealer.seal(work.log, pending.cleaned)
            self._call_later(PAUSE_MS, lambda: self._next(work))
        else:
            self._abort(work)

    def _guarded(self, work: _Pass, action: Callable[[], bool | None]) -> bool:
        """Run something that renames files; a failure has taken the directory offline already."""
        try:
            return bool(action())
        except DiskError as error:
            _log.error("compaction of %s failed: %s", work.log.topic_partition, error.message)
            return False

    # The end of a pass

    def _complete(self, work: _Pass) -> None:
        log, run = work.log, work.run
        if not self._is_valid(work):
            self._abort(work)
            return
        self.totals.passes += 1
        self._count(run.stats)
        note = self._logs.note_cleaned(log, run.end_offset)

        def noted(work: _Pass, _: object) -> None:
            self._report(work)
            self._later(work.done)

        self._submit(work, note, noted)

    def _abort(self, work: _Pass) -> None:
        """Leave the log as it is; a later round tries again, this one goes on with the others."""
        self.totals.aborted_passes += 1
        self._count(work.run.stats)
        self._put_off.add(work.log)
        _log.info("compaction of %s ended early", work.log.topic_partition)
        if work.log.pending_swap is not None:
            self._guarded(work, work.log.abandon_swap)
        # Of a directory that is gone nothing is ours any more; a restart tidies up.
        is_gone = work.log.is_closed or work.log.dir.is_offline

        def tidy() -> None:
            work.run.release_memory()
            if not is_gone:
                work.run.discard()

        self._start(tidy, lambda _, error: self._later(work.done))

    def _count(self, stats: RunStats) -> None:
        self.totals.bytes_read += stats.map_bytes + stats.bytes_read
        self.totals.bytes_written += stats.bytes_written

    def _report(self, work: _Pass) -> None:
        stats, run = work.run.stats, work.run
        _log.info(
            "compacted %s up to offset %d: %d of %d records and %d of %d bytes stay, in %d ms",
            work.log.topic_partition, run.end_offset, stats.records_kept, stats.records_read,
            stats.bytes_written, stats.bytes_read, self._clock.monotonic_ms() - work.started_ms,
        )  # fmt: skip

    # Failures

    def _failed(self, log: Log, error: BaseException) -> None:
        """A disk that is full or gone is the directory's business; the rest is this log's."""
        if isinstance(error, DiskError):
            log.dir.fail(error)
        elif isinstance(error, DamagedSegmentError):
            self._note_damage(log, error)
        else:
            self._give_up(log, error)

    def _note_damage(self, log: Log, error: DamagedSegmentError) -> None:
        """The log is compacted again when it is sound again; see `log_damage.py`."""
        if not log.note_damage(error.segment, error.found):
            return
        _log.error(
            "%s cannot be compacted: %s; check this disk, and restore the partition from another "
            "copy", log.topic_partition, error,
        )  # fmt: skip
        if self._on_damage is not None:
            self._on_damage(log)

    def _give_up(self, log: Log, error: BaseException) -> None:
        if len(self.uncleanable) < UNCLEANABLE_MAX:
            self.uncleanable[log] = str(error)
        _log.error(
            "%s cannot be compacted and is left as it is until the broker restarts: %s",
            log.topic_partition, error, exc_info=error,
        )  # fmt: skip


def _room_bytes(candidate: Candidate) -> int:
    """What a new segment may take beside the old ones."""
    return min(
        candidate.clean_bytes + candidate.cleanable_bytes, candidate.log.config.segment_bytes
    )
