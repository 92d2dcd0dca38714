"""DeleteRecords: v0-2 (KIP-107).

Behaviour: raises a partition's log start to the given offset, at most to the high watermark (-1
means just that; rule B12). The answer waits until every live replica has done so, for at most the
request's timeout, and tells the least log start among them. Topics that are only compacted are not
trimmed by hand: POLICY_VIOLATION.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import leading_partition
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import INTERNAL_TOPICS
from tidemill.replication.partition import Partition
from tidemill.types import Offset
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
) -> DeleteRecordsResponse | Deferred[DeleteRecordsResponse]:
    return DeleteJob(broker, request).run()


class _Unfinished(NamedTuple):
    """A partition of which some replica still has what is to be deleted."""

    partition: Partition
    result: DeleteRecordsPartitionResult
    start: Offset


class DeleteJob:
    """One request: the deletions here, and the wait for the followers'."""

    def __init__(self, broker: Broker, request: DeleteRecordsRequest) -> None:
        self._broker = broker
        self._request = request
        self._unfinished: list[_Unfinished] = []
        self._response = DeleteRecordsResponse()
        self._deferred: Deferred[DeleteRecordsResponse] = Deferred()

    def run(self) -> DeleteRecordsResponse | Deferred[DeleteRecordsResponse]:
        for topic in self._request.topics:
            results = [self._delete(topic.name, asked) for asked in topic.partitions]
            self._response.topics.append(
                DeleteRecordsTopicResult(name=topic.name, partitions=results)
            )
        if not self._unfinished:
            return self._response
        watched = {entry.partition: None for entry in self._unfinished}
        self._broker.purgatory.watch(self, watched, max(0, self._request.timeout_ms))
        return self._deferred

    def _delete(self, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        result = DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=-1
        )
        try:
            partition = leading_partition(self._broker, topic, asked.partition_index)
            if topic in INTERNAL_TOPICS:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            if not partition.log.config.cleanup_delete:
                raise ApiError(ErrorCode.POLICY_VIOLATION)
            entry = _Unfinished(partition, result, partition.delete_records_before(asked.offset))
        except ApiError as error:
            result.error_code = int(error.code)
            return result
        if not self._settle(entry):
            self._unfinished.append(entry)
        return result

    def _settle(self, entry: _Unfinished) -> bool:
        """Whether all live replicas have deleted it, or nobody can tell any more."""
        try:
            entry.partition.check_leader()
            entry.result.low_watermark = entry.partition.low_watermark
        except ApiError as error:
            entry.result.error_code = int(error.code)
            entry.result.low_watermark = -1
            return True
        return entry.result.low_watermark >= entry.start

    # Waiting (`purgatory.Waiter`).

    def moved(self, partition: Partition) -> bool:
        self._unfinished = [
            entry
            for entry in self._unfinished
            if entry.partition is not partition or not self._settle(entry)
        ]
        return not self._unfinished

    def finish(self) -> None:
        """Answer; what some replica still has, has timed out."""
        for entry in self._unfinished:
            if not self._settle(entry):
                entry.result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
        self._deferred.complete(self._response)

    def fail(self, error: Exception) -> None:
        self._deferred.fail(error)
