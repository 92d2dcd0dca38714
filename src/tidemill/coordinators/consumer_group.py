"""A consumer group of the newer protocol (KIP-848): the broker assigns, heartbeats say so.

Three epochs tell the story. The group's epoch grows when a member comes, goes or wants something
else, and when a topic it reads changes. The assignment's epoch says for which group epoch the
target was computed. A member's epoch follows the assignment's once the member has given back what
is not its own any more (`reconcile`). A heartbeat moves all three as far as they go.

Start at `ConsumerGroup.heartbeat`. Methods decide and return records; only the `replay_...` methods
of `consumer_state` change the group. Timers are soft: `on_loaded` starts them anew.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.coordinators import subscriptions
from tidemill.coordinators.assignors import ASSIGNORS, NO_PARTITIONS, Partitions
from tidemill.coordinators.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOTHING,
    ConsumerMember,
    MemberState,
)
from tidemill.coordinators.consumer_state import ConsumerGroupState, GroupState
from tidemill.coordinators.heartbeat_checks import check_epoch, check_heartbeat
from tidemill.coordinators.heartbeat_messages import (
    assignment_of,
    described_member,
    is_full,
    read_owned,
)
from tidemill.coordinators.reconcile import Reported, Target, reconcile
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result, Timers
from tidemill.coordinators.target_assignment import Draft, preferred_assignor
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import EMPTY_IMAGE, ClusterImage
from tidemill.types import TopicId
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from tidemill.config import BrokerConfig


__all__ = ["ConsumerGroup", "ConsumerGroupConfig", "GroupState"]


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """The broker's `group.consumer.*` settings."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    assignment_interval_ms: int = 1_000

    @classmethod
    def of(cls, config: BrokerConfig) -> ConsumerGroupConfig:
        named = [
            name.rpartition(".")[2].lower() for name in config.list("group.consumer.assignors")
        ]
        short = [name.removesuffix("assignor") for name in named]
        return cls(
            session_timeout_ms=config.int("group.consumer.session.timeout.ms"),
            heartbeat_interval_ms=config.int("group.consumer.heartbeat.interval.ms"),
            max_size=config.int("group.consumer.max.size"),
            assignors=tuple(name for name in short if name in ASSIGNORS) or tuple(ASSIGNORS),
            assignment_interval_ms=config.int("group.consumer.assignment.interval.ms"),
        )


class ConsumerGroup(ConsumerGroupState):
    """One group: what heartbeats, timers and deletions do to its replayed state."""

    def __init__(
        self,
        group_id: str,
        timers: Timers,
        clock: Clock,
        random: Random,
        config: ConsumerGroupConfig,
    ) -> None:
        super().__init__(group_id)
        self._timers = timers
        self._clock = clock
        self._random = random
        self._config = config
        self._image = EMPTY_IMAGE
        self._checked_image: ClusterImage | None = None

    # --- what others ask -------------------------------------------------------------------------

    @property
    def assignor(self) -> str:
        """The assignor in use: what most members ask for."""
        return preferred_assignor(self.members.values(), self._config.assignors)

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
        member = self._known(member_id)
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
        member = self._known(member_id or "")
        if member_epoch != member.member_epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

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
        self._image = image
        try:
            check_heartbeat(request, info.api_version, self._config.assignors)
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
        draft = Draft(self, self._image, info.now_ms)
        before, replaced_id = self._identify(request, reported, draft)
        member = self._listen(before, request, info, draft)
        self._follow_metadata(before, member, draft)
        self._assign_if_due(draft, info.now_ms)
        after = self._advance(member, replaced_id, reported, draft)
        self._watch_session(after.member_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self._config.heartbeat_interval_ms,
        )
        if is_full(request) or before.assigned != after.assigned:
            response.assignment = assignment_of(after)
        return Result(response, draft.records)

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
        member = self._known(request.member_id)
        check_epoch(member, request.member_epoch, reported)
        return member, None

    def _identify_static(
        self,
        request: ConsumerGroupHeartbeatRequest,
        instance_id: str,
        reported: Reported | None,
        draft: Draft,
    ) -> tuple[ConsumerMember, str | None]:
        holder = self.static_member(instance_id)
        if request.member_epoch != JOIN_EPOCH:
            member = self._check_instance(holder, request.member_id, instance_id)
            check_epoch(member, request.member_epoch, reported)
            return member, None
        if holder is None:
            return self._newcomer(request), None
        if not holder.is_away:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {instance_id} cannot join "
                f"the group because the instance id is owned by {holder.member_id} member.",
            )
        return self._replace(holder, request.member_id or self._new_id(), draft), holder.member_id

    def _newcomer(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
        if len(self.members) >= self._config.max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The consumer group has reached its maximum capacity of "
                f"{self._config.max_size} members.",
            )
        return ConsumerMember(request.member_id or self._new_id())

    def _replace(self, old: ConsumerMember, member_id: str, draft: Draft) -> ConsumerMember:
        """A static member came back under a new id: it takes over everything of the old one."""
        self._forget_timers(old.member_id)
        target = self.target.get(old.member_id, NO_PARTITIONS)
        new = replace(old, member_id=member_id, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        draft.remove(old.member_id)
        draft.say(new)
        draft.aim(member_id, target)
        draft.give(new)
        return new

    def _new_id(self) -> str:
        raw = self._random.getrandbits(128).to_bytes(16, "big")
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def _known(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def _check_instance(
        self, holder: ConsumerMember | None, member_id: str, instance_id: str
    ) -> ConsumerMember:
        if holder is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if holder.member_id != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{holder.member_id}.",
            )
        return holder

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

    def _follow_metadata(
        self, before: ConsumerMember, member: ConsumerMember, draft: Draft
    ) -> None:
        """Begin a new epoch if what the group reads is not what it was."""
        wants = (member.topic_names, member.topic_regex)
        wants_other = wants != (before.topic_names, before.topic_regex)
        if not wants_other and self._checked_image is self._image:
            return
        changed = draft.resolve_patterns(anew=self._checked_image is not self._image)
        current = draft.current_hash()
        if wants_other or changed or current != self.metadata_hash:
            draft.bump(current)
        else:
            # Only now: while the bump is not replayed, the next heartbeat has to look again.
            self._checked_image = self._image

    # --- what it gets ----------------------------------------------------------------------------

    def _assign_if_due(self, draft: Draft, now_ms: int) -> None:
        """Compute the target of a new epoch, but not more often than the interval allows."""
        if draft.group_epoch == draft.assignment_epoch:
            return
        wait_ms = self._assigned_at_ms + self._config.assignment_interval_ms - now_ms
        alone = len(draft.members) == 1
        if (
            self._assigned_at_ms
            and 0 < wait_ms <= self._config.assignment_interval_ms
            and not alone
        ):
            self._timers.schedule(self._assignment_key, wait_ms, self._assign_late)
            return
        self._timers.cancel(self._assignment_key)
        draft.assign(preferred_assignor(draft.members.values(), self._config.assignors))

    def _assign_late(self) -> Result[None]:
        """The interval is over: members find the new target with their next heartbeats."""
        if not self.members or self.group_epoch == self.assignment_epoch:
            return Result()
        draft = Draft(self, self._image, self._clock.now_ms())
        draft.assign(self.assignor)
        return Result(None, draft.records)

    def _advance(
        self,
        member: ConsumerMember,
        replaced_id: str | None,
        reported: Reported | None,
        draft: Draft,
    ) -> ConsumerMember:
        """Take the member one step further towards its target."""
        own = (member.member_id, replaced_id, None)
        target = Target(
            draft.assignment_epoch,
            self._reachable(member, draft),
            lambda topic, partition: self._holders.get((topic, partition)) in own,
        )
        after = reconcile(member, target, reported)
        if after == member:
            return member
        draft.give(after)
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            self._watch_revocation(after)
        else:
            self._timers.cancel(self._rebalance_key(after.member_id))
        return after

    def _reachable(self, member: ConsumerMember, draft: Draft) -> Partitions:
        """The member's target, without topics that it gave up since the target was computed."""
        target = draft.target.get(member.member_id, NO_PARTITIONS)
        if draft.group_epoch == draft.assignment_epoch:
            return target
        names = subscriptions.topic_names(member, draft.resolved)
        wanted = subscriptions.topic_ids(names, self._image)
        return {topic: parts for topic, parts in target.items() if topic in wanted}

    # --- leaving ---------------------------------------------------------------------------------

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        if request.instance_id is None:
            member = self._known(request.member_id)
        else:
            holder = self.static_member(request.instance_id)
            member = self._check_instance(holder, request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            return Result(response, self._step_away(member))
        return Result(response, self.remove_members([member.member_id]))

    def _step_away(self, member: ConsumerMember) -> list[CoordinatorRecord]:
        """Free the instance id and keep the partitions for whoever takes it up again."""
        self._timers.cancel(self._rebalance_key(member.member_id))
        draft = Draft(self, self._image, self._clock.now_ms())
        draft.give(replace(member, member_epoch=LEAVE_STATIC_EPOCH, revoking=NOTHING))
        return draft.records

    def remove_members(self, member_ids: Iterable[str]) -> list[CoordinatorRecord]:
        """The records that remove members and begin the epoch without them."""
        draft = Draft(self, self._image, self._clock.now_ms())
        for member_id in member_ids:
            self._forget_timers(member_id)
            draft.remove(member_id)
        draft.resolve_patterns(anew=False)
        draft.bump(draft.current_hash() if self._image is not EMPTY_IMAGE else self.metadata_hash)
        return draft.records

    # --- timers ----------------------------------------------------------------------------------

    def on_loaded(self) -> None:
        """The log is read: every member has a whole session to report to its new coordinator."""
        for member in self.members.values():
            self._watch_session(member.member_id)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._watch_revocation(member)

    def on_unloaded(self) -> None:
        """Somebody else coordinates the group now."""
        for member_id in self.members:
            self._forget_timers(member_id)
        self._timers.cancel(self._assignment_key)

    def _watch_session(self, member_id: str) -> None:
        def expire() -> Result[None]:
            if member_id not in self.members:
                return Result()
            return Result(None, self.remove_members([member_id]))

        delay_ms = self._config.session_timeout_ms
        self._timers.schedule(self._session_key(member_id), delay_ms, expire)

    def _watch_revocation(self, member: ConsumerMember) -> None:
        member_id, epoch = member.member_id, member.member_epoch

        def expire() -> Result[None]:
            now = self.members.get(member_id)
            if now is None or now.member_epoch != epoch or not now.revoking:
                return Result()
            return Result(None, self.remove_members([member_id]))

        delay_ms = max(member.rebalance_timeout_ms, 0)
        self._timers.schedule(self._rebalance_key(member_id), delay_ms, expire)

    def _forget_timers(self, member_id: str) -> None:
        self._timers.cancel(self._session_key(member_id))
        self._timers.cancel(self._rebalance_key(member_id))

    def _session_key(self, member_id: str) -> str:
        return f"consumer-session-{self.group_id}-{member_id}"

    def _rebalance_key(self, member_id: str) -> str:
        return f"consumer-rebalance-{self.group_id}-{member_id}"

    @property
    def _assignment_key(self) -> str:
        return f"consumer-assignment-{self.group_id}"
