"""Requests that move replicas and leadership built, and their answers read: no I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.client.admin_types import ElectionType, Reassignment, Replica, Results
from tidemill.client.errors import ClientError, failure_of, from_code
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)

Targets = Mapping[TopicPartition, Sequence[int] | None]
"""Where the replicas of each partition shall be; None cancels the move that is under way."""

_Answer = (
    AlterPartitionReassignmentsResponse | ListPartitionReassignmentsResponse | ElectLeadersResponse
)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions' numbers by topic, each once, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, index in dict.fromkeys(partitions):
        found.setdefault(topic, []).append(index)
    return found


def is_not_controller(answer: object) -> bool:
    """Whether the broker that we asked was not the one that moves replicas."""
    return isinstance(answer, _Answer) and answer.error_code == ErrorCode.NOT_CONTROLLER


def _raise_if_failed(answer: Any) -> None:
    if answer.error_code:
        raise from_code(answer.error_code, getattr(answer, "error_message", None))


# --- moving replicas ------------------------------------------------------------------------------


def alter_request(
    targets: Targets, timeout_ms: int, *, allow_replication_factor_change: bool
) -> AlterPartitionReassignmentsRequest:
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), replicas in targets.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        wanted = None if replicas is None else list(replicas)
        topic.partitions.append(ReassignablePartition(partition_index=index, replicas=wanted))
    return AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms,
        allow_replication_factor_change=allow_replication_factor_change,
        topics=list(topics.values()),
    )


def altered(answer: AlterPartitionReassignmentsResponse) -> Results[TopicPartition, None]:
    _raise_if_failed(answer)
    results: Results[TopicPartition, None] = Results()
    for topic in answer.responses:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            results[partition] = _outcome(partition, entry)
    return results


def _outcome(partition: TopicPartition, entry: Any) -> ClientError | None:
    if not entry.error_code:
        return None
    return failure_of(str(partition), entry.error_code, entry.error_message)


def list_request(
    partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> ListPartitionReassignmentsRequest:
    if partitions is None:
        return ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=None)
    asked = [
        ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
        for name, indexes in by_topic(partitions).items()
    ]
    return ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=asked)


def listed(answer: ListPartitionReassignmentsResponse) -> dict[TopicPartition, Reassignment]:
    _raise_if_failed(answer)
    found = {
        TopicPartition(topic.name, entry.partition_index): Reassignment(
            tuple(entry.replicas), tuple(entry.adding_replicas), tuple(entry.removing_replicas)
        )
        for topic in answer.topics
        for entry in topic.partitions
    }
    return {partition: found[partition] for partition in sorted(found)}


# --- moving leadership ----------------------------------------------------------------------------


def elect_request(
    election: ElectionType, partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> ElectLeadersRequest:
    named = None
    if partitions is not None:
        named = [
            TopicPartitions(topic=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    return ElectLeadersRequest(
        election_type=int(election), topic_partitions=named, timeout_ms=timeout_ms
    )


def elected(answer: ElectLeadersResponse) -> Results[TopicPartition, None]:
    _raise_if_failed(answer)
    results: Results[TopicPartition, None] = Results()
    for topic in answer.replica_election_results:
        for entry in topic.partition_result:
            partition = TopicPartition(topic.topic, entry.partition_id)
            results[partition] = _outcome(partition, entry)
    return results


# --- moving between the directories of a broker ---------------------------------------------------


def log_dirs_request(moves: Mapping[TopicPartition, str]) -> AlterReplicaLogDirsRequest:
    """What one broker is asked to move, and where to."""
    directories: dict[str, list[TopicPartition]] = {}
    for partition, path in moves.items():
        directories.setdefault(path, []).append(partition)
    return AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path,
                topics=[
                    AlterReplicaLogDirTopic(name=name, partitions=indexes)
                    for name, indexes in by_topic(partitions).items()
                ],
            )
            for path, partitions in directories.items()
        ]
    )


def log_dirs_altered(
    answer: AlterReplicaLogDirsResponse, broker_id: int
) -> dict[Replica, ClientError | None]:
    return {
        Replica(topic.topic_name, entry.partition_index, broker_id): (
            failure_of(f"{topic.topic_name}-{entry.partition_index}", entry.error_code)
            if entry.error_code
            else None
        )
        for topic in answer.results
        for entry in topic.partitions
    }
