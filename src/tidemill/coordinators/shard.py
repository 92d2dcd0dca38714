"""The groups of one partition of the offsets topic: who answers a request, and what is replayed.

A `GroupShard` holds classic groups, groups of the newer protocol, and what all of them have
committed. Requests come through the runtime, one at a time; records come back through `replay`,
live and at load alike. An offset that is committed for a group nobody knows makes a "simple" group:
a classic one without members.

Start at `join` and `commit`; `replay` says which record belongs to whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import cast

from tidemill.clock import Clock
from tidemill.coordinators import records as r
from tidemill.coordinators.classic_group import (
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicServices,
    ClassicSettings,
    join_error,
    sync_error,
)
from tidemill.coordinators.classic_state import ClassicState, JoinReply, SyncReply
from tidemill.coordinators.consumer_group import ConsumerGroup, ConsumerGroupConfig
from tidemill.coordinators.mixed_group import MixedGroup, can_upgrade, upgrade_records
from tidemill.coordinators.offsets import (
    Committed,
    CommittedOffsets,
    Place,
    commit_records,
    fetched,
    tombstone,
)
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result, Timers
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import EMPTY_IMAGE, ClusterImage
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)

TOMBSTONES_PER_STEP = 500
"""Offsets that one step of a clean-up removes: a batch of them must fit any size limit."""
_MEMBER_EPOCH_FROM_VERSION = 9
_EPOCH_BEFORE_THE_FIRST = 1

Group = ClassicGroup | MixedGroup


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The broker's settings for groups, as they are now."""

    classic: ClassicSettings = field(default_factory=ClassicSettings)
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
    metadata_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    may_upgrade: bool = True
    may_downgrade: bool = True


class Surroundings:
    """What all shards of a broker share; `image` and `settings` are replaced as they change."""

    def __init__(self, clock: Clock, random: Random, settings: ShardSettings) -> None:
        self.clock = clock
        self.random = random
        self.settings = settings
        self.image: ClusterImage = EMPTY_IMAGE

    def new_member_id(self) -> str:
        """A random id in the form of a UUID of version 4."""
        bits = self.random.getrandbits(128)
        bits = (bits & ~(0xF << 76)) | (4 << 76)
        bits = (bits & ~(0x3 << 62)) | (2 << 62)
        text = f"{bits:032x}"
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class GroupShard:
    """The state of one partition."""

    def __init__(self, around: Surroundings, timers: Timers) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = CommittedOffsets()
        self._around = around
        self._timers = timers
        self._is_loaded = False
        self._services = ClassicServices(
            timers, around.clock.now_ms, around.new_member_id, lambda: around.settings.classic
        )

    # The classic protocol.

    def join(self, request: JoinGroupRequest, info: RequestInfo, reply: JoinReply) -> Result[None]:
        group = self.groups.get(request.group_id)
        if isinstance(group, MixedGroup) and group.members:
            return group.classic_join(request, info, self._around.image, reply)
        if isinstance(group, ClassicGroup):
            return group.join(request, info, reply)
        if request.member_id != UNKNOWN_MEMBER:
            reply(join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            return Result()
        return self._join_first(group, request, info, reply)

    def _join_first(
        self,
        former: MixedGroup | None,
        request: JoinGroupRequest,
        info: RequestInfo,
        reply: JoinReply,
    ) -> Result[None]:
        """Make the group for its first member, and store that it is there."""
        group = ClassicGroup(request.group_id, self._services)
        records = [] if former is None else former.deletion_records()
        self.groups[request.group_id] = group
        result = group.join(request, info, reply)

        def settled(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE and self.groups.get(group.group_id) is group:
                group.close(error)
                self._restore(group.group_id, former)

        if not result.records:
            result = Result(records=[_new_group(group.group_id, info.now_ms)])
        return Result(None, records + result.records, settled, replays=False)

    def _restore(self, group_id: str, former: Group | None) -> None:
        if former is None:
            del self.groups[group_id]
        else:
            self.groups[group_id] = former

    def sync(self, request: SyncGroupRequest, info: RequestInfo, reply: SyncReply) -> Result[None]:
        group = self.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            return group.sync(request, info, reply)
        if group is not None:
            return group.classic_sync(request, reply)
        reply(sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        return Result()

    def heartbeat(self, request: HeartbeatRequest) -> Result[HeartbeatResponse]:
        group = self.groups.get(request.group_id)
        code = ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ClassicGroup):
            code = group.heartbeat(request)
        elif group is not None:
            code = group.classic_heartbeat(request)
        return Result(HeartbeatResponse(error_code=int(code)))

    def leave(self, group_id: str, leaving: list[MemberIdentity]) -> Result[LeaveGroupResponse]:
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.leave(leaving)
        if group is not None:
            return group.classic_leave(leaving)
        unknown = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=int(ErrorCode.UNKNOWN_MEMBER_ID),
            )
            for identity in leaving
        ]
        return Result(LeaveGroupResponse(members=unknown))

    # The newer protocol.

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, info: RequestInfo
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        known = self.groups.get(request.group_id)
        if isinstance(known, MixedGroup):
            return known.heartbeat(request, info, self._around.image)
        refusal = None if known is None else self._why_not_upgrade(known)
        if refusal is not None:
            return _refused(ErrorCode.GROUP_ID_NOT_FOUND, refusal)
        group = self._new_consumer_group(request.group_id)
        group.group_epoch = _EPOCH_BEFORE_THE_FIRST
        former = [] if known is None else self._upgrade(known, group, info.now_ms)
        self.groups[request.group_id] = group
        result = group.heartbeat(request, info, self._around.image)
        answer = cast(ConsumerGroupHeartbeatResponse, result.response)
        if answer.error_code or not result.records:
            self._put_back(group, known)
            if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID and request.member_epoch:
                return _refused(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found."
                )
            return result

        def settled(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                self._put_back(group, known)

        if known is not None:
            known.close(ErrorCode.REBALANCE_IN_PROGRESS)
        group.on_loaded()
        return Result(answer, former + result.records, settled)

    def _why_not_upgrade(self, group: ClassicGroup) -> str | None:
        if group.state is ClassicState.EMPTY:
            return None
        if not self._around.settings.may_upgrade:
            return f"Group {group.group_id} is not a consumer group."
        if not can_upgrade(group):
            return (
                f"Cannot upgrade classic group {group.group_id} to consumer group because the "
                "group does not use the consumer embedded protocol."
            )
        return None

    def _upgrade(
        self, known: ClassicGroup, group: MixedGroup, now_ms: int
    ) -> list[CoordinatorRecord]:
        """Give the new group the members of the classic one; the records that say so."""
        records = []
        if known.members:
            records = upgrade_records(known, self._around.image, now_ms)
        for record in records:
            _replay_into(group, *record)
        return [_group_tombstone(known.group_id), *records]

    def _new_consumer_group(self, group_id: str) -> MixedGroup:
        around = self._around
        group = MixedGroup(
            group_id, self._timers, around.clock, around.random, around.settings.consumer
        )
        group.may_downgrade = around.settings.may_downgrade
        return group

    def _put_back(self, group: MixedGroup, former: ClassicGroup | None) -> None:
        """A group that was made for a request that failed goes as it came."""
        if self.groups.get(group.group_id) is group:
            group.on_unloaded()
            self._restore(group.group_id, former)
            if former is not None and former.members:
                former.start()

    # Offsets.

    def commit(
        self, request: OffsetCommitRequest, info: RequestInfo
    ) -> Result[OffsetCommitResponse]:
        """Raise unless the member may commit; what is accepted is in the records."""
        group = self.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation >= 0:
                newer = info.api_version >= _MEMBER_EPOCH_FROM_VERSION
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION
                )
        elif isinstance(group, ClassicGroup):
            group.check_commit(request.member_id, request.group_instance_id, generation)
            group.touch(request.member_id)
        else:
            self._check_consumer_commit(group, request, info)
        answer, records = commit_records(request, info.now_ms, self._around.settings.metadata_max)
        return Result(answer, records)

    def _check_consumer_commit(
        self, group: ConsumerGroup, request: OffsetCommitRequest, info: RequestInfo
    ) -> None:
        member = group.members.get(request.member_id)
        if (
            info.api_version < _MEMBER_EPOCH_FROM_VERSION
            and member is not None
            and member.classic is None
        ):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        partitions = [
            (topic.topic_id, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        group.check_commit(request.member_id, request.generation_id_or_member_epoch, partitions)

    def fetch(self, request: OffsetFetchRequestGroup) -> Result[OffsetFetchResponseGroup]:
        """What a group has committed, for the topics asked for or for all (None)."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            group.check_fetch(request.member_id, request.member_epoch)
        answer = OffsetFetchResponseGroup(group_id=request.group_id)
        if request.topics is None:
            answer.topics = self._all_offsets(request.group_id)
            return Result(answer)
        for topic in request.topics:
            answer.topics.append(
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        fetched(index, self._offset(request.group_id, topic.name, index))
                        for index in topic.partition_indexes
                    ],
                )
            )
        return Result(answer)

    def _offset(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self.offsets.get(Place(group_id, topic, partition))

    def _all_offsets(self, group_id: str) -> list[OffsetFetchResponseTopics]:
        topics: dict[str, OffsetFetchResponseTopics] = {}
        for place, committed in self.offsets.of_group(group_id):
            known = self._around.image.topic(place.topic)
            topic = topics.setdefault(place.topic, OffsetFetchResponseTopics(name=place.topic))
            if known is not None:
                topic.topic_id = known.topic_id
            topic.partitions.append(fetched(place.partition, committed))
        return list(topics.values())

    def delete_offsets(
        self, group_id: str, topics: Iterable[OffsetDeleteRequestTopic]
    ) -> Result[list[OffsetDeleteResponseTopic]]:
        """Forget single offsets, except of topics that the group still reads."""
        group = self._existing(group_id)
        if isinstance(group, ClassicGroup):
            group.check_offset_delete()
        answers, records = [], []
        for topic in topics:
            is_read = _is_subscribed(group, topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
            answer = OffsetDeleteResponseTopic(name=topic.name)
            for partition in topic.partitions:
                place = Place(group_id, topic.name, partition.partition_index)
                answer.partitions.append(
                    OffsetDeleteResponsePartition(
                        partition_index=place.partition, error_code=int(code)
                    )
                )
                if not is_read and self.offsets.get(place) is not None:
                    records.append(tombstone(place))
            answers.append(answer)
        return Result(answers, records)

    # Groups as a whole.

    def _existing(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def delete(self, group_id: str) -> Result[None]:
        """Remove a group without members, and everything it has committed."""
        group = self._existing(group_id)
        group.check_delete()
        records = [tombstone(place) for place, _ in self.offsets.of_group(group_id)]
        return Result(None, records + self._deletion(group))

    def _deletion(self, group: Group) -> list[CoordinatorRecord]:
        if isinstance(group, ClassicGroup):
            return [_group_tombstone(group.group_id)]
        return group.deletion_records()

    def classic_group(self, group_id: str) -> ClassicGroup:
        """For DescribeGroups, which knows classic groups only."""
        group = self._existing(group_id)
        if isinstance(group, ConsumerGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group."
            )
        return group

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """For ConsumerGroupDescribe, which knows the others."""
        group = self._existing(group_id)
        if isinstance(group, ClassicGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        return group

    # Time and topics pass.

    def expire(self) -> Iterator[Result[None]]:
        """Remove offsets whose time is up, and groups that have nothing left, step by step."""
        for group_id in set(self.groups) | set(self.offsets.groups()):
            group = self.groups.get(group_id)
            if group is None:
                continue
            gone = self._expired(group)
            records = [tombstone(place) for place in gone]
            is_over = _is_empty(group) and self._count(group_id) == len(gone)
            if is_over:
                records += self._deletion(group)
            yield from _in_steps(records)

    def _expired(self, group: Group) -> list[Place]:
        """When the clock runs: for a group without members since the last one left (rule J5)."""
        settings, now_ms = self._around.settings, self._around.clock.now_ms()
        since_ms: int | None = None
        if isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.state is ClassicState.EMPTY:
                since_ms = group.state_since_ms
            elif group.state is not ClassicState.STABLE or group.subscribed_topics is None:
                return []

        def counts_from(committed: Committed) -> int:
            return committed.committed_ms if since_ms is None else since_ms

        return self.offsets.expired(
            group.group_id,
            now_ms,
            settings.offsets_retention_ms,
            counts_from=counts_from,
            is_kept=lambda topic: _is_subscribed(group, topic),
        )

    def _count(self, group_id: str) -> int:
        return sum(1 for _ in self.offsets.of_group(group_id))

    def forget_deleted_topics(self, topics: Iterable[str] | None) -> Iterator[Result[None]]:
        """Remove the offsets of topics that are gone; all are looked at if none are named."""
        orphans = self.offsets.orphaned(self._around.image, topics)
        yield from _in_steps([tombstone(place) for place in orphans])

    # Replay.

    def replay(self, record: CoordinatorRecord) -> None:
        """Make true what a record says."""
        key, value = record
        if isinstance(key, r.OffsetCommitKey | r.LegacyOffsetCommitKey):
            self.offsets.replay(key, value)
            if value is not None and key.group not in self.groups:
                self.groups[key.group] = ClassicGroup(key.group, self._services)
        elif isinstance(key, r.GroupMetadataKey):
            self._replay_classic(key.group, cast("r.GroupMetadataValue | None", value))
        else:
            self._replay_consumer(key, value)

    def _replay_classic(self, group_id: str, value: r.GroupMetadataValue | None) -> None:
        known = self.groups.get(group_id)
        if isinstance(known, ClassicGroup):
            known.close(ErrorCode.GROUP_ID_NOT_FOUND)
            del self.groups[group_id]
        if value is not None:
            group = ClassicGroup(group_id, self._services)
            group.load(value)
            self.groups[group_id] = group
            if self._is_loaded and group.members:
                # A live group of the newer protocol became this one: its members join again.
                group.start()
                group.rebalance()

    def _replay_consumer(self, key: object, value: object) -> None:
        group_id = cast(str, key.group_id)  # type: ignore[attr-defined]
        group = self.groups.get(group_id)
        if isinstance(key, r.ConsumerGroupMetadataKey) and value is None:
            if isinstance(group, MixedGroup):
                group.on_unloaded()
                del self.groups[group_id]
            return
        if not isinstance(group, MixedGroup):
            if value is None:
                return
            group = self.groups[group_id] = self._new_consumer_group(group_id)
        _replay_into(group, key, value)

    # Coming and going of the partition.

    def on_loaded(self) -> Iterator[Result[None]]:
        """The log is read: start the members' sessions, and tidy what happened meanwhile."""
        for group in list(self.groups.values()):
            if isinstance(group, ClassicGroup):
                yield group.start()
            else:
                group.on_loaded()
        self._is_loaded = True
        yield from self.forget_deleted_topics(None)

    def on_unloaded(self, error: ErrorCode) -> None:
        """Another broker coordinates these groups now, or none does."""
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                group.close(error)
            else:
                group.on_unloaded()
        self.groups.clear()


def _replay_into(group: ConsumerGroup, key: object, value: object) -> None:
    match key:
        case r.ConsumerGroupMetadataKey():
            group.replay_metadata(key, cast("r.ConsumerGroupMetadataValue | None", value))
        case r.ConsumerGroupMemberMetadataKey():
            group.replay_member_metadata(
                key, cast("r.ConsumerGroupMemberMetadataValue | None", value)
            )
        case r.ConsumerGroupTargetAssignmentMetadataKey():
            group.replay_target_metadata(
                key, cast("r.ConsumerGroupTargetAssignmentMetadataValue | None", value)
            )
        case r.ConsumerGroupTargetAssignmentMemberKey():
            group.replay_target_member(
                key, cast("r.ConsumerGroupTargetAssignmentMemberValue | None", value)
            )
        case r.ConsumerGroupCurrentMemberAssignmentKey():
            group.replay_current_assignment(
                key, cast("r.ConsumerGroupCurrentMemberAssignmentValue | None", value)
            )
        case r.ConsumerGroupRegularExpressionKey():
            group.replay_regex(key, cast("r.ConsumerGroupRegularExpressionValue | None", value))
        case _:
            pass  # the partition metadata of older brokers: the image has it


def _is_empty(group: Group) -> bool:
    return group.state == "Empty"


def _is_subscribed(group: Group, topic: str) -> bool:
    if isinstance(group, ClassicGroup):
        return group.is_subscribed_to(topic)
    return group.is_subscribed(topic)


def _new_group(group_id: str, now_ms: int) -> CoordinatorRecord:
    """A group that has nobody yet: members are stored with their first assignment."""
    value = r.GroupMetadataValue(current_state_timestamp=now_ms)
    return CoordinatorRecord(r.GroupMetadataKey(group=group_id), value)


def _group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(r.GroupMetadataKey(group=group_id), None)


def _in_steps(records: list[CoordinatorRecord]) -> Iterator[Result[None]]:
    for start in range(0, len(records), TOMBSTONES_PER_STEP):
        yield Result(None, records[start : start + TOMBSTONES_PER_STEP])


def _refused(code: ErrorCode, message: str) -> Result[ConsumerGroupHeartbeatResponse]:
    return Result(ConsumerGroupHeartbeatResponse(error_code=int(code), error_message=message))
