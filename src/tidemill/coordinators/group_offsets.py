"""What the groups of a partition have committed: who may write and read it, and when it goes.

`GroupOffsets` is the half of a shard that has the offsets; `shard.GroupShard` is the other half,
which has the members. An offset that is committed for a group nobody knows makes a "simple" group:
a classic one without members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from tidemill.coordinators.classic_group import ClassicGroup
from tidemill.coordinators.classic_state import ClassicState
from tidemill.coordinators.consumer_group import ConsumerGroup
from tidemill.coordinators.mixed_group import MixedGroup
from tidemill.coordinators.offsets import (
    Committed,
    CommittedOffsets,
    Place,
    commit_records,
    fetched,
    tombstone,
)
from tidemill.coordinators.records import GroupMetadataKey
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result
from tidemill.coordinators.surroundings import Surroundings
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import ZERO_TOPIC_ID
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)

TOMBSTONES_PER_STEP = 500
"""Offsets that one step of a clean-up removes: a batch of them must fit any size limit."""
LOOKED_AT_PER_STEP = 1_000
"""Groups and offsets that one step of a clean-up looks at."""
_MEMBER_EPOCH_FROM_VERSION = 9

Group = ClassicGroup | MixedGroup


class GroupOffsets:
    """The groups of one partition, and their offsets."""

    def __init__(self, around: Surroundings) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = CommittedOffsets()
        self._around = around

    def existing(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    # Requests.

    def commit(
        self, request: OffsetCommitRequest, info: RequestInfo
    ) -> Result[OffsetCommitResponse]:
        """Raise unless the member may commit; what is accepted is in the records."""
        group = self.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation >= 0:
                newer = info.api_version >= _MEMBER_EPOCH_FROM_VERSION
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION
                )
        elif isinstance(group, ClassicGroup):
            group.check_commit(request.member_id, request.group_instance_id, generation)
            group.touch(request.member_id)
        else:
            self._check_consumer_commit(group, request, info)
        answer, records = commit_records(request, info.now_ms, self._around.settings.metadata_max)
        return Result(answer, records)

    def _check_consumer_commit(
        self, group: ConsumerGroup, request: OffsetCommitRequest, info: RequestInfo
    ) -> None:
        member = group.members.get(request.member_id)
        if (
            info.api_version < _MEMBER_EPOCH_FROM_VERSION
            and member is not None
            and member.classic is None
        ):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        partitions = [
            (topic.topic_id, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        group.check_commit(request.member_id, request.generation_id_or_member_epoch, partitions)

    def fetch(self, request: OffsetFetchRequestGroup) -> Result[OffsetFetchResponseGroup]:
        """What a group has committed, for the topics asked for or for all (None)."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            group.check_fetch(request.member_id, request.member_epoch)
        answer = OffsetFetchResponseGroup(group_id=request.group_id)
        if request.topics is None:
            answer.topics = self._all_offsets(request.group_id)
            return Result(answer)
        for topic in request.topics:
            answer.topics.append(
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        fetched(index, self._offset(request.group_id, topic.name, index))
                        for index in topic.partition_indexes
                    ],
                )
            )
        return Result(answer)

    def _offset(self, group_id: str, topic: str, partition: int) -> Committed | None:
        committed = self.offsets.get(Place(group_id, topic, partition))
        if committed is None or self._is_of_former_topic(topic, committed):
            return None
        return committed

    def _is_of_former_topic(self, topic: str, committed: Committed) -> bool:
        """Whether the topic was made again since: a commit may come after the clean-up."""
        known = self._around.image.topic(topic)
        return known is not None and committed.topic_id not in (ZERO_TOPIC_ID, known.topic_id)

    def _all_offsets(self, group_id: str) -> list[OffsetFetchResponseTopics]:
        topics: dict[str, OffsetFetchResponseTopics] = {}
        for place, committed in self.offsets.of_group(group_id):
            if self._is_of_former_topic(place.topic, committed):
                continue
            known = self._around.image.topic(place.topic)
            topic = topics.setdefault(place.topic, OffsetFetchResponseTopics(name=place.topic))
            if known is not None:
                topic.topic_id = known.topic_id
            topic.partitions.append(fetched(place.partition, committed))
        return list(topics.values())

    def delete_offsets(
        self, group_id: str, topics: Iterable[OffsetDeleteRequestTopic]
    ) -> Result[list[OffsetDeleteResponseTopic]]:
        """Forget single offsets, except of topics that the group still reads."""
        group = self.existing(group_id)
        if isinstance(group, ClassicGroup):
            group.check_offset_delete()
        answers, records = [], []
        for topic in topics:
            is_read = _is_subscribed(group, topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
            answer = OffsetDeleteResponseTopic(name=topic.name)
            for partition in topic.partitions:
                place = Place(group_id, topic.name, partition.partition_index)
                answer.partitions.append(
                    OffsetDeleteResponsePartition(
                        partition_index=place.partition, error_code=int(code)
                    )
                )
                if not is_read and self.offsets.get(place) is not None:
                    records.append(tombstone(place))
            answers.append(answer)
        return Result(answers, records)

    # Whole groups.

    def shrink(self, group_id: str) -> Iterator[Result[None]]:
        """Before a group is deleted: remove offsets of it until the rest fits a batch."""
        while self._may_delete(group_id) and self.offsets.count_of(group_id) > TOMBSTONES_PER_STEP:
            before = self.offsets.count_of(group_id)
            some = islice(self.offsets.of_group(group_id), TOMBSTONES_PER_STEP)
            yield Result(None, [tombstone(place) for place, _ in some])
            if self.offsets.count_of(group_id) == before:
                return  # It could not be written; the deletion will say so.

    def _may_delete(self, group_id: str) -> bool:
        group = self.groups.get(group_id)
        try:
            if group is not None:
                group.check_delete()
        except ApiError:
            return False
        return group is not None

    def delete(self, group_id: str) -> Result[None]:
        """Remove a group without members, and everything it has committed."""
        group = self.existing(group_id)
        group.check_delete()
        records = [tombstone(place) for place, _ in self.offsets.of_group(group_id)]
        return Result(None, records + _deletion(group))

    # Time and topics pass.

    def group_ids(self) -> list[str]:
        """All groups that are or have something here."""
        return list(self.groups.keys() | self.offsets.groups())

    def group_ids_in_steps(self) -> Iterator[list[str]]:
        """The same in portions for one turn of the loop each."""
        portion: list[str] = []
        weight = 0
        for group_id in self.group_ids():
            portion.append(group_id)
            weight += 1 + self.offsets.count_of(group_id)
            if weight >= LOOKED_AT_PER_STEP:
                yield portion
                portion, weight = [], 0
        yield portion

    def expire(self, group_ids: Iterable[str] | None = None) -> Iterator[Result[None]]:
        """Remove offsets whose time is up, and groups that have nothing left; of all, if None."""
        for group_id in self.group_ids() if group_ids is None else group_ids:
            group = self.groups.get(group_id)
            gone = set(self.offsets.orphans_of(group_id, self._around.image))
            if group is not None:
                gone.update(self._expired(group))
            *first, last = _portions([tombstone(place) for place in gone])
            yield from (Result(None, records) for records in first)
            # What could not be removed keeps its group: nobody else would look after it.
            if (
                group is not None
                and _is_empty(group)
                and self.offsets.count_of(group_id) == len(last)
            ):
                last += _deletion(group)
            if last:
                yield Result(None, last)

    def _expired(self, group: Group) -> list[Place]:
        """A group's offsets whose time is up (rule J5)."""
        counts_from = _clock_of(group)
        if counts_from is None:
            return []
        return self.offsets.expired(
            group.group_id,
            self._around.clock.now_ms(),
            self._around.settings.offsets_retention_ms,
            counts_from=counts_from,
            is_kept=lambda topic: _is_subscribed(group, topic),
        )

    def forget_deleted_topics(self, topics: Iterable[str] | None) -> Iterator[Result[None]]:
        """Remove the offsets of topics that are gone; all are looked at if none are named."""
        gone: list[CoordinatorRecord] = []
        looked_at = 0
        for topic, group_id in self.offsets.committed_for(topics):
            places = self.offsets.orphans_in(group_id, topic, self._around.image)
            gone += [tombstone(place) for place in places]
            looked_at += 1 + self.offsets.count_of(group_id, topic)
            if looked_at >= LOOKED_AT_PER_STEP:
                yield from _in_steps(gone) if gone else [Result()]
                gone, looked_at = [], 0
        yield from _in_steps(gone)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def _deletion(group: Group) -> list[CoordinatorRecord]:
    if isinstance(group, ClassicGroup):
        return [group_tombstone(group.group_id)]
    return group.deletion_records()


def _clock_of(group: Group) -> Callable[[Committed], int] | None:
    """From when an offset's time is counted; None while it is not counted at all (rule J5).

    In a group without members since the last one left, or since a commit after that. While there
    are members, only offsets of topics that nobody reads grow old; we know those of consumers only.
    A group that never had members has just its commits.
    """
    if isinstance(group, ConsumerGroup):
        since_ms = 0 if group.members else group.epoch_since_ms
        return lambda committed: max(committed.committed_ms, since_ms)
    if group.protocol_type is None:
        return lambda committed: committed.committed_ms
    if group.state is ClassicState.EMPTY:
        empty_ms = group.state_since_ms or 0
        return lambda committed: max(committed.committed_ms, empty_ms)
    if group.state is not ClassicState.STABLE or group.subscribed_topics is None:
        return None
    return lambda committed: committed.committed_ms


def _is_empty(group: Group) -> bool:
    return group.state == "Empty"


def _is_subscribed(group: Group, topic: str) -> bool:
    if isinstance(group, ClassicGroup):
        return group.is_subscribed_to(topic)
    return group.is_subscribed(topic)


def _in_steps(records: list[CoordinatorRecord]) -> Iterator[Result[None]]:
    return (Result(None, portion) for portion in _portions(records) if portion)


def _portions(records: list[CoordinatorRecord]) -> list[list[CoordinatorRecord]]:
    """Cut into pieces that fit a batch; at least one, which may be empty."""
    starts = range(0, max(len(records), 1), TOMBSTONES_PER_STEP)
    return [records[start : start + TOMBSTONES_PER_STEP] for start in starts]
