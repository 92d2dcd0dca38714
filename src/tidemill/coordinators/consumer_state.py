"""What the log says of a group of the newer protocol, and the only code that changes it.

Live and when the log is loaded, the same records come through the same `replay_...` methods, so a
group is what was answered about it. `ConsumerGroup` decides; it is an heir that changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from tidemill.coordinators import subscriptions
from tidemill.coordinators.assignors import Partitions
from tidemill.coordinators.consumer_member import (
    NOTHING,
    ConsumerMember,
    tombstones,
    with_assignment,
    with_metadata,
)
from tidemill.coordinators.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.types import TopicId

FIRST_EPOCH = 1
"""The epoch of a group that nobody has subscribed in yet."""


class GroupState(StrEnum):
    """As clients read it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroupState:
    """One group's members, target and epochs, and who has which partition."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: dict[str, ConsumerMember] = {}
        self.group_epoch = FIRST_EPOCH
        self.epoch_since_ms = 0
        """When the epoch began: of a group without members, when the last one left."""
        self.assignment_epoch = 0
        self.metadata_hash = 0
        self.target: dict[str, Partitions] = {}
        self.resolved: dict[str, frozenset[str]] = {}
        self.assigned_at_ms = 0
        self._holders: dict[tuple[TopicId, int], str] = {}
        self._by_instance: dict[str, str] = {}

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(m.is_reconciled(self.assignment_epoch) for m in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self._by_instance.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def holder(self, topic_id: TopicId, partition: int) -> str | None:
        """The member that has the partition, or still has to give it back."""
        return self._holders.get((topic_id, partition))

    def is_subscribed(self, topic: str) -> bool:
        """Whether any member wants the topic: its offsets must not expire or be deleted."""
        return any(
            topic in subscriptions.topic_names(member, self.resolved)
            for member in self.members.values()
        )

    def deletion_records(self) -> list[CoordinatorRecord]:
        """Tombstones for all there is of the group."""
        group_id = self.group_id
        records: list[CoordinatorRecord] = []
        for member_id in self.members:
            records += tombstones(group_id, member_id)
        for pattern in self.resolved:
            key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
            records.append(CoordinatorRecord(key, None))
        records.append(
            CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None)
        )
        records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), None))
        return records

    # --- replay ----------------------------------------------------------------------------------

    def replay_metadata(
        self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None
    ) -> None:
        if value is not None:
            self.group_epoch = value.epoch
            self.metadata_hash = value.metadata_hash

    def replay_member_metadata(
        self,
        key: ConsumerGroupMemberMetadataKey,
        value: ConsumerGroupMemberMetadataValue | None,
    ) -> None:
        before = self.members.get(key.member_id, ConsumerMember(key.member_id))
        if before.instance_id and self._by_instance.get(before.instance_id) == key.member_id:
            del self._by_instance[before.instance_id]
        if value is None:
            self.members.pop(key.member_id, None)
            self._release(before)
            return
        member = with_metadata(before, value)
        self.members[key.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = key.member_id

    def replay_target_metadata(
        self,
        key: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is not None:
            self.assignment_epoch = value.assignment_epoch
            self.assigned_at_ms = value.assignment_timestamp

    def replay_target_member(
        self,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            topics = value.topic_partitions
            self.target[key.member_id] = {t.topic_id: frozenset(t.partitions) for t in topics}

    def replay_current_assignment(
        self,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        before = self.members.get(key.member_id)
        if before is None and value is None:
            return
        before = before or ConsumerMember(key.member_id)
        self._release(before)
        if value is None:
            # The tombstone of the member itself follows; until then it has nothing.
            bare = ConsumerMember(key.member_id)
            after = replace(before, member_epoch=bare.member_epoch, previous_epoch=-1,
                            state=bare.state, assigned=NOTHING, revoking=NOTHING)  # fmt: skip
        else:
            after = with_assignment(before, value)
        self.members[key.member_id] = after
        for held in after.holds():
            self._holders[held] = key.member_id

    def replay_regex(
        self,
        key: ConsumerGroupRegularExpressionKey,
        value: ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is None:
            self.resolved.pop(key.regular_expression, None)
        else:
            self.resolved[key.regular_expression] = frozenset(value.topics)

    def _release(self, member: ConsumerMember) -> None:
        for held in member.holds():
            if self._holders.get(held) == member.member_id:
                del self._holders[held]
