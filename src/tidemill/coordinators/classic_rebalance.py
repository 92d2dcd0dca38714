"""The rebalances of a classic group: two phases, their timers, and who is out in the end.

In the first phase every member joins, and the answers wait until all have, or until the rebalance
timeout drops those who have not. In the second the leader brings the assignments; they are stored
before anyone gets his (rule J3). `classic_group.ClassicGroup` decides which request starts what.

Start at `rebalance`, then `_complete_join`, then `store_assignments`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.coordinators.classic_state import ClassicMember, ClassicState, Membership
from tidemill.coordinators.records import GroupMetadataKey
from tidemill.coordinators.result import CoordinatorRecord, Result, TimerKey, Timers
from tidemill.errors import ErrorCode
from tidemill.wire.messages.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)

UNKNOWN_MEMBER = ""
EMPTY_STATE = ClassicState.EMPTY
PREPARING = ClassicState.PREPARING_REBALANCE
COMPLETING = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE


@dataclass(frozen=True, slots=True)
class ClassicSettings:
    """The broker's settings for classic groups, as they are now."""

    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000


@dataclass(frozen=True, slots=True)
class ClassicServices:
    """What a group needs from its surroundings."""

    timers: Timers
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    settings: Callable[[], ClassicSettings]


def nothing() -> Result[None]:
    return Result()


class Rebalancing(Membership):
    """A group's membership with what moves it from one generation to the next."""

    def __init__(self, group_id: str, services: ClassicServices) -> None:
        super().__init__(group_id, services.now_ms())
        self._services = services
        self._timers = services.timers
        self._new_member_came = False

    # First phase.

    def rebalance(self) -> Result[None]:
        if self.state is PREPARING:
            return self._maybe_complete_join()
        return self._prepare_rebalance()

    def _prepare_rebalance(self) -> Result[None]:
        """Wait for everybody to join: a new group a little, so that it need not start twice."""
        if self.state is COMPLETING:
            self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel(self._sync_key)
        is_first = self.state is EMPTY_STATE
        self.move_to(PREPARING, self._services.now_ms())
        if is_first:
            self._new_member_came = False
            delay_ms = self._services.settings().initial_rebalance_delay_ms
            self._wait_for_more(delay_ms, max(self.rebalance_timeout_ms - delay_ms, 0))
            return nothing()
        if self.has_all_joined:
            return self._complete_join()
        self._timers.schedule(self._join_key, self.rebalance_timeout_ms, self._complete_join)
        return nothing()

    def _wait_for_more(self, delay_ms: int, remaining_ms: int) -> None:
        def over() -> Result[None]:
            if self._new_member_came and remaining_ms > 0:
                self._new_member_came = False
                most_ms = self._services.settings().initial_rebalance_delay_ms
                self._wait_for_more(min(most_ms, remaining_ms), max(remaining_ms - delay_ms, 0))
                return nothing()
            return self._complete_join()

        self._timers.schedule(self._join_key, delay_ms, over)

    def _maybe_complete_join(self) -> Result[None]:
        waits_for_more = self.previous_state is EMPTY_STATE
        if self.state is PREPARING and self.has_all_joined and not waits_for_more:
            return self._complete_join()
        return nothing()

    def _complete_join(self) -> Result[None]:
        """End the first phase: whoever has not come is out, except for static members."""
        self._timers.cancel(self._join_key)
        for member in list(self.members.values()):
            if member.join_reply is None and member.instance_id is None:
                self.drop(member.member_id)
        if self.members and not self.elect_joined_leader():
            # Only static members are left, and none has come: wait until their sessions end.
            self._timers.schedule(self._join_key, self.rebalance_timeout_ms, self._complete_join)
            return nothing()
        self.next_generation(self._services.now_ms())
        if not self.members:
            return Result(records=[self.record()], replays=False)
        for member in self.members.values():
            self._answer_join(member)
        generation = self.generation
        self._timers.schedule(
            self._sync_key, self.rebalance_timeout_ms, lambda: self._sync_overdue(generation)
        )
        return nothing()

    def _answer_join(self, member: ClassicMember) -> None:
        is_leader = member.member_id == self.leader_id
        members = self.listed_members() if is_leader else []
        reply = self.take_join(member)
        member.is_new = False
        self.pending_sync.add(member.member_id)
        self.expect_heartbeat(member)
        if reply is not None:
            reply(self.joined(member.member_id, members=members))

    # Second phase.

    def store_assignments(self, request: SyncGroupRequest) -> Result[None]:
        given = {each.member_id: bytes(each.assignment) for each in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
        generation = self.generation

        def settled(error: ErrorCode) -> None:
            # Somebody may have joined while the record was written: then there is a new rebalance.
            if self.state is not COMPLETING or self.generation != generation:
                return
            if error is not ErrorCode.NONE:
                self._answer_syncs(error)
                self._prepare_rebalance()
                return
            for member in self.members.values():
                member.assignment = assignments.get(member.member_id, b"")
            self.move_to(STABLE, self._services.now_ms())
            self._answer_syncs(ErrorCode.NONE)

        return Result(records=[self.record(assignments)], then=settled, replays=False)

    def _answer_syncs(self, error: ErrorCode) -> None:
        """Answer everybody who waits for an assignment; their sessions count anew."""
        for member in self.members.values():
            if error is not ErrorCode.NONE:
                member.assignment = b""
            reply, member.sync_reply = member.sync_reply, None
            if reply is not None:
                self.expect_heartbeat(member)
                reply(self.synced(member) if error is ErrorCode.NONE else sync_error(error))

    def _sync_overdue(self, generation: int) -> Result[None]:
        """Members that joined and did not sync in time are out."""
        if generation != self.generation or self.state not in (COMPLETING, STABLE):
            return nothing()
        if not self.pending_sync:
            return nothing()
        for member_id in list(self.pending_sync):
            self.drop(member_id)
        return self._prepare_rebalance()

    # Sessions and departures.

    def expect_heartbeat(self, member: ClassicMember) -> None:
        self.expect(member.member_id, member.session_timeout_ms)

    def expect(self, member_id: str, within_ms: int) -> None:
        self._timers.schedule(
            self._heartbeat_key(member_id), within_ms, lambda: self._silent(member_id)
        )

    def _silent(self, member_id: str) -> Result[None]:
        """Nothing was heard of this member for its session timeout."""
        member = self.members.get(member_id)
        if member is not None and member.is_excused:
            return nothing()
        if member is None and member_id not in self.pending_join:
            return nothing()
        self.drop(member_id)
        return self.after_departure()

    def after_departure(self) -> Result[None]:
        if self.state in (STABLE, COMPLETING):
            return self._prepare_rebalance()
        return self._maybe_complete_join()

    def drop(self, member_id: str) -> None:
        """Take a member out, and answer what it waits for: it may be alive and try again."""
        self._timers.cancel(self._heartbeat_key(member_id))
        member = self.remove(member_id)
        if member is None:
            return
        if member.join_reply is not None:
            member.join_reply(join_error(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER))
        if member.sync_reply is not None:
            member.sync_reply(sync_error(ErrorCode.UNKNOWN_MEMBER_ID))

    # Coming and going of the group as a whole.

    def start(self) -> Result[None]:
        """The group was loaded: its members are expected to report from now on (rule J7)."""
        for member in self.members.values():
            self.expect_heartbeat(member)
        was_rebalancing, self.was_rebalancing = self.was_rebalancing, False
        if was_rebalancing or len(self.members) > self._services.settings().max_size:
            return self._prepare_rebalance()
        return nothing()

    def resume(self) -> None:
        """The group was closed for a change that could not be written.

        Whoever waited was told to join again, and those with a new id have lost it. A rebalance
        that was under way waits for all of them as if it had just begun.
        """
        self.pending_join.clear()
        self.pending_sync.clear()
        self.start()
        if self.state in (PREPARING, COMPLETING):
            self.move_to(PREPARING, self._services.now_ms())
            self.previous_state = PREPARING
            self._timers.schedule(self._join_key, self.rebalance_timeout_ms, self._complete_join)

    def close(self, error: ErrorCode) -> None:
        """The group goes from here: everybody who waits is told why."""
        self._timers.cancel(self._join_key)
        self._timers.cancel(self._sync_key)
        for member_id in self.pending_join | self.members.keys():
            self._timers.cancel(self._heartbeat_key(member_id))
        for member in self.members.values():
            joins, (syncs, member.sync_reply) = self.take_join(member), (member.sync_reply, None)
            if joins is not None:
                joins(join_error(error, member.member_id))
            if syncs is not None:
                syncs(sync_error(error))

    # Answers and records.

    def joined(
        self,
        member_id: str,
        *,
        members: list[JoinGroupResponseMember] | None = None,
        leader: str | None = None,
    ) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=leader or self.leader_id or "",
            member_id=member_id,
            members=members or [],
        )

    def synced(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    def record(self, assignments: dict[str, bytes] | None = None) -> CoordinatorRecord:
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), self.to_value(assignments))

    @property
    def _join_key(self) -> TimerKey:
        return ("join", self.group_id)

    @property
    def _sync_key(self) -> TimerKey:
        return ("sync", self.group_id)

    def _heartbeat_key(self, member_id: str) -> TimerKey:
        return ("heartbeat", self.group_id, member_id)


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=int(code), member_id=member_id, protocol_name=None)


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=int(code))
