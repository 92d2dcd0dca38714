"""The coordinator's runtime: loading, committing, failing, and handing over (rules J1, B11)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.coordinators.shard_world import ShardWorld
from tests.replication.helpers import StepExecutor

from tidemill.coordinators import writing
from tidemill.coordinators.offsets import Place, tombstone
from tidemill.coordinators.records import OffsetCommitKey, OffsetCommitValue
from tidemill.coordinators.result import CoordinatorRecord, Encoded, Result
from tidemill.coordinators.runtime import RuntimeSettings
from tidemill.coordinators.shard import GroupShard
from tidemill.coordinators.write_errors import coordinator_error
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.batch import iter_headers
from tidemill.wire.compression import Codec


def commit(offset: int, partition: int = 0) -> CoordinatorRecord:
    key = OffsetCommitKey(group="g", topic="t", partition=partition)
    return CoordinatorRecord(key, OffsetCommitValue(offset=offset, commit_timestamp=1))


def settled_world(**options: Any) -> ShardWorld:
    """With a topic t, so that its offsets are not tidied away."""
    world = ShardWorld(**options)
    world.topic("t", 1)
    return world


def write(world: ShardWorld, *records: CoordinatorRecord, gather: bool = False) -> list[Any]:
    return world.run(lambda shard: Result("done", list(records)), gather=gather)


def offset_of(world: ShardWorld, partition: int = 0) -> int | None:
    found = world.shard.offsets.get(Place("g", "t", partition))
    return None if found is None else found.offset


def batches(world: ShardWorld) -> list[int]:
    """How many records each batch of the log has."""
    stored = world.partition.log
    found = stored.read(0, max_bytes=4 << 20, upper_offset=stored.log_end_offset)
    return [header.record_count for _, header in iter_headers(found.read_blocking())]


def test_an_answer_leaves_when_its_records_are_committed() -> None:
    executor = StepExecutor()
    world = ShardWorld(executor=executor)
    executor.run_all()
    answers = write(world, commit(5))
    assert answers == []
    assert offset_of(world) == 5
    executor.run_all()
    world.pump()
    assert answers == ["done"]


def test_an_answer_without_records_waits_for_what_was_written_before_it() -> None:
    """Nobody is told of a state that a fail-over could take back."""
    executor = StepExecutor()
    world = ShardWorld(executor=executor)
    executor.run_all()
    first = write(world, commit(5))
    second = world.run(lambda shard: Result(offset_of(world)))
    assert first == second == []
    executor.run_all()
    world.pump()
    assert (first, second) == (["done"], [5])


def test_an_answer_that_waits_too_long_is_an_error() -> None:
    executor = StepExecutor()
    world = ShardWorld(executor=executor, runtime_settings=RuntimeSettings(commit_timeout_ms=5_000))
    executor.run_all()
    first = write(world, commit(5))
    world.wait(3_000)
    second = write(world, commit(6))
    world.wait(2_000)
    assert (first, second) == ([ErrorCode.COORDINATOR_NOT_AVAILABLE], [])
    executor.run_all()
    world.pump()
    assert second == ["done"]


def test_a_refused_append_changes_nothing() -> None:
    world = ShardWorld()
    world.refuse_appends()
    settled: list[ErrorCode] = []
    answers = world.run(lambda shard: Result("done", [commit(5)], settled.append))
    assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE] == settled
    assert offset_of(world) is None
    assert world.partition.log.log_end_offset == 0


def test_an_operation_that_raises_is_answered_with_its_code() -> None:
    def refuse(shard: GroupShard) -> Result[str]:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)

    assert ShardWorld().run(refuse) == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_commits_of_one_turn_share_a_batch() -> None:
    world = ShardWorld()
    answers: list[Any] = []
    for number in range(20):
        world.runtime.run(
            0,
            lambda shard, number=number: Result(number, [commit(number, number)]),  # type: ignore[misc]
            answers.append,
            lambda code, _: answers.append(code),
            gather=True,
        )
    assert answers == []
    world.pump()
    assert answers == list(range(20))
    assert batches(world) == [20]


def gathered(world: ShardWorld, number: int, answers: list[Any]) -> None:
    world.runtime.run(
        0,
        lambda shard: Result(number, [commit(number, number)]),
        answers.append,
        lambda code, _: answers.append(code),
        gather=True,
    )
    world.pump()


def test_commits_linger_for_as_long_as_they_are_told() -> None:
    world = ShardWorld(runtime_settings=RuntimeSettings(append_linger_ms=20))
    answers: list[Any] = []
    gathered(world, 0, answers)
    world.wait(15)
    gathered(world, 1, answers)
    assert answers == []
    world.wait(5)
    assert answers == [0, 1]
    gathered(world, 2, answers)
    assert world.run(lambda shard: Result("read")) == ["read"], "whatever else comes waits not"
    assert answers == [0, 1, 2]
    world.wait(100)
    assert batches(world) == [2, 1]


def test_commits_that_linger_are_told_when_the_coordinator_moves() -> None:
    world = ShardWorld(runtime_settings=RuntimeSettings(append_linger_ms=20))
    answers: list[Any] = []
    gathered(world, 0, answers)
    world.lose_leadership()
    world.wait(100)
    assert answers == [ErrorCode.NOT_COORDINATOR]


def test_no_linger_writes_each_commit_by_itself() -> None:
    world = ShardWorld(runtime_settings=RuntimeSettings(append_linger_ms=0))
    answers: list[Any] = []
    for number in range(3):
        gathered(world, number, answers)
    assert answers == [0, 1, 2]
    assert batches(world) == [1, 1, 1]


def test_a_request_that_is_not_gathered_comes_after_what_is() -> None:
    world = ShardWorld()
    world.runtime.run(
        0, lambda shard: Result("a", [commit(1)]), lambda _: None, lambda *_: None, gather=True
    )
    assert world.run(lambda shard: Result(offset_of(world))) == [1]


def test_gathered_batches_stay_small() -> None:
    world = ShardWorld()
    long = "x" * 30_000
    for number in range(20):
        key = OffsetCommitKey(group="g", topic="t", partition=number)
        record = CoordinatorRecord(key, OffsetCommitValue(offset=1, metadata=long))
        world.runtime.run(
            0,
            lambda shard, record=record: Result("a", [record]),  # type: ignore[misc]
            lambda _: None,
            lambda *_: None,
            gather=True,
        )
    world.pump()
    assert batches(world) == [8, 8, 4]


def test_a_failed_batch_fails_all_that_are_in_it() -> None:
    world = ShardWorld()
    answers: list[Any] = []
    for number in range(3):
        world.runtime.run(
            0,
            lambda shard, number=number: Result(number, [commit(number)]),  # type: ignore[misc]
            answers.append,
            lambda code, _: answers.append(code),
            gather=True,
        )
    world.refuse_appends()
    world.pump()
    assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    assert offset_of(world) is None


def test_loading_answers_that_it_is_loading() -> None:
    """rule J1: nobody is answered from half a state."""
    executor = StepExecutor()
    world = settled_world(executor=executor)
    executor.run_all()
    write(world, commit(7))
    executor.run_all()
    world.restart()
    assert write(world, commit(8)) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    executor.run_all()
    world.pump()
    assert offset_of(world) == 7


def test_a_long_log_is_loaded_in_steps() -> None:
    world = settled_world(runtime_settings=RuntimeSettings(load_buffer_bytes=1 << 16))
    for start in range(0, 6_000, 500):
        write(world, *(commit(number, number) for number in range(start, start + 500)))
    write(world, tombstone(Place("g", "t", 0)))
    turns = 0
    world.runtime.close()
    world.runtime = world._start()
    while world.state() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        turns += 1
        world.soon.popleft()()
    assert turns >= 1
    assert (offset_of(world, 0), offset_of(world, 5_999)) == (None, 5_999)
    assert len(world.shard.offsets) == 5_999


def test_compressed_batches_are_written_and_loaded() -> None:
    world = settled_world(runtime_settings=RuntimeSettings(codec=Codec.ZSTD))
    write(world, *(commit(number, number) for number in range(100)))
    world.restart()
    assert offset_of(world, 99) == 99


def test_much_is_compressed_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 2.L; what comes meanwhile waits in line, and nothing is overtaken."""
    built: list[int] = []

    def build(encoded: list[Encoded], now_ms: int, codec: Codec) -> bytes:
        built.append(len(encoded))
        return build_now(encoded, now_ms, codec)

    build_now = writing._build
    monkeypatch.setattr(writing, "_build", build)
    executor = StepExecutor()
    settings = RuntimeSettings(codec=Codec.ZSTD)
    world = settled_world(runtime_settings=settings, executor=executor)
    executor.run_all()
    world.pump()
    long = commit(1)._replace(value=OffsetCommitValue(offset=1, metadata="x" * 30_000))
    for gather in (False, True):
        large = write(world, *[long] * 3, gather=gather)
        small = write(world, commit(5))
        assert built == [], "it is on its way"
        executor.run_all()
        world.pump()
        executor.run_all()
        world.pump()
        assert (large, small) == (["done"], ["done"])
        assert offset_of(world) == 5
        assert built == [3, 1]
        built.clear()


def test_a_lost_leadership_answers_who_waits() -> None:
    executor = StepExecutor()
    world = ShardWorld(executor=executor)
    executor.run_all()
    answers = write(world, commit(5))
    world.lose_leadership()
    assert answers == [ErrorCode.NOT_COORDINATOR]
    assert world.state() is ErrorCode.NOT_COORDINATOR


def test_timers_end_with_their_shard() -> None:
    world = ShardWorld()
    fired: list[str] = []

    def fire() -> Result[None]:
        fired.append("x")
        return Result()

    world.shard._timers.schedule(("key",), 1_000, fire)
    world.shard._timers.schedule(("key",), 2_000, fire)
    world.wait(1_500)
    assert fired == []
    world.wait(500)
    assert fired == ["x"]
    world.shard._timers.schedule(("key",), 1_000, fire)
    world.restart()
    world.wait(5_000)
    assert fired == ["x"]


def test_what_a_timer_returns_is_written() -> None:
    world = ShardWorld()
    world.shard._timers.schedule(("key",), 10, lambda: Result(None, [commit(3)]))
    world.wait(10)
    assert offset_of(world) == 3
    assert world.partition.log.log_end_offset == 1


def test_errors_as_groups_tell_them() -> None:
    tell = coordinator_error
    assert tell(ErrorCode.NOT_ENOUGH_REPLICAS) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert tell(ErrorCode.NOT_LEADER_OR_FOLLOWER) is ErrorCode.NOT_COORDINATOR
    assert tell(ErrorCode.KAFKA_STORAGE_ERROR) is ErrorCode.NOT_COORDINATOR
    assert tell(ErrorCode.MESSAGE_TOO_LARGE) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_large_result_is_replayed_before_anybody_looks() -> None:
    """A record per turn of the loop, and whoever asks meanwhile waits for the last."""
    world = settled_world()
    answers: list[Any] = []
    records = [commit(number, number) for number in range(3)]
    large = Result[str]("done", records, is_large=True)
    world.runtime.run(0, lambda shard: large, answers.append, lambda *_: None)
    world.runtime.run(0, lambda shard: Result(len(shard.offsets)), answers.append, lambda *_: None)
    seen = set()
    while world.soon or world.world.moved:
        while world.world.moved:
            world.runtime.partition_moved(world.world.moved.pop(0))
        if world.soon:
            world.soon.popleft()()
        seen.add(len(world.shard.offsets))
    assert seen == {1, 2, 3}
    assert answers == ["done", 3]


def test_records_that_cannot_be_encoded_fail_their_request_only() -> None:
    world = settled_world()
    bad = commit(1)._replace(value=OffsetCommitValue(offset="no"))  # type: ignore[arg-type]
    large = Result[str]("done", [bad], is_large=True)
    assert world.run(lambda shard: large) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert write(world, commit(5)) == ["done"]


def test_work_that_was_called_off_comes_to_nothing() -> None:
    world = settled_world()
    timers = world.runtime._hosts[0]._timers
    found: list[str] = []

    def then(result: str) -> Result[None]:
        found.append(result)
        return Result()

    timers.compute(("work",), lambda: "first", then)
    assert timers.is_computing(("work",))
    timers.compute(("work",), lambda: "second", then)
    timers.compute(("other",), lambda: "third", then)
    timers.cancel(("other",))
    world.pump()
    assert found == ["second"]
    assert not timers.is_computing(("work",))
