"""An error that nobody foresaw is told, and the state in which it left the shard is not used.

Rule 2.L: what a step has half done nobody can take back, so the partition is loaded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from tests.coordinators.shard_world import ShardWorld
from tests.coordinators.test_runtime import commit, offset_of, settled_world, write
from tests.replication.helpers import StepExecutor

from tidemill.coordinators.host import LOAD_RETRY_MS, LOAD_RETRY_MS_MAX
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import GroupShard
from tidemill.errors import ErrorCode
from tidemill.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol

BROKEN = ErrorCode.UNKNOWN_SERVER_ERROR


def boom(*_: object) -> NoReturn:
    raise ZeroDivisionError("boom")


def waiting_join(world: ShardWorld, group_id: str = "w") -> list[Any]:
    """A member whose join waits for others."""
    request = JoinGroupRequest(
        group_id=group_id, session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    answers: list[Any] = []
    info = world.info("client", 2)
    world.run(lambda shard: shard.join(request, info, answers.append))
    assert answers == []
    return answers


def comes_back(world: ShardWorld) -> None:
    """It is not served at once, and then as the log has it."""
    assert world.state() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.wait(LOAD_RETRY_MS)
    assert world.state() is ErrorCode.NONE
    assert offset_of(world) == 5


@pytest.fixture
def world() -> ShardWorld:
    made = settled_world()
    assert write(made, commit(5)) == ["done"]
    return made


def test_a_request_that_breaks_is_answered_and_the_shard_loaded_again(world: ShardWorld) -> None:
    joining = waiting_join(world)

    def half_done(shard: GroupShard) -> Result[str]:
        shard.groups.clear()
        raise ZeroDivisionError("boom")

    assert world.run(half_done) == [BROKEN]
    comes_back(world)
    assert "g" in world.shard.groups
    assert not joining, "its group was forgotten, and the client's own timeout ends that"


def test_who_waits_for_others_is_sent_elsewhere(world: ShardWorld) -> None:
    joining = waiting_join(world)
    assert world.run(boom) == [BROKEN]
    assert [answer.error_code for answer in joining] == [ErrorCode.NOT_COORDINATOR]
    comes_back(world)


def test_a_request_that_waited_in_line_and_breaks_is_answered() -> None:
    executor = StepExecutor()
    world = settled_world(executor=executor)
    executor.run_all()
    world.pump()
    large = world.run(lambda shard: Result("large", [commit(5)], is_large=True))
    broken = world.run(boom)
    behind = write(world, commit(6))
    assert (large, broken, behind) == ([], [], [])
    executor.run_all()
    world.pump()
    executor.run_all()
    world.pump()
    assert broken == [BROKEN]
    assert behind == [ErrorCode.NOT_COORDINATOR]
    world.wait(LOAD_RETRY_MS)
    executor.run_all()
    world.pump()
    assert world.state() is ErrorCode.NONE
    assert offset_of(world) == 5


def test_a_timer_that_breaks_is_not_the_last_one(world: ShardWorld) -> None:
    world.runtime._hosts[0]._timers.schedule(("bad",), 10, boom)
    world.wait(10)
    comes_back(world)


def test_work_off_the_loop_that_breaks(world: ShardWorld) -> None:
    world.runtime._hosts[0]._timers.compute(("bad",), boom, lambda _: Result())
    world.pump()
    comes_back(world)


def test_a_clean_up_that_breaks(world: ShardWorld) -> None:
    def steps(_: GroupShard) -> Iterator[Result[None]]:
        yield Result()
        boom()

    world.runtime.steps(0, steps)
    world.pump()
    comes_back(world)


def test_an_outcome_that_breaks_keeps_nobody_from_his_answer() -> None:
    executor = StepExecutor()
    world = settled_world(executor=executor)
    executor.run_all()
    world.pump()
    first = world.run(lambda shard: Result("first", [commit(5)], boom))
    second = write(world, commit(6))
    executor.run_all()
    world.pump()
    assert (first, second) == ([BROKEN], [ErrorCode.NOT_COORDINATOR])
    world.wait(LOAD_RETRY_MS)
    executor.run_all()
    world.pump()
    assert offset_of(world) == 6, "the log has it, whatever they were told"


def test_an_outcome_that_breaks_when_it_is_late() -> None:
    executor = StepExecutor()
    world = settled_world(executor=executor)
    executor.run_all()
    world.pump()
    late = world.run(lambda shard: Result("late", [commit(5)], boom))
    world.wait(5_000)
    assert late == [BROKEN]


def test_records_that_cannot_be_replayed(
    world: ShardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_large in (False, True):
        with monkeypatch.context() as patched:
            patched.setattr(GroupShard, "replay", boom)
            result = Result("x", [commit(5)], is_large=is_large)
            assert world.run(lambda _, result=result: result) == [BROKEN]  # type: ignore[misc]
            assert world.state() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.wait(4 * LOAD_RETRY_MS)
        assert world.state() is ErrorCode.NONE
        assert offset_of(world) == 5


def test_records_that_cannot_be_encoded_change_nothing(world: ShardWorld) -> None:
    joining = waiting_join(world)
    bad = commit(1)._replace(value=commit(1).key)
    for gather in (False, True):
        assert write(world, bad, gather=gather) == [BROKEN]
    assert world.state() is ErrorCode.NONE
    assert not joining


def test_a_load_that_breaks_is_tried_again_ever_less_often(
    world: ShardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_loaded(_: GroupShard) -> Iterator[Result[None]]:
        yield Result()
        boom()

    for name, broken in (("replay", boom), ("on_loaded", half_loaded)):
        with monkeypatch.context() as patched:
            patched.setattr(GroupShard, name, broken)
            world.restart()
            assert world.state() is ErrorCode.COORDINATOR_NOT_AVAILABLE
            world.wait(LOAD_RETRY_MS)
            assert world.state() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.wait(LOAD_RETRY_MS)
        assert world.state() is ErrorCode.COORDINATOR_NOT_AVAILABLE, "it waits twice as long now"
        world.wait(LOAD_RETRY_MS)
        assert world.state() is ErrorCode.NONE
        assert offset_of(world) == 5


def test_a_shard_that_served_long_is_loaded_again_soon(world: ShardWorld) -> None:
    for _ in range(3):
        assert world.run(boom) == [BROKEN]
        comes_back(world)
        world.wait(LOAD_RETRY_MS_MAX)


def test_a_partition_that_is_not_led_any_more_is_not_loaded_again(world: ShardWorld) -> None:
    world.runtime._hosts[0]._timers.schedule(("bad",), 10, boom)
    world.wait(10)
    world.lose_leadership()
    world.wait(LOAD_RETRY_MS)
    assert world.state() is ErrorCode.NOT_COORDINATOR


def test_a_shard_that_cannot_even_be_closed_is_left_behind(
    world: ShardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(GroupShard, "on_unloaded", boom)
        assert world.run(boom) == [BROKEN]
    comes_back(world)


def test_who_cannot_be_told_keeps_nobody_from_his_answer() -> None:
    executor = StepExecutor()
    world = settled_world(executor=executor)
    executor.run_all()
    world.pump()
    large = world.run(lambda shard: Result("large", [commit(5)], is_large=True))
    world.runtime.run(0, lambda shard: Result("deaf"), boom, boom)
    behind = world.run(lambda shard: Result("behind"))
    world.lose_leadership()
    assert large + behind == [ErrorCode.NOT_COORDINATOR] * 2
