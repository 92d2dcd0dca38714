"""OffsetForLeaderEpoch: v2-4 (KIP-101, KIP-279, KIP-320).

Behaviour: where the given leader epoch ended in our log, so that a reader whose history differs
learns how far both agree. An epoch that is not known is answered with -1 and -1 (rule D2), and the
current epoch in the request fences (rule A4).
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import leading_partition
from tidemill.errors import ApiError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_epochs import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4)
def offset_for_leader_epoch(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_offset(broker, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_offset(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = leading_partition(broker, topic, asked.partition, asked.current_leader_epoch)
    except ApiError as error:
        return EpochEndOffset(error_code=int(error.code), partition=asked.partition)
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
