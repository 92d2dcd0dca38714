"""The question that an assignor is asked, and its answer: a whole group at one moment.

An `AssignmentPlan` is a picture that nobody changes any more, so a large one is computed off the
event loop, while the group goes on (`consumer_steps.py` says when). Its answer says for which epoch
it is; by then the group may be in a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.coordinators import subscriptions
from tidemill.coordinators.assignors import ASSIGNORS, NO_PARTITIONS, Partitions, Subscriber
from tidemill.coordinators.consumer_member import ConsumerMember, target_record
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.image import ClusterImage
from tidemill.types import TopicId

_DIFFERENT_WISHES = 8
"""How much dearer a partition is where members want different topics."""


class TargetAssignment(NamedTuple):
    """Each member's share in an epoch of the group, and records of those that are new."""

    epoch: int
    shares: dict[str, Partitions]
    records: dict[str, CoordinatorRecord]


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """A group as an assignor is to see it; `target` is the last assignment."""

    group_id: str
    epoch: int
    assignor: str
    members: Mapping[str, ConsumerMember]
    target: Mapping[str, Partitions]
    resolved: subscriptions.Resolved
    image: ClusterImage

    @property
    def weight(self) -> int:
        """Roughly how many partitions there are to give out."""
        wishes = {subscriptions.topic_names(m, self.resolved) for m in self.members.values()}
        topics = (self.image.topics.get(name) for names in wishes for name in names)
        partitions = sum(len(topic.partitions) for topic in topics if topic is not None)
        return partitions * (_DIFFERENT_WISHES if len(wishes) > 1 else 1) + len(self.members)

    def compute(self) -> TargetAssignment:
        """Ask the assignor; a pure function, on whatever thread."""
        shares = ASSIGNORS[self.assignor](self._subscribers(), self._partition_counts())
        records = {
            member_id: target_record(self.group_id, member_id, share)
            for member_id, share in sorted(shares.items())
            if member_id not in self.target or share != self.target[member_id]
        }
        return TargetAssignment(self.epoch, shares, records)

    def _partition_counts(self) -> dict[TopicId, int]:
        names = subscriptions.all_names(self.members.values(), self.resolved)
        topics = (self.image.topics.get(name) for name in names)
        return {topic.topic_id: len(topic.partitions) for topic in topics if topic is not None}

    def _subscribers(self) -> dict[str, Subscriber]:
        ids: dict[frozenset[str], frozenset[TopicId]] = {}
        found = {}
        for member_id, member in self.members.items():
            names = subscriptions.topic_names(member, self.resolved)
            if names not in ids:
                ids[names] = subscriptions.topic_ids(names, self.image)
            owned = self.target.get(member_id, NO_PARTITIONS)
            found[member_id] = Subscriber(ids[names], owned, member.instance_id)
        return found
