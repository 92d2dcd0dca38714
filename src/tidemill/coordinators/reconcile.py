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

    stays: dict[TopicId, Mapping[int, int]]
    goes: dict[TopicId, Mapping[int, int]]
    comes: dict[TopicId, Mapping[int, int]]
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
    nothing: frozenset[int] = frozenset()
    for topic_id, have in member.assigned.items():
        wanted = target.partitions.get(topic_id, nothing)
        if have.keys() == wanted:
            step.stays[topic_id] = have
            continue
        for part, partitions in ((step.stays, have.keys() & wanted),
                                 (step.goes, have.keys() - wanted)):  # fmt: skip
            if partitions:
                part[topic_id] = {partition: have[partition] for partition in partitions}
    for topic_id, wanted in target.partitions.items():
        kept = step.stays.get(topic_id)
        missing = wanted if kept is None else wanted - kept.keys()
        if missing:
            free = [partition for partition in missing if target.is_free(topic_id, partition)]
            step.some_held_elsewhere |= len(free) < len(missing)
            if free:
                step.comes[topic_id] = dict.fromkeys(free, target.epoch)
    return step


def _joined(stays: Assigned, comes: Assigned) -> Assigned:
    joined = dict(stays)
    for topic_id, partitions in comes.items():
        kept = joined.get(topic_id)
        joined[topic_id] = partitions if kept is None else {**kept, **partitions}
    return joined
