"""ListOffsets: v1-11.

Behaviour: the offset of the first record at or after a time, or of a place in the log: -1 latest
(the high watermark, or the last stable offset with isolation level 1; it never goes back), -2
earliest, -3 the record with the largest timestamp, -4 earliest on local disk, which here is the
earliest, -5 latest in tiered storage and -6 earliest waiting to be uploaded, of which there is
never any. What is not committed is not found (rule B8), and a new leader that does not know yet
what is answers OFFSET_NOT_AVAILABLE rather than less than its predecessor said (rule B5). A
follower, on a connection that has proved the cluster's secret, is told the log's end.

Version notes: v4 leader epochs (KIP-320); v5 OFFSET_NOT_AVAILABLE (KIP-207); v7 -3 (KIP-734); v8
-4 (KIP-405); v9 -5 (KIP-1005); v10 a timeout for tiered storage; v11 -6 (KIP-1023). A place that
the version does not know is answered with UNSUPPORTED_VERSION, a partition named twice with
INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import leading_partition
from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.partition import Partition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_KNOWN_FROM_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

_EPOCH_FROM_VERSION = 4
_NOT_AVAILABLE_FROM_VERSION = 5

Search = tuple[ListOffsetsPartitionResponse, Partition, int]


@handles(ApiKey.LIST_OFFSETS, 1, 11)
def list_offsets(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Deferred[ListOffsetsResponse]:
    named = Counter((t.name, p.partition_index) for t in request.topics for p in t.partitions)
    response = ListOffsetsResponse()
    searches: list[Search] = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
            times = named.pop((topic.name, asked.partition_index), 0)
            if times == 0:
                continue
            results.append(result)
            if times > 1:
                result.error_code = int(ErrorCode.INVALID_REQUEST)
                continue
            search = _answer(broker, context, request, topic.name, asked, result)
            if search is not None:
                searches.append(search)
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    if not searches:
        return _fitted(response, context.version)
    return _search(broker, response, searches, request.isolation_level, context.version)


def _answer(
    broker: Broker,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    asked: ListOffsetsPartition,
    result: ListOffsetsPartitionResponse,
) -> Search | None:
    """Fill in what is known without looking into the log; return the search if there is one."""
    place = asked.timestamp
    if place < 0 and context.version < _KNOWN_FROM_VERSION.get(place, context.version + 1):
        result.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
        return None
    try:
        partition = leading_partition(
            broker, topic, asked.partition_index, asked.current_leader_epoch
        )
    except ApiError as error:
        result.error_code = int(error.code)
        return None
    if place == LATEST:
        _put_latest(result, partition, context, request)
    elif place in (EARLIEST, EARLIEST_LOCAL):
        result.offset = partition.log.log_start_offset
        result.leader_epoch = partition.log.leader_epochs.epoch_for(result.offset)
    elif place not in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return result, partition, place
    return None


def _put_latest(
    result: ListOffsetsPartitionResponse,
    partition: Partition,
    context: RequestContext,
    request: ListOffsetsRequest,
) -> None:
    if request.replica_id >= 0 and request.replica_id == context.peer_id:
        result.offset = partition.log.log_end_offset
    elif partition.knows_high_watermark:
        result.offset = partition.readable_end(request.isolation_level)
    else:
        result.error_code = _not_available(context.version)
        return
    result.leader_epoch = partition.leader_epoch


def _not_available(version: int) -> int:
    """Ask again: the leader is new and has not heard from its followers (rule B5)."""
    if version >= _NOT_AVAILABLE_FROM_VERSION:
        return int(ErrorCode.OFFSET_NOT_AVAILABLE)
    return int(ErrorCode.LEADER_NOT_AVAILABLE)


def _fitted(response: ListOffsetsResponse, version: int) -> ListOffsetsResponse:
    """Old versions have no field for the leader epoch."""
    if version < _EPOCH_FROM_VERSION:
        for topic in response.topics:
            for result in topic.partitions:
                result.leader_epoch = -1
    return response


def _search(
    broker: Broker,
    response: ListOffsetsResponse,
    searches: list[Search],
    isolation_level: int,
    version: int,
) -> Deferred[ListOffsetsResponse]:
    """Look timestamps up in the executor: the place may be anywhere on the disk."""
    deferred: Deferred[ListOffsetsResponse] = Deferred()

    def work() -> list[tuple[int, int, int] | Exception | None]:
        return [_look_up(partition, place) for _, partition, place in searches]

    def then(
        found: list[tuple[int, int, int] | Exception | None] | None, error: BaseException | None
    ) -> None:
        for at, (result, partition, _) in enumerate(searches):
            _put(result, partition, error or (found or [])[at], isolation_level, version)
        deferred.complete(_fitted(response, version))

    broker.executor.submit(work, then)
    return deferred


def _look_up(partition: Partition, place: int) -> tuple[int, int, int] | Exception | None:
    try:
        if place == MAX_TIMESTAMP:
            return partition.log.max_timestamp()
        return partition.log.offset_for_timestamp(place)
    except ApiError as error:
        return error


def _put(
    result: ListOffsetsPartitionResponse,
    partition: Partition,
    found: tuple[int, int, int] | BaseException | None,
    isolation_level: int,
    version: int,
) -> None:
    if isinstance(found, ApiError):
        result.error_code = int(found.code)
    elif isinstance(found, BaseException):
        result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    elif found is not None and found[0] < partition.readable_end(isolation_level):
        result.offset, result.timestamp, result.leader_epoch = found
    elif not partition.knows_high_watermark:
        result.error_code = _not_available(version)
