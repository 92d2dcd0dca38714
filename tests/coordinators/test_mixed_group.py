"""A live group moves between the protocols: what is stored of it, and what happens if it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from tests.coordinators.shard_world import ShardWorld
from tests.replication.helpers import StepExecutor

from tidemill.client.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tidemill.coordinators.classic_group import ClassicGroup, ClassicSettings
from tidemill.coordinators.classic_state import ClassicState
from tidemill.coordinators.consumer_group import ConsumerGroupConfig
from tidemill.coordinators.mixed_group import MixedGroup
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import ShardSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

NO_WAIT = ClassicSettings(initial_rebalance_delay_ms=0)
NEW = "newer-member"


class Migration:
    """One classic member with both partitions of topic t, and what happens to it."""

    def __init__(self, **settings: Any) -> None:
        self.world = ShardWorld(ShardSettings(classic=NO_WAIT, **settings))
        self.world.topic("t", 1, 2)
        self.member_id, self.generation = "", -1
        joined = self.join()
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.sync(encode_assignment([TopicPartition("t", 0), TopicPartition("t", 1)]))

    def join(self, *owned: int) -> Any:
        subscription = Subscription(
            ("t",), owned=frozenset(TopicPartition("t", each) for each in owned)
        )
        protocol = JoinGroupRequestProtocol(
            name="range", metadata=encode_subscription(subscription)
        )
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=20_000,
            member_id=self.member_id, protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        answers: list[Any] = []
        info = self.world.info("old", 2)
        self.world.run(lambda shard: shard.join(request, info, answers.append))
        self.world.wait(1)
        return answers[0]

    def join_another(self) -> None:
        """A second classic member, with which the group is stable again."""
        first, self.member_id = self.member_id, ""
        subscription = encode_subscription(Subscription(("t",)))
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )  # fmt: skip
        second: list[Any] = []
        info = self.world.info("other", 2)
        self.world.run(lambda shard: shard.join(request, info, second.append))
        self.member_id = first
        self.generation = self.join().generation_id
        self.sync(encode_assignment([TopicPartition("t", 0)]))
        assert len(self.group.members) == 2

    def sync(self, assignment: bytes = b"") -> Any:
        plan = [SyncGroupRequestAssignment(member_id=self.member_id, assignment=assignment)]
        request = SyncGroupRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id, assignments=plan
        )
        answers: list[Any] = []
        info = self.world.info()
        self.world.run(lambda shard: shard.sync(request, info, answers.append))
        return answers[0]

    def sync_error(self) -> ErrorCode:
        return ErrorCode(self.sync().error_code)

    def wait_beside_newer(self, duration_ms: int) -> None:
        """Let time pass in which the member of the newer protocol reports."""
        self.world.wait(duration_ms)
        assert self.newer(self.group.members[NEW].member_epoch).error_code == 0

    def beat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id
        )
        (answer,) = self.world.run(lambda shard: shard.heartbeat(request))
        return ErrorCode(answer.error_code)

    def newer(self, epoch: int = 0) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=NEW, member_epoch=epoch, rebalance_timeout_ms=20_000,
            subscribed_topic_names=["t"], topic_partitions=[],
        )  # fmt: skip
        info = self.world.info("new", 1)
        (answer,) = self.world.run(lambda shard: shard.consumer_heartbeat(request, info))
        return answer

    @property
    def kind(self) -> type[Any]:
        return type(self.group)

    @property
    def group(self) -> Any:
        return self.world.shard.groups["g"]


def test_up_and_down_again() -> None:
    it = Migration()
    assert it.newer().error_code == 0
    assert it.kind is MixedGroup
    assert it.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    joined = it.join(0, 1)
    assert joined.generation_id == it.generation
    (kept,) = decode_assignment(it.sync().assignment)
    it.generation = it.join(kept.partition).generation_id
    it.sync()
    assert it.beat() is ErrorCode.NONE
    assert it.newer(it.group.group_epoch).error_code == 0
    it.newer(-1)
    assert it.kind is ClassicGroup
    assert it.group.state is ClassicState.PREPARING_REBALANCE
    assert it.join(kept.partition).error_code == 0


def test_a_mixed_group_survives_a_restart() -> None:
    it = Migration()
    it.newer()
    it.world.restart()
    assert it.kind is MixedGroup
    assert it.group.members[it.member_id].classic is not None
    assert it.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    it.newer(-1)
    it.world.restart()
    assert it.kind is ClassicGroup
    assert list(it.group.members) == [it.member_id]


def test_a_classic_member_keeps_its_own_session_timeout() -> None:
    it = Migration()
    it.newer()
    it.world.wait(9_999)
    assert it.member_id in it.group.members
    it.world.wait(1)
    assert set(it.group.members) == {NEW}


def test_a_classic_member_that_does_not_join_again_is_out() -> None:
    """Rule J8: it reports, and does not do what it is told: the rebalance timeout ends that."""
    it = Migration()
    it.newer()
    for _ in range(4):
        assert it.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert it.sync_error() is ErrorCode.REBALANCE_IN_PROGRESS
        it.wait_beside_newer(5_000 - 1)
        assert it.member_id in it.group.members
        it.wait_beside_newer(1)
    assert set(it.group.members) == {NEW}


def test_a_classic_member_that_asks_for_its_assignment_must_join_again_all_the_same() -> None:
    """It has to give something back: that it fetches what it has is not what it was told."""
    it = Migration()
    it.newer()
    it.join(0, 1)
    it.sync()
    for _ in range(4):
        assert it.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert it.sync_error() is ErrorCode.NONE
        it.wait_beside_newer(5_000)
    assert set(it.group.members) == {NEW}


def test_whoever_joins_again_has_a_whole_rebalance_timeout_the_next_time() -> None:
    it = Migration()
    it.newer()
    assert it.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    it.wait_beside_newer(9_000)
    it.beat()
    it.wait_beside_newer(9_000)
    it.join(0, 1)
    it.sync()
    assert it.beat() is ErrorCode.REBALANCE_IN_PROGRESS, "now it gives something back"
    it.wait_beside_newer(9_000)
    it.beat()
    it.wait_beside_newer(9_000)
    assert it.member_id in it.group.members


def test_a_classic_member_that_joins_and_never_asks_for_its_assignment_is_out() -> None:
    it = Migration()
    it.newer()
    it.join(0, 1)
    for _ in range(4):
        it.beat()
        it.wait_beside_newer(5_000)
    assert set(it.group.members) == {NEW}


def test_an_upgrade_that_cannot_be_stored_changes_nothing() -> None:
    it = Migration()
    it.world.refuse_appends()
    assert it.newer() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    it.world.refuse_appends(refuse=False)
    assert it.kind is ClassicGroup
    assert it.beat() is ErrorCode.NONE
    it.world.wait(10_000)
    assert it.group.state is ClassicState.EMPTY


def test_a_first_rebalance_goes_on_after_an_upgrade_that_cannot_be_stored() -> None:
    """Its timer went with the attempt, and nobody's join was ever answered again."""
    world = ShardWorld()
    world.topic("t", 1, 2)
    first = join_late(world, "")
    world.refuse_appends()
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=NEW, member_epoch=0, rebalance_timeout_ms=20_000,
        subscribed_topic_names=["t"], topic_partitions=[],
    )  # fmt: skip
    info = world.info("new", 1)
    refused = world.run(lambda shard: shard.consumer_heartbeat(request, info))
    assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.refuse_appends(refuse=False)
    assert [each.error_code for each in first] == [ErrorCode.REBALANCE_IN_PROGRESS]
    again = join_late(world, first[0].member_id)
    assert [each.error_code for each in again] == [0], "everybody is here: no need to wait"
    assert again[0].generation_id == 1


def test_a_rebalance_ends_without_those_who_do_not_come_back_after_a_failed_upgrade() -> None:
    it = Migration()
    other = join_late(it.world, "")
    assert it.group.state is ClassicState.PREPARING_REBALANCE
    it.world.refuse_appends()
    it.newer()
    it.world.refuse_appends(refuse=False)
    assert other[0].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = join_late(it.world, other[0].member_id)
    it.world.wait(20_000)
    assert [each.error_code for each in again] == [0]
    assert set(it.group.members) == {other[0].member_id}


def test_an_upgrade_that_is_in_the_log_and_not_committed_in_time_stays() -> None:
    """Whoever loads the log finds the new group: so must we."""
    executor = StepExecutor()
    world = ShardWorld(ShardSettings(classic=NO_WAIT), executor=executor)
    executor.run_all()
    world.pump()
    world.topic("t", 1, 2)
    join_late(world, "")
    executor.run_all()
    world.wait(1)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=NEW, member_epoch=0, rebalance_timeout_ms=20_000,
        subscribed_topic_names=["t"], topic_partitions=[],
    )  # fmt: skip
    info = world.info("new", 1)
    answers = world.run(lambda shard: shard.consumer_heartbeat(request, info))
    world.wait(5_000)
    assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert isinstance(world.shard.groups["g"], MixedGroup)


@pytest.mark.parametrize("was_newer", [False, True])
def test_a_first_member_that_is_in_the_log_and_not_committed_in_time_stays(was_newer: bool) -> None:
    """Its group was forgotten here, and came back with whoever loaded the log."""
    executor = StepExecutor()
    world = ShardWorld(executor=executor)
    executor.run_all()
    world.pump()
    if was_newer:
        former = world.shard._new_consumer_group("g")
        world.run(lambda shard: Result(None, former.remove_members([])))
        executor.run_all()
        world.pump()
        assert isinstance(world.shard.groups["g"], MixedGroup)
    answers = join_late(world, "")
    world.wait(6_000)
    assert [each.generation_id for each in answers] == [1]
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    assert set(world.shard.groups["g"].members) == {answers[0].member_id}


def test_who_is_left_rebalances_even_if_the_coordinator_restarts_at_once() -> None:
    """Nobody else would ever get what the last member of the newer protocol had."""
    it = Migration()
    it.newer()
    it.join(0, 1)
    (kept,) = decode_assignment(it.sync().assignment)
    it.generation = it.join(kept.partition).generation_id
    it.sync()
    assert it.beat() is ErrorCode.NONE
    it.newer(-1)
    it.world.restart()
    assert it.kind is ClassicGroup
    assert it.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    joined = it.join(kept.partition)
    assert joined.leader == it.member_id
    it.generation = joined.generation_id
    it.sync(encode_assignment([TopicPartition("t", 0), TopicPartition("t", 1)]))
    it.world.restart()
    assert it.beat() is ErrorCode.NONE, "and only once"


def join_late(world: ShardWorld, member_id: str) -> list[Any]:
    """Join, and do not wait for the answer."""
    protocol = JoinGroupRequestProtocol(
        name="range", metadata=encode_subscription(Subscription(("t",)))
    )
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=20_000,
        member_id=member_id, protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip
    answers: list[Any] = []
    info = world.info("old", 2)
    world.run(lambda shard: shard.join(request, info, answers.append))
    return answers


def test_a_policy_that_forbids_it() -> None:
    it = Migration(may_upgrade=False)
    assert it.newer().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert it.beat() is ErrorCode.NONE
    it = Migration(consumer=ConsumerGroupConfig(classic_max_size=0))
    it.newer()
    it.newer(-1)
    assert it.kind is MixedGroup


def test_a_group_that_is_too_large_for_the_other_protocol_stays() -> None:
    """Rule J6, on the way there and on the way back."""
    it = Migration(consumer=ConsumerGroupConfig(max_size=1))
    it.join_another()
    answer = it.newer()
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "exceeds the consumer group maximum size" in answer.error_message
    assert it.kind is ClassicGroup
    it = Migration(consumer=ConsumerGroupConfig(classic_max_size=1))
    it.join_another()
    it.newer()
    it.newer(-1)
    assert it.kind is MixedGroup
    assert len(it.group.members) == 2


def test_an_empty_classic_group_becomes_one_of_the_newer_protocol() -> None:
    it = Migration()
    it.world.wait(10_000)
    assert it.group.state is ClassicState.EMPTY
    assert it.newer().member_epoch > 0
    it.world.restart()
    assert set(it.group.members) == {NEW}


def test_an_empty_newer_group_becomes_a_classic_one() -> None:
    it = Migration()
    it.world.wait(10_000)
    it.newer()
    it.newer(-1)
    it.member_id = ""
    assert it.join().error_code == 0
    it.world.restart()
    assert it.kind is ClassicGroup


def test_a_member_whose_end_could_not_be_stored_ends_later() -> None:
    """Its timers went with the attempt, and it kept its partitions for ever."""
    it = Migration()
    it.newer()
    it.world.refuse_appends()
    it.world.wait(50_000)
    assert set(it.group.members) == {NEW, it.member_id}
    it.world.refuse_appends(refuse=False)
    it.world.wait(50_000)
    assert not it.group.members


def test_a_departure_that_could_not_be_stored_ends_later() -> None:
    it = Migration()
    it.newer()
    it.world.refuse_appends()
    assert it.newer(-1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    it.world.refuse_appends(refuse=False)
    assert it.kind is MixedGroup
    it.world.wait(50_000)
    assert not it.group.members


def test_an_id_that_was_lost_with_a_failed_upgrade_is_not_waited_for() -> None:
    """Rule J4: nobody expects it any more, so every later rebalance would wait in vain."""
    it = Migration()
    answers: list[Any] = []
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    info = it.world.info("other", 5)
    it.world.run(lambda shard: shard.join(request, info, answers.append))
    assert answers[0].error_code == ErrorCode.MEMBER_ID_REQUIRED
    it.world.refuse_appends()
    it.newer()
    it.world.refuse_appends(refuse=False)
    assert it.kind is ClassicGroup
    assert it.join().generation_id == it.generation + 1
