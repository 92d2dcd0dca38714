"""AlterPartitionReassignments: v0-1. ListPartitionReassignments: v0. ElectLeaders: v0-2.

Behaviour: moves of replicas are started, replaced and cancelled (KIP-455); they go on by themselves
(see `controller.reassignment`). v1 can forbid a change of the replication factor. ElectLeaders
moves leadership to the preferred replica, or with type 1 (KIP-460) to any live one of a partition
that nobody leads, whatever that loses.

Any broker can be asked: all three go to the controller. The time limit of a request is not used:
deciding takes milliseconds, and no answer waits for a move to be over.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.errors import ApiError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
    ReplicaElectionResult,
    TopicPartitions,
)


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1)
async def alter_partition_reassignments(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    try:
        return await broker.controller.alter_reassignments(request)
    except ApiError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.code,
            error_message=error.message,
            responses=[_unmoved(topic, error) for topic in request.topics],
        )


def _unmoved(topic: ReassignableTopic, error: ApiError) -> ReassignableTopicResponse:
    """The same error for every partition: clients look there, and not at the whole answer."""
    return ReassignableTopicResponse(
        name=topic.name,
        partitions=[
            ReassignablePartitionResponse(
                partition_index=each.partition_index,
                error_code=error.code,
                error_message=error.message,
            )
            for each in topic.partitions
        ],
    )


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
async def list_partition_reassignments(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    try:
        return await broker.controller.list_reassignments(request)
    except ApiError as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message
        )


@handles(ApiKey.ELECT_LEADERS, 0, 2)
async def elect_leaders(
    broker: Broker, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    try:
        return await broker.controller.elect_leaders(request)
    except ApiError as error:
        return ElectLeadersResponse(
            error_code=error.code if context.version else 0,
            replica_election_results=[
                _unelected(topic, error) for topic in request.topic_partitions or []
            ],
        )


def _unelected(topic: TopicPartitions, error: ApiError) -> ReplicaElectionResult:
    return ReplicaElectionResult(
        topic=topic.topic,
        partition_result=[
            PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
            for index in topic.partitions
        ],
    )
