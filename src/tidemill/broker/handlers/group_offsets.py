"""OffsetCommit: v2-10. OffsetFetch: v1-10. OffsetDelete: v0.

Behaviour: offsets live in the group's partition of `__consumer_offsets` and are answered once they
are committed there. An offset remembers the topic's id: a topic that was deleted and made again
starts without the offsets of the first one, and a commit that names the old id is refused.
Version notes: OffsetCommit v6 leader epochs, v7 static members, v9 member epochs (KIP-848), v10
topic ids (UNKNOWN_TOPIC_ID). OffsetFetch v2 all topics (null), v7 require_stable, v8 many groups
(KIP-709), v9 member epochs, v10 topic ids.
Deviations: the offsets of a group of the newer protocol, too, expire counted from the moment it
became empty; Kafka counts from the commit, so a quiet topic's offset could go with the last member.
There are no transactions yet, so that every offset is stable and require_stable asks for nothing:
what an unfinished transaction has committed in a log of Kafka's is neither shown nor waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.group_requests import all_of, ask, request_info
from tidemill.coordinators.offsets import fetched
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import GroupShard
from tidemill.errors import ErrorCode
from tidemill.image import ClusterImage, TopicImage
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from tidemill.broker.context import Broker

_TOPIC_IDS_FROM = 10
_BATCHED_FETCH_FROM = 8
_TOP_LEVEL_ERROR_FROM = 2


# OffsetCommit.


@handles(ApiKey.OFFSET_COMMIT, 2, 10)
def offset_commit(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Deferred[OffsetCommitResponse]:
    refused = OffsetCommitResponse()
    accepted: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        known = _resolve(broker.image, topic, context.version)
        if known is not None:
            _split(topic, known, accepted, refused)
        else:
            by_id = context.version >= _TOPIC_IDS_FROM
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.topics.append(_failed(topic, code))
    if not accepted:
        return refused
    request.topics = accepted
    info = request_info(broker, context)
    answer = ask(
        broker,
        request.group_id,
        lambda shard: shard.commit(request, info),
        lambda code, _: OffsetCommitResponse(topics=[_failed(each, code) for each in accepted]),
        gather=True,
    )
    if not refused.topics:
        return answer
    merged: Deferred[OffsetCommitResponse] = Deferred()
    answer.listen(lambda response: merged.complete(_merge(refused, response)))
    return merged


def _resolve(
    image: ClusterImage, topic: OffsetCommitRequestTopic, version: int
) -> TopicImage | None:
    if version >= _TOPIC_IDS_FROM:
        return image.topic_by_id(topic.topic_id)
    return image.topic(topic.name)


def _split(
    topic: OffsetCommitRequestTopic,
    known: TopicImage,
    accepted: list[OffsetCommitRequestTopic],
    refused: OffsetCommitResponse,
) -> None:
    """Partitions that the topic has go to the group, the others back to the client."""
    topic.name, topic.topic_id = known.name, known.topic_id
    bad = [each for each in topic.partitions if known.partition(each.partition_index) is None]
    good = [each for each in topic.partitions if known.partition(each.partition_index) is not None]
    if bad:
        outside = OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=bad)
        refused.topics.append(_failed(outside, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if good:
        topic.partitions = good
        accepted.append(topic)


def _failed(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(
                partition_index=each.partition_index, error_code=int(code)
            )
            for each in topic.partitions
        ],
    )


def _merge(refused: OffsetCommitResponse, answer: OffsetCommitResponse) -> OffsetCommitResponse:
    """What was refused comes first; a topic with both kinds of partitions is one topic."""
    by_name = {topic.name: topic for topic in refused.topics if topic.name}
    for topic in answer.topics:
        if topic.name in by_name:
            by_name[topic.name].partitions += topic.partitions
        else:
            refused.topics.append(topic)
    return refused


# OffsetFetch.


@handles(ApiKey.OFFSET_FETCH, 1, 10)
def offset_fetch(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> Deferred[OffsetFetchResponse]:
    if context.version >= _BATCHED_FETCH_FROM:
        parts = [_fetch_group(broker, context, group) for group in request.groups]
        return all_of(parts, lambda groups: OffsetFetchResponse(groups=groups))
    asked = None if request.topics is None else request.topics
    group = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if asked is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in asked
        ],
    )
    part = _fetch_group(broker, context, group)
    return all_of([part], lambda groups: _single(groups[0], group, context.version))


def _fetch_group(
    broker: Broker, context: RequestContext, group: OffsetFetchRequestGroup
) -> Deferred[OffsetFetchResponseGroup]:
    unknown: list[OffsetFetchResponseTopics] = []
    if context.version >= _TOPIC_IDS_FROM and group.topics is not None:
        group.topics = list(_with_names(broker.image, group.topics, unknown))

    def operation(shard: GroupShard) -> Result[OffsetFetchResponseGroup]:
        result = shard.fetch(group)
        if result.response is not None:
            result.response.topics += unknown
            if context.version >= _TOPIC_IDS_FROM:
                # A topic without an id cannot be named any more.
                result.response.topics = [t for t in result.response.topics if t.topic_id.int]
        return result

    return ask(
        broker,
        group.group_id,
        operation,
        lambda code, _: OffsetFetchResponseGroup(group_id=group.group_id, error_code=int(code)),
    )


def _with_names(
    image: ClusterImage,
    topics: Iterable[OffsetFetchRequestTopics],
    unknown: list[OffsetFetchResponseTopics],
) -> Iterable[OffsetFetchRequestTopics]:
    for topic in topics:
        known = image.topic_by_id(topic.topic_id)
        if known is not None:
            topic.name = known.name
            yield topic
            continue
        partitions = [fetched(index, None) for index in topic.partition_indexes]
        for partition in partitions:
            partition.error_code = int(ErrorCode.UNKNOWN_TOPIC_ID)
        unknown.append(OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=partitions))


def _single(
    group: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """The answer to a request for one group; version 1 has errors per partition only."""
    if group.error_code and version < _TOP_LEVEL_ERROR_FROM:
        group.topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[fetched(index, None) for index in topic.partition_indexes],
            )
            for topic in asked.topics or []
        ]
        for topic in group.topics:
            for partition in topic.partitions:
                partition.error_code = group.error_code
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


# OffsetDelete.


@handles(ApiKey.OFFSET_DELETE, 0, 0)
def offset_delete(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Deferred[OffsetDeleteResponse]:
    refused: list[OffsetDeleteResponseTopic] = []
    accepted: list[OffsetDeleteRequestTopic] = []
    for topic in request.topics:
        known = broker.image.topic(topic.name)
        good = [p for p in topic.partitions if known and known.partition(p.partition_index)]
        bad = [p for p in topic.partitions if not (known and known.partition(p.partition_index))]
        if bad:
            refused.append(_undeleted(OffsetDeleteRequestTopic(name=topic.name, partitions=bad)))
        if good:
            accepted.append(OffsetDeleteRequestTopic(name=topic.name, partitions=good))
    if not accepted:
        return OffsetDeleteResponse(topics=refused)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=int(ErrorCode.INVALID_GROUP_ID))
    answer: Deferred[OffsetDeleteResponse] = Deferred()

    def deleted(topics: list[OffsetDeleteResponseTopic] | None) -> None:
        answer.complete(OffsetDeleteResponse(topics=_merge_deleted(refused, topics or [])))

    broker.groups.run(
        request.group_id,
        lambda shard: shard.delete_offsets(request.group_id, accepted),
        deleted,
        lambda code, _: answer.complete(OffsetDeleteResponse(error_code=int(code))),
    )
    return answer


def _undeleted(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(
                partition_index=each.partition_index,
                error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            )
            for each in topic.partitions
        ],
    )


def _merge_deleted(
    refused: list[OffsetDeleteResponseTopic], topics: list[OffsetDeleteResponseTopic]
) -> list[OffsetDeleteResponseTopic]:
    by_name = {topic.name: topic for topic in refused}
    for topic in topics:
        if topic.name in by_name:
            by_name[topic.name].partitions += topic.partitions
        else:
            refused.append(topic)
    return refused
