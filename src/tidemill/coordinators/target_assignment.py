"""A change of a group on paper: what it will be once the records drafted here are replayed.

A heartbeat may change what a member wants, the topics a pattern stands for, the group's epoch and
the target assignment, each depending on the one before. `Draft` applies them to copies and gathers
the records; the group itself changes when they are replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidemill.coordinators import subscriptions
from tidemill.coordinators.assignment_plan import AssignmentPlan, TargetAssignment
from tidemill.coordinators.assignors import Partitions
from tidemill.coordinators.consumer_member import (
    ConsumerMember,
    assignment_record,
    metadata_record,
    target_record,
    tombstones,
)
from tidemill.coordinators.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.coordinators.topic_search import TopicSearch
from tidemill.errors import ApiError
from tidemill.image import ClusterImage

TOPICS_WRITTEN_AT_ONCE = 500


class Resolution(NamedTuple):
    """What came of looking for the topics of a group's patterns."""

    changed: bool
    """Some pattern stands for other topics than before."""
    finished: bool
    """All were looked for to the end; else look again a little later."""


class GroupView(Protocol):
    """What a draft starts from: a group's replayed state."""

    group_id: str
    members: dict[str, ConsumerMember]
    group_epoch: int
    assignment_epoch: int
    metadata_hash: int
    target: dict[str, Partitions]
    resolved: dict[str, frozenset[str]]
    search: TopicSearch


class Draft:
    """One change under way; `records` is what it comes to."""

    def __init__(self, group: GroupView, image: ClusterImage, now_ms: int) -> None:
        self._group_id = group.group_id
        self._image = image
        self._now_ms = now_ms
        self._search = group.search
        self.records: list[CoordinatorRecord] = []
        self.members: Mapping[str, ConsumerMember] = group.members
        self.target: Mapping[str, Partitions] = group.target
        self.resolved: Mapping[str, frozenset[str]] = group.resolved
        self.group_epoch = group.group_epoch
        self.assignment_epoch = group.assignment_epoch
        self.metadata_hash = group.metadata_hash
        self._topics_written = 0

    @property
    def is_large(self) -> bool:
        """Whether the records had better be encoded off the loop."""
        return self._topics_written > TOPICS_WRITTEN_AT_ONCE

    # --- members ---------------------------------------------------------------------------------

    def say(self, member: ConsumerMember) -> None:
        """The member said something new about itself."""
        self.members = {**self.members, member.member_id: member}
        self.records.append(metadata_record(self._group_id, member))

    def give(self, member: ConsumerMember) -> None:
        """The member's epoch, state or partitions changed."""
        self.members = {**self.members, member.member_id: member}
        self.records.append(assignment_record(self._group_id, member))
        self._topics_written += len(member.assigned) + len(member.revoking)

    def remove(self, member_id: str) -> None:
        self.members = {key: m for key, m in self.members.items() if key != member_id}
        self.target = {key: t for key, t in self.target.items() if key != member_id}
        self.records += tombstones(self._group_id, member_id)

    def aim(self, member_id: str, partitions: Partitions) -> None:
        """Write one member's part of the target assignment."""
        self.target = {**self.target, member_id: partitions}
        self.records.append(target_record(self._group_id, member_id, partitions))

    # --- topics ----------------------------------------------------------------------------------

    def resolve_patterns(self, *, anew: bool) -> Resolution:
        """Find the topics of patterns that are new, or with `anew` of all."""
        used = subscriptions.patterns(self.members.values())
        changed, finished = False, True
        for pattern in sorted(used):
            before = self.resolved.get(pattern)
            if before is None or anew:
                topics = self._resolve(pattern, before)
                if topics is None:
                    finished = False
                elif topics != before:
                    self._write_pattern(pattern, topics)
                    changed = True
        for pattern in sorted(self.resolved.keys() - used):
            self._drop_pattern(pattern)
        return Resolution(changed, finished)

    def _resolve(self, pattern: str, before: frozenset[str] | None) -> frozenset[str] | None:
        """A pattern that was taken once, perhaps by an older version, fails nobody's heartbeat."""
        try:
            return subscriptions.resolve(pattern, self._image, self._search)
        except ApiError:
            if before is None:
                raise
            return before

    def _write_pattern(self, pattern: str, topics: frozenset[str]) -> None:
        self.resolved = {**self.resolved, pattern: topics}
        self._topics_written += len(topics)
        key = ConsumerGroupRegularExpressionKey(group_id=self._group_id, regular_expression=pattern)
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(topics), version=self._image.version, timestamp=self._now_ms
        )
        self.records.append(CoordinatorRecord(key, value))

    def _drop_pattern(self, pattern: str) -> None:
        self.resolved = {key: t for key, t in self.resolved.items() if key != pattern}
        key = ConsumerGroupRegularExpressionKey(group_id=self._group_id, regular_expression=pattern)
        self.records.append(CoordinatorRecord(key, None))

    def current_hash(self) -> int:
        """The hash of everything that anybody wants, as it is now."""
        names = subscriptions.all_names(self.members.values(), self.resolved)
        return subscriptions.metadata_hash(names, self._image)

    # --- epochs and the target -------------------------------------------------------------------

    def bump(self, metadata_hash: int) -> None:
        """Begin a new epoch of the group."""
        self.group_epoch += 1
        self.metadata_hash = metadata_hash
        value = ConsumerGroupMetadataValue(epoch=self.group_epoch, metadata_hash=metadata_hash)
        key = ConsumerGroupMetadataKey(group_id=self._group_id)
        self.records.append(CoordinatorRecord(key, value))

    def plan(self, assignor: str) -> AssignmentPlan:
        """What an assignor has to know for the group's epoch; it stays as it is now."""
        return AssignmentPlan(
            self._group_id,
            self.group_epoch,
            assignor,
            dict(self.members),
            dict(self.target),
            dict(self.resolved),
            self._image,
        )

    def assign(self, found: TargetAssignment) -> None:
        """Write what is new of a target, for whoever is still there."""
        shares = {key: share for key, share in found.shares.items() if key in self.members}
        self.records += [record for key, record in found.records.items() if key in shares]
        self._topics_written += sum(map(len, shares.values()))
        self.target = shares
        self.assignment_epoch = found.epoch
        key = ConsumerGroupTargetAssignmentMetadataKey(group_id=self._group_id)
        # An assignment of nothing moved nobody, so the next one need not keep its distance.
        at_ms = self._now_ms if any(shares.values()) else 0
        value = ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=found.epoch, assignment_timestamp=at_ms
        )
        self.records.append(CoordinatorRecord(key, value))


def preferred_assignor(members: Iterable[ConsumerMember], offered: Sequence[str]) -> str:
    """The assignor that most members ask for; the first on offer where nobody asks."""
    votes = Counter(m.server_assignor for m in members if m.server_assignor in offered)
    if not votes:
        return offered[0]
    return min(votes, key=lambda name: (-votes[name], offered.index(name or "")))  # type: ignore[return-value]
