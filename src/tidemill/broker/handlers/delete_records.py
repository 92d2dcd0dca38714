"""DeleteRecords: v0-2 (KIP-107).

Behaviour: raises a partition's log start to the given offset, at most to the high watermark (-1
means just that; rule B12), and answers with the new log start. Topics that are only compacted are
not trimmed by hand: POLICY_VIOLATION.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import leading_partition
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import INTERNAL_TOPICS
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


@handles(ApiKey.DELETE_RECORDS, 0, 2)
def delete_records(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_delete(broker, topic.name, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _delete(
    broker: Broker, topic: str, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        partition = leading_partition(broker, topic, asked.partition_index)
        if topic in INTERNAL_TOPICS:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not partition.log.config.cleanup_delete:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        result.low_watermark = partition.delete_records_before(asked.offset)
    except ApiError as error:
        result.error_code = int(error.code)
    return result
