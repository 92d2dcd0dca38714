"""DescribeTopicPartitions: v0 (KIP-966).

Behaviour: topics in the order of their names, page by page: at most `response_partition_limit`
partitions (and never more than `max.request.partition.size.limit`), with a cursor to go on from.
The lists of eligible leader replicas are empty, never null: some clients take null for an error.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import TOPIC_OPERATIONS, offline_replicas
from tidemill.errors import ErrorCode
from tidemill.image import INTERNAL_TOPICS, ClusterImage, PartitionImage, TopicImage
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)
def describe_topic_partitions(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    cursor = request.cursor
    if cursor is not None and not _is_valid(cursor, request):
        return _refused(request)
    limit = broker.config.int("max.request.partition.size.limit")
    left = max(1, min(limit, request.response_partition_limit))
    image = broker.image
    response = DescribeTopicPartitionsResponse()
    for name in _names(broker, request):
        topic = image.topic(name)
        if topic is None:
            response.topics.append(_missing(broker, name))
            continue
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        is_cursor = cursor is not None and cursor.topic_name == name
        first = cursor.partition_index if cursor is not None and is_cursor else 0
        page = topic.partitions[first : first + left]
        response.topics.append(_described(image, topic, page))
        left -= len(page)
        if first + len(page) < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=first + len(page))
            break
    return response


def _is_valid(cursor: Cursor, request: DescribeTopicPartitionsRequest) -> bool:
    """A cursor names a partition of a topic that the same request asks for."""
    names = {asked.name for asked in request.topics}
    return cursor.partition_index >= 0 and (not names or cursor.topic_name in names)


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    code = int(ErrorCode.INVALID_REQUEST)
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=code, name=asked.name)
            for asked in request.topics
        ]
    )


def _names(broker: Broker, request: DescribeTopicPartitionsRequest) -> list[str]:
    """The topics that are asked for, sorted, from the cursor's on; all of them if none is named."""
    names = {asked.name for asked in request.topics} or set(broker.image.topics)
    start = "" if request.cursor is None else request.cursor.topic_name
    return sorted(name for name in names if name >= start)


def _missing(broker: Broker, name: str) -> DescribeTopicPartitionsResponseTopic:
    is_name = broker.is_topic_name(name)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_name else ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=int(code),
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described(
    image: ClusterImage, topic: TopicImage, partitions: tuple[PartitionImage, ...]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(partition, image) for partition in partitions],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(
    partition: PartitionImage, image: ClusterImage
) -> DescribeTopicPartitionsResponsePartition:
    has_leader = partition.has_leader
    return DescribeTopicPartitionsResponsePartition(
        error_code=0 if has_leader else int(ErrorCode.LEADER_NOT_AVAILABLE),
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=offline_replicas(partition, image),
    )
