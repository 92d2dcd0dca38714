"""DescribeLogDirs: v1-5, AlterReplicaLogDirs: v1-2 (KIP-113, KIP-827).

AlterReplicaLogDirs moves replicas between the log directories of this broker, in the background; a
copy under way is listed as a future replica with its lag, and goes on after a restart. A partition
that is not here is answered with REPLICA_NOT_AVAILABLE.

DescribeLogDirs tells every log directory with the size of each replica in it; null asks for all
partitions, otherwise those named that are there. A failed directory is listed with
KAFKA_STORAGE_ERROR. v4 has the directory's total and usable bytes, v5 says whether it is cordoned,
which none ever is.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.moving import Move
from tidemill.storage.manager import DirDescription
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(ApiKey.DESCRIBE_LOG_DIRS, 1, 5)
def describe_log_dirs(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse | Deferred[DescribeLogDirsResponse]:
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    moves = broker.replicas.moves.under_way
    return DescribeLogDirsResponse(
        results=[_result(described, wanted, moves) for described in broker.logs.describe_dirs()]
    )


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2)
def alter_replica_log_dirs(
    broker: Broker, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            result = results.setdefault(
                topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name)
            )
            result.partitions += [
                _move(broker, topic.name, index, wanted.path) for index in topic.partitions
            ]
    return AlterReplicaLogDirsResponse(results=list(results.values()))


def _move(broker: Broker, topic: str, index: int, path: str) -> AlterReplicaLogDirPartitionResult:
    result = AlterReplicaLogDirPartitionResult(partition_index=index)
    try:
        broker.replicas.moves.check_place(path)
        partition = broker.replicas.get(topic, index)
        if partition is None:
            raise ApiError(_why_not_here(broker, topic, index))
        broker.replicas.moves.move(partition, path)
    except ApiError as error:
        result.error_code = int(error.code)
    return result


def _why_not_here(broker: Broker, topic: str, index: int) -> ErrorCode:
    code = broker.replicas.why_missing(topic, index)
    return ErrorCode.REPLICA_NOT_AVAILABLE if code is ErrorCode.NOT_LEADER_OR_FOLLOWER else code


def _result(
    described: DirDescription, wanted: set[tuple[str, int]] | None, moves: list[Move]
) -> DescribeLogDirsResult:
    if described.error is not None:
        return DescribeLogDirsResult(
            error_code=int(ErrorCode.KAFKA_STORAGE_ERROR), log_dir=described.path
        )
    topics: dict[str, DescribeLogDirsTopic] = {}
    for (name, index), size_bytes in described.log_sizes.items():
        if wanted is not None and (name, index) not in wanted:
            continue
        topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
        topic.partitions.append(
            DescribeLogDirsPartition(partition_index=index, partition_size=size_bytes)
        )
    for move in moves:
        name, index = move.partition.topic_partition
        if move.path == described.path and (wanted is None or (name, index) in wanted):
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
            topic.partitions.append(_future(move, index))
    return DescribeLogDirsResult(
        log_dir=described.path,
        topics=list(topics.values()),
        total_bytes=described.total_bytes,
        usable_bytes=described.usable_bytes,
    )


def _future(move: Move, index: int) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=index,
        partition_size=0 if move.future is None else move.future.size_bytes,
        offset_lag=move.lag,
        is_future_key=True,
    )
