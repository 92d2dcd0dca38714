"""DescribeLogDirs: v1-5 (KIP-113, KIP-827).

Behaviour: every log directory with the size of each replica in it; null asks for all partitions,
otherwise those named that are there. A failed directory is listed with KAFKA_STORAGE_ERROR. v4 has
the directory's total and usable bytes, v5 says whether it is cordoned, which none ever is.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.errors import ErrorCode
from tidemill.storage.manager import DirDescription
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.log_dirs import (
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
    return DescribeLogDirsResponse(
        results=[_result(described, wanted) for described in broker.logs.describe_dirs()]
    )


def _result(
    described: DirDescription, wanted: set[tuple[str, int]] | None
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
    return DescribeLogDirsResult(
        log_dir=described.path,
        topics=list(topics.values()),
        total_bytes=described.total_bytes,
        usable_bytes=described.usable_bytes,
    )
