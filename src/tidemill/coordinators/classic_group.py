"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Metadata and assignments are opaque: any protocol type is served. `classic_rebalance.py` has the two
phases of a rebalance; here is who may ask for what, and what it sets in motion.

The state changes while requests are handled, not when records are replayed: a rebalance under way
is not stored, and a coordinator that takes over finds the last stable generation. What is stored is
stored by results that do not replay; when that fails, `then` takes the change back.

Start at `join`, then `sync`.
"""

from __future__ import annotations

from tidemill.coordinators.classic_rebalance import (
    COMPLETING,
    EMPTY_STATE,
    PREPARING,
    STABLE,
    UNKNOWN_MEMBER,
    ClassicServices,
    ClassicSettings,
    Rebalancing,
    join_error,
    nothing,
    sync_error,
)
from tidemill.coordinators.classic_state import (
    ClassicMember,
    JoinReply,
    SyncReply,
    protocols_of,
)
from tidemill.coordinators.result import RequestInfo, Result
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)

__all__ = [
    "UNKNOWN_MEMBER",
    "ClassicGroup",
    "ClassicServices",
    "ClassicSettings",
    "join_error",
    "sync_error",
]

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""A member whose first join waits longer than this has gone: its client would have retried."""
PENDING_MEMBERS_MAX = 10_000
"""Members that may have an id and not have come back with it; more are turned away."""
ID_PREFIX_BYTES_MAX = 32_000
"""A member's id is a string like any other: with what is added it must stay below 32767 bytes."""
_KNOWN_ID_FROM_VERSION = 4
_SKIP_ASSIGNMENT_FROM_VERSION = 9


class ClassicGroup(Rebalancing):
    """One group of the classic protocol."""

    # Joining.

    def join(self, request: JoinGroupRequest, info: RequestInfo, reply: JoinReply) -> Result[None]:
        """A member wants in, or in again; the answer may wait for the others."""
        try:
            self._check_size(request.member_id)
            if request.member_id == UNKNOWN_MEMBER:
                return self._join_new(request, info, reply)
            return self._join_known(request, info, reply)
        except ApiError as error:
            reply(join_error(error.code, _told_id(request.member_id, error.code)))
            return self._maybe_complete_join()  # Nobody waits for who was turned away.

    def _check_size(self, member_id: str) -> None:
        """Refuse whoever is too many; those who are in may always rejoin (rule J6)."""
        most = self._services.settings().max_size
        if self.state is PREPARING:
            member = self.members.get(member_id)
            waits = member is not None and member.join_reply is not None
            accepted = waits or self.awaiting_join_count < most
        elif self.state is EMPTY_STATE:
            accepted = True
        else:
            accepted = member_id in self.members or len(self.members) < most
        if not accepted:
            self.drop(member_id)
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _check_protocols(self, request: JoinGroupRequest) -> None:
        names = [each.name for each in request.protocols]
        if not self.supports(request.protocol_type, names):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _join_new(
        self, request: JoinGroupRequest, info: RequestInfo, reply: JoinReply
    ) -> Result[None]:
        self._check_protocols(request)
        instance_id = request.group_instance_id
        prefix = _cut(info.client_id if instance_id is None else instance_id)
        member_id = f"{prefix}-{self._services.new_id()}"
        if instance_id is not None:
            known_id = self.static_ids.get(instance_id)
            if known_id is not None:
                return self._replace_static(request, info, known_id, member_id, reply)
            return self._add_and_rebalance(request, info, member_id, reply)
        if info.api_version < _KNOWN_ID_FROM_VERSION:
            return self._add_and_rebalance(request, info, member_id, reply)
        return self._ask_back(request, member_id, reply)

    def _ask_back(
        self, request: JoinGroupRequest, member_id: str, reply: JoinReply
    ) -> Result[None]:
        """Hand out an id; only who comes back with it becomes a member (rule J4)."""
        if len(self.pending_join) >= PENDING_MEMBERS_MAX:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        self.pending_join.add(member_id)
        self.expect(member_id, request.session_timeout_ms)
        reply(join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return nothing()

    def _join_known(
        self, request: JoinGroupRequest, info: RequestInfo, reply: JoinReply
    ) -> Result[None]:
        member_id = request.member_id
        self._check_protocols(request)
        if member_id in self.pending_join:
            if request.group_instance_id is not None:
                # A static member is never asked back: this id is somebody else's.
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            return self._add_and_rebalance(request, info, member_id, reply)
        member = self.check_member(member_id, request.group_instance_id)
        if self.state is EMPTY_STATE:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        unchanged = member.protocols == protocols_of(request.protocols)
        is_leader = self.leader_id == member_id
        if unchanged and (self.state is COMPLETING or (self.state is STABLE and not is_leader)):
            # It did not get the last answer, or wants to sync again: the generation is as it was.
            members = self.listed_members() if is_leader else []
            reply(self.joined(member_id, members=members))
            return nothing()
        return self._update_and_rebalance(request, info, member, reply)

    def _add_and_rebalance(
        self, request: JoinGroupRequest, info: RequestInfo, member_id: str, reply: JoinReply
    ) -> Result[None]:
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=info.client_id,
            client_host=info.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request, info),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols_of(request.protocols),
            is_new=True,
            join_reply=reply,
        )
        if self.state is PREPARING and self.previous_state is EMPTY_STATE:
            self._new_member_came = True
        if not self.members:
            self.protocol_type = request.protocol_type
        self.add(member)
        # It cannot send heartbeats yet, and nobody sees its connection break while it waits.
        self.expect(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self.rebalance()

    def _update_and_rebalance(
        self, request: JoinGroupRequest, info: RequestInfo, member: ClassicMember, reply: JoinReply
    ) -> Result[None]:
        self._update(member, request, info)
        self._answer_join_again(member, reply)
        return self.rebalance()

    def _update(self, member: ClassicMember, request: JoinGroupRequest, info: RequestInfo) -> None:
        self.replace_protocols(member, protocols_of(request.protocols))
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request, info)
        member.session_timeout_ms = request.session_timeout_ms

    def _answer_join_again(self, member: ClassicMember, reply: JoinReply) -> None:
        """A retry takes the place of the request that it repeats."""
        if member.join_reply is not None:
            member.join_reply(join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self.keep_join(member, reply)

    # Static members.

    def _replace_static(
        self,
        request: JoinGroupRequest,
        info: RequestInfo,
        old_id: str,
        new_id: str,
        reply: JoinReply,
    ) -> Result[None]:
        """The same instance with a new id: no rebalance if nothing else changed (rule J3)."""
        member = self.members[old_id]
        former = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        former_leader = self.leader_id
        self._fence(member)
        self._timers.cancel(self._heartbeat_key(old_id))
        self.rename(member, new_id)
        self._update(member, request, info)
        self.expect_heartbeat(member)
        if self.state is not STABLE or self.select_protocol() != self.protocol:
            self.keep_join(member, reply)
            return self.rebalance()

        def settled(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                reply(self._rejoined(member, info, former_leader))
                return
            if self.members.get(new_id) is member:
                self._timers.cancel(self._heartbeat_key(new_id))
                self.rename(member, old_id)
                self.replace_protocols(member, former[0])
                member.rebalance_timeout_ms, member.session_timeout_ms = former[1:]
                self.expect_heartbeat(member)
            reply(join_error(error, UNKNOWN_MEMBER))

        return Result(records=[self.record()], then=settled, replays=False)

    def _rejoined(
        self, member: ClassicMember, info: RequestInfo, former_leader: str | None
    ) -> JoinGroupResponse:
        """What a restarted static member is told while the group stays stable.

        A leader that cannot be told to skip the assignment is told that the old one leads, so that
        it does not assign anew.
        """
        if info.api_version < _SKIP_ASSIGNMENT_FROM_VERSION:
            return self.joined(member.member_id, leader=former_leader)
        is_leader = self.leader_id == member.member_id
        members = self.listed_members() if is_leader else []
        answer = self.joined(member.member_id, members=members)
        answer.skip_assignment = is_leader
        return answer

    def _fence(self, member: ClassicMember) -> None:
        """Answer the requests of a static member's former incarnation."""
        joins = self.take_join(member)
        if joins is not None:
            joins(join_error(ErrorCode.FENCED_INSTANCE_ID, member.member_id))
        if member.sync_reply is not None:
            member.sync_reply(sync_error(ErrorCode.FENCED_INSTANCE_ID))
            member.sync_reply = None

    # Assignments.

    def sync(self, request: SyncGroupRequest, info: RequestInfo, reply: SyncReply) -> Result[None]:
        """A member asks for its assignment; the leader brings everybody's."""
        try:
            member = self._check_sync(request)
        except ApiError as error:
            reply(sync_error(error.code))
            return nothing()
        self.pending_sync.discard(member.member_id)
        if not self.pending_sync:
            self._timers.cancel(self._sync_key)
        if self.state is STABLE:
            self.expect_heartbeat(member)
            reply(self.synced(member))
            return nothing()
        if member.sync_reply is not None:
            member.sync_reply(sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if self.leader_id != member.member_id:
            return nothing()
        return self.store_assignments(request)

    def _check_sync(self, request: SyncGroupRequest) -> ClassicMember:
        member = self.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if _differs(request.protocol_type, self.protocol_type) or _differs(
            request.protocol_name, self.protocol
        ):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is PREPARING:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        return member

    # Staying and leaving.

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """A member is alive; it is told when it has to join again."""
        try:
            member = self.check_member(request.member_id, request.group_instance_id)
        except ApiError as error:
            return error.code
        if request.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.expect_heartbeat(member)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    def touch(self, member_id: str) -> None:
        """A commit shows life as well as a heartbeat does."""
        member = self.members.get(member_id)
        if member is not None and self.state in (STABLE, PREPARING):
            self.expect_heartbeat(member)

    def leave(self, leaving: list[MemberIdentity]) -> Result[LeaveGroupResponse]:
        """Members go, by id or, when an administrator sends them off, by instance."""
        answers = [self._leave_one(identity) for identity in leaving]
        result = nothing()
        if any(answer.error_code == ErrorCode.NONE for answer in answers):
            result = self.after_departure()
        return Result(
            LeaveGroupResponse(members=answers), result.records, result.then, result.replays
        )

    def _leave_one(self, identity: MemberIdentity) -> MemberResponse:
        code = ErrorCode.NONE
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER:
            known_id = None if instance_id is None else self.static_ids.get(instance_id)
            if known_id is None:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                self.drop(known_id)
        elif member_id in self.pending_join:
            self.drop(member_id)
        else:
            try:
                self.check_member(member_id, instance_id)
                self.drop(member_id)
            except ApiError as error:
                code = error.code
        return MemberResponse(
            member_id=member_id, group_instance_id=instance_id, error_code=int(code)
        )

    # What others may do with the group.

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raise unless this member may commit offsets in this generation (rule J2)."""
        if generation < 0 and self.state is EMPTY_STATE:
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation != self.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif self.state is not EMPTY_STATE:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if self.state is COMPLETING:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_delete(self) -> None:
        if self.state is not EMPTY_STATE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        if self.state is not EMPTY_STATE and not self.uses_consumer_protocol:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)


def _cut(prefix: str) -> str:
    """What fits in front of an id, so that the whole fits where members are listed."""
    return prefix.encode()[:ID_PREFIX_BYTES_MAX].decode(errors="ignore")


def _told_id(member_id: str, code: ErrorCode) -> str:
    return UNKNOWN_MEMBER if code is ErrorCode.GROUP_MAX_SIZE_REACHED else member_id


def _differs(asked: str | None, held: str | None) -> bool:
    return asked is not None and held is not None and asked != held


def _rebalance_timeout_ms(request: JoinGroupRequest, info: RequestInfo) -> int:
    """Version 0 has no such timeout of its own."""
    return request.session_timeout_ms if info.api_version == 0 else request.rebalance_timeout_ms
