"""The steps that a member of a consumer group takes, whichever protocol it speaks.

A heartbeat of the newer protocol and a JoinGroup of the classic one say the same: who the member
is, what it wants, what it has. Both are answered by the same steps, each of which looks at the
group and writes into a `Draft`: find the member, begin a new epoch if what the group reads has
changed (`follow_metadata`), compute the target if that is due (`assign_if_due`), and move the
member towards it (`advance`). `ConsumerGroup` and `MixedGroup` put them together.

The group itself changes only when the draft's records are replayed. Timers are soft: `on_loaded`
starts them anew.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.coordinators import subscriptions
from tidemill.coordinators.assignment_plan import AssignmentPlan, TargetAssignment
from tidemill.coordinators.assignors import ASSIGNORS, NO_PARTITIONS, Partitions
from tidemill.coordinators.consumer_member import JOIN_EPOCH, ConsumerMember, MemberState
from tidemill.coordinators.consumer_state import ConsumerGroupState
from tidemill.coordinators.reconcile import Reported, Target, reconcile
from tidemill.coordinators.result import CoordinatorRecord, Result, TimerKey, Timers
from tidemill.coordinators.target_assignment import Draft, Resolution, preferred_assignor
from tidemill.coordinators.topic_search import TopicSearch
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import EMPTY_IMAGE, ClusterImage

if TYPE_CHECKING:
    from tidemill.config import BrokerConfig


SEARCH_AGAIN_MS = 20
ASSIGNED_AT_ONCE_MAX = 1_000
"""The heaviest plan that is computed while a heartbeat waits; larger ones go off the loop."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """The broker's `group.consumer.*` settings."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    assignment_interval_ms: int = 1_000
    classic_max_size: int = 2**31 - 1
    """How many members it may have as a classic group; none if it must not become one again."""

    @classmethod
    def of(cls, config: BrokerConfig) -> ConsumerGroupConfig:
        named = [
            name.rpartition(".")[2].lower() for name in config.list("group.consumer.assignors")
        ]
        short = [name.removesuffix("assignor") for name in named]
        policy = config.str("group.consumer.migration.policy").lower()
        may_downgrade = policy in ("downgrade", "bidirectional")
        return cls(
            session_timeout_ms=config.int("group.consumer.session.timeout.ms"),
            heartbeat_interval_ms=config.int("group.consumer.heartbeat.interval.ms"),
            max_size=config.int("group.consumer.max.size"),
            assignors=tuple(name for name in short if name in ASSIGNORS) or tuple(ASSIGNORS),
            assignment_interval_ms=config.int("group.consumer.assignment.interval.ms"),
            classic_max_size=config.int("group.max.size") if may_downgrade else 0,
        )

    def may_downgrade(self, member_count: int) -> bool:
        """Whether so many may become a classic group again (`group.consumer.migration.policy`)."""
        return member_count <= self.classic_max_size


class ConsumerSteps(ConsumerGroupState):
    """A group's replayed state, and what may be drafted on it.

    `image` is the cluster as the last request found it; `settings` are asked each time, since an
    operator may change them while the group lives.
    """

    def __init__(
        self,
        group_id: str,
        timers: Timers,
        clock: Clock,
        random: Random,
        settings: Callable[[], ConsumerGroupConfig],
        search: TopicSearch | None = None,
    ) -> None:
        super().__init__(group_id)
        self.search = search or TopicSearch(clock)
        self.timers = timers
        self.clock = clock
        self.image = EMPTY_IMAGE
        self._random = random
        self._settings = settings
        self._checked_image: ClusterImage | None = None
        self._checked_epoch = 0

    @property
    def settings(self) -> ConsumerGroupConfig:
        return self._settings()

    @property
    def assignor(self) -> str:
        """The assignor in use: what most members ask for."""
        return preferred_assignor(self.members.values(), self.settings.assignors)

    def draft(self, now_ms: int | None = None) -> Draft:
        return Draft(self, self.image, self.clock.now_ms() if now_ms is None else now_ms)

    # --- who it is -------------------------------------------------------------------------------

    def new_id(self) -> str:
        raw = self._random.getrandbits(128).to_bytes(16, "big")
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def known(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def check_instance(self, member_id: str, instance_id: str) -> ConsumerMember:
        """The member that holds the instance id, if that is who asks."""
        holder = self.static_member(instance_id)
        if holder is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if holder.member_id != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{holder.member_id}.",
            )
        return holder

    def check_room(self) -> None:
        """Raise unless one more may come (rule J6)."""
        most = self.settings.max_size
        if len(self.members) >= most:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def take_over(self, old: ConsumerMember, member_id: str, draft: Draft) -> ConsumerMember:
        """A static member came back under a new id: it takes over everything of the old one.

        The old one is watched until then, as if nothing had been asked; afterwards its timers find
        nobody.
        """
        target = self.target.get(old.member_id, NO_PARTITIONS)
        new = replace(old, member_id=member_id, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        draft.remove(old.member_id)
        draft.say(new)
        draft.aim(member_id, target)
        draft.give(new)
        return new

    # --- what it wants ---------------------------------------------------------------------------

    def follow_metadata(self, before: ConsumerMember, member: ConsumerMember, draft: Draft) -> None:
        """Begin a new epoch if what the group reads is not what it was."""
        wants = (member.topic_names, member.topic_regex)
        wants_other = wants != (before.topic_names, before.topic_regex)
        if wants_other or not self._is_checked:
            resolution = draft.resolve_patterns(anew=not self._is_checked)
            # A member that turns to a pattern keeps what it has until the topics are found.
            waits = member.topic_regex not in (None, *draft.resolved)
            joins = member.member_id not in self.members
            self._bump_if_due(draft, resolution, wants_other=wants_other and (joins or not waits))

    @property
    def _is_checked(self) -> bool:
        """Whether the group follows the image; an epoch that was not replayed does not count."""
        return self._checked_image is self.image and self.group_epoch >= self._checked_epoch

    def _bump_if_due(self, draft: Draft, resolution: Resolution, *, wants_other: bool) -> None:
        if wants_other or resolution.changed or resolution.finished:
            current = draft.current_hash()
            if wants_other or resolution.changed or current != self.metadata_hash:
                draft.bump(current)
        if not resolution.finished:
            self.timers.schedule(self._search_key, SEARCH_AGAIN_MS, self._search_on)
        self._checked_image, self._checked_epoch = self.image, draft.group_epoch

    def _search_on(self) -> Result[None]:
        """Go on looking for the patterns' topics; members hear of them when they heartbeat."""
        if not self.members:
            return Result()
        draft = self.draft()
        self._bump_if_due(draft, draft.resolve_patterns(anew=True), wants_other=False)
        return Result(None, draft.records, is_large=draft.is_large)

    # --- what it gets ----------------------------------------------------------------------------

    def assign_if_due(self, draft: Draft, now_ms: int) -> None:
        """Compute the target of a new epoch, but not more often than the interval allows."""
        if draft.group_epoch == draft.assignment_epoch:
            return
        if self.timers.is_computing(self._assignment_key):
            return
        wait_ms = self.assigned_at_ms + self.settings.assignment_interval_ms - now_ms
        alone = len(draft.members) == 1
        if (
            self.assigned_at_ms
            and 0 < wait_ms <= self.settings.assignment_interval_ms
            and not alone
        ):
            self.timers.schedule(self._assignment_key, wait_ms, self._assign_late)
            return
        plan = draft.plan(preferred_assignor(draft.members.values(), self.settings.assignors))
        if plan.weight > ASSIGNED_AT_ONCE_MAX:
            # A moment later, when the group is what this draft says.
            self.timers.schedule(self._assignment_key, 0, self._assign_late)
            return
        self.timers.cancel(self._assignment_key)
        draft.assign(plan.compute())

    def _assign_late(self) -> Result[None]:
        """The interval is over: members find the new target with their next heartbeats."""
        if not self.members or self.group_epoch == self.assignment_epoch:
            return Result()
        draft = self.draft()
        plan = draft.plan(self.assignor)
        if plan.weight <= ASSIGNED_AT_ONCE_MAX:
            draft.assign(plan.compute())
            return Result(None, draft.records)
        self.timers.compute(
            self._assignment_key, plan.compute, lambda found: self._computed(plan, found)
        )
        return Result()

    def _computed(self, plan: AssignmentPlan, found: TargetAssignment) -> Result[None]:
        """A target was computed off the loop; the group may have gone on meanwhile.

        One for an earlier epoch is a step in the right direction all the same: a group in which
        somebody always comes or goes would get none otherwise. The next heartbeat asks for more.
        """
        if not self.members:
            return Result()
        if found.epoch == self.group_epoch and plan.members.keys() != self.members.keys():
            return self._assign_late()  # A static member came back under another id.
        draft = self.draft()
        draft.assign(found)
        return Result(None, draft.records, is_large=draft.is_large)

    def advance(
        self,
        member: ConsumerMember,
        replaced_id: str | None,
        reported: Reported | None,
        draft: Draft,
    ) -> ConsumerMember:
        """Take the member one step further towards its target."""
        if member.is_reconciled(draft.assignment_epoch) and self._wants_as_before(member):
            return member  # As most heartbeats find it: nothing is looked through.
        own = (member.member_id, replaced_id, None)
        target = Target(
            draft.assignment_epoch,
            self._reachable(member, draft),
            lambda topic, partition: self.holder(topic, partition) in own,
        )
        after = reconcile(member, target, reported)
        if after == member:
            return member
        draft.give(after)
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            self._watch_revocation(after)
        else:
            self.timers.cancel(self.rebalance_key(after.member_id))
        return after

    def _wants_as_before(self, member: ConsumerMember) -> bool:
        known = self.members.get(member.member_id)
        return known is not None and (
            (known.topic_names, known.topic_regex) == (member.topic_names, member.topic_regex)
        )

    def _reachable(self, member: ConsumerMember, draft: Draft) -> Partitions:
        """The member's target, without topics that it gave up since the target was computed."""
        target = draft.target.get(member.member_id, NO_PARTITIONS)
        if draft.group_epoch == draft.assignment_epoch:
            return target
        names = subscriptions.topic_names(member, draft.resolved)
        name_of = self.image.topic_names.get
        return {topic: parts for topic, parts in target.items() if name_of(topic) in names}

    # --- leaving ---------------------------------------------------------------------------------

    def remove_members(self, member_ids: Iterable[str]) -> list[CoordinatorRecord]:
        """The records that remove members and begin the epoch without them."""
        draft = self.draft()
        for member_id in member_ids:
            self.forget_timers(member_id)
            draft.remove(member_id)
        draft.resolve_patterns(anew=False)
        if not self._is_checked:
            self._checked_image = None  # This epoch must not be taken for the one that was lost.
        draft.bump(draft.current_hash() if self.image is not EMPTY_IMAGE else self.metadata_hash)
        return draft.records

    def removal_settled(self, error: ErrorCode) -> None:
        """A removal that could not be written has not happened: all are watched as before."""
        if error is not ErrorCode.NONE:
            self.on_loaded()

    def step_settled(self, member_id: str, error: ErrorCode) -> None:
        """A step that could not be written was not taken: what is to be given back still is."""
        member = self.members.get(member_id)
        revokes = member is not None and member.state is MemberState.UNREVOKED_PARTITIONS
        if error is not ErrorCode.NONE and member is not None and revokes:
            self._watch_revocation(member)

    # --- timers ----------------------------------------------------------------------------------

    def on_loaded(self) -> None:
        """The log is read: every member has a whole session to report to its new coordinator."""
        for member in self.members.values():
            self.watch_session(member.member_id)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._watch_revocation(member)

    def on_unloaded(self) -> None:
        """Somebody else coordinates the group now."""
        for member_id in self.members:
            self.forget_timers(member_id)
        self.timers.cancel(self._assignment_key)
        self.timers.cancel(self._search_key)

    def watch_session(self, member_id: str) -> None:
        def expire() -> Result[None]:
            if member_id not in self.members:
                return Result()
            return Result(None, self.remove_members([member_id]), self.removal_settled)

        delay_ms = self.settings.session_timeout_ms
        self.timers.schedule(self.session_key(member_id), delay_ms, expire)

    def _watch_revocation(self, member: ConsumerMember) -> None:
        member_id, epoch = member.member_id, member.member_epoch

        def expire() -> Result[None]:
            now = self.members.get(member_id)
            if now is None or now.member_epoch != epoch or not now.revoking:
                return Result()
            return Result(None, self.remove_members([member_id]), self.removal_settled)

        delay_ms = max(member.rebalance_timeout_ms, 0)
        self.timers.schedule(self.rebalance_key(member_id), delay_ms, expire)

    def forget_timers(self, member_id: str) -> None:
        self.timers.cancel(self.session_key(member_id))
        self.timers.cancel(self.rebalance_key(member_id))

    def session_key(self, member_id: str) -> TimerKey:
        return ("consumer-session", self.group_id, member_id)

    def rebalance_key(self, member_id: str) -> TimerKey:
        return ("consumer-rebalance", self.group_id, member_id)

    @property
    def _search_key(self) -> TimerKey:
        return ("consumer-search", self.group_id)

    @property
    def _assignment_key(self) -> TimerKey:
        return ("consumer-assignment", self.group_id)
