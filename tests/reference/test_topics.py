"""CreateTopics, DeleteTopics and CreatePartitions answer as Apache Kafka does, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reference.answers import NOBODY, create, known_id
from tests.reference.pair import Case, Pair, Peer

from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)


@pytest.mark.parametrize("version", range(2, APIS[ApiKey.CREATE_TOPICS].max_version + 1))
def test_create_topics(pair: Pair, name: str, version: int) -> None:
    def assigned(*replicas: list[int], partitions: int = -1) -> CreateTopicsRequest:
        assignments = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=ids)
            for number, ids in enumerate(replicas)
        ]
        topic = CreatableTopic(
            name=f"{name}-assigned",
            num_partitions=partitions,
            replication_factor=-1,
            assignments=assignments,
        )
        return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)

    twice = create(f"{name}-twice")
    twice.topics = twice.topics * 2
    bad_value = {"retention.ms": "soon"}
    cases = [
        Case("plain", create(name, 3)),
        Case("again", create(name, 3)),
        Case("again, only to validate", create(name, 3, validate_only=True)),
        Case("only to validate", create(f"{name}-v", 2, validate_only=True)),
        Case("with configs", create(f"{name}-c", 1, configs={"cleanup.policy": "compact"})),
        Case("unknown config", create(f"{name}-d", 1, configs={"no.such.key": "1"})),
        Case("bad config value", create(f"{name}-e", 1, configs=bad_value)),
        Case("null config value", create(f"{name}-f", 1, configs={"retention.ms": None})),
        Case("config out of range", create(f"{name}-g", 1, configs={"segment.bytes": "3"})),
        Case("zero partitions", create(f"{name}-h", 0)),
        Case("minus two partitions", create(f"{name}-i", -2)),
        Case("too many replicas", create(f"{name}-j", 1, 5)),
        Case("zero replicas", create(f"{name}-k", 1, 0)),
        Case("empty name", create("")),
        Case("bad character", create("a/b")),
        Case("dots", create("..")),
        Case("too long", create("x" * 250)),
        Case("the same twice", twice),
        Case("no topics", CreateTopicsRequest(topics=[], timeout_ms=1000)),
        Case("assigned", assigned([1], [1])),
        Case("assigned to nobody", assigned([7])),
        Case("assigned twice the same", assigned([1, 1])),
        Case("assigned to no replicas", assigned([])),
        Case("assigned and counted", assigned([1], partitions=3)),
        Case("collides", create(name.replace("-", "_").replace("_", ".", 1) + "_x")),
        Case("collides with it", create(name.replace("-", "_") + "_x")),
    ]
    if version >= 4:
        cases.append(Case("broker defaults", create(f"{name}-l", -1, -1)))
    pair.compare(ApiKey.CREATE_TOPICS, version, cases)


@pytest.mark.parametrize("version", range(1, APIS[ApiKey.DELETE_TOPICS].max_version + 1))
def test_delete_topics(pair: Pair, name: str, version: int) -> None:
    for suffix in ("a", "b", "c"):
        pair.create(create(f"{name}-{suffix}"))

    def named(*names: str) -> DeleteTopicsRequest:
        if version >= 6:
            states = [DeleteTopicState(name=each) for each in names]
            return DeleteTopicsRequest(topics=states, timeout_ms=30_000)
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=30_000)

    cases = [
        Case("one", named(f"{name}-a")),
        Case("again", named(f"{name}-a")),
        Case("no such topic", named(f"{name}-missing")),
        Case("the same twice", named(f"{name}-b", f"{name}-b")),
        Case("none", named()),
    ]
    if version >= 6:

        def by_id(peer: Peer) -> DeleteTopicsRequest:
            state = DeleteTopicState(name=None, topic_id=known_id(peer, f"{name}-c"))
            return DeleteTopicsRequest(topics=[state], timeout_ms=30_000)

        def by_both(peer: Peer) -> DeleteTopicsRequest:
            state = DeleteTopicState(name=f"{name}-c", topic_id=known_id(peer, f"{name}-c"))
            return DeleteTopicsRequest(topics=[state], timeout_ms=30_000)

        unknown = DeleteTopicState(name=None, topic_id=NOBODY)
        cases += [
            Case("name and id", by_both),
            Case("by id", by_id),
            Case("unknown id", DeleteTopicsRequest(topics=[unknown], timeout_ms=30_000)),
        ]
    pair.compare(ApiKey.DELETE_TOPICS, version, cases)


@pytest.mark.parametrize("version", range(APIS[ApiKey.CREATE_PARTITIONS].max_version + 1))
def test_create_partitions(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 3))

    def ask(
        count: int, *, topic: str = name, assignments: Any = None, validate_only: bool = False
    ) -> CreatePartitionsRequest:
        wanted = CreatePartitionsTopic(
            name=topic,
            count=count,
            assignments=None
            if assignments is None
            else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
        )
        return CreatePartitionsRequest(
            topics=[wanted], timeout_ms=30_000, validate_only=validate_only
        )

    twice = ask(9)
    twice.topics = twice.topics * 2
    pair.compare(
        ApiKey.CREATE_PARTITIONS,
        version,
        [
            Case("fewer", ask(2)),
            Case("the same", ask(3)),
            Case("only to validate", ask(5, validate_only=True)),
            Case("more", ask(5)),
            Case("more, assigned", ask(6, assignments=[[1]])),
            Case("assigned to nobody", ask(7, assignments=[[9]])),
            Case("too few assignments", ask(9, assignments=[[1]])),
            Case("zero", ask(0)),
            Case("negative", ask(-1)),
            Case("no such topic", ask(3, topic=f"{name}-missing")),
            Case("the same twice", twice),
        ],
    )
