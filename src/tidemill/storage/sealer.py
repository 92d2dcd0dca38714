"""Writing the checksums of segments that were just closed, one segment at a time.

The bytes are read back and summed up in the executor; the sidecar is put in place on the loop,
which owns the log's files, and only if the segment is still what it was. A later flush makes it
durable. What is not sealed here, because the broker stopped or has too much of it, is nothing lost:
the next scrub does it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from tidemill.executor import Executor
from tidemill.storage.checksums import Checksums, compute
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.files import Files
from tidemill.storage.log import Log
from tidemill.storage.segment import Segment

_log = logging.getLogger(__name__)

QUEUED_MAX = 10_000


class Sealer:
    """Seals the closed segments of all logs."""

    def __init__(
        self, files: Files, executor: Executor, request_flush: Callable[[Log], None]
    ) -> None:
        self._files = files
        self._executor = executor
        self._request_flush = request_flush
        self._queue: deque[tuple[Log, Segment, Callable[[], bool]]] = deque()
        self._is_running = False
        self.sealed = 0

    def seal(self, log: Log, segment: Segment) -> None:
        """Write checksums for the segment soon; its bytes must be durable already (rule E5)."""
        if len(self._queue) < QUEUED_MAX:
            self._queue.append((log, segment, log.watch(segment)))
            self._go_on()

    def _go_on(self) -> None:
        while self._queue and not self._is_running:
            log, segment, is_unchanged = self._queue.popleft()
            if is_unchanged():
                self._is_running = True
                self._submit(log, segment, is_unchanged)

    def _submit(self, log: Log, segment: Segment, is_unchanged: Callable[[], bool]) -> None:
        path = segment.log_path

        def then(checksums: Checksums | None, error: BaseException | None) -> None:
            self._is_running = False
            if is_unchanged():
                self._settle(log, segment, checksums, error)
            self._go_on()

        try:
            self._executor.submit(lambda: compute(self._files, path), then)
        except RuntimeError as error:
            then(None, error)  # No thread can be started now.

    def _settle(
        self, log: Log, segment: Segment, checksums: Checksums | None, error: BaseException | None
    ) -> None:
        if checksums is None or checksums.size_bytes != segment.size:
            _log.warning("%s is not sealed, the next scrub tries again: %s", segment, error)
            return
        try:
            log.write_checksums(segment, checksums)
        except DiskError as failure:
            _log.warning("%s is not sealed, the next scrub tries again: %s", segment, failure)
            return
        self.sealed += 1
        self._request_flush(log)
