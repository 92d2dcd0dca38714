"""Requests that move replicas and leadership, and their answers, read without a broker."""

from __future__ import annotations

import pytest

from tidemill.client import ClientError
from tidemill.client import admin_reassignments as subject
from tidemill.client.admin_types import ElectionType, Reassignment, Replica
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_moves_are_grouped_by_topic_and_none_cancels() -> None:
    request = subject.alter_request(
        {A0: (1, 2), B0: None, A1: (3,)}, 5_000, allow_replication_factor_change=False
    )
    assert request.timeout_ms == 5_000
    assert request.allow_replication_factor_change is False
    found = {
        (topic.name, each.partition_index): each.replicas
        for topic in request.topics
        for each in topic.partitions
    }
    assert found == {("a", 0): [1, 2], ("a", 1): [3], ("b", 0): None}
    assert [topic.name for topic in request.topics] == ["a", "b"]


def test_each_partition_has_its_own_outcome() -> None:
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    answer = AlterPartitionReassignmentsResponse(
        responses=[
            ReassignableTopicResponse(
                name="a",
                partitions=[
                    ReassignablePartitionResponse(partition_index=0),
                    ReassignablePartitionResponse(
                        partition_index=1, error_code=code, error_message="no such broker"
                    ),
                ],
            )
        ]
    )
    results = subject.altered(answer)
    assert results.successes() == {A0: None}
    assert results.errors()[A1].code is code
    assert results.errors()[A1].message == "no such broker"


def test_moves_under_way() -> None:
    answer = ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(
                name="a",
                partitions=[
                    OngoingPartitionReassignment(
                        partition_index=0,
                        replicas=[3, 1],
                        adding_replicas=[3],
                        removing_replicas=[1],
                    )
                ],
            )
        ]
    )
    assert subject.listed(answer) == {A0: Reassignment((3, 1), (3,), (1,))}
    assert subject.list_request(None, 1).topics is None
    asked = subject.list_request([A0, A1, A0], 1).topics or []
    assert [(topic.name, topic.partition_indexes) for topic in asked] == [("a", [0, 1])]


def test_elections() -> None:
    everything = subject.elect_request(ElectionType.UNCLEAN, None, 1)
    assert (everything.election_type, everything.topic_partitions) == (1, None)
    some = subject.elect_request(ElectionType.PREFERRED, [A1, B0], 1).topic_partitions or []
    assert [(each.topic, each.partitions) for each in some] == [("a", [1]), ("b", [0])]
    code = ErrorCode.ELECTION_NOT_NEEDED
    answer = ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic="a",
                partition_result=[
                    PartitionResult(partition_id=0),
                    PartitionResult(partition_id=1, error_code=code),
                ],
            )
        ]
    )
    results = subject.elected(answer)
    assert results.successes() == {A0: None}
    assert results.errors()[A1].code is code


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (AlterPartitionReassignmentsResponse, subject.altered),
        (ListPartitionReassignmentsResponse, subject.listed),
        (ElectLeadersResponse, subject.elected),
    ],
)
def test_an_error_of_the_whole_is_raised(answer: type, read: object) -> None:
    assert callable(read)
    with pytest.raises(ClientError) as refused:
        read(answer(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert subject.is_not_controller(answer(error_code=ErrorCode.NOT_CONTROLLER))
    assert not subject.is_not_controller(answer())


def test_moves_between_directories() -> None:
    request = subject.log_dirs_request({A0: "/x", A1: "/x", B0: "/y"})
    found = {
        each.path: [(topic.name, topic.partitions) for topic in each.topics]
        for each in request.dirs
    }
    assert found == {"/x": [("a", [0, 1])], "/y": [("b", [0])]}
    answer = AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name="a",
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=0),
                    AlterReplicaLogDirPartitionResult(
                        partition_index=1, error_code=ErrorCode.LOG_DIR_NOT_FOUND
                    ),
                ],
            )
        ]
    )
    results = subject.log_dirs_altered(answer, 7)
    assert results[Replica("a", 0, 7)] is None
    failed = results[Replica("a", 1, 7)]
    assert failed is not None
    assert failed.code is ErrorCode.LOG_DIR_NOT_FOUND
