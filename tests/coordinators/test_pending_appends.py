"""Large batches are in the log late: whatever comes meanwhile waits in line (rules J1, J2, G7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.coordinators.shard_world import ShardWorld
from tests.replication.helpers import StepExecutor

from tidemill.coordinators.host import LOAD_RETRY_MS
from tidemill.coordinators.offsets import Place
from tidemill.coordinators.records import OffsetCommitKey, OffsetCommitValue
from tidemill.coordinators.result import CoordinatorRecord, Result
from tidemill.errors import ErrorCode
from tidemill.image import TopicImage
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

LARGE_NOTE = "m" * 3_000
PARTITIONS = 30


class LateWorld:
    """A shard whose executor works when the test says so."""

    def __init__(self) -> None:
        self.executor = StepExecutor()
        self.world = ShardWorld(executor=self.executor)
        self.settle()
        self.topic = self.world.topic("t", 1, PARTITIONS)

    def settle(self) -> None:
        for _ in range(10):
            self.executor.run_all()
            self.world.pump()

    def ask(self, operation: Any, *, gather: bool = False) -> list[Any]:
        answers: list[Any] = []
        self.world.runtime.run(
            0, operation, answers.append, lambda code, _: answers.append(code), gather=gather
        )
        return answers

    def commit(self, offset: int, *, group: str = "g", large: bool = False) -> list[Any]:
        request = commit_request(self.topic, offset, group, large=large)
        info = self.world.info(version=8)
        return self.ask(lambda shard: shard.commit(request, info), gather=True)

    def beat(self, member_id: str, epoch: int = 0) -> list[Any]:
        request = ConsumerGroupHeartbeatRequest(
            group_id="pair",
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["t"],
            topic_partitions=[] if epoch == 0 else None,
        )
        info = self.world.info(version=1)
        return self.ask(lambda shard: shard.consumer_heartbeat(request, info))

    def offset(self, group: str = "g") -> int:
        wanted = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        request = OffsetFetchRequestGroup(group_id=group, topics=[wanted])
        answers = self.ask(lambda shard: shard.fetch(request))
        self.settle()
        found: int = answers[0].topics[0].partitions[0].committed_offset
        return found

    @property
    def is_pending(self) -> bool:
        return self.world.runtime._hosts[0]._pending is not None


def commit_request(
    topic: TopicImage, offset: int, group: str, *, large: bool
) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_metadata=LARGE_NOTE if large else "",
        )
        for index in range(PARTITIONS if large else 1)
    ]
    wanted = OffsetCommitRequestTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )
    return OffsetCommitRequest(group_id=group, topics=[wanted])


def large_batch() -> list[CoordinatorRecord]:
    value = OffsetCommitValue(offset=1, metadata="x" * 30_000)
    keys = [OffsetCommitKey(group="g", topic="t", partition=index) for index in range(3)]
    return [CoordinatorRecord(key, value) for key in keys]


@pytest.fixture
def late() -> LateWorld:
    return LateWorld()


def test_a_large_commit_is_in_the_log_late(late: LateWorld) -> None:
    answers = late.commit(5, large=True)
    late.world.pump()
    assert late.is_pending
    late.settle()
    assert [type(answer).__name__ for answer in answers] == ["OffsetCommitResponse"]
    assert late.offset() == 5


def test_no_two_members_get_the_same_partitions(late: LateWorld) -> None:
    """Both joins were decided on a group without members, and both got everything."""
    late.commit(5, group="other", large=True)
    first, second = late.beat("A"), late.beat("B")
    late.settle()
    owned = [
        partition
        for (answer,) in (first, second)
        for topic in answer.assignment.topic_partitions
        for partition in topic.partitions
    ]
    assert len(owned) == len(set(owned))
    members: Any = late.world.shard.groups["pair"]
    assert set(members.members) == {"A", "B"}


def test_a_deleted_group_takes_the_commit_before_it_along(late: LateWorld) -> None:
    late.commit(1)
    late.settle()
    commit = late.commit(5, large=True)
    deleted = late.ask(lambda shard: shard.delete("g"))
    late.settle()
    assert (len(commit), deleted) == (1, [None])
    assert "g" not in late.world.shard.groups
    assert len(late.world.shard.offsets) == 0
    late.world.restart()
    late.settle()
    assert len(late.world.shard.offsets) == 0


def test_an_operation_whose_own_batch_is_large_keeps_its_place(late: LateWorld) -> None:
    order: list[str] = []

    def large(name: str) -> None:
        late.world.runtime.run(
            0,
            lambda shard: Result(name, large_batch()),
            lambda answer: order.append(str(answer)),
            lambda code, _: order.append(code.name),
        )

    late.commit(5, large=True)
    for name in ("a", "b", "c"):
        large(name)
    late.settle()
    assert order == ["a", "b", "c"]


def test_clean_ups_wait_and_stay_together(late: LateWorld) -> None:
    """What comes between two steps could be undone by the second, which was decided before."""
    seen: list[str] = []

    def steps() -> Iterator[Result[None]]:
        for number in range(3):
            seen.append(f"step {number}")
            yield Result(None, large_batch())

    def request(shard: object) -> Result[str]:
        seen.append("request")
        return Result("done")

    late.commit(5, large=True)
    late.world.pump()
    late.world.runtime.steps(0, lambda shard: steps())
    assert seen == []
    answers = late.ask(request)
    late.settle()
    assert seen == ["step 0", "step 1", "step 2", "request"]
    assert answers == ["done"]


def test_a_commit_under_way_when_its_topic_goes_is_forgotten_with_it(late: LateWorld) -> None:
    late.commit(5, large=True)
    late.world.pump()
    late.world.drop_topic("t")
    late.world.topic("t", 2, PARTITIONS)
    late.settle()
    assert late.offset() == -1
    assert len(late.world.shard.offsets) == 0


def test_an_offset_of_a_topic_that_was_made_again_is_none() -> None:
    late = LateWorld()
    late.commit(5)
    late.settle()
    assert late.offset() == 5
    late.world.topic("t", 2, PARTITIONS)
    assert late.offset() == -1
    everything = OffsetFetchRequestGroup(group_id="g", topics=None)
    assert late.world.run(lambda shard: shard.fetch(everything))[0].topics == []


def test_gathered_commits_wait_for_the_append_before_them(late: LateWorld) -> None:
    late.commit(5, large=True)
    late.world.pump()
    answers = [late.commit(number) for number in (6, 7)]
    late.world.pump()
    assert answers == [[], []]
    late.settle()
    assert [len(each) for each in answers] == [1, 1]
    assert late.offset() == 7


def test_everybody_in_line_is_told_when_the_coordinator_moves(late: LateWorld) -> None:
    first = late.commit(5, large=True)
    late.world.pump()
    second, third = late.commit(6), late.ask(lambda shard: Result("read"))
    late.world.lose_leadership()
    late.settle()
    assert first == second == third == [ErrorCode.NOT_COORDINATOR]


def test_everybody_in_line_is_told_when_the_broker_stops(late: LateWorld) -> None:
    first = late.commit(5, large=True)
    late.world.pump()
    second = late.ask(lambda shard: Result("read"))
    late.world.runtime.close()
    assert first == second == [ErrorCode.NOT_COORDINATOR]
    late.settle()
    assert first == second == [ErrorCode.NOT_COORDINATOR], "told once"


def test_a_timer_that_is_due_waits_and_can_be_called_off(late: LateWorld) -> None:
    """A heartbeat that stood in line before the session's end counts."""
    fired: list[str] = []

    def fire() -> Result[None]:
        fired.append("fired")
        return Result()

    timers = late.world.shard._timers
    timers.schedule(("kept",), 1_000, fire)
    timers.schedule(("renewed",), 1_000, fire)
    late.commit(5, large=True)
    late.world.pump()

    def renew(shard: object) -> Result[None]:
        timers.schedule(("renewed",), 5_000, fire)
        return Result()

    late.ask(renew)
    late.world.wait(1_000)
    assert fired == []
    late.settle()
    assert fired == ["fired"]
    late.world.wait(5_000)
    assert fired == ["fired", "fired"]


def test_who_waits_behind_what_breaks_is_sent_away(late: LateWorld) -> None:
    def broken(shard: object) -> Result[None]:
        raise RuntimeError("broken")

    late.commit(5, large=True)
    late.world.pump()
    asked = late.ask(broken)
    stuck = late.ask(lambda shard: Result("stuck"))
    late.settle()
    behind = late.ask(lambda shard: Result("next"))
    assert asked + stuck + behind == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ]
    late.world.wait(LOAD_RETRY_MS)
    late.settle()
    assert late.ask(lambda shard: Result("again")) == ["again"]
    assert late.world.shard.offsets.get(Place("g", "t", 0)) is not None
