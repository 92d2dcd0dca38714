"""The controller's calls, made over the wire: each as the request that a client would send.

What comes back is turned into what the same call returns in office, as far as anybody who answers a
client needs it: a plan says whether there was an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tidemill.controller.forwarding import Forwarder
from tidemill.controller.settings import ResourcePlan
from tidemill.controller.topics import DeletePlan, GrowthPlan
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ReplicaTrouble
from tidemill.types import TopicPartition
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.declare import Message
from tidemill.wire.messages.cluster import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    OfflinePartitions,
    OfflineReplicasRequest,
    OfflineReplicasResponse,
)
from tidemill.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidemill.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


async def _forward(forwarder: Forwarder, key: ApiKey, request: Message) -> Message:
    """In the newest version: brokers of one cluster are of one release, or nearly."""
    answer: Message = await forwarder.forward(key, APIS[key].max_version, request)
    return answer


def _error(code: int, message: str | None) -> ApiError | None:
    return ApiError(ErrorCode(code), message) if code else None


async def create_topics(
    forwarder: Forwarder, topics: Sequence[CreatableTopic], validate_only: bool
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    answer = await _forward(forwarder, ApiKey.CREATE_TOPICS, request)
    assert isinstance(answer, CreateTopicsResponse)
    return answer.topics


async def create_partitions(
    forwarder: Forwarder, topics: Sequence[CreatePartitionsTopic], validate_only: bool
) -> list[GrowthPlan]:
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    answer = await _forward(forwarder, ApiKey.CREATE_PARTITIONS, request)
    assert isinstance(answer, CreatePartitionsResponse)
    return [
        GrowthPlan(each.name, error=_error(each.error_code, each.error_message))
        for each in answer.results
    ]


async def delete_topics(
    forwarder: Forwarder, names: Sequence[str], topics: Sequence[DeleteTopicState]
) -> list[DeletePlan]:
    by_name = [DeleteTopicState(name=name) for name in names]
    request = DeleteTopicsRequest(topics=[*by_name, *topics])
    answer = await _forward(forwarder, ApiKey.DELETE_TOPICS, request)
    assert isinstance(answer, DeleteTopicsResponse)
    return [
        DeletePlan(each.name, each.topic_id, error=_error(each.error_code, each.error_message))
        for each in answer.responses
    ]


async def alter_configs(
    forwarder: Forwarder, resources: Sequence[AlterConfigsResource], validate_only: bool
) -> list[ResourcePlan]:
    request = AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    answer = await _forward(forwarder, ApiKey.ALTER_CONFIGS, request)
    assert isinstance(answer, AlterConfigsResponse)
    return _plans(answer.responses)


async def incremental_alter_configs(
    forwarder: Forwarder,
    resources: Sequence[IncrementalAlterConfigsResource],
    validate_only: bool,
) -> list[ResourcePlan]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    answer = await _forward(forwarder, ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    return _plans(answer.responses)


def _plans(responses: Iterable[AlterConfigsResourceResponse]) -> list[ResourcePlan]:
    return [
        ResourcePlan(
            each.resource_type,
            each.resource_name,
            error=_error(each.error_code, each.error_message),
        )
        for each in responses
    ]


async def alter_reassignments(
    forwarder: Forwarder, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    answer = await _forward(forwarder, ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
    assert isinstance(answer, AlterPartitionReassignmentsResponse)
    return answer


async def list_reassignments(
    forwarder: Forwarder, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    answer = await _forward(forwarder, ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
    assert isinstance(answer, ListPartitionReassignmentsResponse)
    return answer


async def elect_leaders(forwarder: Forwarder, request: ElectLeadersRequest) -> ElectLeadersResponse:
    answer = await _forward(forwarder, ApiKey.ELECT_LEADERS, request)
    assert isinstance(answer, ElectLeadersResponse)
    return answer


async def shut_down(forwarder: Forwarder, broker_id: int, broker_epoch: int) -> int:
    """The version of the image in which the broker leads nothing any more."""
    answer: ControlledShutdownResponse = await forwarder.send(
        ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    )
    _raise(answer.error_code, answer.error_message)
    return answer.image_version


async def lose_replicas(
    forwarder: Forwarder,
    broker_id: int,
    broker_epoch: int,
    lost: Iterable[TopicPartition],
    trouble: ReplicaTrouble,
) -> None:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, index in lost:
        by_topic[topic].append(index)
    answer: OfflineReplicasResponse = await forwarder.send(
        OfflineReplicasRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            trouble=trouble,
            topics=[
                OfflinePartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic.items()
            ],
        )
    )
    _raise(answer.error_code, answer.error_message)


def _raise(code: int, message: str | None) -> None:
    if code:
        raise ApiError(ErrorCode(code), message)
