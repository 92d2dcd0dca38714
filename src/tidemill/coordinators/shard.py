"""The groups of one partition of the offsets topic: who answers a request, and what is replayed.

A `GroupShard` holds classic groups, groups of the newer protocol, and what all of them have
committed (`group_offsets.py`). Requests come through the runtime, one at a time; records come back
through `replay`, live and at load alike.

Start at `join`; `replay` says which record belongs to whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from tidemill.coordinators import records as r
from tidemill.coordinators.classic_group import (
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicServices,
    join_error,
    sync_error,
)
from tidemill.coordinators.classic_state import ClassicState, JoinReply, SyncReply
from tidemill.coordinators.consumer_group import ConsumerGroup
from tidemill.coordinators.consumer_member import JOIN_EPOCH
from tidemill.coordinators.group_offsets import (
    LOOKED_AT_PER_STEP,
    Group,
    GroupOffsets,
    group_tombstone,
)
from tidemill.coordinators.migration import upgrade_records, why_not_upgradable
from tidemill.coordinators.mixed_group import MixedGroup
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result, Timers
from tidemill.coordinators.surroundings import ShardSettings, Surroundings
from tidemill.errors import ApiError, ErrorCode
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

__all__ = ["Group", "GroupShard", "ShardSettings", "Surroundings"]

_EPOCH_BEFORE_THE_FIRST = 1


class GroupShard(GroupOffsets):
    """The state of one partition."""

    def __init__(self, around: Surroundings, timers: Timers) -> None:
        super().__init__(around)
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
        """Make the group for its first member, and store that it is there.

        What is in the log and only not committed in time stays: so will others load it.
        """
        group = ClassicGroup(request.group_id, self._services)
        records = [] if former is None else former.deletion_records()
        self.groups[request.group_id] = group
        result = group.join(request, info, reply)

        is_written = False

        def written() -> None:
            nonlocal is_written
            is_written = True

        def settled(error: ErrorCode) -> None:
            is_ours = self.groups.get(group.group_id) is group
            if error is not ErrorCode.NONE and not is_written and is_ours:
                group.close(error)
                self._restore(group.group_id, former)

        if not result.records:
            result = Result(records=[_new_group(group.group_id, info.now_ms)])
        records += result.records
        return Result(None, records, settled, replays=False, written=written)

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
            return group.classic_sync(request, self._around.image, reply)
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
        refusal = self._why_not_here(known, request)
        if refusal is not None:
            return _refused(ErrorCode.GROUP_ID_NOT_FOUND, refusal)
        group = self._new_consumer_group(request.group_id)
        group.group_epoch = _EPOCH_BEFORE_THE_FIRST
        former = [] if known is None else self._upgrade(known, group, info.now_ms)
        self.groups[request.group_id] = group
        epoch = group.group_epoch
        result = group.heartbeat(request, info, self._around.image)
        answer = cast(ConsumerGroupHeartbeatResponse, result.response)
        if answer.error_code or not result.records:
            self._put_back(group, known)
            return result

        def settled(error: ErrorCode) -> None:
            # What is in the log and only not committed yet stays as it is: so will others load it.
            is_written = group.group_epoch != epoch or answer.member_id in group.members
            if error is not ErrorCode.NONE and not is_written:
                self._put_back(group, known)
                if known is not None and self.groups.get(known.group_id) is known:
                    known.resume()

        if known is not None:
            known.close(ErrorCode.REBALANCE_IN_PROGRESS)
        group.on_loaded()
        return Result(answer, former + result.records, settled, is_large=result.is_large)

    def _why_not_here(
        self, known: ClassicGroup | None, request: ConsumerGroupHeartbeatRequest
    ) -> str | None:
        """Only who joins can make the group, or make it one of the newer protocol."""
        group_id = request.group_id
        if request.member_epoch == JOIN_EPOCH:
            return None if known is None else self._why_not_upgrade(known)
        if known is not None:
            return f"Group {group_id} is not a consumer group."
        leaves = request.member_epoch < JOIN_EPOCH
        return f"Group {group_id} not found." if leaves else f"Consumer group {group_id} not found."

    def _why_not_upgrade(self, group: ClassicGroup) -> str | None:
        if group.state is ClassicState.EMPTY:
            return None
        settings = self._around.settings
        return why_not_upgradable(group, settings.consumer.max_size if settings.may_upgrade else 0)

    def _upgrade(
        self, known: ClassicGroup, group: MixedGroup, now_ms: int
    ) -> list[CoordinatorRecord]:
        """Give the new group the members of the classic one; the records that say so."""
        records = []
        if known.members:
            records = upgrade_records(known, self._around.image, now_ms)
        for record in records:
            _replay_into(group, *record)
        return [group_tombstone(known.group_id), *records]

    def _new_consumer_group(self, group_id: str) -> MixedGroup:
        around = self._around
        return MixedGroup(
            group_id,
            self._timers,
            around.clock,
            around.random,
            lambda: around.consumer_settings(group_id),
            around.search,
        )

    def _put_back(self, group: MixedGroup, former: ClassicGroup | None) -> None:
        """A group that was made for a request that failed goes as it came."""
        if self.groups.get(group.group_id) is group:
            group.on_unloaded()
            self._restore(group.group_id, former)

    # Groups as administrators see them.

    def classic_group(self, group_id: str) -> ClassicGroup:
        """For DescribeGroups, which knows classic groups only."""
        group = self.existing(group_id)
        if isinstance(group, ConsumerGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group."
            )
        return group

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """For ConsumerGroupDescribe, which knows the others."""
        group = self.existing(group_id)
        if isinstance(group, ClassicGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        return group

    # Replay.

    def replay(self, record: CoordinatorRecord, written_ms: int) -> None:
        """Make true what a record says; `written_ms` is when it was written."""
        key, value = record
        if isinstance(key, r.OffsetCommitKey | r.LegacyOffsetCommitKey):
            self.offsets.replay(key, value)
            if value is not None and key.group not in self.groups:
                self.groups[key.group] = ClassicGroup(key.group, self._services)
        elif isinstance(key, r.GroupMetadataKey):
            self._replay_classic(key.group, cast("r.GroupMetadataValue | None", value))
        else:
            self._replay_consumer(key, value, written_ms)

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

    def _replay_consumer(self, key: object, value: object, written_ms: int) -> None:
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
        if isinstance(key, r.ConsumerGroupMetadataKey):
            group.epoch_since_ms = written_ms

    # Coming and going of the partition.

    def on_loaded(self) -> Iterator[Result[None]]:
        """The log is read: start the members' sessions, and tidy what happened meanwhile."""
        started = 0
        for group in list(self.groups.values()):
            if isinstance(group, ClassicGroup):
                yield from _if_any(group.start())
            else:
                group.image = self._around.image
                group.on_loaded()
            started += 1 + len(group.members)
            if started >= LOOKED_AT_PER_STEP:
                started = 0
                yield Result()
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


def _new_group(group_id: str, now_ms: int) -> CoordinatorRecord:
    """A group that has nobody yet: members are stored with their first assignment."""
    value = r.GroupMetadataValue(current_state_timestamp=now_ms)
    return CoordinatorRecord(r.GroupMetadataKey(group=group_id), value)


def _if_any(result: Result[None]) -> Iterator[Result[None]]:
    if result.records:
        yield result


def _refused(code: ErrorCode, message: str) -> Result[ConsumerGroupHeartbeatResponse]:
    return Result(ConsumerGroupHeartbeatResponse(error_code=int(code), error_message=message))
