"""One partition on this broker: who leads it, what is committed, and what each ack waits for.

`Partition` stands between the handlers and the log. An append goes through it, so that leadership,
`min.insync.replicas` and the flush policy are looked at before anything is written and again before
anything is acked; a read goes through it, so that nobody sees a record before it is committed.

The high watermark is the first offset that is not known to be committed. It counts what every
in-sync replica has: under flush policy `ack` what is fdatasynced, under `async` what is written.

Everything here is synchronous and owned by the loop: between looking at the state and changing it
there is no `await` (rule B11). Followers, ISR changes and truncation will come in beside
`_committed_end`; today a partition's ISR is its leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode
from tidemill.executor import Executor
from tidemill.image import PartitionImage
from tidemill.invariant import invariant
from tidemill.storage.flusher import OnFlushed
from tidemill.storage.log import AppendInfo, Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.slice import LogSlice
from tidemill.storage.validate import Validated, convert, validate_for_append
from tidemill.types import (
    NO_BROKER,
    NO_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)

ACKS_ALL = -1
READ_COMMITTED = 1
CONVERSIONS_QUEUED_MAX = 64
"""Appends that may wait behind a conversion before producers are told to come back."""

AppendOutcome = AppendInfo | ApiError
Records = memoryview | bytearray | bytes


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The topic's settings that a partition obeys."""

    log: LogConfig
    min_insync_replicas: int


class PendingAppend:
    """An append whose records are being converted, or that must not overtake one that is."""

    __slots__ = ("records", "required_acks", "then")

    def __init__(self, records: bytearray, required_acks: int) -> None:
        self.records = records
        self.required_acks = required_acks
        self.then: Callable[[AppendOutcome], object] = _nobody_asks
        """Called with the outcome; set it in the turn in which `append` returned."""


def _nobody_asks(outcome: AppendOutcome) -> None:
    """Acks=0: the outcome of a late append interests nobody."""


class Partition:
    """One partition of which this broker holds a replica."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log: Log,
        settings: PartitionSettings,
        *,
        broker_id: BrokerId,
        request_flush: Callable[[Log, OnFlushed | None], None],
        clock: Clock,
        executor: Executor,
        on_moved: Callable[[Partition], object],
        on_flush_failed: Callable[[Partition], object],
        high_watermark: int = 0,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.settings = settings
        self.leader = NO_BROKER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = PartitionEpoch(-1)
        self.replicas: tuple[BrokerId, ...] = ()
        self.isr: tuple[BrokerId, ...] = ()
        self.is_leader = False
        self.is_gone = False
        self.is_offline = False
        self._broker_id = broker_id
        self._request_flush_of = request_flush
        self._clock = clock
        self._executor = executor
        self._on_moved = on_moved
        self._on_flush_failed = on_flush_failed
        self.failed_flushes = 0
        """Flushes that failed and may succeed later: those who waited for them must be told."""
        self._flush_error: BaseException | None = None
        self._flush_requested_to = 0
        self._has_enough_in_sync = False
        self._commits_when_flushed = settings.log.flush_policy == "ack"
        self._queued: deque[PendingAppend] = deque()
        bounded = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.high_watermark = Offset(bounded)

    def __repr__(self) -> str:
        return f"Partition({self.topic_partition}, epoch={self.leader_epoch})"

    # Metadata.

    def apply(self, image: PartitionImage) -> None:
        """Follow the cluster's image; news older than what is known is ignored (rule A1)."""
        if image.partition_epoch < self.partition_epoch:
            return
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.isr = image.isr
        self.leader = image.leader
        self._has_enough_in_sync = len(self.isr) >= self.effective_min_isr
        if image.leader != self._broker_id:
            self._resign(image.leader_epoch)
        elif image.leader_epoch > self.leader_epoch or not self.is_leader:
            self._lead(image.leader_epoch)

    def _lead(self, epoch: LeaderEpoch) -> None:
        """Become the leader in `epoch`, whose start is durable before any of its records (A7)."""
        if self.is_offline:
            return
        self.log.begin_epoch(epoch)
        self.leader_epoch = epoch
        self.is_leader = True
        self._advance_high_watermark()
        if self._commits_when_flushed:
            self._request_flush()

    def _resign(self, epoch: LeaderEpoch) -> None:
        self.leader_epoch = epoch
        if self.is_leader:
            self.is_leader = False
            self._on_moved(self)

    def reconfigure(self, settings: PartitionSettings) -> None:
        """Obey new settings from the next append on."""
        self.settings = settings
        self.log.reconfigure(settings.log)
        self._commits_when_flushed = settings.log.flush_policy == "ack"
        self._has_enough_in_sync = len(self.isr) >= self.effective_min_isr
        self._advance_high_watermark()

    def take_offline(self) -> None:
        """Its disk failed: refuse everything from now on (rule E1)."""
        self.is_offline = True
        self.is_leader = False
        self._on_moved(self)

    def mark_gone(self) -> None:
        """The topic was deleted: whoever waits for this partition is answered now."""
        self.is_gone = True
        self.is_leader = False
        self._on_moved(self)

    # Checks.

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Raise unless this broker leads, and the client knows it in the same epoch (rule A4)."""
        if self.is_offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the partition's log directory failed")
        if self.is_gone:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas (rule B2)."""
        return min(self.settings.min_insync_replicas, max(1, len(self.replicas)))

    def check_enough_in_sync(self, code: ErrorCode) -> None:
        """Raise `code` while fewer replicas are in sync than acks=all asks for (rule B9)."""
        if not self._has_enough_in_sync:
            raise ApiError(
                code, f"{len(self.isr)} in-sync replicas, {self.effective_min_isr} wanted"
            )

    # Appending.

    def append(self, records: Records, *, required_acks: int) -> AppendInfo | PendingAppend:
        """Append the producer's batches and say where they went, now or later.

        `records` is borrowed until this returns. What must wait is copied, and what comes after
        it waits too, so that no batch overtakes another (rule G7).
        """
        self._check_may_append(required_acks)
        if self._queued:
            return self._queue(records, required_acks)
        config, now_ms = self.log.config, self._clock.now_ms()
        validated = validate_for_append(
            records, config, now_ms, topic_partition=self.topic_partition
        )
        if validated.needs_conversion:
            if validated.conversion_is_heavy:
                pending = self._queue(records, required_acks)
                self._convert_next()
                return pending
            validated = convert(validated, config, now_ms, topic_partition=self.topic_partition)
        return self._append_validated(validated)

    def _check_may_append(self, required_acks: int) -> None:
        if not self.is_leader:
            self.check_leader()
        if required_acks == ACKS_ALL:
            self.check_enough_in_sync(ErrorCode.NOT_ENOUGH_REPLICAS)

    def _append_validated(self, validated: Validated) -> AppendInfo:
        info = self.log.append_as_leader(validated, leader_epoch=self.leader_epoch)
        if info.flush_due or self._commits_when_flushed:
            # For a repeated batch, too: the flush that its first answer waited for may have failed.
            self._request_flush()
        if not info.duplicate:
            self._advance_high_watermark()
        return info

    def _queue(self, records: Records, required_acks: int) -> PendingAppend:
        if len(self._queued) >= CONVERSIONS_QUEUED_MAX:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many appends wait to be converted")
        pending = PendingAppend(bytearray(records), required_acks)
        self._queued.append(pending)
        return pending

    def _convert_next(self) -> None:
        queued = self._queued[0]
        config, now_ms, where = self.log.config, self._clock.now_ms(), self.topic_partition

        def work() -> Validated:
            validated = validate_for_append(queued.records, config, now_ms, topic_partition=where)
            if validated.needs_conversion:
                validated = convert(validated, config, now_ms, topic_partition=where)
            return validated

        self._executor.submit(work, self._converted)

    def _converted(self, validated: Validated | None, error: BaseException | None) -> None:
        queued = self._queued.popleft()
        queued.then(self._append_converted(queued, validated, error))
        if self._queued:
            self._convert_next()

    def _append_converted(
        self, queued: PendingAppend, validated: Validated | None, error: BaseException | None
    ) -> AppendOutcome:
        try:
            if error is not None:
                raise error
            assert validated is not None
            # The world may have moved while the records were converted: look again.
            self._check_may_append(queued.required_acks)
            return self._append_validated(validated)
        except ApiError as refused:
            return refused

    # Commitment.

    def may_ack(self, required_acks: int, info: AppendInfo) -> bool:
        """Whether a producer with these acks can be told of its append now.

        acks=all waits until the records are committed. When `flush.messages` asked for a flush,
        every ack waits for that, too, as it does in Kafka.
        """
        end = info.last_offset + 1
        if info.flush_due and self.log.flushed_offset < end:
            return False
        return required_acks != ACKS_ALL or self.high_watermark >= end

    def _committed_end(self) -> int:
        """The end of what every in-sync replica has; today that is this replica alone."""
        log = self.log
        return log.flushed_offset if self._commits_when_flushed else log.log_end_offset

    def _advance_high_watermark(self) -> None:
        """Move the high watermark up, never down, and only with enough in sync (rules B1, B2)."""
        if not (self.is_leader and self._has_enough_in_sync):
            return
        end = self._committed_end()
        if end > self.high_watermark:
            if end > self.log.log_end_offset:
                invariant(False, "nothing beyond the log's end is committed", end=end)
            self.high_watermark = Offset(end)
            self._on_moved(self)

    def _request_flush(self) -> None:
        """Have the log flushed up to its present end, unless that is under way already."""
        end = self.log.log_end_offset
        if self.log.flushed_offset < end and self._flush_requested_to < end:
            self._flush_requested_to = end
            self._request_flush_of(self.log, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        if error is None:
            self._advance_high_watermark()
            if not self._commits_when_flushed:
                self._on_moved(self)
        elif not self.is_offline:
            # No room or no descriptors: nothing is lost, so whoever waits is told, and the flush
            # is asked for again with the next append or after a while, whatever comes first.
            self.failed_flushes += 1
            self._flush_error = error
            self._flush_requested_to = self.log.flushed_offset
            self._on_moved(self)
            self._on_flush_failed(self)

    def retry_flush(self) -> None:
        """Ask again for a flush that failed for a reason that may be over."""
        if not (self.is_gone or self.is_offline):
            self._request_flush()

    def check_flushes(self, failed_before: int) -> None:
        """Raise if a flush has failed since `failed_flushes` had that value."""
        if self.failed_flushes != failed_before:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the records are in the log but could not be flushed: {self._flush_error}",
            )

    # Reading.

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what read_committed may see: below every open transaction (rule H9)."""
        return Offset(self.log.last_stable_offset(self.high_watermark))

    def readable_end(self, isolation_level: int) -> Offset:
        """The first offset that a consumer with this isolation level must not see (rule B8)."""
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def read(
        self, offset: int, *, max_bytes: int, isolation_level: int, at_least_one: bool = True
    ) -> LogSlice:
        """The stored batches from the one that holds `offset` on, within the given bounds."""
        return self.log.read(
            offset,
            max_bytes=max_bytes,
            upper_offset=self.readable_end(isolation_level),
            at_least_one=at_least_one,
        )

    def delete_records_before(self, offset: int) -> Offset:
        """Raise the log's start to `offset`, at most to the high watermark (rule B12)."""
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log.advance_log_start(Offset(target))
        return Offset(self.log.log_start_offset)
