"""A group of the newer protocol that also serves members of the classic one (KIP-848 migration).

A classic group becomes one of these when a member of the newer protocol heartbeats (`upgrade`), and
a classic group again when the last of those has gone (`downgrade_records`). In between, a classic
member's JoinGroup is what a full heartbeat is to others: it says what the member wants and owns,
and moves the member a step towards its target. Its SyncGroup fetches the assignment, and a classic
heartbeat tells it when to join again. There is no leader: the coordinator assigns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidemill.client.consumer_protocol import (
    VERSION_MAX,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tidemill.coordinators import subscriptions
from tidemill.coordinators.assignors import NO_PARTITIONS, Partitions
from tidemill.coordinators.classic_group import ClassicGroup
from tidemill.coordinators.classic_rebalance import UNKNOWN_MEMBER, join_error, sync_error
from tidemill.coordinators.classic_state import CONSUMER_PROTOCOL_TYPE, JoinReply, SyncReply
from tidemill.coordinators.consumer_group import ConsumerGroup
from tidemill.coordinators.consumer_member import (
    ConsumerMember,
    MemberState,
    assignment_record,
    metadata_record,
    target_record,
)
from tidemill.coordinators.reconcile import Reported
from tidemill.coordinators.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result
from tidemill.coordinators.target_assignment import Draft
from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.image import ClusterImage
from tidemill.types import TopicId, TopicPartition
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_KNOWN_ID_FROM_VERSION = 4


class MixedGroup(ConsumerGroup):
    """A consumer group whose members may speak either protocol."""

    may_downgrade = True
    """Whether it may become a classic group again: `group.consumer.migration.policy`."""

    # Joining.

    def classic_join(
        self, request: JoinGroupRequest, info: RequestInfo, image: ClusterImage, reply: JoinReply
    ) -> Result[None]:
        """What a heartbeat is to others: say what the member wants and has, and take a step."""
        self._image = image
        try:
            subscription = self._subscription(request)
            needs_id = info.api_version >= _KNOWN_ID_FROM_VERSION
            if request.member_id == UNKNOWN_MEMBER and request.group_instance_id is None:
                self._newcomer_is_welcome()
                if needs_id:
                    reply(join_error(ErrorCode.MEMBER_ID_REQUIRED, self._new_id()))
                    return Result()
            return self._join(request, info, subscription, reply)
        except ApiError as error:
            reply(join_error(error.code, request.member_id))
            return Result()

    def _subscription(self, request: JoinGroupRequest) -> Subscription:
        """What the first protocol says; all members must have one protocol in common."""
        names = {each.name for each in request.protocols}
        others = [m for m in self._classic_members() if m.member_id != request.member_id]
        common = names.intersection(*(_protocol_names(member) for member in others))
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            return decode_subscription(bytes(request.protocols[0].metadata))
        except WireError as error:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error

    def _newcomer_is_welcome(self) -> None:
        if len(self.members) >= self._config.max_size:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join(
        self,
        request: JoinGroupRequest,
        info: RequestInfo,
        subscription: Subscription,
        reply: JoinReply,
    ) -> Result[None]:
        draft = Draft(self, self._image, info.now_ms)
        before, replaced_id = self._find(request, draft)
        is_new = before.member_id not in self.members and replaced_id is None
        member = replace(
            before,
            instance_id=request.group_instance_id,
            rack_id=subscription.rack,
            client_id=info.client_id,
            client_host=info.client_host,
            topic_names=frozenset(subscription.topics),
            topic_regex=None,
            rebalance_timeout_ms=_rebalance_timeout_ms(request, info),
            server_assignor=None,
            classic=_classic_metadata(request),
        )
        if is_new or member != before:
            draft.say(member)
        self._follow_metadata(before, member, draft)
        self._assign_if_due(draft, info.now_ms)
        reported = _reported(subscription.owned, self._image)
        after = self._advance(member, replaced_id, reported, draft)
        return self._answer_join(request, after, draft, reply)

    def _find(self, request: JoinGroupRequest, draft: Draft) -> tuple[ConsumerMember, str | None]:
        """The member as it was, and the id of the static one whose place it takes."""
        instance_id, member_id = request.group_instance_id, request.member_id
        if instance_id is not None:
            holder = self.static_member(instance_id)
            if member_id != UNKNOWN_MEMBER:
                return self._check_instance(holder, member_id, instance_id), None
            if holder is not None:
                return self._replace(holder, self._new_id(), draft), holder.member_id
        known = self.members.get(member_id)
        if known is not None:
            return known, None
        self._newcomer_is_welcome()
        return ConsumerMember(member_id or self._new_id()), None

    def _answer_join(
        self, request: JoinGroupRequest, member: ConsumerMember, draft: Draft, reply: JoinReply
    ) -> Result[None]:
        self._expect_classic(member)
        answer = JoinGroupResponse(
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
            member_id=member.member_id,
        )

        def settled(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                reply(answer)
                self._watch_step(member.member_id)
            else:
                reply(join_error(error, request.member_id))

        return Result(None, draft.records, settled)

    # Syncing, staying, leaving.

    def classic_sync(self, request: SyncGroupRequest, reply: SyncReply) -> Result[None]:
        try:
            member = self._check_classic(
                request.member_id, request.group_instance_id, request.generation_id
            )
            protocol = _first_protocol(member)
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
                request.protocol_name not in (None, protocol)
            ):
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if self._is_behind(member):
                self._watch_step(member.member_id)
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        except ApiError as error:
            reply(sync_error(error.code))
            return Result()
        self._timers.cancel(self._step_key(member.member_id))
        self._expect_classic(member)
        assigned = {topic: frozenset(parts) for topic, parts in member.assigned.items()}
        reply(
            SyncGroupResponse(
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocol,
                assignment=_encoded(assigned, self._image, _spoken_version(member)),
            )
        )
        return Result()

    def classic_heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        try:
            member = self._check_classic(
                request.member_id, request.group_instance_id, request.generation_id
            )
        except ApiError as error:
            return error.code
        self._expect_classic(member)
        if self._is_behind(member) or self._may_go_on(member):
            self._watch_step(member.member_id)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _is_behind(self, member: ConsumerMember) -> bool:
        """A new epoch has begun; one that still gives back finishes that first."""
        is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
        return self.group_epoch > member.member_epoch and not is_revoking

    def _may_go_on(self, member: ConsumerMember) -> bool:
        """It has to give something back, or what it waits for is free."""
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        target = self.target.get(member.member_id, NO_PARTITIONS)
        wanted = [
            (topic, part)
            for topic, parts in target.items()
            for part in parts
            if part not in member.assigned.get(topic, {})
        ]
        return any(held not in self._holders for held in wanted)

    def classic_leave(self, leaving: list[MemberIdentity]) -> Result[LeaveGroupResponse]:
        gone: list[str] = []
        answers = []
        for identity in leaving:
            code = ErrorCode.NONE
            try:
                member = self._leaving(identity)
                if member.member_id not in gone:
                    gone.append(member.member_id)
            except ApiError as error:
                code = error.code
            answers.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=int(code),
                )
            )
        records = self.remove_members(gone) if gone else []
        return Result(LeaveGroupResponse(members=answers), records)

    def _leaving(self, identity: MemberIdentity) -> ConsumerMember:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER:
            holder = None if instance_id is None else self.static_member(instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            return holder
        if instance_id is not None:
            self._check_instance(self.static_member(instance_id), member_id, instance_id)
        member = self._known(member_id)
        if member.classic is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _check_classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ConsumerMember:
        if instance_id is not None:
            self._check_instance(self.static_member(instance_id), member_id, instance_id)
        member = self._known(member_id)
        if member.classic is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # Timers.

    def _watch_session(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None and member.classic is not None:
            self._expect_classic(member)
        else:
            super()._watch_session(member_id)

    def _expect_classic(self, member: ConsumerMember) -> None:
        assert member.classic is not None
        member_id = member.member_id
        self._timers.schedule(
            self._session_key(member_id),
            member.classic.session_timeout_ms,
            lambda: self._expire(member_id),
        )

    def _watch_step(self, member_id: str) -> None:
        """A classic member has its rebalance timeout for the next join or sync."""
        member = self.members.get(member_id)
        if member is not None:
            self._timers.schedule(
                self._step_key(member_id),
                max(member.rebalance_timeout_ms, 0),
                lambda: self._expire(member_id),
            )

    def _expire(self, member_id: str) -> Result[None]:
        if member_id not in self.members:
            return Result()
        return Result(None, self.remove_members([member_id]))

    def _forget_timers(self, member_id: str) -> None:
        super()._forget_timers(member_id)
        self._timers.cancel(self._step_key(member_id))

    def _step_key(self, member_id: str) -> str:
        return f"consumer-step-{self.group_id}-{member_id}"

    # Going back.

    def _classic_members(self) -> list[ConsumerMember]:
        return [member for member in self.members.values() if member.classic is not None]

    def remove_members(self, member_ids: Iterable[str]) -> list[CoordinatorRecord]:
        """As for any group; when only classic members are left, the group becomes classic."""
        gone = set(member_ids)
        left = [member for key, member in self.members.items() if key not in gone]
        is_classic = bool(left) and all(member.classic is not None for member in left)
        if is_classic and self.may_downgrade and self._has_common_protocol(left):
            for member_id in self.members:
                self._forget_timers(member_id)
            return [*self.deletion_records(), self._as_classic(left)]
        return super().remove_members(gone)

    def _has_common_protocol(self, members: list[ConsumerMember]) -> bool:
        return bool(set.intersection(*(_protocol_names(member) for member in members)))

    def _as_classic(self, members: list[ConsumerMember]) -> CoordinatorRecord:
        """The classic group in which these members find themselves; it will rebalance at once."""
        common = set.intersection(*(_protocol_names(member) for member in members))
        protocol = next(name for name in _ordered_names(members[0]) if name in common)
        value = GroupMetadataValue(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            generation=self.group_epoch,
            protocol=protocol,
            leader=members[0].member_id,
            current_state_timestamp=self._clock.now_ms(),
            members=[self._stored(member, protocol) for member in members],
        )
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), value)

    def _stored(self, member: ConsumerMember, protocol: str) -> MemberMetadata:
        assert member.classic is not None
        offered = {each.name: each.metadata for each in member.classic.supported_protocols}
        target = self.target.get(member.member_id, NO_PARTITIONS)
        return MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.classic.session_timeout_ms,
            subscription=offered[protocol],
            assignment=_encoded(target, self._image, _spoken_version(member)),
        )


# The way there.


def can_upgrade(group: ClassicGroup) -> bool:
    """Whether every member of a classic group is a consumer whose metadata can be read."""
    if not group.uses_consumer_protocol:
        return False
    try:
        for member in group.members.values():
            decode_subscription(member.metadata(group.protocol) or member.protocols[0][1])
            decode_assignment(member.assignment)
    except (WireError, IndexError):
        return False
    return True


def upgrade_records(
    group: ClassicGroup, image: ClusterImage, now_ms: int
) -> list[CoordinatorRecord]:
    """The classic group as one of the newer protocol: same members, same partitions."""
    epoch = group.generation
    members = [_converted(group, member_id, image, epoch) for member_id in group.members]
    names = {name for member in members for name in member.topic_names}
    key = ConsumerGroupMetadataKey(group_id=group.group_id)
    value = ConsumerGroupMetadataValue(
        epoch=epoch, metadata_hash=subscriptions.metadata_hash(names, image)
    )
    records = [metadata_record(group.group_id, member) for member in members]
    records.append(CoordinatorRecord(key, value))
    for member in members:
        target = {topic: frozenset(parts) for topic, parts in member.assigned.items()}
        records.append(target_record(group.group_id, member.member_id, target))
    records.append(
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )
    )
    return records + [assignment_record(group.group_id, member) for member in members]


def _converted(
    group: ClassicGroup, member_id: str, image: ClusterImage, epoch: int
) -> ConsumerMember:
    member = group.members[member_id]
    subscription = decode_subscription(member.metadata(group.protocol) or member.protocols[0][1])
    owned = _reported(decode_assignment(member.assignment), image)
    return ConsumerMember(
        member_id,
        member_epoch=epoch,
        previous_epoch=epoch,
        instance_id=member.instance_id,
        rack_id=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=data) for name, data in member.protocols
            ],
        ),
        assigned={topic: dict.fromkeys(sorted(parts), epoch) for topic, parts in owned.items()},
    )


# Words.


def _classic_metadata(request: JoinGroupRequest) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=request.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=each.name, metadata=bytes(each.metadata))
            for each in request.protocols
        ],
    )


def _ordered_names(member: ConsumerMember) -> list[str]:
    assert member.classic is not None
    return [each.name for each in member.classic.supported_protocols]


def _protocol_names(member: ConsumerMember) -> set[str]:
    return set(_ordered_names(member))


def _first_protocol(member: ConsumerMember) -> str:
    return _ordered_names(member)[0]


def _reported(owned: Iterable[TopicPartition], image: ClusterImage) -> Reported:
    """Partitions by the ids of their topics; those of topics that are gone are left out."""
    found: dict[TopicId, set[int]] = {}
    for name, partition in owned:
        topic = image.topic(name)
        if topic is not None and topic.partition(partition) is not None:
            found.setdefault(topic.topic_id, set()).add(partition)
    return {topic_id: frozenset(parts) for topic_id, parts in found.items()}


def _spoken_version(member: ConsumerMember) -> int:
    """The version in which the member wrote its metadata: what it can read."""
    assert member.classic is not None
    metadata = member.classic.supported_protocols[0].metadata
    return min(int.from_bytes(metadata[:2], "big", signed=True), VERSION_MAX)


def _encoded(partitions: Partitions, image: ClusterImage, version: int) -> bytes:
    """An assignment in the words of classic consumers."""
    named = [
        TopicPartition(topic.name, partition)
        for topic_id, parts in partitions.items()
        if (topic := image.topic_by_id(topic_id)) is not None
        for partition in parts
    ]
    return encode_assignment(named, version=version)


def _rebalance_timeout_ms(request: JoinGroupRequest, info: RequestInfo) -> int:
    return request.session_timeout_ms if info.api_version == 0 else request.rebalance_timeout_ms
