"""Metadata: v0-13.

Behaviour: brokers, the controller, and topics by name, by id (v12+), or all of them (null; in v0
an empty list). A missing topic is created when the request and `auto.create.topics.enable` allow
it, with `num.partitions` and the default replication factor; as in Kafka the answer still says
UNKNOWN_TOPIC_OR_PARTITION, which is retriable, and the client finds it when it asks again.

Version notes: v8-10 cluster operations; v10 topic ids (KIP-516); v13 an error for the whole answer.
Deviations: the controller id is the broker that is the controller, where Kafka's KRaft brokers name
a random one of themselves.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    offline_replicas,
)
from tidemill.errors import ErrorCode
from tidemill.image import INTERNAL_TOPICS, ClusterImage, PartitionImage, TopicImage
from tidemill.types import ZERO_TOPIC_ID
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_NO_TOPIC_IDS_IN_REQUESTS = (10, 11)


@handles(ApiKey.METADATA, 0, 13)
def metadata(broker: Broker, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    if context.version in _NO_TOPIC_IDS_IN_REQUESTS and _uses_ids(request.topics or []):
        return MetadataResponse(topics=[_refused_id(asked) for asked in request.topics or []])
    image = broker.image
    response = MetadataResponse(
        brokers=_brokers(image, context.listener),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
    asks_all = request.topics is None or (context.version == 0 and not request.topics)
    if asks_all:
        response.topics = [_known(topic, image) for topic in image.topics.values()]
    elif any(asked.topic_id != ZERO_TOPIC_ID for asked in request.topics or []):
        response.topics = _topics_by_id(image, request.topics or [])
    else:
        response.topics = _asked_topics(broker, request)
    if request.include_topic_authorized_operations:
        for entry in response.topics:
            if entry.error_code == 0:
                entry.topic_authorized_operations = TOPIC_OPERATIONS
    return response


def _brokers(image: ClusterImage, listener: str) -> list[MetadataResponseBroker]:
    entries = []
    for member in image.alive_brokers():
        endpoint = member.endpoint(listener)
        if endpoint is not None:
            entries.append(
                MetadataResponseBroker(
                    node_id=member.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=member.rack,
                )
            )
    return entries


def _uses_ids(topics: list[MetadataRequestTopic]) -> bool:
    return any(asked.name is None or asked.topic_id != ZERO_TOPIC_ID for asked in topics)


def _refused_id(asked: MetadataRequestTopic) -> MetadataResponseTopic:
    """Versions 10 and 11 have the field for an id and no meaning for it."""
    return MetadataResponseTopic(
        error_code=int(ErrorCode.INVALID_REQUEST),
        name=asked.name or "",
        topic_id=asked.topic_id,
    )


def _asked_topics(broker: Broker, request: MetadataRequest) -> list[MetadataResponseTopic]:
    may_create = request.allow_auto_topic_creation and broker.config.bool(
        "auto.create.topics.enable"
    )
    image = broker.image
    entries: dict[str, MetadataResponseTopic] = {}
    missing: list[str] = []
    for asked in request.topics or []:
        name = asked.name or ""
        if name in entries:
            continue
        topic = image.topic(name)
        if topic is not None:
            entries[name] = _known(topic, image)
        else:
            entries[name] = _missing(broker, name)
            missing.append(name)
    if may_create:
        # The brokers make their internal topics themselves, in the shape that they need.
        wanted = [name for name in missing if name not in INTERNAL_TOPICS]
        broker.create_in_background([name for name in wanted if broker.is_topic_name(name)])
    return list(entries.values())


def _topics_by_id(
    image: ClusterImage, topics: list[MetadataRequestTopic]
) -> list[MetadataResponseTopic]:
    """A request that has ids goes by them alone; what is not known comes first."""
    by_id = {asked.topic_id: asked for asked in topics if asked.topic_id != ZERO_TOPIC_ID}
    unknown = [_unknown_id(asked) for key, asked in by_id.items() if key not in image.topic_names]
    known = [image.topics[image.topic_names[key]] for key in by_id if key in image.topic_names]
    return [*unknown, *(_known(topic, image) for topic in known)]


def _unknown_id(asked: MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=int(ErrorCode.UNKNOWN_TOPIC_ID), name=None, topic_id=asked.topic_id
    )


def _missing(broker: Broker, name: str) -> MetadataResponseTopic:
    is_name = broker.is_topic_name(name)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_name else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(
        error_code=int(code), name=name, is_internal=name in INTERNAL_TOPICS
    )


def _known(topic: TopicImage, image: ClusterImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(partition, image) for partition in topic.partitions],
    )


def _partition(partition: PartitionImage, image: ClusterImage) -> MetadataResponsePartition:
    has_leader = partition.has_leader
    return MetadataResponsePartition(
        error_code=0 if has_leader else int(ErrorCode.LEADER_NOT_AVAILABLE),
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=offline_replicas(partition, image),
    )
