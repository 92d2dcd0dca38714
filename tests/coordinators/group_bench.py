"""A consumer group on a bench: an image to grow, a clock to turn, and members that heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from tidemill.coordinators.consumer_group import ConsumerGroup, ConsumerGroupConfig
from tidemill.coordinators.heartbeat_checks import check_heartbeat
from tidemill.coordinators.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    decode_record,
    encode_record,
)
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result, TimerKey
from tidemill.errors import ApiError
from tidemill.image import EMPTY_IMAGE, PartitionImage, TopicImage, with_topic, without_topics
from tidemill.testing.clock import ManualClock
from tidemill.types import BrokerId, LeaderEpoch, PartitionIndex, TopicPartition
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

REBALANCE_TIMEOUT_MS = 60_000


class BenchTimers:
    """Timers that fire when the bench's clock is turned."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.due: dict[TimerKey, tuple[int, Callable[[], Result[None]]]] = {}

    def schedule(self, key: TimerKey, delay_ms: int, callback: Callable[[], Result[None]]) -> None:
        self.due[key] = (self._clock.monotonic_ms() + delay_ms, callback)

    def compute(
        self, key: TimerKey, work: Callable[[], Any], then: Callable[[Any], Result[None]]
    ) -> None:
        self.schedule(key, 0, lambda: then(work()))

    def is_set(self, key: TimerKey) -> bool:
        return key in self.due

    def is_computing(self, key: TimerKey) -> bool:
        return False

    def cancel(self, key: TimerKey) -> None:
        self.due.pop(key, None)

    def next_due(self, until_ms: int) -> Callable[[], Result[None]] | None:
        ready = [(at, key) for key, (at, _) in self.due.items() if at <= until_ms]
        return self.due.pop(min(ready)[1])[1] if ready else None


class Bench:
    """One group; what it returns as records is encoded, decoded and replayed."""

    def __init__(self, config: ConsumerGroupConfig | None = None) -> None:
        self.clock = ManualClock()
        self.timers = BenchTimers(self.clock)
        self.config = config or ConsumerGroupConfig(assignment_interval_ms=0)
        self.image = EMPTY_IMAGE
        self.log: list[CoordinatorRecord] = []
        self.group = self.new_group()

    def new_group(self) -> ConsumerGroup:
        return ConsumerGroup("g", self.timers, self.clock, Random(1), lambda: self.config)

    def topic(self, name: str, partitions: int) -> None:
        known = self.image.topics.get(name)
        topic_id = known.topic_id if known else UUID(int=self.image.version + 1)
        one = BrokerId(1)
        images = tuple(
            PartitionImage(PartitionIndex(i), one, LeaderEpoch(0), (one,), (one,))
            for i in range(partitions)
        )
        self.image = with_topic(self.image, TopicImage(name, topic_id, images))

    def delete(self, name: str) -> None:
        self.image = without_topics(self.image, [name])

    def send(
        self, request: ConsumerGroupHeartbeatRequest, version: int = 1
    ) -> ConsumerGroupHeartbeatResponse:
        try:
            check_heartbeat(request, version, self.config.assignors)
        except ApiError as error:
            return ConsumerGroupHeartbeatResponse(
                error_code=int(error.code), error_message=error.message
            )
        info = RequestInfo("client", "/127.0.0.1", self.clock.now_ms(), version)
        result = self.group.heartbeat(request, info, self.image)
        self.replay(result.records)
        assert result.response is not None
        return result.response

    def replay(self, records: list[CoordinatorRecord]) -> None:
        for record in records:
            again = decode_record(*encode_record(record))
            assert again == record
            self.log.append(record)
            apply(self.group, record)

    def pass_time(self, duration_ms: int) -> None:
        until_ms = self.clock.monotonic_ms() + duration_ms
        while (callback := self.timers.next_due(until_ms)) is not None:
            self.replay(callback().records)
        self.clock.advance(duration_ms)

    def reloaded(self) -> ConsumerGroup:
        """The group as another broker would load it, from a compacted log."""
        latest = {encode_record(record)[0]: record for record in self.log}
        group = self.new_group()
        for record in self.log:
            if latest[encode_record(record)[0]] is record and record.value is not None:
                apply(group, record)
        return group

    def names(self, topics: list[TopicPartitions]) -> set[TopicPartition]:
        return {
            TopicPartition(self.image.topic_names.get(t.topic_id, str(t.topic_id)), p)
            for t in topics
            for p in t.partitions
        }


def apply(group: ConsumerGroup, record: CoordinatorRecord) -> None:
    replays: dict[type, Callable[..., None]] = {
        ConsumerGroupMetadataKey: group.replay_metadata,
        ConsumerGroupMemberMetadataKey: group.replay_member_metadata,
        ConsumerGroupTargetAssignmentMetadataKey: group.replay_target_metadata,
        ConsumerGroupTargetAssignmentMemberKey: group.replay_target_member,
        ConsumerGroupCurrentMemberAssignmentKey: group.replay_current_assignment,
        ConsumerGroupRegularExpressionKey: group.replay_regex,
    }
    replays[type(record.key)](record.key, record.value)


@dataclass
class BenchMember:
    """A well-behaved member: gives back what it is not given any more, then takes the rest."""

    bench: Bench
    member_id: str
    topics: list[str] | None = None
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: dict[UUID, set[int]] = field(default_factory=dict)
    given: dict[UUID, set[int]] = field(default_factory=dict)
    error: int = 0
    unsure: bool = False
    """No answer came to the last heartbeat, so the next one tells everything."""

    def beat(self) -> ConsumerGroupHeartbeatResponse:
        if self.epoch == 0:
            self.owned, self.given = {}, {}
        full, self.unsure = self.epoch == 0 or self.unsure, False
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if full else -1,
            subscribed_topic_names=self.topics if full else None,
            subscribed_topic_regex=self.regex if full else None,
            server_assignor=self.assignor if full else None,
            topic_partitions=self.report(),
        )
        return self._read(self.bench.send(request))

    def resubscribe(self, topics: list[str]) -> None:
        self.topics = topics
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            subscribed_topic_names=topics,
            topic_partitions=self.report(),
        )
        self._read(self.bench.send(request))

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        self.epoch = 0
        self.owned, self.given = {}, {}
        return self.bench.send(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=self.member_id,
                member_epoch=epoch,
                instance_id=self.instance_id,
            )
        )

    def report(self) -> list[TopicPartitions]:
        return [
            TopicPartitions(topic_id=topic, partitions=sorted(parts))
            for topic, parts in self.owned.items()
            if parts
        ]

    def reconcile(self) -> None:
        """Do what the last assignment says."""
        self.owned = {topic: set(parts) for topic, parts in self.given.items()}

    def _read(self, answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        self.error = answer.error_code
        if answer.error_code:
            self.epoch = 0
            self.owned, self.given = {}, {}
            return answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.given = {t.topic_id: set(t.partitions) for t in answer.assignment.topic_partitions}
        return answer

    @property
    def partitions(self) -> set[TopicPartition]:
        return self.bench.names(self.report())


def settle(*members: BenchMember, rounds: int = 12) -> None:
    """Heartbeats all round, as often as a group may need to come to rest."""
    for _ in range(rounds):
        for member in members:
            member.beat()
            member.reconcile()
