"""The scrub: all closed segments are read again from time to time and compared with their sidecars.

A disk may change bytes without saying so, and nobody would notice before a consumer, or a replica
that copies them, does (rule E2). A round visits every closed segment, slowly: `bytes_per_second`
bounds it over all logs together. The next one begins `interval_ms` after its end. Reading is done
in the executor, a step at a time; what is found is noted on the loop, if the segment is still the
one that was looked at.

Damage is counted, logged with what to do about it, and noted in the log (`log_damage.py`), which
from then on refuses to hand out those offsets. A restart forgets it; the next round finds it again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.executor import Executor
from tidemill.storage.damage import Damage
from tidemill.storage.disk_errors import DiskError, FileMissingError
from tidemill.storage.files import Files
from tidemill.storage.log import Log
from tidemill.storage.manager import LogManager
from tidemill.storage.segment import Segment
from tidemill.storage.segment_check import SegmentCheck

_log = logging.getLogger(__name__)

FIRST_ROUND_MS = 60_000
STEP_BYTES = 1 << 20
LOGS_PER_TURN_MAX = 500
_SWITCHED_OFF_LOOK_MS = 1_000
_ADVICE = (
    "check this disk. Offsets in between cannot be read until then; restore the partition from "
    "another copy, or delete the segment's .checksums file if a program changed it on purpose"
)

CallLater = Callable[[int, Callable[[], None]], object]


class ScrubLimits(NamedTuple):
    """How fast and how often; they may change at any time."""

    bytes_per_second: int
    """0 stops the scrub where it is."""
    interval_ms: int


class Scrubber:
    """Runs rounds over the closed segments of all logs."""

    def __init__(
        self,
        logs: LogManager,
        files: Files,
        clock: Clock,
        executor: Executor,
        call_later: CallLater,
        limits: Callable[[], ScrubLimits],
        *,
        on_damage: Callable[[Log], None] | None = None,
    ) -> None:
        """`on_damage(log)` is told when something new was found wrong with a log."""
        self._logs = logs
        self._files = files
        self._clock = clock
        self._executor = executor
        self._call_later = call_later
        self._limits = limits
        self._on_damage = on_damage
        self._started_ms = clock.monotonic_ms()
        self._ended_ms: int | None = None
        self._waiting: deque[Log] = deque()
        self._segments: deque[Segment] = deque()
        self._log: Log | None = None
        self._done: Callable[[], None] | None = None
        self._is_stopped = False
        self.rounds = 0
        self.segments_checked = 0
        self.bytes_checked = 0
        self.damage_found = 0

    def run_if_due(self, done: Callable[[], None]) -> None:
        """Run a round if it is time for one; `done` is called when that is over.

        The first one comes soon after the start: what an earlier run of the broker had found out
        is not written down anywhere.
        """
        interval_ms = self._limits().interval_ms
        if self._ended_ms is None:
            due_ms = self._started_ms + min(interval_ms, FIRST_ROUND_MS)
        else:
            due_ms = self._ended_ms + interval_ms
        if self._clock.monotonic_ms() < due_ms:
            done()
        else:
            self.start_round(done)

    def start_round(self, done: Callable[[], None]) -> None:
        """Look at everything once; `done` is called when that is over, which may take days."""
        self._done = done
        self._waiting = deque(self._logs.logs.values())
        self._next_segment()

    def stop(self) -> None:
        self._is_stopped = True

    # Going through logs and segments.

    def _next_segment(self) -> None:
        """Begin with the next closed segment that there is; logs without one cost next to nothing.

        Still, ten thousand of them are not looked at in one turn of the loop.
        """
        if self._is_stopped:
            return
        if self._limits().bytes_per_second <= 0:
            self._call_later(_SWITCHED_OFF_LOOK_MS, self._next_segment)
            return
        for _ in range(LOGS_PER_TURN_MAX):
            if self._segments and self._log is not None:
                self._begin(self._log, self._segments.popleft())
                return
            if not self._waiting:
                self._finish_round()
                return
            self._log = self._waiting.popleft()
            self._segments = deque(self._log.closed_segments)
        self._call_later(1, self._next_segment)

    def _finish_round(self) -> None:
        self.rounds += 1
        self._ended_ms = self._clock.monotonic_ms()
        self._log = None
        done, self._done = self._done, None
        if done is not None:
            done()

    def _begin(self, log: Log, segment: Segment) -> None:
        is_unchanged = log.watch(segment)
        if not is_unchanged():
            self._call_later(1, self._next_segment)
            return
        check = SegmentCheck(self._files, log.closed_files(segment))
        self._step(log, segment, check, is_unchanged)

    def _step(
        self, log: Log, segment: Segment, check: SegmentCheck, is_unchanged: Callable[[], bool]
    ) -> None:
        def then(count: int | None, error: BaseException | None) -> None:
            self.bytes_checked += count or 0
            if self._is_stopped:
                return
            if not is_unchanged():
                self._later(count, self._next_segment)
            elif error is not None or check.is_done:
                self._settle(log, segment, check, error)
                self._later(count, self._next_segment)
            else:
                self._later(count, lambda: self._step(log, segment, check, is_unchanged))

        try:
            self._executor.submit(lambda: check.step(STEP_BYTES), then)
        except RuntimeError:
            self._later(STEP_BYTES, self._next_segment)  # No thread can be started now.

    def _later(self, count: int | None, then: Callable[[], None]) -> None:
        """Go on when the bytes just read have earned their time."""
        rate = max(1, self._limits().bytes_per_second)
        self._call_later(max(1, (count or 0) * 1000 // rate), then)

    # What was found.

    def _settle(
        self, log: Log, segment: Segment, check: SegmentCheck, error: BaseException | None
    ) -> None:
        if isinstance(error, FileMissingError):
            self._note(log, segment, [_all_of(log, segment)])
            return
        if error is not None:
            _log.error("%s could not be checked, it is tried again: %s", segment.log_path, error)
            return
        self.segments_checked += 1
        self._files.close(segment.log_path)
        self._note(log, segment, check.damage)
        if check.checksums is not None:
            try:
                log.write_checksums(segment, check.checksums)
                self._logs.request_flush(log)
            except DiskError as failure:
                _log.warning("no checksums for %s yet: %s", segment.log_path, failure)

    def _note(self, log: Log, segment: Segment, found: list[Damage]) -> None:
        if not log.note_damage(segment, found):
            return
        if not found:
            _log.info("%s is sound again", segment.log_path)
        self.damage_found += len(found)
        for damage in found:
            _log.error(
                "%s is damaged at %s of %s: %s",
                segment.log_path, damage, log.topic_partition, _ADVICE,
            )  # fmt: skip
        if self._on_damage is not None:
            self._on_damage(log)


def _all_of(log: Log, segment: Segment) -> Damage:
    """The segment's file is gone: everything it held is."""
    files = log.closed_files(segment)
    return Damage(files.base_offset, 0, files.size, 0, files.base_offset, files.end_offset)
