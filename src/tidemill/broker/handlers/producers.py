"""InitProducerId: v0-5, and DescribeProducers: v0.

InitProducerId: without a transactional id every call gets a new producer id with epoch 0, from a
block that the controller handed out. A transactional id is refused with UNSUPPORTED_VERSION, which
clients report at once and do not retry: nobody coordinates transactions yet. An empty one, and an
id without its epoch or the other way round (v3+), get INVALID_REQUEST.

DescribeProducers (KIP-664): the idempotent producers that a partition remembers.

Deviations: an answer has a largest size: after so many producers other partitions are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import leading_partition
from tidemill.controller.names import check_topic_name
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

PRODUCERS_MAX = 100_000
"""The producers in one answer; what one partition has is told as a whole."""

_PRODUCERS_PER_TURN = 1_000


@handles(ApiKey.INIT_PRODUCER_ID, 0, 5)
def init_producer_id(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    has_id = request.producer_id >= 0
    has_epoch = request.producer_epoch >= 0
    if request.transactional_id == "" or has_id != has_epoch:
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    producer_id = broker.producer_ids.take()
    if producer_id is not None:
        return InitProducerIdResponse(producer_id=producer_id)
    return _from_next_block(broker)


async def _from_next_block(broker: Broker) -> InitProducerIdResponse:
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next())
    except ApiError as error:
        return _refused(error.code)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_id=-1, producer_epoch=-1)


@handles(ApiKey.DESCRIBE_PRODUCERS, 0, 0, is_heavy=True)
async def describe_producers(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    topics = []
    told = done = 0
    for topic in request.topics:
        results = []
        for index in topic.partition_indexes:
            result = _describe(broker, topic.name, index, told)
            results.append(result)
            told += len(result.active_producers)
            done += len(result.active_producers) + 1
            if done >= _PRODUCERS_PER_TURN:
                done = 0
                await asyncio.sleep(0)
        topics.append(TopicResponse(name=topic.name, partitions=results))
    return DescribeProducersResponse(topics=topics)


def _describe(broker: Broker, topic: str, index: int, told: int) -> PartitionResponse:
    """One partition's producers, unless that many others have been told already."""
    try:
        check_topic_name(topic)
        partition = leading_partition(broker, topic, index)
        if told >= PRODUCERS_MAX:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"One answer has about {PRODUCERS_MAX} producers at most: ask for less.",
            )
    except ApiError as error:
        why = error.message
        if why is None and topic not in broker.image.topics:
            why = "This broker does not have the topic."
        return PartitionResponse(
            partition_index=index, error_code=int(error.code), error_message=why
        )
    producers = [
        ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.current_txn_first_offset,
        )
        for entry in partition.log.producers.active()
    ]
    return PartitionResponse(partition_index=index, active_producers=producers)
