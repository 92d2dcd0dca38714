"""AlterPartition (key 56): a leader proposes a new in-sync set to the controller.

v2 names topics by id, v3 carries each member's broker epoch. The protocol calls the structs of both
directions by the same names: those of the response end in `Result`.
"""

from __future__ import annotations

from uuid import UUID

from tidemill.wire.declare import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int32s,
    int64,
    uuid,
)


class BrokerState(Struct):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class PartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = int32s("0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class TopicData(Struct):
    topic_id: UUID = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class AlterPartitionRequest(Message, versions="2-3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[TopicData] = array(TopicData)


class PartitionDataResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = int32s()
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class TopicDataResult(Struct):
    topic_id: UUID = uuid()
    partitions: list[PartitionDataResult] = array(PartitionDataResult)


class AlterPartitionResponse(Message, versions="2-3", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicDataResult] = array(TopicDataResult)
