"""A member of a group of the newer protocol: what it said, what it has, and the records of both.

A `ConsumerMember` never changes; the next one is made from it with `dataclasses.replace`. It is
spread over two records of the log: what the member said (`metadata_record`) and what it has been
given (`assignment_record`), and it is put together again by `with_metadata` and `with_assignment`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from tidemill.coordinators.assignors import Partitions, in_order
from tidemill.coordinators.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.types import TopicId

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""A static member that left for a while: its instance id is free, its partitions are kept."""

Assigned = Mapping[TopicId, Mapping[int, int]]
"""Per topic and partition the epoch in which the member was given it."""

NOTHING: Assigned = {}


class MemberState(IntEnum):
    """How far a member is on its way to its target; the numbers are in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member; `assigned` is what it may use, `revoking` what it still has to give back."""

    member_id: str
    member_epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    assigned: Assigned = field(default_factory=dict)
    revoking: Assigned = field(default_factory=dict)

    @property
    def is_away(self) -> bool:
        """A static member that left and may come back."""
        return self.member_epoch == LEAVE_STATIC_EPOCH

    def is_reconciled(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def holds(self) -> Iterable[tuple[TopicId, int]]:
        """Every partition that nobody else may be given now."""
        for held in (self.assigned, self.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    yield topic_id, partition


# --- records --------------------------------------------------------------------------------------


def metadata_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex or "",  # as Kafka writes it
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=member.classic,
        ),
    )


def with_metadata(
    member: ConsumerMember, value: ConsumerGroupMemberMetadataValue
) -> ConsumerMember:
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex or None,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=value.classic_member_metadata,
    )


def assignment_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            state=int(member.state),
            assigned_partitions=_current_topics(member.assigned),
            partitions_pending_revocation=_current_topics(member.revoking),
        ),
    )


def with_assignment(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerMember:
    epoch = value.member_epoch
    return replace(
        member,
        member_epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=_state(value.state),
        assigned=_assigned(value.assigned_partitions, epoch),
        revoking=_assigned(value.partitions_pending_revocation, epoch),
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    topics = [
        TargetTopicPartitions(topic_id=topic_id, partitions=sorted(target[topic_id]))
        for topic_id in in_order(target)
    ]
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics),
    )


def tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Everything about a member, gone."""
    return [
        CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None
        ),
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None
        ),
        CoordinatorRecord(
            ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None
        ),
    ]


def _current_topics(held: Assigned) -> list[CurrentTopicPartitions]:
    topics = []
    for topic_id in in_order(held):
        partitions = sorted(held[topic_id])
        epochs = [held[topic_id][partition] for partition in partitions]
        topics.append(
            CurrentTopicPartitions(
                topic_id=topic_id, partitions=partitions, assignment_epochs=epochs
            )
        )
    return topics


def _assigned(topics: Iterable[CurrentTopicPartitions], member_epoch: int) -> Assigned:
    """Records of older releases do not say since when: then it is since the member's epoch."""
    found: dict[TopicId, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=False))
    return found


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN
