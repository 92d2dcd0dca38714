"""All partitions of this broker, following the cluster's image.

`apply` compares a new image with the last one, topic by topic; topics that did not change are the
same objects in both, so the cost is that of the change and not of the cluster. A topic is known by
its id: one that was deleted and created again under its old name is another topic, and nothing of
the first one survives in it (rule A11).

Making and removing thousands of directories takes seconds, and the loop has clients to serve: what
exceeds `CHANGES_AT_ONCE_MAX` is done in small steps in later turns. A partition that is asked for
before its step came is made on the spot, so nobody can tell.

Partitions that others lead are copied from them, once `replicate` was called; see `following.py`.
A replica that was moved elsewhere loses its log here.

The cluster's metadata is the truth: a partition whose log no disk will have right now (full, or out
of descriptors) exists all the same. It answers KAFKA_STORAGE_ERROR, and is tried again by itself.

What nobody has foreseen in one partition takes that one offline and stops no other (rule 2.L). What
an image has not reached because of it, the next one reaches: to that, everything is new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode
from tidemill.executor import Executor
from tidemill.image import (
    EMPTY_IMAGE,
    ClusterImage,
    PartitionImage,
    ReplicaTrouble,
    TopicImage,
)
from tidemill.logs import Sparingly
from tidemill.replication.channels import IsrChannel, LeaderLink, ReplicaReports
from tidemill.replication.following import Following
from tidemill.replication.moving import Moves
from tidemill.replication.partition import Partition, PartitionSettings, Surroundings
from tidemill.replication.progress import NO_BROKER_EPOCH
from tidemill.replication.repair import Repairs
from tidemill.replication.settings import DEFAULT_SETTINGS, ReplicationSettings
from tidemill.replication.throttle import Throttle
from tidemill.storage.log import Log
from tidemill.storage.manager import LogManager
from tidemill.types import ZERO_TOPIC_ID, BrokerEpoch, BrokerId, TopicId, TopicPartition

log = logging.getLogger(__name__)

CHANGES_AT_ONCE_MAX = 100
"""Logs that one new image makes or removes at once; more would be felt by other clients."""
CHANGES_PER_STEP = 8
STEP_MS = 1
LED_LATELY_MS = 2_000
RETRY_MS = 1_000
"""How long a log that could not be made, or flushed, is left alone before it is tried again."""

Wanted = tuple[TopicImage, PartitionImage]


def _nothing(partition: Partition) -> None:
    """Nobody wants to know."""


class ReplicaManager:
    """The partitions of which this broker holds a replica."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        clock: Clock,
        executor: Executor,
        settings_of: Callable[[TopicImage], PartitionSettings],
        on_moved: Callable[[Partition], object],
        call_later: Callable[[int, Callable[[], None]], object],
        *,
        on_appended: Callable[[Partition], object] = _nothing,
        on_led: Callable[[Partition], object] = _nothing,
        replication: ReplicationSettings = DEFAULT_SETTINGS,
    ) -> None:
        """`call_later(delay_ms, callback)` is the broker's timing wheel.

        `on_moved` is told when what can be read or acked has changed, `on_appended` when a leader
        has records that its followers have not, `on_led` when one comes to lead followers.
        """
        self._broker_id = broker_id
        self._logs = logs
        self._clock = clock
        self._settings_of = settings_of
        self._call_later = call_later
        self._replication = replication
        self._following: Following | None = None
        self._isr_channel: IsrChannel | None = None
        self._reports: ReplicaReports | None = None
        self._repairs: Repairs | None = None
        self._is_closed = False
        self._stopped_leading = False
        self._on_led = on_led
        self._led_at_ms: int | None = None
        self.leader_throttle = Throttle(clock, replication.leader_throttle_rate)
        self.moves = Moves(
            logs, executor, clock, self._log_switched, self.take_offline, replication.move_rate
        )
        self._around = Surroundings(
            broker_id=broker_id,
            clock=clock,
            executor=executor,
            request_flush=logs.request_flush,
            epoch_of=self._epoch_of,
            lag_max_ms=replication.lag_max_ms,
            on_moved=on_moved,
            on_flush_failed=self._flush_failed,
            on_trouble=lambda partition, trouble: self._report(
                [partition.topic_partition], trouble
            ),
            on_appended=on_appended,
            on_led=self._led,
            on_copied=self._copied,
            isr_channel=lambda: self._isr_channel,
        )
        self._to_create: dict[TopicPartition, Wanted] = {}
        self._without_log: dict[TopicPartition, Wanted] = {}
        self._unflushed: dict[Partition, None] = {}
        self._retry_is_due = False
        self._complaints = Sparingly(clock)
        self._to_delete: dict[Log, None] = {}
        self._step_is_due = False
        self._image = EMPTY_IMAGE
        self._is_behind = False
        """Whether the last image was not applied to all that it should have been."""
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[TopicId, dict[int, Partition]] = {}

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self._by_name.get(topic)
        if partitions is None:
            return None
        found = partitions.get(index)
        if found is None and self._to_create:
            self._create_wanted(TopicPartition(topic, index))
            found = partitions.get(index)
        return found

    def get_by_id(self, topic_id: TopicId, index: int) -> Partition | None:
        partitions = self._by_id.get(topic_id)
        if partitions is None:
            return None
        found = partitions.get(index)
        if found is None and self._to_create and topic_id in self._image.topic_names:
            self._create_wanted(TopicPartition(self._image.topic_names[topic_id], index))
            found = partitions.get(index)
        return found

    def why_missing(self, topic: str | TopicId, index: int) -> ErrorCode:
        """What to answer for a partition that `get` or `get_by_id` did not find."""
        name = topic if isinstance(topic, str) else self._image.topic_names.get(topic)
        if name is not None and TopicPartition(name, index) in self._without_log:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if name is not None and self._image.partition(name, index) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._by_name.values())

    # Following the image.

    def apply(self, image: ClusterImage, *, at_once: bool = False) -> None:
        """Create, lead, reconfigure and delete partitions so that they match `image`.

        `at_once` is for the start: nobody is served yet, and the logs are there already.
        """
        before, self._image = self._image, image
        was_behind, self._is_behind = self._is_behind, True
        is_all_new, self._stopped_leading = self._stopped_leading or was_behind, False
        if self._following is not None:
            self._following.identify(self._broker_epoch())
        for name, topic in before.topics.items():
            after = image.topics.get(name)
            if after is None or after.topic_id != topic.topic_id:
                self._try_delete(topic)
        defaults_changed = was_behind or self._defaults_changed(before, image)
        self._is_behind = False
        for name, topic in image.topics.items():
            known = before.topics.get(name)
            if known is not topic or defaults_changed or is_all_new:
                self._try_topic(known, topic, defaults_changed, is_all_new)
        if at_once:
            self._drop_unassigned_logs()
        self._work_off(image.partition_count if at_once else CHANGES_AT_ONCE_MAX)

    def _defaults_changed(self, before: ClusterImage, after: ClusterImage) -> bool:
        """Whether a broker setting changed from which topics without an override inherit."""
        return (
            before.default_broker_config != after.default_broker_config
            or before.broker_configs.get(self._broker_id)
            != after.broker_configs.get(self._broker_id)
        )

    def _try_topic(
        self, known: TopicImage | None, topic: TopicImage, defaults_changed: bool, is_all_new: bool
    ) -> None:
        try:
            self._apply_topic(known, topic, defaults_changed, is_all_new)
        except Exception:
            log.exception("topic %s could not follow the image; the next one is for it", topic.name)
            self._is_behind = True

    def _apply_topic(
        self, known: TopicImage | None, topic: TopicImage, defaults_changed: bool, is_all_new: bool
    ) -> None:
        # Of a wide topic only the partitions that changed may cost anything.
        seen = () if known is None or is_all_new else known.partitions
        partitions = self._by_name.setdefault(topic.name, {})
        self._by_id[topic.topic_id] = partitions
        settings = self._settings_of(topic)
        if partitions and (defaults_changed or known is None or not known.is_set_like(topic)):
            for partition in partitions.values():
                self._contain(partition, partial(partition.reconfigure, settings))
        for index, image in enumerate(topic.partitions):
            existing = partitions.get(image.index)
            if existing is not None and index < len(seen) and seen[index] is image:
                continue
            if self._broker_id not in image.replicas:
                self._unassign(partitions, TopicPartition(topic.name, image.index), image)
            elif existing is None:
                topic_partition = TopicPartition(topic.name, image.index)
                self._without_log.pop(topic_partition, None)
                self._to_create[topic_partition] = (topic, image)
            else:
                self._contain(existing, partial(self._follow, existing, image))

    def _follow(self, partition: Partition, image: PartitionImage) -> None:
        partition.apply(image)
        self._attend(partition)

    def _unassign(
        self,
        partitions: dict[int, Partition],
        topic_partition: TopicPartition,
        image: PartitionImage,
    ) -> None:
        """The partition has no replica here (any more): let go of it and of its log (C8)."""
        self._to_create.pop(topic_partition, None)
        self._without_log.pop(topic_partition, None)
        existing = partitions.get(image.index)
        if existing is not None and image.partition_epoch >= existing.partition_epoch:
            del partitions[image.index]
            self._let_go(existing, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _let_go(self, partition: Partition, why: ErrorCode) -> None:
        if self._following is not None:
            self._following.leave(partition)
        self._to_delete[partition.log] = None
        self._contain(partition, partial(partition.mark_gone, why))

    def _drop_unassigned_logs(self) -> None:
        """Replicas that were moved elsewhere while this broker was down (rule A11)."""
        for (name, index), stored in self._logs.logs.items():
            topic = self._image.topic(name)
            if topic is None or topic.topic_id != stored.topic_id:
                continue
            image = topic.partition(index)
            if image is not None and self._broker_id not in image.replicas:
                log.info("%s-%d is not assigned to this broker any more", name, index)
                self._to_delete[stored] = None

    # Making and removing logs, a few at a time.

    def _work_off(self, count: int) -> None:
        """Do up to `count` of the waiting changes; the rest waits for later turns."""
        while count and self._to_create:
            self._create_wanted(next(iter(self._to_create)))
            count -= 1
        while count and self._to_delete:
            doomed = next(iter(self._to_delete))
            del self._to_delete[doomed]
            self._delete_log(doomed)
            count -= 1
        if (self._to_create or self._to_delete) and not self._step_is_due:
            self._step_is_due = True
            self._call_later(STEP_MS, self._step)

    def _step(self) -> None:
        self._step_is_due = False
        self._work_off(CHANGES_PER_STEP)

    def _create_wanted(self, topic_partition: TopicPartition) -> None:
        wanted = self._to_create.pop(topic_partition, None)
        if wanted is None:
            return
        topic, image = wanted
        try:
            partition = self._create(topic, image.index, self._settings_of(topic))
        except Exception as error:  # noqa: BLE001 - it is logged, and others are to have theirs
            self._without_log[topic_partition] = wanted
            self._complain(topic_partition, error)
            self._retry_later(RETRY_MS)
            if self._broker_id in image.isr and len(image.isr) > 1:
                # Others go on without us (E8); who has no log lacks everything.
                self._report([topic_partition], ReplicaTrouble.DAMAGED)
            return
        self._by_name[topic.name][image.index] = partition
        self._contain(partition, partial(self._begin, partition, image))

    def _begin(self, partition: Partition, image: PartitionImage) -> None:
        self.moves.resume(partition)
        partition.apply(image)
        if self._stopped_leading:
            partition.stop_leading()  # The image is from before the session was lost (rule A9).
        self._attend(partition)
        if partition.is_leader:
            self._around.on_moved(partition)  # Whoever coordinates with it may have given it up.

    def _complain(self, topic_partition: TopicPartition, error: Exception) -> None:
        held_back = self._complaints.ask()
        if held_back is not None:
            log.error(
                "partition %s has no log, and will be tried again: %s%s",
                topic_partition, error, held_back,
                exc_info=None if isinstance(error, ApiError) else error,
            )  # fmt: skip

    # Trying again what a full disk or a lack of descriptors prevented.

    def _retry_later(self, delay_ms: int) -> None:
        if not self._retry_is_due:
            self._retry_is_due = True
            self._call_later(delay_ms, self._retry)

    def _retry(self) -> None:
        self._retry_is_due = False
        unflushed, self._unflushed = self._unflushed, {}
        for partition in unflushed:
            self._contain(partition, partition.retry_flush)
        missing = len(self._without_log)
        for topic_partition in list(islice(self._without_log, CHANGES_PER_STEP)):
            # One that fails again goes to the end, so that all get their turn.
            self._to_create[topic_partition] = self._without_log.pop(topic_partition)
            self._create_wanted(topic_partition)
        if self._without_log and len(self._without_log) < missing:
            self._call_later(STEP_MS, self._retry)

    def _flush_failed(self, partition: Partition) -> None:
        self._unflushed[partition] = None
        self._retry_later(RETRY_MS)

    def _delete_log(self, stored: Log) -> None:
        # The topic may have been made again meanwhile: then its first log is gone already.
        if self._logs.get(stored.topic_partition) is stored:
            try:
                self._logs.delete(stored.topic_partition)
            except ApiError as error:
                log.error("the log of %s was not removed: %s", stored.topic_partition, error)
            except Exception:
                log.exception("removing the log of %s failed", stored.topic_partition)

    def _create(self, topic: TopicImage, index: int, settings: PartitionSettings) -> Partition:
        """The partition with its log, found on disk or made now; raises if no disk will have it."""
        topic_partition = TopicPartition(topic.name, index)
        stored = self._open_log(topic_partition, topic.topic_id, settings)
        return Partition(
            topic_partition,
            topic.topic_id,
            stored,
            settings,
            self._around,
            high_watermark=self._logs.high_watermark(topic_partition),
        )

    def _open_log(
        self, topic_partition: TopicPartition, topic_id: TopicId, settings: PartitionSettings
    ) -> Log:
        stored = self._logs.get(topic_partition)
        if stored is not None and stored in self._to_delete:
            self._logs.delete(topic_partition)
        elif stored is not None and stored.topic_id not in (ZERO_TOPIC_ID, topic_id):
            # Somebody else's data under this name, or a topic that was deleted while we were
            # down: we cannot tell, so it is kept, under a name that no partition has.
            kept = self._logs.set_aside(topic_partition)
            log.warning("%s has data of another topic; it is kept in %s", topic_partition, kept)
        return self._logs.create(topic_partition, topic_id, settings.log)

    def _delete_topic(self, topic: TopicImage) -> None:
        self._by_id.pop(topic.topic_id, None)
        for partition in self._by_name.pop(topic.name, {}).values():
            self._let_go(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for image in topic.partitions:
            topic_partition = TopicPartition(topic.name, image.index)
            self._to_create.pop(topic_partition, None)
            self._without_log.pop(topic_partition, None)

    def _try_delete(self, topic: TopicImage) -> None:
        """No later image says again that a topic is gone: a defect must not leave others there."""
        try:
            self._delete_topic(topic)
        except Exception:
            log.exception("of topic %s, which was deleted, something may be left", topic.name)

    # Replication.

    def replicate(
        self, link: LeaderLink, isr_channel: IsrChannel, reports: ReplicaReports | None = None
    ) -> None:
        """Follow the leaders of this broker's partitions, and keep the ISRs of those it leads.

        To be called on the loop once other brokers can be reached; until then a follower waits.
        """
        settings = self._replication
        throttle = Throttle(self._clock, settings.follower_throttle_rate)
        self._isr_channel = isr_channel
        self._reports = reports
        self._following = Following(self._broker_id, link, self._clock, settings.follower, throttle)
        self._following.identify(self._broker_epoch())
        self._repairs = Repairs(self._broker_id, link, self._around.executor, self._attend)
        for partition in self:
            self._attend(partition)
        self._check_lag_later()

    async def close(self) -> None:
        """Stop copying from leaders; partitions stay as they are."""
        self._is_closed = True
        self._isr_channel = None
        await self.moves.close()
        if self._following is not None:
            await self._following.close()
            self._following = None
        if self._repairs is not None:
            await self._repairs.close()
            self._repairs = None

    def followed(self) -> Iterator[Partition]:
        """The partitions that are copied from a leader elsewhere."""
        return iter(()) if self._following is None else iter(self._following)

    def stop_leading(self) -> None:
        """The session with the store is lost: lead nothing until a new image says so (A9)."""
        self._stopped_leading = True
        for partition in self:
            self._contain(partition, partition.stop_leading)

    @property
    def led_lately(self) -> bool:
        """Whether this broker came to lead something just now, of which followers may not know."""
        led_at_ms = self._led_at_ms
        return led_at_ms is not None and self._clock.monotonic_ms() - led_at_ms < LED_LATELY_MS

    def _led(self, partition: Partition) -> None:
        self._led_at_ms = self._clock.monotonic_ms()
        self._on_led(partition)

    def _epoch_of(self, broker_id: BrokerId) -> BrokerEpoch | None:
        broker = self._image.brokers.get(broker_id)
        return broker.epoch if broker is not None and broker.alive else None

    def _broker_epoch(self) -> BrokerEpoch:
        broker = self._image.brokers.get(self._broker_id)
        return NO_BROKER_EPOCH if broker is None else broker.epoch

    def _attend(self, partition: Partition) -> None:
        """Its role has changed, or its log: see whom it follows, and what there is to repair."""
        if self._following is not None:
            self._following.attend(partition)
        if self._repairs is not None:
            self._repairs.attend(partition)

    def _copied(self, partition: Partition) -> None:
        if self._following is not None:
            self._following.copied(partition)

    def _check_lag_later(self) -> None:
        self._call_later(max(1, self._replication.lag_max_ms // 2), self._check_lag)

    def _check_lag(self) -> None:
        """Have followers that lag behind taken out of the ISRs (rule C2)."""
        if not self._is_closed:
            self._check_lag_later()
            for partition in self:
                self._contain(partition, partition.check_lag)

    # Trouble.

    def _contain(self, partition: Partition, work: Callable[[], object]) -> None:
        """Do something to one partition: a defect in it takes it offline, and stops no other.

        Nobody can tell what it has done before it broke off, so it is not tried again, and the
        controller is told (rule 2.L).
        """
        try:
            work()
        except Exception:
            was_offline = partition.is_offline
            log.exception("%s failed, and is offline from now on", partition.topic_partition)
            try:
                self._go_offline(partition)
            except Exception:
                log.exception("those who wait for %s may not know", partition.topic_partition)
            if not (was_offline or partition.is_gone):
                self._report([partition.topic_partition], ReplicaTrouble.GONE)

    def take_offline(self, lost: Iterable[TopicPartition]) -> None:
        """A log directory failed: its partitions refuse everything from now on (rule E1).

        The controller is told, so that replicas elsewhere take over, partition by partition.
        """
        offline: list[TopicPartition] = []
        for topic, index in lost:
            partition = self.get(topic, index)
            if partition is not None:
                self._contain(partition, partial(self._go_offline, partition))
                offline.append(partition.topic_partition)
        self._report(offline, ReplicaTrouble.GONE)

    def _go_offline(self, partition: Partition) -> None:
        partition.take_offline()
        self._attend(partition)

    def _report(self, partitions: Sequence[TopicPartition], trouble: ReplicaTrouble) -> None:
        if partitions and self._reports is not None:
            self._reports.report(partitions, trouble)

    def _log_switched(self, partition: Partition) -> None:
        """Its log lies in another directory now; whoever copies to it has to look again."""
        if self._following is not None:
            self._following.touch(partition)

    def damaged(self, stored: Log) -> None:
        """The scrub found wrong bytes in a closed segment: other replicas may help (rule E2)."""
        partition = self.get(*stored.topic_partition)
        if partition is None or partition.log is not stored or self._repairs is None:
            return
        if stored.damage:
            partition.stand_aside(ReplicaTrouble.DAMAGED)
            self._attend(partition)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Every partition's, for checkpoints (rule B7) and retention (rule B12)."""
        return {partition.topic_partition: partition.high_watermark for partition in self}
