"""Group commit: many requests for durability, few calls to the disk.

A log that asks while its own flush is under way waits for the next one, together with everybody
else who asks meanwhile. A bounded number of workers flush different logs at the same time; when all
are busy, logs queue up and each free worker takes its share of the queue at once.

After a flush that failed on the device the log directory goes offline and the flush is never tried
again (rule E1). One that could not even begin, for lack of space or of descriptors, has lost
nothing: whoever asked is told, and may ask again. Nobody's callback can stop the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemill.executor import Executor
from tidemill.storage.disk_errors import DiskError, DiskFailedError, FileMissingError
from tidemill.storage.files import Files
from tidemill.storage.segment import Segment

if TYPE_CHECKING:
    from tidemill.storage.log import Log

_log = logging.getLogger(__name__)

OnFlushed = Callable[[BaseException | None], None]

FLUSH_THREADS = 8
LOGS_PER_TURN_MAX = 64


class FlushJob:
    """What has to reach the disk so that a log is durable below `target`; made on the loop."""

    __slots__ = (
        "_check_online",
        "_data_paths",
        "_directories",
        "_files",
        "_write_epochs",
        "paths",
        "segments",
        "target",
    )

    def __init__(
        self,
        files: Files,
        directories: list[str],
        segments: list[Segment],
        paths: list[str],
        write_epochs: Callable[[], None] | None,
        *,
        target: int,
        check_online: Callable[[], None],
    ) -> None:
        """`directories` are the log's own and, while that is new, the one it lies in.

        `write_epochs` does nothing any more once a truncation has written the file (rule D8).
        `check_online` raises once a flush has failed in this directory: another might succeed.
        """
        self._files = files
        self._directories = directories
        self.paths = paths
        self._write_epochs = write_epochs
        self.segments = segments
        self._data_paths = [(one, path) for one in segments for path in one.take_sync_paths()]
        self._check_online = check_online
        self.target = target
        """Lowered by a truncation that happens while the flush is under way."""

    def run(self) -> None:
        """Flush epochs, data, what belongs to it, and then the names of new files (rule E5).

        Files may go while this runs: the loop deletes old segments and whole topics meanwhile.
        What is gone needs no flush, and is no fault of the disk.
        """
        self._check_online()
        try:
            self._run()
        except FileMissingError:
            if not all(segment.is_gone for segment in self.segments):
                raise

    def _run(self) -> None:
        if self._write_epochs is not None and self._files.exists(self.directory):
            self._write_epochs()
        for segment, path in self._data_paths:
            self._sync(segment, path)
        for path in self.paths:
            with suppress(FileMissingError):
                self._files.fdatasync(path)
        if self.paths or not all(segment.name_is_durable for segment in self.segments):
            for name in self._directories:
                self._files.fsync_dir(name)

    def _sync(self, segment: Segment, path: str) -> None:
        try:
            self._files.fdatasync(path)
        except FileMissingError:
            if not segment.is_gone:
                raise

    @property
    def directory(self) -> str:
        return self._directories[0]

    @property
    def has_epochs(self) -> bool:
        """Whether leader epochs are among what it writes."""
        return self._write_epochs is not None

    @property
    def all_paths(self) -> list[str]:
        """Every file that it is to flush."""
        return [path for _, path in self._data_paths] + self.paths

    def give_back(self) -> None:
        """It failed without harm: its segments have to be flushed by the next one."""
        for segment, path in self._data_paths:
            if path != segment.log_path:
                segment.txn_index.dirty = True


class _Waiting:
    """A log's place in the flusher."""

    __slots__ = ("callbacks", "is_running")

    def __init__(self) -> None:
        self.callbacks: list[OnFlushed] = []
        self.is_running = False


class Flusher:
    """Flushes the logs of one directory through an executor."""

    def __init__(self, executor: Executor, *, workers_max: int = FLUSH_THREADS) -> None:
        self._executor = executor
        self._workers_max = workers_max
        self._workers = 0
        self._waiting: dict[Log, _Waiting] = {}
        self._queue: dict[Log, None] = {}
        self.flushes = 0

    def request(self, log: Log, on_flushed: OnFlushed | None = None) -> None:
        """Make durable what the log holds now; `on_flushed(error or None)` is called after."""
        waiting = self._waiting.get(log)
        if waiting is None:
            waiting = self._waiting[log] = _Waiting()
        if on_flushed is not None:
            waiting.callbacks.append(on_flushed)
        self._queue[log] = None
        self._start_workers()

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._workers

    def _start_workers(self) -> None:
        while self._workers < self._workers_max:
            turn = self._take_turn()
            if not turn:
                return
            self._workers += 1
            self._submit(turn)

    def _take_turn(self) -> list[Log]:
        """This worker's share of the logs that are not being flushed already."""
        ready = [log for log in self._queue if not self._waiting[log].is_running]
        share = -(-len(ready) // self._workers_max)
        turn = ready[: min(share, LOGS_PER_TURN_MAX)]
        for log in turn:
            del self._queue[log]
        return turn

    def _submit(self, turn: list[Log]) -> None:
        jobs: list[tuple[Log, FlushJob, list[OnFlushed]]] = []
        for log in turn:
            waiting = self._waiting[log]
            waiting.is_running = True
            callbacks, waiting.callbacks = waiting.callbacks, []
            jobs.append((log, log.prepare_flush(), callbacks))
        self.flushes += len(jobs)

        def work() -> list[BaseException | None]:
            return [_attempt(job) for _, job, _ in jobs]

        def then(errors: list[BaseException | None] | None, error: BaseException | None) -> None:
            self._workers -= 1
            for slot, (log, job, callbacks) in enumerate(jobs):
                failure = error if errors is None else errors[slot]
                self._finish(log, job, callbacks, failure)
            self._start_workers()

        try:
            self._executor.submit(work, then)
        except RuntimeError as error:
            # No thread can be started: this turn has failed, and the flusher must not wait for it.
            then(None, error)

    def _finish(
        self, log: Log, job: FlushJob, callbacks: list[OnFlushed], error: BaseException | None
    ) -> None:
        """Settle one job. It never raises: the jobs after it are owed an answer, too."""
        waiting = self._waiting[log]
        waiting.is_running = False
        if not waiting.callbacks and log not in self._queue:
            del self._waiting[log]
        try:
            if error is None:
                log.finish_flush(job)
            else:
                log.fail_flush(job, error)
        except Exception as failure:  # noqa: BLE001 - it is logged, and told to those who wait
            _log.exception("the flush of %s could not be settled", log.topic_partition)
            error = failure
        for callback in callbacks:
            _tell(log, callback, error)


def _tell(log: Log, callback: OnFlushed, error: BaseException | None) -> None:
    try:
        callback(error)
    except Exception:  # noqa: BLE001 - it is logged, and the others must still be told
        _log.exception("what follows a flush of %s failed", log.topic_partition)


def _attempt(job: FlushJob) -> BaseException | None:
    try:
        job.run()
    except DiskError as error:
        return error
    except OSError as error:
        return DiskFailedError(f"Flushing {job.directory} failed: {error}")
    except Exception as error:  # noqa: BLE001 - one job's trouble is not that of the whole turn
        return error
    return None
