"""A consumer group of the newer protocol (KIP-848): the broker assigns, heartbeats say so.

Three epochs tell the story. The group's epoch grows when a member comes, goes or wants something
else, and when a topic it reads changes. The assignment's epoch says for which group epoch the
target was computed. A member's epoch follows the assignment's once the member has given back what
is not its own any more (`reconcile`). A heartbeat moves all three as far as they go.

Start at `ConsumerGroup.heartbeat`. Methods decide and return records; only the `replay_...` methods
of `consumer_state` change the group. The steps of a heartbeat are in `consumer_steps`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from tidemill.coordinators.assignors import NO_PARTITIONS
from tidemill.coordinators.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOTHING,
    ConsumerMember,
)
from tidemill.coordinators.consumer_state import GroupState
from tidemill.coordinators.consumer_steps import ConsumerGroupConfig, ConsumerSteps
from tidemill.coordinators.heartbeat_checks import check_epoch
from tidemill.coordinators.heartbeat_messages import (
    assignment_of,
    described_member,
    is_full,
    read_owned,
)
from tidemill.coordinators.reconcile import Reported
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result
from tidemill.coordinators.target_assignment import Draft
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage
from tidemill.types import TopicId
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)

__all__ = ["ConsumerGroup", "ConsumerGroupConfig", "GroupState"]


class ConsumerGroup(ConsumerSteps):
    """One group: what heartbeats do to it, and what others may ask of it."""

    # --- what others ask -------------------------------------------------------------------------

    def check_commit(
        self,
        member_id: str,
        member_epoch: int,
        partitions: Iterable[tuple[TopicId, int]] = (),
    ) -> None:
        """Raise unless the member may commit offsets of these partitions in that epoch.

        An older epoch is as good as long as the member has had the partitions since.
        """
        if member_epoch < 0 and not self.members:
            return
        member = self.known(member_id)
        if member_epoch == member.member_epoch:
            return
        if member.classic is not None:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        since = [member.assigned.get(t, {}).get(p, 2**31) for t, p in partitions]
        if not since or member_epoch > member.member_epoch or member_epoch < max(since):
            raise ApiError(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"The member epoch {member_epoch} does not match {member.member_epoch}, "
                f"the current one of member {member_id}.",
            )

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise unless committed offsets may be read by this member, or by one from outside."""
        if member_id is None and member_epoch < 0:
            return
        member = self.known(member_id or "")
        if member_epoch != member.member_epoch:
            classic = member.classic is not None
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH
            )

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def describe(self, image: ClusterImage) -> DescribedGroup:
        """The group as ConsumerGroupDescribe answers it."""
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            assignor_name=self.assignor,
            members=[
                described_member(m, self.target.get(m.member_id, NO_PARTITIONS), image)
                for m in self.members.values()
            ],
        )

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, info: RequestInfo, image: ClusterImage
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """Join, go on, or leave; an error is an answer, too."""
        self.image = image
        try:
            if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                return self._leave(request)
            return self._beat(request, info)
        except ApiError as error:
            return Result(
                ConsumerGroupHeartbeatResponse(
                    error_code=int(error.code), error_message=error.message
                )
            )

    def _beat(
        self, request: ConsumerGroupHeartbeatRequest, info: RequestInfo
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        reported = read_owned(request.topic_partitions)
        draft = self.draft(info.now_ms)
        before, replaced_id = self._identify(request, reported, draft)
        member = self._listen(before, request, info, draft)
        self.follow_metadata(before, member, draft)
        self.assign_if_due(draft, info.now_ms)
        after = self.advance(member, replaced_id, reported, draft)
        self.watch_session(after.member_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
        )
        if is_full(request) or before.assigned != after.assigned:
            response.assignment = assignment_of(after)
        then = partial(self.step_settled, after.member_id) if draft.records else None
        return Result(response, draft.records, then, is_large=draft.is_large)

    # --- who it is -------------------------------------------------------------------------------

    def _identify(
        self, request: ConsumerGroupHeartbeatRequest, reported: Reported | None, draft: Draft
    ) -> tuple[ConsumerMember, str | None]:
        """The member as it was, and the id of the static member whose place it takes."""
        if request.instance_id is not None:
            return self._identify_static(request, request.instance_id, reported, draft)
        joins = request.member_epoch == JOIN_EPOCH
        member = self.members.get(request.member_id)
        if member is None and joins:
            return self._newcomer(request), None
        member = self.known(request.member_id)
        check_epoch(member, request.member_epoch, reported)
        return member, None

    def _identify_static(
        self,
        request: ConsumerGroupHeartbeatRequest,
        instance_id: str,
        reported: Reported | None,
        draft: Draft,
    ) -> tuple[ConsumerMember, str | None]:
        if request.member_epoch != JOIN_EPOCH:
            member = self.check_instance(request.member_id, instance_id)
            check_epoch(member, request.member_epoch, reported)
            return member, None
        holder = self.static_member(instance_id)
        if holder is None:
            return self._newcomer(request), None
        if holder.classic is None and not holder.is_away:
            # A classic member does not say so when it goes for a while: it is simply replaced.
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {instance_id} cannot join "
                f"the group because the instance id is owned by {holder.member_id} member.",
            )
        return self.take_over(holder, request.member_id or self.new_id(), draft), holder.member_id

    def _newcomer(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
        self.check_room()
        return ConsumerMember(request.member_id or self.new_id())

    # --- what it wants ---------------------------------------------------------------------------

    def _listen(
        self,
        before: ConsumerMember,
        request: ConsumerGroupHeartbeatRequest,
        info: RequestInfo,
        draft: Draft,
    ) -> ConsumerMember:
        """The member with what the request says about it; null means as before."""
        said = replace(before, client_id=info.client_id, client_host=info.client_host, classic=None)
        if request.instance_id is not None:
            said = replace(said, instance_id=request.instance_id)
        if request.rack_id is not None:
            said = replace(said, rack_id=request.rack_id)
        if request.rebalance_timeout_ms != -1:
            said = replace(said, rebalance_timeout_ms=request.rebalance_timeout_ms)
        if request.server_assignor is not None:
            said = replace(said, server_assignor=request.server_assignor)
        if request.subscribed_topic_names is not None:
            said = replace(said, topic_names=frozenset(request.subscribed_topic_names))
        if request.subscribed_topic_regex is not None:
            said = replace(said, topic_regex=request.subscribed_topic_regex or None)
        if said != before or said.member_id not in self.members:
            draft.say(said)
        return said

    # --- leaving ---------------------------------------------------------------------------------

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        if request.instance_id is None:
            member = self.known(request.member_id)
        else:
            member = self.check_instance(request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            then = partial(self.step_settled, member.member_id)
            return Result(response, self._step_away(member), then)
        return Result(response, self.remove_members([member.member_id]), self.removal_settled)

    def _step_away(self, member: ConsumerMember) -> list[CoordinatorRecord]:
        """Free the instance id and keep the partitions for whoever takes it up again."""
        self.timers.cancel(self.rebalance_key(member.member_id))
        draft = self.draft()
        draft.give(replace(member, member_epoch=LEAVE_STATIC_EPOCH, revoking=NOTHING))
        return draft.records
