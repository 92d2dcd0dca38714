"""Committing and reading a group's offsets: requests built, answers read, asked again if need be.

Used by a consumer for its own group and by `Admin` for any group. Newer brokers know topics by id:
then a commit that was meant for a deleted topic cannot land in a new one of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from tidemill.client.admin_types import Results
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, failure_of, from_code
from tidemill.client.group_coordinator import AGAIN, GroupCoordinator
from tidemill.errors import ErrorCode
from tidemill.types import ZERO_TOPIC_ID, TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

_LAST_COMMIT_BY_NAME = 9
_LAST_FETCH_BY_NAME = 9
_FETCH_BATCHED_FROM = 8
_FETCH_STABLE_FROM = 7


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next record to read, and a note that the committer may add."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: UUID = ZERO_TOPIC_ID
    """The topic that was read: what is committed for it never counts for another of its name."""


class Identity(NamedTuple):
    """Who commits: a member in its generation or epoch, or somebody from outside."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


OUTSIDER = Identity()

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


async def commit(
    coordinator: GroupCoordinator,
    offsets: Offsets,
    identity: Identity = OUTSIDER,
    *,
    timeout_ms: float | None = None,
) -> Results[TopicPartition, None]:
    """Commit; each partition has its result. What befalls the whole group is raised."""
    done: Results[TopicPartition, None] = Results()
    # Once and for all: if the topic is made anew while we try again, these are not its offsets.
    topic_ids = _topic_ids(coordinator, offsets)

    async def ask(connection: Connection) -> None:
        left = {tp: offset for tp, offset in offsets.items() if done.get(tp, 0) is not None}
        request, names = _commit_request(coordinator.group_id, left, topic_ids, identity)
        by_name = any(topic.topic_id == ZERO_TOPIC_ID for topic in request.topics)
        limit = _LAST_COMMIT_BY_NAME if by_name else None
        answer: OffsetCommitResponse = await connection.request(request, max_version=limit)
        done.update(_committed(answer, names))
        for partition, error in done.errors().items():
            is_gone = error.code is ErrorCode.UNKNOWN_TOPIC_ID and not _is_current(
                coordinator, partition.topic, topic_ids[partition]
            )
            if (error.code in AGAIN or error.code in _OF_THE_GROUP) and not is_gone:
                raise error

    if not offsets:
        return done
    await coordinator.call(ask, timeout_ms=timeout_ms)
    return Results({tp: done[tp] for tp in offsets if tp in done})


_OF_THE_GROUP = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_GROUP_ID,
    }
)


def _topic_ids(coordinator: GroupCoordinator, offsets: Offsets) -> dict[TopicPartition, UUID]:
    """Which topic each offset is of; where the committer does not say, the one that is there."""
    topics = coordinator.cluster.view.topics
    return {
        partition: committed.topic_id
        if committed.topic_id != ZERO_TOPIC_ID or partition.topic not in topics
        else topics[partition.topic].topic_id
        for partition, committed in offsets.items()
    }


def _is_current(coordinator: GroupCoordinator, name: str, topic_id: UUID) -> bool:
    """Whether the topic is still there, as far as we know; the next look is on its way."""
    known = coordinator.cluster.view.topics.get(name)
    coordinator.cluster.refresh_soon()
    return known is not None and known.topic_id == topic_id


def _commit_request(
    group_id: str,
    offsets: Offsets,
    topic_ids: Mapping[TopicPartition, UUID],
    identity: Identity,
) -> tuple[OffsetCommitRequest, dict[UUID, str]]:
    topics: dict[tuple[str, UUID], OffsetCommitRequestTopic] = {}
    names: dict[UUID, str] = {}
    for (name, index), committed in sorted(offsets.items()):
        topic_id = topic_ids[TopicPartition(name, index)]
        topic = topics.get((name, topic_id))
        if topic is None:
            names[topic_id] = name
            topic = OffsetCommitRequestTopic(name=name, topic_id=topic_id)
            topics[name, topic_id] = topic
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.epoch,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=list(topics.values()),
    )
    return request, names


def _committed(
    answer: OffsetCommitResponse, names: Mapping[UUID, str]
) -> dict[TopicPartition, ClientError | None]:
    found: dict[TopicPartition, ClientError | None] = {}
    for topic in answer.topics:
        name = topic.name or names.get(topic.topic_id, "")
        for entry in topic.partitions:
            partition = TopicPartition(name, entry.partition_index)
            code = entry.error_code
            found[partition] = failure_of(str(partition), code) if code else None
    return found


async def fetch(
    coordinator: GroupCoordinator,
    partitions: Iterable[TopicPartition] | None,
    identity: Identity | None = None,
    *,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> Results[TopicPartition, OffsetAndMetadata | None]:
    """What the group has committed, None where it has nothing; without partitions, everything."""
    wanted = None if partitions is None else list(dict.fromkeys(partitions))
    if wanted == []:
        return Results()

    async def ask(connection: Connection) -> Results[TopicPartition, OffsetAndMetadata | None]:
        version = connection.version_of(ApiKey.OFFSET_FETCH) or 0
        if version >= _FETCH_BATCHED_FROM:
            request = _fetch_request(coordinator.group_id, wanted, identity)
        else:
            request = _old_fetch_request(coordinator.group_id, wanted)
        request.require_stable = require_stable and version >= _FETCH_STABLE_FROM
        answer: OffsetFetchResponse = await connection.request(
            request, max_version=_LAST_FETCH_BY_NAME
        )
        found = _fetched(answer)
        for error in found.errors().values():
            if error.code in AGAIN:
                raise error
        return found

    found = await coordinator.call(ask, timeout_ms=timeout_ms)
    return found if wanted is None else Results({tp: found.get(tp) for tp in wanted})


def _fetch_request(
    group_id: str, wanted: list[TopicPartition] | None, identity: Identity | None
) -> OffsetFetchRequest:
    topics: list[OffsetFetchRequestTopics] | None = None
    if wanted is not None:
        topics = [
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in _indexes(wanted).items()
        ]
    group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    if identity is not None and identity.member_id:
        group.member_id, group.member_epoch = identity.member_id, identity.epoch
    return OffsetFetchRequest(groups=[group])


def _old_fetch_request(group_id: str, wanted: list[TopicPartition] | None) -> OffsetFetchRequest:
    topics = None
    if wanted is not None:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in _indexes(wanted).items()
        ]
    return OffsetFetchRequest(group_id=group_id, topics=topics)


def _indexes(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return topics


def _fetched(answer: OffsetFetchResponse) -> Results[TopicPartition, OffsetAndMetadata | None]:
    code = answer.groups[0].error_code if answer.groups else answer.error_code
    if code:
        raise from_code(code)
    results: Results[TopicPartition, OffsetAndMetadata | None] = Results()
    for topic in answer.groups[0].topics if answer.groups else answer.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                results[partition] = failure_of(str(partition), entry.error_code)
            elif entry.committed_offset < 0:
                results[partition] = None
            else:
                results[partition] = OffsetAndMetadata(
                    entry.committed_offset, entry.metadata or "", entry.committed_leader_epoch
                )
    return results
