"""Groups of thousands of topics, offsets or members leave the loop to others (rule 2.L).

What a turn of the loop costs is counted in calls rather than measured, so that a busy machine says
the same as an idle one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.coordinators.shard_world import ShardWorld
from tests.replication.helpers import topic_image

from tidemill.coordinators import consumer_steps
from tidemill.coordinators.classic_group import ClassicGroup
from tidemill.coordinators.consumer_group import ConsumerGroup
from tidemill.coordinators.offsets import Committed, Place
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import GroupShard
from tidemill.errors import ErrorCode
from tidemill.image import with_topics, without_topics
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tidemill.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol

HEARTBEAT_MS = 1_000


class Turns:
    """A world whose turns of the loop are counted, one by one; work off the loop is not."""

    def __init__(self, topic_count: int = 0) -> None:
        self.world = ShardWorld()
        topics = [topic_image(f"topic-{n:05}", 1_000 + n, 1) for n in range(topic_count)]
        self.world.around.image = with_topics(self.world.around.image, topics)
        self.calls: list[int] = []
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, list[TopicPartitions]] = {}

    def count(self, turn: Callable[[], object]) -> None:
        calls = 0

        def counts(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(counts)
        try:
            turn()
        finally:
            sys.setprofile(None)
        self.calls.append(calls)

    def pump(self) -> None:
        world = self.world
        while world.soon or world.world.moved:
            while world.world.moved:
                world.runtime.partition_moved(world.world.moved.pop(0))
            if world.soon:
                turn = world.soon.popleft()
                if "SoonExecutor" in turn.__qualname__:
                    turn()
                else:
                    self.count(turn)

    def wait(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 20):
            self.world.clock.advance(20)
            self.count(lambda: self.world.wheel.advance(self.world.clock.monotonic_ms()))
            self.pump()

    def beat(self, member_id: str, **said: Any) -> ConsumerGroupHeartbeatResponse:
        given: dict[str, Any] = {
            "group_id": "g",
            "member_id": member_id,
            "member_epoch": self.epochs.get(member_id, 0),
            "topic_partitions": self.owned.get(member_id),
        }
        request = ConsumerGroupHeartbeatRequest(**given | said)
        info = self.world.info(version=1)
        answers: list[ConsumerGroupHeartbeatResponse | None] = []
        self.count(
            lambda: self.world.runtime.run(
                0,
                lambda shard: shard.consumer_heartbeat(request, info),
                answers.append,
                unexpected,
            )
        )
        self.pump()
        (answer,) = answers
        assert answer is not None
        assert answer.error_code == 0, answer
        self.epochs[member_id] = answer.member_epoch
        if answer.assignment is not None:
            self.owned[member_id] = answer.assignment.topic_partitions
        return answer

    def join(self, *member_ids: str) -> None:
        for member_id in member_ids:
            self.beat(
                member_id,
                rebalance_timeout_ms=30_000,
                subscribed_topic_regex="topic-.*",
                topic_partitions=[],
            )

    def settle(self) -> None:
        """Heartbeat until everybody has his share."""
        for _ in range(30):
            self.wait(HEARTBEAT_MS)
            for member_id in self.epochs:
                self.beat(member_id)
            if self.group.state == "Stable" and self.group.target:
                return
        raise AssertionError(self.group.state)

    @property
    def group(self) -> ConsumerGroup:
        group = self.world.shard.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    def has(self) -> list[int]:
        return [len(member.assigned) for member in self.group.members.values()]


def longest_turns(topic_count: int) -> Turns:
    turns = Turns(topic_count)
    turns.join("a", "b", "c")
    turns.settle()
    return turns


def test_a_large_assignment_is_computed_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_steps, "ASSIGNED_AT_ONCE_MAX", 10**9)
    before = longest_turns(3_000)
    monkeypatch.undo()
    after = longest_turns(3_000)
    assert sorted(after.has()) == sorted(before.has()) == [1_000] * 3
    # What is left is what one member is given, and finding the topics.
    assert max(after.calls) * 3 < max(before.calls), (max(after.calls), max(before.calls))


def test_a_settled_member_s_heartbeat_costs_the_same_whatever_it_reads() -> None:
    costs = []
    for topic_count in (30, 3_000):
        turns = longest_turns(topic_count)
        turns.calls.clear()
        turns.owned.clear()
        turns.beat("a")
        costs.append(max(turns.calls))
    assert costs[1] < 2 * costs[0], costs


class Holds:
    """An executor for assignments that keeps them until the test asks."""

    def __init__(self, turns: Turns) -> None:
        self._timers = turns.world.runtime._hosts[0]._timers
        self._executor = self._timers._executor
        self._timers._executor = self
        self.held: list[Callable[[], object]] = []

    def submit(self, work: Callable[[], Any], then: Any) -> None:
        self.held.append(lambda: self._executor.submit(work, then))

    def let_go(self) -> None:
        self._timers._executor = self._executor
        for each in self.held:
            each()


@pytest.mark.parametrize("leaves", [True, False])
def test_members_come_and_go_while_the_assignment_is_computed(leaves: bool) -> None:
    turns = Turns(2_000)
    turns.join("a", "b", "c")
    assignments = Holds(turns)
    while not assignments.held:
        turns.wait(HEARTBEAT_MS)
        for member_id in turns.epochs:
            turns.beat(member_id)
    assert turns.group.assignment_epoch < turns.group.group_epoch
    if leaves:
        turns.beat("c", member_epoch=-1)
        del turns.epochs["c"]
    else:
        turns.join("d")
    epoch = turns.group.group_epoch
    assignments.let_go()
    turns.pump()
    assert 0 < turns.group.assignment_epoch < epoch
    assert set(turns.group.target) == ({"a", "b"} if leaves else {"a", "b", "c"})
    turns.settle()
    assert turns.group.assignment_epoch == turns.group.group_epoch
    assert sum(turns.has()) == 2_000


def test_a_static_member_that_comes_back_meanwhile_keeps_its_share() -> None:
    turns = Turns(2_000)
    static = {"instance_id": "one", "rebalance_timeout_ms": 30_000, "topic_partitions": [],
              "subscribed_topic_regex": "topic-.*"}  # fmt: skip
    turns.beat("a", **static)
    turns.join("b")
    turns.settle()
    assignments = Holds(turns)
    turns.join("c")
    while not assignments.held:
        turns.wait(HEARTBEAT_MS)
        for member_id in turns.epochs:
            turns.beat(member_id, **({"instance_id": "one"} if member_id == "a" else {}))
    turns.beat("a", instance_id="one", member_epoch=-2)
    del turns.epochs["a"]
    turns.beat("a2", **static)
    assignments.let_go()
    turns.pump()
    assert set(turns.group.target) == {"a2", "b", "c"}
    assert sum(sum(map(len, share.values())) for share in turns.group.target.values()) == 2_000


# Offsets and sessions.


def committed_by(group_count: int, topics: int) -> Turns:
    turns = Turns(topics)
    offsets = turns.world.shard.offsets
    for group in range(group_count):
        for topic in range(topics):
            place = Place(f"g-{group}", f"topic-{topic:05}", 0)
            offsets._put(place, Committed(1, -1, "", 0))
    return turns


def test_a_topic_s_offsets_go_in_turns() -> None:
    """However many groups have committed for it; a request that comes meanwhile comes after."""
    costs = []
    for group_count in (2_000, 8_000):
        turns = committed_by(group_count, 1)
        turns.world.around.image = without_topics(turns.world.around.image, ["topic-00000"])
        turns.count(partial(turns.world.runtime.steps, 0, _forget))
        left: list[int | None] = []
        turns.world.runtime.run(0, _count, left.append, unexpected)
        turns.pump()
        assert left == [0]
        costs.append(max(turns.calls))
    assert costs[1] < 2 * costs[0], costs


def unexpected(code: ErrorCode, message: str | None) -> None:
    raise AssertionError(code)


def _forget(shard: GroupShard) -> Iterator[Result[None]]:
    return shard.forget_deleted_topics(["topic-00000"])


def _count(shard: GroupShard) -> Result[int]:
    return Result(len(shard.offsets))


def test_a_load_of_many_offsets_tidies_in_turns() -> None:
    """Nothing is left behind, and yet no step looks through all there is."""
    costs = []
    for group_count in (200, 1_600):
        turns = committed_by(group_count, 10)
        turns.world.around.image = without_topics(turns.world.around.image, ["topic-00003"])
        host = turns.world.runtime._hosts[0]
        turns.count(partial(host.write_steps, turns.world.shard.on_loaded()))
        turns.pump()
        assert len(turns.world.shard.offsets) == 9 * group_count
        costs.append(max(turns.calls))
    assert costs[1] < 2 * costs[0], costs


def test_a_load_of_many_members_starts_their_sessions_in_turns() -> None:
    steps = []
    for group_count in (10, 3_000):
        world = ShardWorld()
        for number in range(group_count):
            group = ClassicGroup(f"g-{number}", world.shard._services)
            world.shard.groups[group.group_id] = group
        steps.append(len(list(world.shard.on_loaded())))
    assert steps == [0, 3]


def test_a_join_costs_the_same_in_a_large_group() -> None:
    """Every join asked every member whether it had joined."""
    turns = Turns()
    costs = {}
    for count in (1, 500):
        while len(members_of(turns.world)) < count:
            join_classic(turns.world)
        turns.calls.clear()
        turns.count(lambda: join_classic(turns.world))
        costs[count] = turns.calls[0]
    assert costs[500] < costs[1] + 100


def members_of(world: ShardWorld) -> dict[str, Any]:
    group = world.shard.groups.get("classic")
    return {} if group is None else dict(group.members)


def join_classic(world: ShardWorld) -> None:
    """One more member, which waits with all others for the end of the first rebalance."""
    request = JoinGroupRequest(
        group_id="classic", session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    info = world.info("client", 2)
    world.run(lambda shard: shard.join(request, info, lambda _: None))
