"""ConsumerGroupHeartbeat and ConsumerGroupDescribe answer as Apache Kafka does; so does a group in
which members of both protocols meet."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.reference.answers import create, known_id
from tests.reference.group_steps import Stage, joining, leaving, play
from tests.reference.pair import Pair
from tests.waiting import eventually

from tidemill.client.consumer_protocol import (
    Subscription,
    encode_assignment,
    encode_subscription,
)
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tidemill.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

A = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
B = "7d444840-9dc0-11d1-b245-5ffdce74fad3"


class Members:
    """Heartbeats of one group."""

    def __init__(self, stage: Stage, group: str, topic: str, version: int = 1) -> None:
        self.stage, self.group, self.topic, self.version = stage, group, topic, version

    def beat(self, step: str, **fields: Any) -> Any:
        values = {"group_id": self.group, "member_id": A} | fields
        request = ConsumerGroupHeartbeatRequest(**values)
        return self.stage.ask(step, ApiKey.CONSUMER_GROUP_HEARTBEAT, self.version, request)

    def join(self, step: str, **fields: Any) -> Any:
        first: dict[str, Any] = {
            "member_epoch": 0, "rebalance_timeout_ms": 20_000, "topic_partitions": [],
            "subscribed_topic_names": [self.topic],
        }  # fmt: skip
        return self.beat(step, **(first | fields))

    def owns(self, *partitions: int) -> list[TopicPartitions]:
        topic_id = known_id(self.stage.peer, self.topic)
        return [TopicPartitions(topic_id=topic_id, partitions=list(partitions))]

    def describe(self, step: str, *groups: str, version: int = 1) -> None:
        request = ConsumerGroupDescribeRequest(group_ids=list(groups) or [self.group])
        self.stage.ask(step, ApiKey.CONSUMER_GROUP_DESCRIBE, version, request)


@pytest.mark.parametrize("version", [0, 1])
def test_heartbeats_that_are_refused(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        members = Members(stage, name, name, version)
        members.join("no group", group_id="")
        members.join("blank group", group_id=" ")
        members.join("no timeout", rebalance_timeout_ms=-1)
        members.join("zero timeout", rebalance_timeout_ms=0)
        members.join("owns something", topic_partitions=members.owns(0))
        members.join("no topics", subscribed_topic_names=None)
        members.join("owns null", topic_partitions=None)
        members.join("empty instance", instance_id="")
        members.join("empty rack", rack_id="")
        members.join("unknown assignor", server_assignor="sideways")
        members.beat("unknown group", member_epoch=3)
        members.beat("leaves an unknown group", member_epoch=-1)
        members.beat("static leaves without an instance", member_epoch=-2)
        members.beat("impossible epoch", member_epoch=-3)
        members.beat("no member", member_id="", member_epoch=3)
        if version >= 1:
            members.join("no member id", member_id="")
            members.join("bad pattern", subscribed_topic_names=[], subscribed_topic_regex="(")
        members.describe("nothing was made")

    play(pair, scenario)


@pytest.mark.parametrize("version", [0, 1])
def test_one_member(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 3))

    def scenario(stage: Stage) -> None:
        members = Members(stage, name, name, version)
        first = members.join("join")
        members.describe("joined", version=version)
        epoch = first.member_epoch
        members.beat("nothing new", member_epoch=epoch)
        members.beat("owns it", member_epoch=epoch, topic_partitions=members.owns(0, 1, 2))
        members.beat("later epoch", member_epoch=epoch + 5)
        members.beat("unknown member", member_id=B, member_epoch=epoch)
        members.describe("stable", version=version)
        members.describe("twice", members.group, members.group, version=version)
        members.describe("unknown", f"{name}-x", version=version)
        members.describe("empty id", "", version=version)
        members.join("joins again")
        stage.ask("described as classic", ApiKey.DESCRIBE_GROUPS, 6,
                  DescribeGroupsRequest(groups=[name]))  # fmt: skip
        delete = DeleteGroupsRequest(groups_names=[name])
        stage.ask("delete too early", ApiKey.DELETE_GROUPS, 2, delete)
        members.beat("leave", member_epoch=-1)
        members.beat("leave again", member_epoch=-1)
        members.describe("empty", version=version)
        stage.ask("delete", ApiKey.DELETE_GROUPS, 2, delete)
        members.describe("gone", version=version)

    play(pair, scenario)


def test_listing(pair: Pair, name: str) -> None:
    pair.create(create(name))

    def scenario(stage: Stage) -> None:
        Members(stage, name, name).join("join")

        def answered(types: list[str]) -> Any:
            answer = stage.peer.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(types_filter=types))
            answer.groups = [each for each in answer.groups if each.group_id == name]
            return answer

        eventually(lambda: answered([]).groups, "the group is listed")
        for step, types in (("all", []), ("consumer", ["consumer"]), ("classic", ["classic"])):
            stage.note(step, ApiKey.LIST_GROUPS, 5, answered(types))

    play(pair, scenario)


def test_two_members_reconcile(pair: Pair, name: str) -> None:
    pair.create(create(name, 4))

    def scenario(stage: Stage) -> None:
        members = Members(stage, name, name)
        one = members.join("first")
        time.sleep(1.2)
        two = members.join("second", member_id=B)
        members.describe("meanwhile")
        told = members.beat("first is told", member_epoch=one.member_epoch)
        kept = [part for topic in told.assignment.topic_partitions for part in topic.partitions]
        assert len(kept) == 2
        back = members.owns(*kept)
        moved = members.beat(
            "first gives back", member_epoch=told.member_epoch, topic_partitions=back
        )
        members.beat("second gets it", member_id=B, member_epoch=two.member_epoch)
        members.beat("first again", member_epoch=moved.member_epoch)

    play(pair, scenario)


def test_static_members(pair: Pair, name: str) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        members = Members(stage, name, name)
        one = members.join("join", instance_id="i")
        members.join("while it is there", member_id=B, instance_id="i")
        members.beat("other instance", member_epoch=one.member_epoch, instance_id="j")
        members.beat("goes for a while", member_epoch=-2, instance_id="i")
        members.describe("away")
        back = members.join("back", member_id=B, instance_id="i")
        members.beat("old id", member_epoch=one.member_epoch, instance_id="i")
        members.beat("well", member_id=B, member_epoch=back.member_epoch, instance_id="i")
        members.beat("leaves", member_id=B, member_epoch=-1, instance_id="i")

    play(pair, scenario)


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_of_members(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        members = Members(stage, name, name)
        epoch = members.join("join").member_epoch
        topic_id = known_id(stage.peer, name)

        def commit(step: str, member: str, member_epoch: int) -> None:
            partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
            topic = OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=[partition])
            request = OffsetCommitRequest(
                group_id=name, member_id=member, generation_id_or_member_epoch=member_epoch,
                topics=[topic],
            )  # fmt: skip
            stage.ask(step, ApiKey.OFFSET_COMMIT, version, request)

        def fetch(step: str, member: str | None, member_epoch: int) -> None:
            topic = OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[0])
            group = OffsetFetchRequestGroup(
                group_id=name, member_id=member, member_epoch=member_epoch, topics=[topic]
            )
            stage.ask(step, ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=[group]))

        commit("right", A, epoch)
        commit("stale", A, epoch - 1)
        commit("from the future", A, epoch + 1)
        commit("unknown member", B, epoch)
        commit("nobody", "", -1)
        fetch("nobody asks", None, -1)
        if version >= 9:
            fetch("member asks", A, epoch)
            fetch("stale asks", A, epoch - 1)
            fetch("stranger asks", B, epoch)

    play(pair, scenario)


def test_members_of_both_protocols(pair: Pair, name: str) -> None:
    """A classic group that a newer member joins, what the classic one is told, and the way back."""
    pair.create(create(name, 2))

    def wants(*owned: int, protocol: str = "range") -> dict[str, bytes]:
        has = frozenset(TopicPartition(name, partition) for partition in owned)
        return {protocol: encode_subscription(Subscription((name,), owned=has), 1)}

    def scenario(stage: Stage) -> None:
        group = f"{name}-g"
        joined = stage.join("classic joins", 5, joining(group, protocols=wants()))
        old = joined.member_id
        both = encode_assignment([TopicPartition(name, 0), TopicPartition(name, 1)], version=1)

        def sync(step: str, generation: int, assignment: bytes | None = None) -> None:
            plan = [SyncGroupRequestAssignment(member_id=old, assignment=assignment or b"")]
            request = SyncGroupRequest(
                group_id=group, generation_id=generation, member_id=old, assignments=plan
            )
            stage.ask(step, ApiKey.SYNC_GROUP, 3, request)

        def beat(step: str, generation: int) -> None:
            request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=old)
            stage.ask(step, ApiKey.HEARTBEAT, 4, request)

        def rejoin(step: str, *owned: int) -> int:
            request = joining(group, member_id=old, protocols=wants(*owned))
            return int(stage.ask(step, ApiKey.JOIN_GROUP, 5, request).generation_id)

        sync("classic syncs", joined.generation_id, both)
        members = Members(stage, group, name)
        new = members.join("newer joins", member_id=A)
        members.describe("both")
        beat("classic is told", joined.generation_id)
        beat("wrong generation", 77)
        generation = rejoin("classic joins again", 0, 1)
        sync("wrong sync", 77)
        sync("classic learns what it keeps", generation)
        beat("it has to give back", generation)
        generation = rejoin("it has", 0)
        sync("it keeps the rest", generation)
        beat("well", generation)
        members.beat("newer gets its part", member_id=A, member_epoch=new.member_epoch)
        new_protocols = joining(group, protocols=wants())
        stage.ask("a new classic member", ApiKey.JOIN_GROUP, 5, new_protocols)
        other = joining(group, protocols=wants(protocol="elsewhere"))
        stage.ask("with other protocols", ApiKey.JOIN_GROUP, 5, other)
        members.describe("settled")
        members.beat("newer leaves", member_id=A, member_epoch=-1)
        stage.ask("classic again", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[group]))
        beat("told to join", generation)
        stage.ask("leaves", ApiKey.LEAVE_GROUP, 3, leaving(group, MemberIdentity(member_id=old)))

    play(pair, scenario)


def test_a_classic_group_that_cannot_move(pair: Pair, name: str) -> None:
    pair.create(create(name))

    def scenario(stage: Stage) -> None:
        stage.stable_member(name, protocol_type="connect", protocols={"range": b"?"})
        Members(stage, name, name).join("newer joins")

    play(pair, scenario)
