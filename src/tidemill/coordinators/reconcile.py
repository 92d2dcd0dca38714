"""The next step of a member towards its target: give back first, then be given. Pure functions.

A partition is given to a member only when nobody holds it, and it is held until its member has
said, by reporting what it owns, that it let go. So no partition is ever used by two members at
once, whatever order their heartbeats come in. A member that has something to give back stays in
its epoch until it has done so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tidemill.coordinators.assignors import Partitions
from tidemill.coordinators.consumer_member import NOTHING, Assigned, ConsumerMember, MemberState
from tidemill.types import TopicId

Reported = Mapping[TopicId, frozenset[int]]
"""What a member said that it owns."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a member shall get to: its partitions in the assignment of that epoch."""

    epoch: int
    partitions: Partitions
    is_free: Callable[[TopicId, int], bool]
    """Whether nobody but the member itself holds the partition."""


@dataclass(slots=True)
class _Step:
    """The differences between what a member has and what it shall have."""

    stays: dict[TopicId, dict[int, int]]
    goes: dict[TopicId, dict[int, int]]
    comes: dict[TopicId, dict[int, int]]
    some_held_elsewhere: bool


def reconcile(member: ConsumerMember, target: Target, reported: Reported | None) -> ConsumerMember:
    """The member after its next step; the same object if there is none.

    `reported` is None when the member did not say what it owns: then nothing was given back.
    """
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns(reported, member.revoking):
        return member
    step = _difference(member, target)
    if member.is_reconciled(target.epoch) and not step.goes and not step.comes:
        return member
    if step.goes and _owns(reported, step.goes):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=step.stays,
            revoking=step.goes,
        )
    moves_on = target.epoch != member.member_epoch
    following = replace(
        member,
        state=_state_after(step),
        member_epoch=target.epoch,
        previous_epoch=member.member_epoch if moves_on else member.previous_epoch,
        assigned=_joined(step.stays, step.comes),
        revoking=NOTHING,
    )
    return member if following == member else following


def _state_after(step: _Step) -> MemberState:
    if step.some_held_elsewhere:
        return MemberState.UNRELEASED_PARTITIONS
    return MemberState.STABLE


def _owns(reported: Reported | None, held: Assigned) -> bool:
    """Whether the member still has any of these."""
    if reported is None:
        return True
    none: frozenset[int] = frozenset()
    return any(not reported.get(t, none).isdisjoint(parts) for t, parts in held.items())


def _difference(member: ConsumerMember, target: Target) -> _Step:
    step = _Step({}, {}, {}, some_held_elsewhere=False)
    for topic_id, epochs in member.assigned.items():
        wanted = target.partitions.get(topic_id, frozenset())
        for partition, epoch in epochs.items():
            part = step.stays if partition in wanted else step.goes
            part.setdefault(topic_id, {})[partition] = epoch
    for topic_id, wanted in target.partitions.items():
        have = member.assigned.get(topic_id, {})
        for partition in wanted:
            if partition in have:
                continue
            if target.is_free(topic_id, partition):
                step.comes.setdefault(topic_id, {})[partition] = target.epoch
            else:
                step.some_held_elsewhere = True
    return step


def _joined(stays: dict[TopicId, dict[int, int]], comes: dict[TopicId, dict[int, int]]) -> Assigned:
    for topic_id, partitions in comes.items():
        stays.setdefault(topic_id, {}).update(partitions)
    return stays
