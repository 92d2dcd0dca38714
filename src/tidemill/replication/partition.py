"""One partition on this broker: who leads it, what is committed, and what each ack waits for.

`Partition` stands between the handlers and the log. An append goes through it, so that leadership,
`min.insync.replicas` and the flush policy are looked at before anything is written and again before
anything is acked; a read goes through it, so that nobody sees a record before it is committed.

It has one of two roles, as the cluster's image says. A leader has a `Leadership`, which knows its
followers and decides what is committed; it lasts one leader epoch. A follower has a `ReplicaCopy`,
to which the driver of its leader appends what it fetched. `high_watermark` is the first offset that
is not known to be committed, whatever the role.

Everything here is synchronous and owned by the loop: between looking at the state and changing it
there is no `await` (rule B11).
"""

from __future__ import annotations

from tidemill.errors import ApiError, ErrorCode
from tidemill.image import PartitionImage, ReplicaTrouble
from tidemill.replication.alignment import StartOver, TruncateTo
from tidemill.replication.channels import IsrChannel
from tidemill.replication.conversion import (
    CONVERSIONS_QUEUED_MAX,
    AppendOutcome,
    Conversions,
    PendingAppend,
    Records,
)
from tidemill.replication.copying import Fetched, ReplicaCopy
from tidemill.replication.declining import Declining
from tidemill.replication.isr import NO_PARTITION_EPOCH, IsrAnswer, IsrProposal, Settled
from tidemill.replication.leading import LeaderSettings, Leadership
from tidemill.replication.progress import NO_BROKER_EPOCH, UNKNOWN_OFFSET, FetchPosition
from tidemill.replication.reading import READ_COMMITTED, Readable
from tidemill.replication.refusals import Refusals
from tidemill.replication.surroundings import PartitionSettings, Surroundings
from tidemill.storage.disk_errors import DiskFullError
from tidemill.storage.log import AppendInfo, Log
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

__all__ = [
    "ACKS_ALL",
    "CONVERSIONS_QUEUED_MAX",
    "READ_COMMITTED",
    "AppendOutcome",
    "IsrChannel",
    "Partition",
    "PartitionSettings",
    "PendingAppend",
    "Surroundings",
]

ACKS_ALL = -1


class Partition(Readable):
    """One partition of which this broker holds a replica."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log: Log,
        settings: PartitionSettings,
        around: Surroundings,
        *,
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
        self.elr: tuple[BrokerId, ...] = ()
        self.is_leader = False
        self.is_gone = False
        self.is_offline = False
        self.copy = ReplicaCopy(log, high_watermark)
        self.term: Leadership | None = None
        """What it knows and decides as the leader; None while it is not."""
        self._around = around
        self._why_gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.failed_flushes = 0
        """Flushes that failed and may succeed later: those who waited for them must be told."""
        self._flush_error: BaseException | None = None
        self._flush_requested_to = 0
        self._stood_aside_in = NO_PARTITION_EPOCH
        self._declining = Declining(around.lag_max_ms)
        self._refusals = Refusals()
        self._has_enough_in_sync = False
        self._has_followers = False
        self._commits_when_flushed = settings.log.flush_policy == "ack"
        self._conversions = Conversions(log, around.clock, around.executor, self._append_converted)
        self.high_watermark = Offset(self.copy.high_watermark)

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
        self.elr = image.elr
        self.leader = image.leader
        if image.leader != self._around.broker_id:
            self._resign(image.leader_epoch)
        elif self.term is None or image.leader_epoch > self.leader_epoch:
            self._lead(image)
        else:
            leads_again, self.is_leader = not self.is_leader, True
            if self.term.follow_image(image, self._around.clock.monotonic_ms()):
                self._follow_term(self.term)
                self._around.on_moved(self)  # Nobody has to wait for who is gone.
            elif leads_again:
                self._around.on_moved(self)  # Who let go of it when it stopped is to know.
        if self.log.damage:
            self.stand_aside(ReplicaTrouble.DAMAGED)

    def _lead(self, image: PartitionImage) -> None:
        """Become the leader, in an epoch whose start is durable before its records (A7)."""
        if self.is_offline:
            present = tuple(map(self._around.epoch_of, self.replicas))
            if self._declining.is_due(present, self._around.clock.monotonic_ms()):
                self._around.on_trouble(self, ReplicaTrouble.GONE)
            return
        self.log.begin_epoch(image.leader_epoch)
        self.leader_epoch = image.leader_epoch
        self.term = Leadership(
            self.log,
            image,
            self._leader_settings(),
            broker_epoch=NO_BROKER_EPOCH,
            epoch_of=self._around.epoch_of,
            high_watermark=self.high_watermark,
            now_ms=self._around.clock.monotonic_ms(),
        )
        self.is_leader = True
        self._follow_term(self.term)
        if self._commits_when_flushed:
            self.request_flush()
        if self.term.followers:
            self._around.on_led(self)

    def _leader_settings(self) -> LeaderSettings:
        return LeaderSettings(self.settings.min_insync_replicas, self._around.lag_max_ms)

    def _follow_term(self, term: Leadership) -> None:
        """Take over what the term has come to: the ISR, and what is committed."""
        self._has_enough_in_sync = term.has_enough_in_sync
        self._has_followers = bool(term.followers)
        if term.isr.partition_epoch > self.partition_epoch:
            self.partition_epoch = term.isr.partition_epoch
            in_sync = term.isr.committed
            self.isr = tuple(broker_id for broker_id in self.replicas if broker_id in in_sync)
        if term.high_watermark > self.high_watermark:
            self.high_watermark = Offset(term.high_watermark)
            self._around.on_moved(self)

    def _resign(self, epoch: LeaderEpoch) -> None:
        self.leader_epoch = epoch
        if self.term is not None:
            self._end_term()

    def _end_term(self) -> None:
        """Lead no more; whoever waits for this leader is told (rule B10)."""
        self.copy.high_watermark = self.high_watermark
        self.term = None
        self.is_leader = False
        self._around.on_moved(self)

    def stop_leading(self) -> None:
        """Refuse to lead until the next image says so: we may be taken for dead (rule A9).

        The term itself is not over: a change of the ISR that is under way still counts in it.
        """
        if self.is_leader:
            self.is_leader = False
            self._around.on_moved(self)

    def stand_aside(self, trouble: ReplicaTrouble) -> None:
        """Have others who are in sync go on without us (E2, E8): said once, as things stand."""
        us = self._around.broker_id
        if self._stood_aside_in == self.partition_epoch or self.isr in ((), (us,)):
            return
        # Who is full lacks nothing and may be elected; who is damaged must not be (F2).
        if us in self.isr or (us in self.elr and trouble is ReplicaTrouble.DAMAGED):
            self._stood_aside_in = self.partition_epoch
            self._around.on_trouble(self, trouble)

    def reconfigure(self, settings: PartitionSettings) -> None:
        """Obey new settings from the next append on."""
        self.settings = settings
        self.log.reconfigure(settings.log)
        self._commits_when_flushed = settings.log.flush_policy == "ack"
        if self._commits_when_flushed and not (self.is_gone or self.is_offline):
            self.request_flush()  # What was committed before is to survive a crash from now on.
        if self.term is not None:
            self.term.reconfigure(self._leader_settings(), self._around.clock.monotonic_ms())
            self._follow_term(self.term)

    def take_offline(self) -> None:
        """Its disk failed: refuse everything from now on (rule E1)."""
        self.is_offline = True
        self._end_term()

    def mark_gone(self, why: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        """There is no such replica any more: whoever waits for it is answered now, with `why`."""
        self.is_gone = True
        self._why_gone = why
        self._end_term()

    # What it is now.

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas (rule B2)."""
        return min(self.settings.min_insync_replicas, max(1, len(self.replicas)))

    @property
    def knows_high_watermark(self) -> bool:
        """Whether it is not lower than what clients were told before (rule B5)."""
        return self.term is None or self.term.knows_high_watermark

    @property
    def follows(self) -> bool:
        """Whether it has a leader elsewhere to copy from.

        One that is damaged does not: whoever fetches is taken for complete (rule E2).
        """
        if self.is_leader or self.is_offline or self.is_gone or self.log.damage:
            return False
        return self.leader not in (NO_BROKER, self._around.broker_id)

    # Appending.

    def append(self, records: Records, *, required_acks: int) -> AppendInfo | PendingAppend:
        """Append the producer's batches and say where they went, now or later.

        `records` is borrowed until this returns. What must wait is copied, and what comes after
        it waits too, so that no batch overtakes another (rule G7).
        """
        try:
            if self._refusals:
                now_ms = self._around.clock.monotonic_ms()
                self._refusals.check(records, self.log.producers, now_ms)
            outcome = self._append(records, required_acks)
        except ApiError as error:
            now_ms = self._around.clock.monotonic_ms()
            raise self._refusals.judged(records, error, now_ms) from error
        if self._refusals:
            self._refusals.accepted(records)
        return outcome

    def _append(self, records: Records, required_acks: int) -> AppendInfo | PendingAppend:
        self._check_may_append(required_acks)
        if self._conversions.queued:
            return self._conversions.queue(records, required_acks, self.leader_epoch)
        config, now_ms = self.log.config, self._around.clock.now_ms()
        try:
            validated = validate_for_append(
                records, config, now_ms, topic_partition=self.topic_partition
            )
        except ApiError as error:
            repeated = self.log.repeat_of(records, error)
            if repeated is None:
                raise
            return self._answered(repeated)
        if validated.needs_conversion:
            if validated.conversion_is_heavy:
                return self._conversions.queue(records, required_acks, self.leader_epoch)
            validated = convert(validated, config, now_ms, topic_partition=self.topic_partition)
        return self._append_validated(validated)

    def _check_may_append(self, required_acks: int) -> None:
        if not self.is_leader:
            self.check_leader()
        if required_acks == ACKS_ALL and not self._has_enough_in_sync:
            raise self._too_few(ErrorCode.NOT_ENOUGH_REPLICAS)

    def _too_few(self, code: ErrorCode) -> ApiError:
        return ApiError(code, f"{len(self.isr)} in-sync replicas, {self.effective_min_isr} wanted")

    def _append_validated(self, validated: Validated) -> AppendInfo:
        try:
            info = self.log.append_as_leader(validated, leader_epoch=self.leader_epoch)
        except DiskFullError:
            self.stand_aside(ReplicaTrouble.FULL)
            raise
        return self._answered(info)

    def _answered(self, info: AppendInfo) -> AppendInfo:
        if info.flush_due or self._commits_when_flushed:
            # For a repeated batch, too: the flush that its first answer waited for may have failed.
            self.request_flush()
        if not info.duplicate:
            self._advance_high_watermark()
            if self._has_followers:
                self._around.on_appended(self)
        return info

    def _append_converted(self, queued: PendingAppend, validated: Validated) -> AppendInfo:
        # The world may have moved while the records were converted: look again.
        self._check_may_append(queued.required_acks)
        if queued.leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another term has begun meanwhile")
        return self._append_validated(validated)

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

    def check_still_enough_in_sync(self) -> None:
        """The second look of rule B9: raise if too few can have a record that is committed."""
        if self.term is not None and not self.term.may_have_enough_in_sync:
            raise self._too_few(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _advance_high_watermark(self) -> None:
        """Move the high watermark up, never down, and only with enough in sync (rules B1, B2)."""
        term = self.term
        if term is None or not self._has_enough_in_sync:
            return
        # Time matters to followers only: whoever is alone need not ask for it.
        if term.advance(self._around.clock.monotonic_ms() if term.followers else 0):
            self.high_watermark = Offset(term.high_watermark)
            self._around.on_moved(self)

    def request_flush(self) -> None:
        """Have the log flushed up to its present end, unless that is under way already."""
        end = self.log.log_end_offset
        if self.log.flushed_offset < end and self._flush_requested_to < end:
            self._flush_requested_to = end
            self._around.request_flush(self.log, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        if error is None:
            self._advance_high_watermark()
            if not self.is_leader:
                self._around.on_copied(self)
            elif not self._commits_when_flushed:
                self._around.on_moved(self)
        elif not self.is_offline:
            # No room or no descriptors: nothing is lost, so whoever waits is told, and the flush
            # is asked for again with the next append or after a while, whatever comes first.
            self.failed_flushes += 1
            self._flush_error = error
            self._flush_requested_to = self.log.flushed_offset
            self._around.on_moved(self)
            self._around.on_flush_failed(self)
            if isinstance(error, DiskFullError):
                self.stand_aside(ReplicaTrouble.FULL)

    def retry_flush(self) -> None:
        """Ask again for a flush that failed for a reason that may be over."""
        if not (self.is_gone or self.is_offline):
            self.request_flush()

    def check_flushes(self, failed_before: int) -> None:
        """Raise if a flush has failed since `failed_flushes` had that value."""
        if self.failed_flushes != failed_before:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the records are in the log but could not be flushed: {self._flush_error}",
            )

    # Followers, as their leader sees them.

    def record_follower_fetch(
        self, replica_id: BrokerId, position: FetchPosition, leader_end: int
    ) -> None:
        """Take in what a follower's fetch says of its log (rules B3 and C1).

        `leader_end` is our log's end before the read that answers it. The fetch was checked: it is
        of this epoch, and both logs agree up to its offset.
        """
        term = self.term
        if term is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower = term.followers.get(replica_id)
        start_before = UNKNOWN_OFFSET if follower is None else follower.log_start_offset
        if term.record_fetch(replica_id, position, leader_end, self._around.clock.monotonic_ms()):
            self._follow_term(term)
        if position.log_start_offset != start_before:
            self._around.on_moved(self)  # Somebody may wait for it to delete records.
        if replica_id not in term.isr.committed and self._around.isr_channel() is not None:
            self._propose(term, term.propose_expand(replica_id))

    def check_lag(self) -> None:
        """Have followers that lag taken out of the ISR (C2); due every half `lag_max_ms`."""
        term, now_ms = self.term, self._around.clock.monotonic_ms()
        if term is None or not term.followers or self._around.isr_channel() is None:
            return
        if term.advance(now_ms):
            self._follow_term(term)
        self._propose(term, term.propose_shrink(now_ms))

    def _propose(self, term: Leadership, proposal: IsrProposal | None) -> None:
        channel = self._around.isr_channel()
        if proposal is not None and channel is not None:
            channel.propose(
                self, proposal, lambda answer: self._isr_answered(term, proposal, answer)
            )

    def _isr_answered(
        self, term: Leadership, proposal: IsrProposal, answer: IsrAnswer | None
    ) -> None:
        """The controller has spoken, or nobody knows what it said (rule C5)."""
        if term is not self.term:
            return
        if answer is None:
            term.isr.lost(proposal)  # The channel goes on trying.
            return
        settled = term.settle(proposal, answer, self._around.clock.monotonic_ms())
        self._follow_term(term)
        if settled is Settled.RETRY:
            self._propose(term, proposal)

    def wants(self, proposal: IsrProposal) -> bool:
        """Whether an answer to this proposal would still be of use."""
        return self.term is not None and self.term.isr.pending is proposal

    # Following.

    def append_copied(self, fetched: Fetched, high_watermark: int, log_start: int) -> None:
        """Append what was fetched from the leader, then follow what it says of its own log."""
        try:
            self.copy.append(fetched)
        except DiskFullError:
            self.stand_aside(ReplicaTrouble.FULL)
            raise
        log = self.log
        unflushed = log.log_end_offset - log.flushed_offset
        if self._commits_when_flushed or unflushed >= log.config.flush_messages:
            self.request_flush()
        self.follow_leader(high_watermark, log_start)

    def follow_leader(self, high_watermark: int, log_start: int) -> None:
        """The leader says what is committed, and where its log starts (rule B4)."""
        if self.copy.advance(high_watermark, log_start):
            self.high_watermark = Offset(self.copy.high_watermark)
            self._around.on_moved(self)

    def cut(self, decision: TruncateTo | StartOver) -> bool:
        """Cut the log as alignment decided; True if committed records went with it."""
        loses_committed = self.copy.cut(decision)
        self.high_watermark = Offset(self.copy.high_watermark)
        self._flush_requested_to = min(self._flush_requested_to, self.log.log_end_offset)
        return loses_committed

    def switch_log(self, log: Log) -> None:
        """Go on with another log that holds the same: it was moved to another directory."""
        self.log = log
        self.copy.log = log
        self._conversions.log = log
        self._flush_requested_to = log.flushed_offset
        if self.term is not None:
            self.term.log = log
            self._advance_high_watermark()  # All of it is flushed.

    # Deleting.

    def delete_records_before(self, offset: int) -> Offset:
        """Raise the log's start to `offset`, at most to the high watermark (rule B12).

        Followers are told soon; `low_watermark` says when all of them have done the same.
        """
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if self.log.advance_log_start(Offset(target)):
            self._around.on_moved(self)
        return Offset(target)

    @property
    def low_watermark(self) -> Offset:
        """The least log start among the live replicas; only their leader knows it."""
        if self.term is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return Offset(self.term.low_watermark)
