"""What groups have committed: one offset per group, topic and partition.

`CommittedOffsets` is filled by replaying records and asked by the shard; nothing else writes to it.
An offset remembers the id of the topic it was committed for. A topic that was deleted and made
again has another id, and what was committed for the first one does not count for the second, even
if the deletion happened while this broker was down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tidemill.coordinators.records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.errors import ErrorCode
from tidemill.image import ClusterImage
from tidemill.types import ZERO_TOPIC_ID, TopicId
from tidemill.wire.declare import Message
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponsePartitions,
)

NO_OFFSET = -1


class Committed(NamedTuple):
    """One committed offset; `expires_ms` is only there if an old client asked for it."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int | None = None
    topic_id: TopicId = ZERO_TOPIC_ID


class Place(NamedTuple):
    """Where an offset was committed."""

    group_id: str
    topic: str
    partition: int


_Partitions = dict[int, Committed]


class CommittedOffsets:
    """The offsets of all groups of one partition of the offsets topic."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, _Partitions]] = {}
        self._groups_of: dict[str, set[str]] = {}
        """By topic, who has committed for it: a topic that goes must not be searched for."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, place: Place) -> Committed | None:
        topics = self._groups.get(place.group_id)
        partitions = None if topics is None else topics.get(place.topic)
        return None if partitions is None else partitions.get(place.partition)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    def of_group(self, group_id: str) -> Iterator[tuple[Place, Committed]]:
        """Everything that a group has committed."""
        for topic, partitions in list(self._groups.get(group_id, {}).items()):
            for index, committed in list(partitions.items()):
                yield Place(group_id, topic, index), committed

    def count_of(self, group_id: str, topic: str | None = None) -> int:
        """How many offsets a group has committed, in all or for one topic."""
        topics = self._groups.get(group_id, {})
        return sum(map(len, topics.values())) if topic is None else len(topics.get(topic, ()))

    def committed_for(self, topics: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
        """Topics and who has committed for them; what is forgotten meanwhile does not matter."""
        for topic in list(self._groups_of) if topics is None else topics:
            for group_id in list(self._groups_of.get(topic, ())):
                yield topic, group_id

    def groups(self) -> list[str]:
        return list(self._groups)

    # Replay.

    def replay(self, key: OffsetCommitKey | LegacyOffsetCommitKey, value: Message | None) -> None:
        place = Place(key.group, key.topic, key.partition)
        if value is None:
            self._forget(place)
        elif isinstance(value, OffsetCommitValue):
            expires_ms = None if value.expire_timestamp < 0 else value.expire_timestamp
            self._put(
                place,
                Committed(
                    value.offset,
                    value.leader_epoch,
                    value.metadata,
                    value.commit_timestamp,
                    expires_ms,
                    value.topic_id,
                ),
            )
        elif isinstance(value, LegacyOffsetCommitValue):
            self._put(place, Committed(value.offset, -1, value.metadata, value.commit_timestamp))

    def _put(self, place: Place, committed: Committed) -> None:
        topics = self._groups.setdefault(place.group_id, {})
        partitions = topics.get(place.topic)
        if partitions is None:
            partitions = topics[place.topic] = {}
            self._groups_of.setdefault(place.topic, set()).add(place.group_id)
        self._count += place.partition not in partitions
        partitions[place.partition] = committed

    def _forget(self, place: Place) -> None:
        topics = self._groups.get(place.group_id, {})
        partitions = topics.get(place.topic, {})
        if partitions.pop(place.partition, None) is None:
            return
        self._count -= 1
        if not partitions:
            del topics[place.topic]
            self._groups_of[place.topic].discard(place.group_id)
            if not self._groups_of[place.topic]:
                del self._groups_of[place.topic]
        if not topics:
            del self._groups[place.group_id]

    # What has to go.

    def orphans_of(self, group_id: str, image: ClusterImage) -> list[Place]:
        """A group's offsets whose topic is not there any more."""
        return [
            place
            for topic in self._groups.get(group_id, {})
            for place in self.orphans_in(group_id, topic, image)
        ]

    def orphans_in(self, group_id: str, topic: str, image: ClusterImage) -> Iterator[Place]:
        """A group's offsets of one topic that is not there any more."""
        known = image.topic(topic)
        valid = () if known is None else (ZERO_TOPIC_ID, known.topic_id)
        for index, committed in self._groups.get(group_id, {}).get(topic, {}).items():
            if committed.topic_id not in valid:
                yield Place(group_id, topic, index)

    def expired(
        self,
        group_id: str,
        now_ms: int,
        retention_ms: int,
        *,
        counts_from: Callable[[Committed], int],
        is_kept: Callable[[str], bool],
    ) -> list[Place]:
        """A group's offsets whose time is up, except in topics that must be kept (rule J5)."""
        return [
            place
            for place, committed in self.of_group(group_id)
            if not is_kept(place.topic)
            and now_ms >= _end_of_life(committed, counts_from(committed), retention_ms)
        ]


def _end_of_life(committed: Committed, from_ms: int, retention_ms: int) -> int:
    return from_ms + retention_ms if committed.expires_ms is None else committed.expires_ms


def tombstone(place: Place) -> CoordinatorRecord:
    key = OffsetCommitKey(group=place.group_id, topic=place.topic, partition=place.partition)
    return CoordinatorRecord(key, None)


def commit_records(
    request: OffsetCommitRequest, now_ms: int, metadata_max: int
) -> tuple[OffsetCommitResponse, list[CoordinatorRecord]]:
    """A commit's records, and its answer: notes that are too long are refused one by one."""
    expires_ms = -1 if request.retention_time_ms < 0 else now_ms + request.retention_time_ms
    answer = OffsetCommitResponse()
    records = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            code = ErrorCode.NONE
            if _java_length(partition.committed_metadata) > metadata_max:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                key = OffsetCommitKey(
                    group=request.group_id, topic=topic.name, partition=partition.partition_index
                )
                value = _commit_value(partition, topic.topic_id, now_ms, expires_ms)
                records.append(CoordinatorRecord(key, value))
            partitions.append(
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=int(code)
                )
            )
        answer.topics.append(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    return answer, records


def _commit_value(
    partition: OffsetCommitRequestPartition, topic_id: TopicId, now_ms: int, expires_ms: int
) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expires_ms,
        topic_id=topic_id,
    )


def fetched(index: int, committed: Committed | None) -> OffsetFetchResponsePartitions:
    """One partition of an OffsetFetch answer; an offset that nobody committed is -1."""
    if committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=NO_OFFSET, metadata=""
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _java_length(text: str | None) -> int:
    """The length as Kafka counts it: in UTF-16 code units."""
    if text is None:
        return 0
    return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)
