"""Questions about offsets that both `Admin` and `Consumer` ask of partition leaders."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.client.admin_types import ListedOffset, OffsetSpec, Results
from tidemill.client.by_leader import ask_leaders
from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, UnsupportedError, failure_of
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

ISOLATION_LEVELS: Mapping[str, int] = {"read_uncommitted": 0, "read_committed": 1}
CONSUMER_REPLICA_ID = -1
_SPEC_VERSIONS = {OffsetSpec.MAX_TIMESTAMP: 7, OffsetSpec.EARLIEST_LOCAL: 8}


async def list_offsets(
    cluster: Cluster,
    specs: Mapping[TopicPartition, OffsetSpec],
    *,
    isolation_level: str = "read_uncommitted",
    timeout_ms: float | None = None,
) -> Results[TopicPartition, ListedOffset]:
    """The offset that each spec names."""

    async def ask(
        connection: Connection, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset | ClientError]:
        _check_specs(connection, [specs[partition] for partition in partitions])
        topics: dict[str, ListOffsetsTopic] = {}
        for name, index in partitions:
            topic = topics.setdefault(name, ListOffsetsTopic(name=name))
            info = cluster.view.leader(name, index)
            epoch = info.leader_epoch if info is not None else -1
            spec = int(specs[TopicPartition(name, index)])
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=epoch, timestamp=spec
                )
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=ISOLATION_LEVELS[isolation_level],
            topics=list(topics.values()),
            timeout_ms=cluster.settings.request_timeout_ms,
        )
        answer: ListOffsetsResponse = await connection.request(request)
        return _listed(answer)

    return await ask_leaders(cluster, specs, ask, timeout_ms=timeout_ms)


def _check_specs(connection: Connection, specs: list[OffsetSpec]) -> None:
    version = connection.version_of(ApiKey.LIST_OFFSETS) or 0
    for spec, needed in _SPEC_VERSIONS.items():
        if spec in specs and version < needed:
            raise UnsupportedError(f"the broker at {connection.address} cannot look this up")


def _listed(answer: ListOffsetsResponse) -> dict[TopicPartition, ListedOffset | ClientError]:
    results: dict[TopicPartition, ListedOffset | ClientError] = {}
    for topic in answer.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                results[partition] = failure_of(str(partition), entry.error_code)
            else:
                results[partition] = ListedOffset(entry.offset, entry.timestamp, entry.leader_epoch)
    return results


async def end_of_epochs(
    cluster: Cluster,
    epochs: Mapping[TopicPartition, int],
    *,
    timeout_ms: float | None = None,
) -> Results[TopicPartition, tuple[int, int]]:
    """(epoch, end offset) of the largest epoch not above the given one, on each leader."""

    async def ask(
        connection: Connection, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int] | ClientError]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for name, index in partitions:
            topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name))
            info = cluster.view.leader(name, index)
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=index,
                    current_leader_epoch=info.leader_epoch if info is not None else -1,
                    leader_epoch=epochs[TopicPartition(name, index)],
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values())
        )
        answer: OffsetForLeaderEpochResponse = await connection.request(request)
        return _epoch_ends(answer)

    return await ask_leaders(cluster, epochs, ask, timeout_ms=timeout_ms)


def _epoch_ends(
    answer: OffsetForLeaderEpochResponse,
) -> dict[TopicPartition, tuple[int, int] | ClientError]:
    results: dict[TopicPartition, tuple[int, int] | ClientError] = {}
    for topic in answer.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.topic, entry.partition)
            if entry.error_code:
                results[partition] = failure_of(str(partition), entry.error_code)
            else:
                results[partition] = (entry.leader_epoch, entry.end_offset)
    return results
