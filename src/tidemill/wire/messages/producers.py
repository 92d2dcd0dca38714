"""InitProducerId (key 22), DescribeProducers (61), AllocateProducerIds (67): producers' identities.

InitProducerId: v2 is flexible, v3 lets a producer that knows its id bump the epoch, v4 may answer
PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE. AllocateProducerIds hands a broker a block of ids.
"""

from __future__ import annotations

from tidemill.wire.declare import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int32s,
    int64,
    string,
)


class InitProducerIdRequest(Message, versions="0-5", flexible="2+"):
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)


class InitProducerIdResponse(Message, versions="0-5", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


class TopicRequest(Struct):
    name: str = string()
    partition_indexes: list[int] = int32s()


class DescribeProducersRequest(Message, versions="0", flexible="0+"):
    topics: list[TopicRequest] = array(TopicRequest)


class ProducerState(Struct):
    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class PartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState)


class TopicResponse(Struct):
    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


class DescribeProducersResponse(Message, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)


class AllocateProducerIdsRequest(Message, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class AllocateProducerIdsResponse(Message, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id_start: int = int64()
    producer_id_len: int = int32()
