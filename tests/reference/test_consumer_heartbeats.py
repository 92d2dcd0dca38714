"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, beat by beat on both systems (rule J8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.reference.group_steps import wait_for_coordinator
from tests.reference.pair import Case, Pair, Peer
from tests.waiting import eventually

from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tidemill.wire.messages.topics import CreatableTopic, CreateTopicsRequest

BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
DESCRIBE = ApiKey.CONSUMER_GROUP_DESCRIBE
INTERVAL_S = 1.1
"""Assignments of a group are at least a second apart; a beat after that finds a new one."""


@pytest.fixture(autouse=True)
def _coordinators(pair: Pair) -> None:
    for peer in (pair.kafka, pair.tidemill):
        wait_for_coordinator(peer)


@pytest.fixture
def topic(pair: Pair, name: str) -> str:
    topic = CreatableTopic(name=name, num_partitions=4, replication_factor=1)
    pair.create(CreateTopicsRequest(topics=[topic]))
    return name


def owning(topic: str, *partitions: int) -> Callable[[Peer], list[TopicPartitions]]:
    """What a member says it owns; ids differ between the systems."""
    return lambda peer: [
        TopicPartitions(topic_id=peer.topic_id(topic), partitions=list(partitions))
    ]


def beat(group: str, member: str, epoch: int, **fields: Any) -> Callable[[Peer], Any]:
    def make(peer: Peer) -> ConsumerGroupHeartbeatRequest:
        given = {key: value(peer) if callable(value) else value for key, value in fields.items()}
        return ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, **given
        )

    return make


def join(group: str, member: str, topics: list[str] | None, **fields: Any) -> Callable[[Peer], Any]:
    given: dict[str, Any] = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": topics,
        "topic_partitions": [],
    }
    return beat(group, member, 0, **given | fields)


def play(pair: Pair, version: int, *cases: Case) -> None:
    pair.compare(BEAT, version, cases)


@pytest.mark.parametrize("version", [0, 1])
def test_bad_requests(pair: Pair, topic: str, version: int) -> None:
    group = f"bad-{topic}"
    newer = [
        Case("join without id", join(group, "", [topic])),
        Case("bad regex", join(group, "m", None, subscribed_topic_regex="(")),
    ]
    play(
        pair,
        version,
        Case("no group id", join("", "m", [topic])),
        Case("empty instance id", join(group, "m", [topic], instance_id="")),
        Case("empty rack", join(group, "m", [topic], rack_id="")),
        Case("no timeout", join(group, "m", [topic], rebalance_timeout_ms=-1)),
        Case("owns on join", join(group, "m", [topic], topic_partitions=owning(topic, 0))),
        Case("owned null on join", join(group, "m", [topic], topic_partitions=None)),
        Case("no subscription", join(group, "m", None)),
        Case("epoch -3", beat(group, "m", -3)),
        Case("static leave without instance", beat(group, "m", -2)),
        Case("empty member on a beat", beat(group, "", 3)),
        Case("unknown assignor", join(group, "m", [topic], server_assignor="best")),
        Case("leaving no such group", beat(group, "m", -1)),
        *(newer if version >= 1 else []),
    )


@pytest.mark.parametrize("version", [0, 1])
def test_the_life_of_a_group(pair: Pair, topic: str, version: int) -> None:
    group = f"life-{topic}"
    play(
        pair,
        version,
        Case("first joins", join(group, "m1", [topic])),
        Case("plain beat", beat(group, "m1", 2)),
        Case("owned reported", beat(group, "m1", 2, topic_partitions=owning(topic, 0, 1, 2, 3))),
        Case("greater epoch", beat(group, "m1", 9)),
        Case("unknown member", beat(group, "m9", 2)),
        Case("join again", join(group, "m1", [topic])),
        Case("full request", beat(group, "m1", 2, rebalance_timeout_ms=30_000,
             subscribed_topic_names=[topic], topic_partitions=owning(topic, 0, 1, 2, 3))),
    )  # fmt: skip
    time.sleep(INTERVAL_S)
    play(
        pair,
        version,
        Case("second joins", join(group, "m2", [topic])),
        Case("first must give back", beat(group, "m1", 2)),
        Case("first has not yet", beat(group, "m1", 2, topic_partitions=owning(topic, 0, 1, 2, 3))),
        Case("second waits", beat(group, "m2", 3)),
    )
    for peer in (pair.kafka, pair.tidemill):
        _give_back(peer, version, group, "m1", topic)
    play(
        pair,
        version,
        Case("second gets", beat(group, "m2", 3)),
        Case("first is stable", beat(group, "m1", 3)),
        Case("older epoch", beat(group, "m1", 2, topic_partitions=owning(topic, 7))),
        Case("second leaves", beat(group, "m2", -1)),
        Case("second is gone", beat(group, "m2", 3)),
        Case("second leaves twice", beat(group, "m2", -1)),
    )
    for each in (group, "no-such-group"):
        request = ConsumerGroupDescribeRequest(group_ids=[each])
        pair.compare(DESCRIBE, version, [Case("group", request)])


def _give_back(peer: Peer, version: int, group: str, member: str, topic: str) -> None:
    """Own exactly what we are told is ours: which partitions stay is each system's own choice."""
    asking = beat(
        group,
        member,
        2,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[topic],
        topic_partitions=owning(topic, 0, 1, 2, 3),
    )
    told = peer.ask(BEAT, version, asking(peer)).assignment
    assert sum(len(t.partitions) for t in told.topic_partitions) == 2
    done = beat(group, member, 2, topic_partitions=told.topic_partitions)
    answer = peer.ask(BEAT, version, done(peer))
    assert (answer.error_code, answer.member_epoch) == (0, 3)


def test_static_members(pair: Pair, topic: str) -> None:
    group = f"static-{topic}"
    play(
        pair,
        1,
        Case("joins", join(group, "m1", [topic], instance_id="i")),
        Case("id in use", join(group, "m2", [topic], instance_id="i")),
        Case("joins again itself", join(group, "m1", [topic], instance_id="i")),
        Case("wrong member", beat(group, "m2", 2, instance_id="i")),
        Case("unknown instance", beat(group, "m2", 2, instance_id="j")),
        Case("leaves for a while", beat(group, "m1", -2, instance_id="i")),
        Case("beats though away", beat(group, "m1", 2, instance_id="i")),
        Case("comes back", join(group, "m3", [topic], instance_id="i")),
        Case("old id is fenced", beat(group, "m1", 2, instance_id="i")),
        Case("beats", beat(group, "m3", 2, instance_id="i")),
        Case("leaves for good", beat(group, "m3", -1, instance_id="i")),
        Case("leaves unknown", beat(group, "m3", -1, instance_id="i")),
    )


def test_patterns(pair: Pair, topic: str) -> None:
    """Kafka looks for matching topics in the background, so its answer comes a beat later."""
    wanted = join(f"pattern-{topic}", "m1", None, subscribed_topic_regex=f"{topic[:-1]}.?")
    for peer in (pair.kafka, pair.tidemill):
        told: list[TopicPartitions] = []

        def has_some(peer: Peer = peer, told: list[TopicPartitions] = told) -> bool:
            assignment = peer.ask(BEAT, 1, wanted(peer)).assignment
            told[:] = assignment.topic_partitions if assignment else []
            return bool(told)

        eventually(has_some, f"{peer.name} finds the topic")
        (found,) = told
        assert found.topic_id == peer.topic_id(topic)
        assert sorted(found.partitions) == [0, 1, 2, 3]


def test_a_group_without_topics(pair: Pair, topic: str) -> None:
    group = f"empty-{topic}"
    play(
        pair,
        1,
        Case("nothing wanted", join(group, "m1", [])),
        Case("no such topic", join(group, "m2", ["no-such-topic-anywhere"])),
    )


def test_describing_what_is_not_there(pair: Pair, name: str) -> None:
    request = ConsumerGroupDescribeRequest(group_ids=[f"none-{name}"])
    pair.compare(DESCRIBE, 1, [Case("unknown", request)])


def test_a_beat_for_no_such_group(pair: Pair, name: str) -> None:
    for answer in pair.both(BEAT, 1, beat(f"none-{name}", "m", 3)(pair.kafka)):
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
