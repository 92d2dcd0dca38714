"""Appends whose records must be converted first, and those that must not overtake them.

Compressing a large batch again takes milliseconds, so it is done in the executor. Whatever comes
for the same partition meanwhile waits behind it (rule G7), up to a limit.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode
from tidemill.executor import Executor
from tidemill.storage.log import AppendInfo, Log
from tidemill.storage.validate import Validated, convert, validate_for_append
from tidemill.types import LeaderEpoch

log = logging.getLogger(__name__)

CONVERSIONS_QUEUED_MAX = 64
"""Appends that may wait behind a conversion before producers are told to come back."""

AppendOutcome = AppendInfo | ApiError
Records = memoryview | bytearray | bytes


class PendingAppend:
    """An append whose records are being converted, or that must not overtake one that is."""

    __slots__ = ("leader_epoch", "records", "required_acks", "then")

    def __init__(self, records: bytearray, required_acks: int, leader_epoch: LeaderEpoch) -> None:
        self.records = records
        self.required_acks = required_acks
        self.leader_epoch = leader_epoch
        """The term in which it was asked for; whoever asked has given it up when that is over."""
        self.then: Callable[[AppendOutcome], object] = _nobody_asks
        """Called with the outcome; set it in the turn in which `append` returned."""


def _nobody_asks(outcome: AppendOutcome) -> None:
    """Until somebody does."""


class Conversions:
    """The waiting appends of one partition, converted and appended one after the other."""

    __slots__ = ("_append", "_clock", "_executor", "log", "queued")

    def __init__(
        self,
        log: Log,
        clock: Clock,
        executor: Executor,
        append: Callable[[PendingAppend, Validated], AppendInfo],
    ) -> None:
        """`append` puts converted records into the log, or refuses them: time has passed."""
        self.log = log
        self._clock = clock
        self._executor = executor
        self._append = append
        self.queued: deque[PendingAppend] = deque()
        """Those that wait; while there are any, nothing is appended past them."""

    def queue(
        self, records: Records, required_acks: int, leader_epoch: LeaderEpoch
    ) -> PendingAppend:
        """Have a copy of the records appended later; raises when too many wait already."""
        if len(self.queued) >= CONVERSIONS_QUEUED_MAX:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many appends wait to be converted")
        pending = PendingAppend(bytearray(records), required_acks, leader_epoch)
        self.queued.append(pending)
        if len(self.queued) == 1:
            self._convert_next()
        return pending

    def _convert_next(self) -> None:
        queued = self.queued[0]
        config, now_ms = self.log.config, self._clock.now_ms()
        where = self.log.topic_partition

        def work() -> Validated:
            validated = validate_for_append(queued.records, config, now_ms, topic_partition=where)
            if validated.needs_conversion:
                validated = convert(validated, config, now_ms, topic_partition=where)
            return validated

        self._executor.submit(work, self._converted)

    def _converted(self, validated: Validated | None, error: BaseException | None) -> None:
        queued = self.queued.popleft()
        outcome = self._outcome(queued, validated, error)
        # Before anybody is told: who hears of an append may ask for the next one at once.
        if self.queued:
            self._convert_next()
        queued.then(outcome)

    def _outcome(
        self, queued: PendingAppend, validated: Validated | None, error: BaseException | None
    ) -> AppendOutcome:
        if error is not None:
            # Not raised again: it would hold this frame, which holds it, and with both all that the
            # conversion had in its hands, a hundred megabytes maybe, until the collector comes.
            return self._refusal(error)
        assert validated is not None
        try:
            return self._append(queued, validated)
        except Exception as failed:  # noqa: BLE001 - it is told, and those behind it go on
            return self._refusal(failed)

    def _refusal(self, error: BaseException) -> ApiError:
        if isinstance(error, ApiError):
            return error
        log.error("an append to %s failed", self.log.topic_partition, exc_info=error)
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the append failed: {error!r}")
