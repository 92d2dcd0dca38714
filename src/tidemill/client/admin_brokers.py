"""Requests about brokers and producers built, and their answers read: no I/O here."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.client.admin_types import (
    ApiVersionRange,
    BrokerApiVersions,
    BrokerDescription,
    ClusterDescription,
    FeatureRange,
    LogDirDescription,
    ProducerDescription,
    ReplicaInfo,
)
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, failure_of, from_code
from tidemill.client.metadata import ClusterView
from tidemill.types import TopicPartition
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidemill.wire.messages.cluster import DescribeClusterResponse
from tidemill.wire.messages.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tidemill.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)


def cluster(answer: DescribeClusterResponse) -> ClusterDescription:
    if answer.error_code:
        raise from_code(answer.error_code, answer.error_message)
    brokers = [
        BrokerDescription(broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced)
        for broker in answer.brokers
    ]
    controller = answer.controller_id if answer.controller_id >= 0 else None
    return ClusterDescription(
        answer.cluster_id, controller, _by_id(brokers), answer.unclean_elections
    )


def from_view(view: ClusterView) -> ClusterDescription:
    brokers = [
        BrokerDescription(node.node_id, node.address.host, node.address.port, node.rack)
        for node in view.nodes.values()
    ]
    controller = view.controller_id if view.controller_id >= 0 else None
    return ClusterDescription(view.cluster_id, controller, _by_id(brokers))


def _by_id(brokers: Iterable[BrokerDescription]) -> tuple[BrokerDescription, ...]:
    return tuple(sorted(brokers, key=lambda broker: broker.broker_id))


def log_dirs_request(partitions: Iterable[TopicPartition] | None) -> DescribeLogDirsRequest:
    if partitions is None:
        return DescribeLogDirsRequest(topics=None)
    topics: dict[str, DescribableLogDirTopic] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, DescribableLogDirTopic(topic=name, partitions=[]))
        topic.partitions.append(index)
    return DescribeLogDirsRequest(topics=list(topics.values()))


def log_dirs(answer: DescribeLogDirsResponse) -> dict[str, LogDirDescription]:
    if answer.error_code:
        raise from_code(answer.error_code)
    return {result.log_dir: _log_dir(result) for result in answer.results}


def _log_dir(result: DescribeLogDirsResult) -> LogDirDescription:
    replicas = {
        TopicPartition(topic.name, entry.partition_index): ReplicaInfo(
            entry.partition_size, entry.offset_lag, entry.is_future_key
        )
        for topic in result.topics
        for entry in topic.partitions
    }
    return LogDirDescription(
        path=result.log_dir,
        error=failure_of(f"directory {result.log_dir}", result.error_code)
        if result.error_code
        else None,
        replicas=replicas,
        total_bytes=result.total_bytes,
        usable_bytes=result.usable_bytes,
        is_cordoned=result.is_cordoned,
    )


def producers_request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, TopicRequest] = {}
    for name, index in partitions:
        topics.setdefault(name, TopicRequest(name=name)).partition_indexes.append(index)
    return DescribeProducersRequest(topics=list(topics.values()))


def producers(
    answer: DescribeProducersResponse,
) -> dict[TopicPartition, list[ProducerDescription] | ClientError]:
    results: dict[TopicPartition, list[ProducerDescription] | ClientError] = {}
    for topic in answer.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                results[partition] = failure_of(
                    str(partition), entry.error_code, entry.error_message
                )
            else:
                results[partition] = [_producer(state) for state in entry.active_producers]
    return results


def _producer(state: ProducerState) -> ProducerDescription:
    return ProducerDescription(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        txn_start_offset=state.current_txn_start_offset,
    )


def versions(broker: BrokerDescription, connection: Connection) -> BrokerApiVersions:
    answer = connection.broker_versions or ApiVersionsResponse()
    apis = [_range(entry, connection) for entry in answer.api_keys]
    finalized = {entry.name: entry.max_version_level for entry in answer.finalized_features}
    features = [
        FeatureRange(
            entry.name, entry.min_version, entry.max_version, finalized.get(entry.name, -1)
        )
        for entry in answer.supported_features
    ]
    return BrokerApiVersions(broker, tuple(apis), tuple(features))


def _range(entry: ApiVersion, connection: Connection) -> ApiVersionRange:
    known = entry.api_key in APIS
    key = ApiKey(entry.api_key) if known else None
    return ApiVersionRange(
        api_key=entry.api_key,
        name=key.name if key is not None else f"UNKNOWN({entry.api_key})",
        min_version=entry.min_version,
        max_version=entry.max_version,
        usable=connection.version_of(key) if key is not None else None,
    )
