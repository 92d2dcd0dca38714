"""Members of both protocols in one group: who may take whose place, as in Apache Kafka."""

from __future__ import annotations

import time
from typing import Any

from tests.reference.answers import create
from tests.reference.group_steps import Stage, joining, leaving, play
from tests.reference.pair import Pair
from tests.reference.test_consumer_groups import A, B, Members

from tidemill.client.consumer_protocol import Subscription, encode_assignment, encode_subscription
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.group_admin import DescribeGroupsRequest
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

STATIC = "one"
SETTLED_S = 1.2
"""Longer than `group.consumer.assignment.interval.ms`."""


class Classic:
    """A classic member of a group, which may be static."""

    def __init__(self, stage: Stage, group: str, topic: str, instance: str | None = None) -> None:
        self.stage, self.group, self.topic, self.instance = stage, group, topic, instance
        self.member, self.generation = "", -1

    def wants(self, *owned: int) -> dict[str, bytes]:
        has = frozenset(TopicPartition(self.topic, partition) for partition in owned)
        return {"range": encode_subscription(Subscription((self.topic,), owned=has), 1)}

    def join(self, step: str, *owned: int, **fields: Any) -> Any:
        given = {"member_id": self.member, "instance_id": self.instance} | fields
        request = joining(self.group, protocols=self.wants(*owned), **given)
        answer = self.stage.join(step, 5, request)
        self.member, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self, step: str, assignment: bytes | None = None) -> Any:
        plan = [SyncGroupRequestAssignment(member_id=self.member, assignment=assignment or b"")]
        request = SyncGroupRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member,
            assignments=plan, group_instance_id=self.instance,
        )  # fmt: skip
        return self.stage.ask(step, ApiKey.SYNC_GROUP, 3, request)

    def beat(self, step: str, **fields: Any) -> Any:
        given: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member,
            "group_instance_id": self.instance,
        }
        return self.stage.ask(step, ApiKey.HEARTBEAT, 4, HeartbeatRequest(**given | fields))

    def all_of_it(self, **more: Any) -> bytes:
        return encode_assignment([TopicPartition(self.topic, n) for n in range(2)], version=1)

    def settle(self) -> None:
        self.join("classic joins")
        self.sync("classic syncs", self.all_of_it())


def describe(stage: Stage, step: str, group: str) -> None:
    stage.ask(step, ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[group]))


def test_a_static_member_comes_back_with_the_newer_protocol(pair: Pair, name: str) -> None:
    """It did not leave when it was stopped, as static members do not; it is not made to wait."""
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        group = f"{name}-g"
        classic = Classic(stage, group, name, STATIC)
        classic.settle()
        members = Members(stage, group, name)
        joined = members.join("newer takes its place", member_id=A, instance_id=STATIC)
        members.describe("one member")
        classic.beat("the old one is fenced")
        classic.join("and cannot come back by its id", 0, 1)
        members.beat("well", member_id=A, member_epoch=joined.member_epoch, instance_id=STATIC)
        members.join("another newer one has to wait", member_id=B, instance_id=STATIC)
        members.beat("newer leaves", member_id=A, member_epoch=-1, instance_id=STATIC)

    play(pair, scenario)


def test_a_static_member_comes_back_with_the_classic_protocol(pair: Pair, name: str) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        group = f"{name}-g"
        members = Members(stage, group, name)
        members.join("newer", member_id=A, instance_id=STATIC)
        members.join("another", member_id=B)
        time.sleep(SETTLED_S)
        classic = Classic(stage, group, name, STATIC)
        classic.join("classic takes its place")
        classic.sync("and syncs")
        members.describe("both")
        classic.beat("well")
        identity = MemberIdentity(member_id="", group_instance_id=STATIC)
        stage.ask("sent off", ApiKey.LEAVE_GROUP, 4, leaving(group, identity))
        members.describe("one is left")
        members.beat("leaves", member_id=B, member_epoch=-1)

    play(pair, scenario)


def test_a_newer_member_leaves_while_a_static_classic_one_is_away(pair: Pair, name: str) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        group = f"{name}-g"
        classic = Classic(stage, group, name, STATIC)
        classic.settle()
        members = Members(stage, group, name)
        members.join("newer joins", member_id=A)
        members.beat("newer leaves", member_id=A, member_epoch=-1)
        describe(stage, "classic again", group)
        classic.beat("told to join")
        classic.join("joins", member_id="")
        describe(stage, "with its new id", group)

    play(pair, scenario)


def test_what_a_custom_assignor_said_is_not_lost(pair: Pair, name: str) -> None:
    """An assignment that carries data of its assignor's own keeps its group classic."""
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        group = f"{name}-g"
        classic = Classic(stage, group, name)
        classic.join("classic joins")
        plain = encode_assignment([TopicPartition(name, 0)], version=1)
        classic.sync("classic syncs", plain[:-4] + b"\0\0\0\3abc")
        Members(stage, group, name).join("newer joins")
        describe(stage, "still classic", group)

    play(pair, scenario)


def test_what_a_member_s_assignor_told_its_leader_keeps_no_group_back(
    pair: Pair, name: str
) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        group = f"{name}-g"
        said = encode_subscription(Subscription((name,), user_data=b"sticky"), 1)
        joined = stage.join("classic joins", 5, joining(group, protocols={"sticky": said}))
        plan = encode_assignment([TopicPartition(name, 0), TopicPartition(name, 1)], version=1)
        given = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=plan)
        request = SyncGroupRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
            assignments=[given],
        )  # fmt: skip
        stage.ask("syncs", ApiKey.SYNC_GROUP, 3, request)
        Members(stage, group, name).join("newer joins")

    play(pair, scenario)


def test_offsets_of_classic_members(pair: Pair, name: str) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        group = f"{name}-g"
        classic = Classic(stage, group, name)
        classic.settle()
        members = Members(stage, group, name)
        members.join("newer joins", member_id=A)

        def commit(step: str, member: str, epoch: int, version: int) -> None:
            part = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
            request = OffsetCommitRequest(
                group_id=group, generation_id_or_member_epoch=epoch, member_id=member,
                topics=[OffsetCommitRequestTopic(name=name, partitions=[part])],
            )  # fmt: skip
            stage.ask(step, ApiKey.OFFSET_COMMIT, version, request)

        def fetch(step: str, member: str | None, epoch: int) -> None:
            topic = OffsetFetchRequestTopics(name=name, partition_indexes=[0])
            asked = OffsetFetchRequestGroup(
                group_id=group, topics=[topic], member_id=member, member_epoch=epoch
            )
            stage.ask(step, ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=[asked]))

        commit("classic commits", classic.member, classic.generation, 8)
        commit("in another generation", classic.member, 77, 8)
        commit("in another generation, v9", classic.member, 77, 9)
        commit("newer with an old version", A, 2, 8)
        commit("an outsider", "", -1, 8)
        fetch("classic fetches", classic.member, classic.generation)
        fetch("classic in another generation", classic.member, 77)
        fetch("newer in another epoch", A, 77)
        fetch("nobody", "nobody", 1)
        fetch("an outsider fetches", None, -1)
        members.beat("newer leaves", member_id=A, member_epoch=-1)

    play(pair, scenario)
