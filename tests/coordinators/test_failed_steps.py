"""A step that could not be written was not taken: members are watched as before (J4, J8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.coordinators.shard_world import ShardWorld
from tests.replication.helpers import StepExecutor

from tidemill.coordinators.classic_group import ClassicGroup
from tidemill.coordinators.consumer_group import ConsumerGroup
from tidemill.errors import ErrorCode
from tidemill.types import TopicId
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidemill.wire.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

SESSION_MS = 45_000
REBALANCE_MS = 20_000


class Steps:
    """A group of the newer protocol whose log may refuse to be written."""

    def __init__(self) -> None:
        self.world = ShardWorld()
        self.topic_id: TopicId = self.world.topic("t", 1, 4).topic_id
        self.epochs: dict[str, int] = {}

    def beat(self, member_id: str, epoch: int | None = None, **said: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=self.epochs[member_id] if epoch is None else epoch,
            **said,
        )
        info = self.world.info(version=1)
        (answer,) = self.world.run(lambda shard: shard.consumer_heartbeat(request, info))
        if not isinstance(answer, ErrorCode):
            assert answer.error_code == 0, answer
            self.epochs[member_id] = answer.member_epoch
        return answer

    def join(self, member_id: str, **said: Any) -> Any:
        wanted = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": REBALANCE_MS}
        return self.beat(member_id, 0, topic_partitions=[], **wanted, **said)

    def owns(self, *partitions: int) -> list[TopicPartitions]:
        return [TopicPartitions(topic_id=self.topic_id, partitions=list(partitions))]

    def stay(self, *member_ids: str, for_ms: int) -> None:
        """Time passes in which these members are alive and give nothing back."""
        for _ in range(for_ms // 5_000):
            self.world.wait(5_000)
            for member_id in member_ids:
                if member_id in self.group.members:
                    self.beat(member_id)

    @property
    def group(self) -> ConsumerGroup:
        group = self.world.shard.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_a_static_member_whose_place_could_not_be_taken_still_ends(steps: Steps) -> None:
    """It was left without timers, and kept its partitions for ever."""
    steps.join("a", instance_id="one")
    steps.beat("a", -2, instance_id="one")
    steps.world.refuse_appends()
    assert steps.join("b", instance_id="one") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    steps.world.refuse_appends(refuse=False)
    assert set(steps.group.members) == {"a"}
    steps.world.wait(SESSION_MS + 1)
    assert not steps.group.members


def test_a_classic_static_member_whose_new_id_was_not_stored_is_as_it_was(steps: Steps) -> None:
    """Rule J3: its metadata, its timeouts and its place; the group stays stable."""
    world = steps.world

    def join(metadata: bytes, session_ms: int) -> Any:
        request = JoinGroupRequest(
            group_id="c", session_timeout_ms=session_ms, rebalance_timeout_ms=session_ms,
            group_instance_id="one", protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )  # fmt: skip
        answers: list[Any] = []
        world.run(lambda shard: shard.join(request, world.info(), answers.append))
        world.wait(3_001)
        return answers[0]

    joined = join(b"before", 10_000)
    plan = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    sync = SyncGroupRequest(
        group_id="c", generation_id=1, member_id=joined.member_id, group_instance_id="one",
        assignments=plan,
    )  # fmt: skip
    world.run(lambda shard: shard.sync(sync, world.info(), lambda _: None))
    group = world.shard.groups["c"]
    assert isinstance(group, ClassicGroup)
    before = replace(group.members[joined.member_id])
    world.refuse_appends()
    assert join(b"after", 20_000).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.state == "Stable"
    assert group.members == {joined.member_id: before}
    assert group.supports("consumer", ["range"])


def revoking(steps: Steps) -> None:
    """`a` has been told to give back half of what it has."""
    steps.join("a", instance_id="one")
    steps.world.wait(1_500)
    steps.join("b")
    steps.world.wait(1_500)
    steps.beat("a")
    assert steps.group.members["a"].revoking


def test_what_was_given_back_in_vain_is_still_awaited(steps: Steps) -> None:
    revoking(steps)
    kept = sorted(steps.group.members["a"].assigned[steps.topic_id])
    steps.world.refuse_appends()
    refused = steps.beat("a", topic_partitions=steps.owns(*kept))
    assert refused is ErrorCode.COORDINATOR_NOT_AVAILABLE
    steps.world.refuse_appends(refuse=False)
    assert steps.group.members["a"].revoking
    steps.stay("a", "b", for_ms=REBALANCE_MS + 5_000)
    assert set(steps.group.members) == {"b"}


def test_a_static_member_that_could_not_step_away_still_gives_back(steps: Steps) -> None:
    revoking(steps)
    steps.world.refuse_appends()
    assert steps.beat("a", -2, instance_id="one") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    steps.world.refuse_appends(refuse=False)
    steps.stay("a", "b", for_ms=REBALANCE_MS + 5_000)
    assert set(steps.group.members) == {"b"}


def test_an_assignment_that_is_stored_after_the_next_rebalance_began_is_void() -> None:
    """Rule J3: its members were told to join again while it was being written."""
    executor = StepExecutor()
    world = ShardWorld(executor=executor)
    settle(world, executor)
    answers: list[Any] = []

    def join(client: str, member_id: str = "") -> None:
        request = JoinGroupRequest(
            group_id="c", session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
            member_id=member_id, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        info = world.info(client, 2)
        world.run(lambda shard: shard.join(request, info, answers.append))

    join("a")
    settle(world, executor)
    world.wait(3_001)
    leader = answers.pop().member_id
    plan = [SyncGroupRequestAssignment(member_id=leader, assignment=b"all")]
    sync = SyncGroupRequest(group_id="c", generation_id=1, member_id=leader, assignments=plan)
    world.run(lambda shard: shard.sync(sync, world.info(), answers.append))
    assert answers == []  # It is in the log, and not committed.
    join("b")
    assert [answer.error_code for answer in answers] == [ErrorCode.REBALANCE_IN_PROGRESS]
    settle(world, executor)
    group = world.shard.groups["c"]
    assert group.state == "PreparingRebalance"
    assert isinstance(group, ClassicGroup)
    assert [member.assignment for member in group.members.values()] == [b"", b""]


def settle(world: ShardWorld, executor: StepExecutor) -> None:
    for _ in range(10):
        executor.run_all()
        world.pump()
