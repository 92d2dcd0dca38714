"""Requests about topics built, and their answers read: no I/O here, see `admin` for that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from tidemill.client.admin_configs import config_source
from tidemill.client.admin_types import (
    ConfigEntry,
    CreatedTopic,
    NewPartitions,
    NewTopic,
    PartitionDescription,
    Results,
    TopicDescription,
    TopicListing,
)
from tidemill.client.errors import ClientError, UnsupportedError, failure_of
from tidemill.errors import ErrorCode
from tidemill.types import ZERO_TOPIC_ID, TopicPartition
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.metadata import MetadataResponse, MetadataResponsePartition
from tidemill.wire.messages.topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)
from tidemill.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

PAGES_MAX = 100_000
"""An answer that never ends would otherwise keep us asking forever."""


# --- list and describe ----------------------------------------------------------------------------


def listings(answer: MetadataResponse) -> list[TopicListing]:
    found = [
        TopicListing(topic.name or "", topic.topic_id, topic.is_internal)
        for topic in answer.topics
        if not topic.error_code
    ]
    return sorted(found, key=lambda listing: listing.name)


async def describe(
    call: Callable[[DescribeTopicPartitionsRequest], Awaitable[Any]], names: list[str] | None
) -> Results[str, TopicDescription]:
    """All pages of DescribeTopicPartitions; a topic may continue on the next page."""
    parts: dict[str, TopicDescription | ClientError] = {}
    # Brokers that page want the names in order.
    asked = [] if names is None else [TopicRequest(name=name) for name in sorted(names)]
    request = DescribeTopicPartitionsRequest(topics=asked, cursor=None)
    for _ in range(PAGES_MAX):
        answer: DescribeTopicPartitionsResponse = await call(request)
        _add_page(parts, answer)
        if answer.next_cursor is None:
            break
        cursor = answer.next_cursor
        left = [topic for topic in asked if topic.name >= cursor.topic_name]
        request = DescribeTopicPartitionsRequest(topics=left, cursor=cursor)
    order = sorted(parts) if names is None else [name for name in names if name in parts]
    return Results({name: parts[name] for name in order})


def _add_page(
    parts: dict[str, TopicDescription | ClientError], answer: DescribeTopicPartitionsResponse
) -> None:
    for topic in answer.topics:
        name = topic.name or ""
        if topic.error_code:
            parts[name] = failure_of(f"topic {name!r}", topic.error_code)
            continue
        before = parts.get(name)
        earlier = before.partitions if isinstance(before, TopicDescription) else ()
        page = tuple(_partition(entry) for entry in topic.partitions)
        parts[name] = TopicDescription(name, topic.topic_id, topic.is_internal, earlier + page)


def from_metadata(
    answer: MetadataResponse, names: list[str] | None
) -> Results[str, TopicDescription]:
    """The same from an older broker's Metadata."""
    results: Results[str, TopicDescription] = Results()
    for topic in sorted(answer.topics, key=lambda topic: topic.name or ""):
        name = topic.name or ""
        if topic.error_code:
            results[name] = failure_of(f"topic {name!r}", topic.error_code)
        else:
            ordered = sorted(topic.partitions, key=lambda entry: entry.partition_index)
            partitions = tuple(_partition(entry) for entry in ordered)
            results[name] = TopicDescription(name, topic.topic_id, topic.is_internal, partitions)
    return results if names is None else Results({n: results[n] for n in names if n in results})


def _partition(
    entry: DescribeTopicPartitionsResponsePartition | MetadataResponsePartition,
) -> PartitionDescription:
    elr = last_known_elr = None
    if isinstance(entry, DescribeTopicPartitionsResponsePartition):
        elr, last_known_elr = entry.eligible_leader_replicas, entry.last_known_elr
    return PartitionDescription(
        index=entry.partition_index,
        leader=entry.leader_id if entry.leader_id >= 0 else None,
        leader_epoch=entry.leader_epoch,
        replicas=tuple(entry.replica_nodes),
        isr=tuple(entry.isr_nodes),
        offline_replicas=tuple(entry.offline_replicas),
        elr=None if elr is None else tuple(elr),
        last_known_elr=None if last_known_elr is None else tuple(last_known_elr),
    )


# --- create, delete, grow -------------------------------------------------------------------------


def create_request(
    topics: Iterable[NewTopic], timeout_ms: int, *, validate_only: bool
) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[_creatable(topic) for topic in topics],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
        for index, replicas in (topic.assignments or {}).items()
    ]
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assignments else topic.partitions,
        replication_factor=-1 if assignments else topic.replication_factor,
        assignments=assignments,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in topic.configs.items()],
    )


def created(answer: CreateTopicsResponse) -> Results[str, CreatedTopic]:
    return Results({result.name: _created(result) for result in answer.topics})


def _created(result: CreatableTopicResult) -> CreatedTopic | ClientError:
    if result.error_code:
        return failure_of(f"topic {result.name!r}", result.error_code, result.error_message)
    configs = tuple(
        ConfigEntry(
            name=entry.name,
            value=entry.value,
            source=config_source(entry.config_source),
            read_only=entry.read_only,
            sensitive=entry.is_sensitive,
        )
        for entry in result.configs or ()
    )
    return CreatedTopic(
        result.name, result.topic_id, result.num_partitions, result.replication_factor, configs
    )


def delete_request(
    wanted: list[str | UUID], timeout_ms: int, *, ids_known: bool
) -> DeleteTopicsRequest:
    names = [topic for topic in wanted if isinstance(topic, str)]
    if not ids_known:
        if len(names) < len(wanted):
            raise UnsupportedError("this broker deletes topics by name only")
        return DeleteTopicsRequest(topic_names=names, timeout_ms=timeout_ms)
    states = [
        DeleteTopicState(topic_id=topic)
        if isinstance(topic, UUID)
        else DeleteTopicState(name=topic)
        for topic in wanted
    ]
    return DeleteTopicsRequest(topics=states, topic_names=names, timeout_ms=timeout_ms)


def deleted(answer: DeleteTopicsResponse, wanted: list[str | UUID]) -> Results[str | UUID, None]:
    results: Results[str | UUID, None] = Results()
    asked = set(wanted)
    for entry in answer.responses:
        by_id = entry.topic_id != ZERO_TOPIC_ID and entry.topic_id in asked
        key: str | UUID = entry.topic_id if by_id else entry.name or ""
        error = failure_of(f"topic {str(key)!r}", entry.error_code, entry.error_message)
        results[key] = error if entry.error_code else None
    return results


def grow_request(
    topics: Mapping[str, NewPartitions], timeout_ms: int, *, validate_only: bool
) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(
        topics=[_growth(name, growth) for name, growth in topics.items()],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


def _growth(name: str, growth: NewPartitions) -> CreatePartitionsTopic:
    assignments = None
    if growth.assignments is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=list(a)) for a in growth.assignments]
    return CreatePartitionsTopic(name=name, count=growth.total, assignments=assignments)


def grown(answer: CreatePartitionsResponse) -> Results[str, None]:
    return Results(
        {
            result.name: failure_of(
                f"topic {result.name!r}", result.error_code, result.error_message
            )
            if result.error_code
            else None
            for result in answer.results
        }
    )


def is_not_controller(answer: object) -> bool:
    """Whether the broker that we asked for a change was not the one that makes it."""
    entries: list[Any] = []
    if isinstance(answer, CreateTopicsResponse):
        entries = [*answer.topics]
    elif isinstance(answer, DeleteTopicsResponse):
        entries = [*answer.responses]
    elif isinstance(answer, CreatePartitionsResponse):
        entries = [*answer.results]
    return any(entry.error_code == ErrorCode.NOT_CONTROLLER for entry in entries)


# --- delete records -------------------------------------------------------------------------------


def delete_records_request(
    offsets: Mapping[TopicPartition, int], timeout_ms: int
) -> DeleteRecordsRequest:
    topics: dict[str, DeleteRecordsTopic] = {}
    for (name, index), offset in offsets.items():
        topic = topics.setdefault(name, DeleteRecordsTopic(name=name))
        topic.partitions.append(DeleteRecordsPartition(partition_index=index, offset=offset))
    return DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=timeout_ms)


def records_deleted(answer: DeleteRecordsResponse) -> dict[TopicPartition, int | ClientError]:
    results: dict[TopicPartition, int | ClientError] = {}
    for topic in answer.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                results[partition] = failure_of(str(partition), entry.error_code)
            else:
                results[partition] = entry.low_watermark
    return results
