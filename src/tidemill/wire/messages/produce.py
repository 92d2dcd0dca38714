"""Produce (key 0): write record batches to the leaders of partitions.

Versions 0-2 are advertised because older librdkafka decides by them whether it may compress, but
nothing was ever sent in them that a broker of today accepts; the schema starts at 3.

* v3 has the transactional id, and record batches of the current format; v5 answers with the log
  start; v7 allows zstd; v8 answers with the records at fault and a message.
* v9 is flexible. v10 answers with the current leader and its address when the wrong broker was
  asked, which saves the client a Metadata request.
* v11 may answer TRANSACTION_ABORTABLE; v12 adds partitions to a transaction implicitly.
* v13 names topics by id instead of by name.

`current_leader` and `node_endpoints` must stay unset below v10: they are not ignorable.
"""

from __future__ import annotations

from uuid import UUID

from tidemill.wire.declare import (
    Message,
    Records,
    Struct,
    array,
    int16,
    int32,
    int64,
    optional_struct,
    record_batches,
    string,
    uuid,
)


class PartitionProduceData(Struct):
    index: int = int32()
    records: Records | None = record_batches(nullable="0+")


class TopicProduceData(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Message, versions="3-13", flexible="9+"):
    transactional_id: str | None = string(nullable="0+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable="0+", default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class PartitionProduceResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, "8+", ignorable=True
    )
    error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = optional_struct(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)


class ProduceResponse(Message, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)
