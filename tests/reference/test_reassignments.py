"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders answer as Apache Kafka
does, in every version: on one broker, where nothing can move and everything can be asked."""

from __future__ import annotations

import pytest
from tests.reference.answers import create
from tests.reference.pair import Case, Pair

from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)


def move(
    topic: str, index: int, replicas: list[int] | None, *, may_resize: bool = True
) -> AlterPartitionReassignmentsRequest:
    moved = ReassignablePartition(partition_index=index, replicas=replicas)
    return AlterPartitionReassignmentsRequest(
        timeout_ms=10_000,
        allow_replication_factor_change=may_resize,
        topics=[ReassignableTopic(name=topic, partitions=[moved])],
    )


@pytest.mark.parametrize(
    "version", range(APIS[ApiKey.ALTER_PARTITION_REASSIGNMENTS].max_version + 1)
)
def test_alter_partition_reassignments(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))
    cases = [
        Case("to where it is", move(name, 0, [1])),
        Case("cancel without a move", move(name, 0, None)),
        Case("to nobody", move(name, 0, [])),
        Case("to an unknown broker", move(name, 0, [7])),
        Case("twice to the same", move(name, 0, [1, 1])),
        Case("to a negative broker", move(name, 0, [-1])),
        Case("an unknown partition", move(name, 9, [1])),
        Case("an unknown topic", move(f"{name}-none", 0, [1])),
        Case("cancel in an unknown topic", move(f"{name}-none", 0, None)),
        Case("no topics", AlterPartitionReassignmentsRequest(timeout_ms=1_000)),
    ]
    pair.compare(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, cases)


def test_list_partition_reassignments(pair: Pair, name: str) -> None:
    pair.create(create(name, 2))

    def listed(topic: str, *indexes: int) -> ListPartitionReassignmentsRequest:
        asked = ListPartitionReassignmentsTopics(name=topic, partition_indexes=list(indexes))
        return ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=[asked])

    cases = [
        Case("all", ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None)),
        Case("some", listed(name, 0, 1)),
        Case("an unknown partition", listed(name, 9)),
        Case("an unknown topic", listed(f"{name}-none", 0)),
        Case("nothing", ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=[])),
    ]
    pair.compare(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, cases)


@pytest.mark.parametrize("version", range(APIS[ApiKey.ELECT_LEADERS].max_version + 1))
def test_elect_leaders(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))

    def elect(topic: str, *indexes: int, kind: int = 0) -> ElectLeadersRequest:
        asked = TopicPartitions(topic=topic, partitions=list(indexes))
        return ElectLeadersRequest(
            election_type=kind if version else 0, topic_partitions=[asked], timeout_ms=10_000
        )

    cases = [
        Case("the preferred one leads", elect(name, 0)),
        Case("an unknown partition", elect(name, 9)),
        Case("an unknown topic", elect(f"{name}-none", 0)),
        Case("nothing", ElectLeadersRequest(topic_partitions=[], timeout_ms=1_000)),
    ]
    if version:
        cases.append(Case("unclean where somebody leads", elect(name, 1, kind=1)))
        cases.append(Case("of an unknown kind", elect(name, 0, kind=5)))
    pair.compare(ApiKey.ELECT_LEADERS, version, cases)
