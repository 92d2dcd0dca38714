"""A group of the newer protocol that also serves members of the classic one (KIP-848 migration).

A classic group becomes one of these when a member of the newer protocol heartbeats, and a classic
group again when the last of those has gone (`migration.py` has the records). In between, a classic
member's JoinGroup is what a full heartbeat is to others: it says what the member wants and owns,
and takes the same steps (`consumer_steps.py`) towards its target. Its SyncGroup fetches the
assignment, and a classic heartbeat tells it when to join again. There is no leader: the coordinator
assigns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidemill.client.consumer_protocol import Subscription, decode_subscription
from tidemill.coordinators.assignors import NO_PARTITIONS
from tidemill.coordinators.classic_rebalance import UNKNOWN_MEMBER, join_error, sync_error
from tidemill.coordinators.classic_state import CONSUMER_PROTOCOL_TYPE, JoinReply, SyncReply
from tidemill.coordinators.consumer_group import ConsumerGroup
from tidemill.coordinators.consumer_member import ConsumerMember, MemberState
from tidemill.coordinators.migration import (
    common_protocols,
    downgrade_record,
    in_classic_words,
    offered_protocols,
    owned_by_id,
)
from tidemill.coordinators.records import ClassicMemberMetadata, ClassicProtocol
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result, TimerKey
from tidemill.coordinators.target_assignment import Draft
from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.image import ClusterImage
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

    # Joining.

    def classic_join(
        self, request: JoinGroupRequest, info: RequestInfo, image: ClusterImage, reply: JoinReply
    ) -> Result[None]:
        """What a heartbeat is to others: say what the member wants and has, and take a step."""
        self.image = image
        try:
            subscription = self._subscription(request)
            needs_id = info.api_version >= _KNOWN_ID_FROM_VERSION
            if request.member_id == UNKNOWN_MEMBER and request.group_instance_id is None:
                self.check_room()
                if needs_id:
                    reply(join_error(ErrorCode.MEMBER_ID_REQUIRED, self.new_id()))
                    return Result()
            return self._join(request, info, subscription, reply)
        except ApiError as error:
            reply(join_error(error.code, UNKNOWN_MEMBER))
            return Result()

    def _subscription(self, request: JoinGroupRequest) -> Subscription:
        """What the first protocol says; all members must have one protocol in common."""
        names = {each.name for each in request.protocols}
        others = [m for m in self._classic_members() if m.member_id != request.member_id]
        common = names & common_protocols(others) if others else names
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            return decode_subscription(bytes(request.protocols[0].metadata))
        except WireError as error:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error

    def _join(
        self,
        request: JoinGroupRequest,
        info: RequestInfo,
        subscription: Subscription,
        reply: JoinReply,
    ) -> Result[None]:
        draft = self.draft(info.now_ms)
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
        self.follow_metadata(before, member, draft)
        self.assign_if_due(draft, info.now_ms)
        reported = owned_by_id(subscription.owned, self.image)
        after = self.advance(member, replaced_id, reported, draft)
        return self._answer_join(request, after, draft, reply)

    def _find(self, request: JoinGroupRequest, draft: Draft) -> tuple[ConsumerMember, str | None]:
        """The member as it was, and the id of the static one whose place it takes."""
        instance_id, member_id = request.group_instance_id, request.member_id
        if instance_id is not None:
            if member_id != UNKNOWN_MEMBER:
                return self.check_instance(member_id, instance_id), None
            holder = self.static_member(instance_id)
            if holder is not None:
                return self.take_over(holder, self.new_id(), draft), holder.member_id
        known = self.members.get(member_id)
        if known is not None:
            return known, None
        self.check_room()
        return ConsumerMember(member_id or self.new_id()), None

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
                self._joined(member.member_id)
            else:
                self.step_settled(member.member_id, error)
                reply(join_error(error, request.member_id))

        return Result(None, draft.records, settled, is_large=draft.is_large)

    # Syncing, staying, leaving.

    def classic_sync(
        self, request: SyncGroupRequest, image: ClusterImage, reply: SyncReply
    ) -> Result[None]:
        self.image = image
        try:
            member = self._check_classic(
                request.member_id, request.group_instance_id, request.generation_id
            )
            protocol = offered_protocols(member)[0]
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
                request.protocol_name not in (None, protocol)
            ):
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if self._is_behind(member):
                self._expect_join(member)
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        except ApiError as error:
            reply(sync_error(error.code))
            return Result()
        self.timers.cancel(self._sync_key(member.member_id))
        self._expect_classic(member)
        assigned = {topic: frozenset(parts) for topic, parts in member.assigned.items()}
        reply(
            SyncGroupResponse(
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocol,
                assignment=in_classic_words(assigned, self.image, member),
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
            self._expect_join(member)
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
        return any(self.holder(*held) is None for held in wanted)

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
        return Result(LeaveGroupResponse(members=answers), records, self.removal_settled)

    def _leaving(self, identity: MemberIdentity) -> ConsumerMember:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER:
            holder = None if instance_id is None else self.static_member(instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            return holder
        if instance_id is not None:
            self.check_instance(member_id, instance_id)
        member = self.known(member_id)
        if member.classic is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _check_classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ConsumerMember:
        if instance_id is not None:
            self.check_instance(member_id, instance_id)
        member = self.known(member_id)
        if member.classic is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # Timers.

    def watch_session(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None and member.classic is not None:
            self._expect_classic(member)
        else:
            super().watch_session(member_id)

    def _expect_classic(self, member: ConsumerMember) -> None:
        assert member.classic is not None
        member_id = member.member_id
        self.timers.schedule(
            self.session_key(member_id),
            member.classic.session_timeout_ms,
            lambda: self._expire(member_id),
        )

    def _expect_join(self, member: ConsumerMember) -> None:
        """Told to join again, a classic member has its rebalance timeout for that from the first
        time on: that it reports, or asks for its assignment, gains it nothing."""
        key = self._join_key(member.member_id)
        if not self.timers.is_set(key):
            self._watch_step(key, member)

    def _joined(self, member_id: str) -> None:
        """It has done what it was told, and is to ask for its assignment in time."""
        self.timers.cancel(self._join_key(member_id))
        member = self.members.get(member_id)
        if member is not None:
            self._watch_step(self._sync_key(member_id), member)

    def _watch_step(self, key: TimerKey, member: ConsumerMember) -> None:
        member_id = member.member_id

        def expire() -> Result[None]:
            now = self.members.get(member_id)
            speaks_classic = now is not None and now.classic is not None
            return self._expire(member_id) if speaks_classic else Result()

        self.timers.schedule(key, max(member.rebalance_timeout_ms, 0), expire)

    def _expire(self, member_id: str) -> Result[None]:
        if member_id not in self.members:
            return Result()
        return Result(None, self.remove_members([member_id]), self.removal_settled)

    def forget_timers(self, member_id: str) -> None:
        super().forget_timers(member_id)
        self.timers.cancel(self._join_key(member_id))
        self.timers.cancel(self._sync_key(member_id))

    def _join_key(self, member_id: str) -> TimerKey:
        return ("consumer-join", self.group_id, member_id)

    def _sync_key(self, member_id: str) -> TimerKey:
        return ("consumer-sync", self.group_id, member_id)

    # Going back.

    def _classic_members(self) -> list[ConsumerMember]:
        return [member for member in self.members.values() if member.classic is not None]

    def remove_members(self, member_ids: Iterable[str]) -> list[CoordinatorRecord]:
        """As for any group; when only classic members are left, the group becomes classic."""
        gone = set(member_ids)
        left = [member for key, member in self.members.items() if key not in gone]
        if left and self.settings.may_downgrade(len(left)) and _can_be_classic(left):
            for member_id in self.members:
                self.forget_timers(member_id)
            record = downgrade_record(self, left, self.image, self.clock.now_ms())
            return [*self.deletion_records(), record]
        return super().remove_members(gone)


def _can_be_classic(members: list[ConsumerMember]) -> bool:
    all_classic = all(member.classic is not None for member in members)
    return all_classic and bool(common_protocols(members))


def _classic_metadata(request: JoinGroupRequest) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=request.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=each.name, metadata=bytes(each.metadata))
            for each in request.protocols
        ],
    )


def _rebalance_timeout_ms(request: JoinGroupRequest, info: RequestInfo) -> int:
    return request.session_timeout_ms if info.api_version == 0 else request.rebalance_timeout_ms
