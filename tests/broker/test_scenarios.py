"""Several things go wrong together, in virtual time: whatever was acked is there in the end."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.equal_logs import assert_equal_logs
from tests.broker.replica_world import LAG_MAX_MS, Pending, World

from tidemill.controller.reassignment import alter_reassignments
from tidemill.errors import ApiError, ErrorCode
from tidemill.testing.loop import SimLoop
from tidemill.wire.messages.isr import AlterPartitionRequest, AlterPartitionResponse
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def was_acked(pending: Pending) -> bool:
    return pending.is_there and pending.produced.error_code == 0


def lose_answers(world: World) -> None:
    """What leaders propose is written, and they never hear of it."""
    write = world.alter

    def alter(request: AlterPartitionRequest) -> AlterPartitionResponse:
        write(request)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    world.alter = alter  # type: ignore[method-assign]


def test_a_member_that_only_the_controller_knows_of_is_elected(world: World) -> None:
    """Rules C3 and C4: who may have joined is waited for from the proposal on.

    The expansion is true, and its leader has not heard so: what it acks meanwhile, the new member
    has, for it may be the next to lead.
    """
    world.isolate(2)
    first = world.produce(b"acked by two")
    world.run_ms(2 * LAG_MAX_MS)
    assert world.state().isr == (0, 1)
    assert was_acked(first)
    lose_answers(world)
    world.deaf.add(0)
    world.cut.clear()
    for _ in range(10_000):
        if 2 in world.state().isr:
            break
        world.run_ms(1)
    world.isolate(2)
    only_two = world.produce(b"not on the new member", at=0)
    world.run_ms(500)
    assert world.nodes[1].values()[-1] == b"not on the new member"
    assert not only_two.is_there
    world.lead(2)
    world.cut.clear()
    world.run_ms(1_000)
    kept = world.produce(b"kept", at=2)
    world.run_ms(1_000)
    assert not was_acked(only_two)
    del world.alter
    world.deaf.clear()
    world.publish(world.image)
    world.run_ms(LAG_MAX_MS)
    assert only_two.produced.error_code == NOT_LEADER
    assert was_acked(kept)
    assert world.nodes[2].values() == [b"acked by two", b"kept"]
    assert_equal_logs(world)


def test_a_leader_whom_only_its_followers_cannot_reach_acks_nothing(world: World) -> None:
    """Rules B2, C2 and F2: it goes on alone, and commits nothing; those who left could lead."""
    acked = world.produce(b"acked")
    world.run_ms(100)
    assert was_acked(acked)
    world.isolate(0)
    early = world.produce(b"early", timeout_ms=60_000)
    world.run_ms(3 * LAG_MAX_MS)
    state = world.state()
    assert (state.leader, state.isr, set(state.elr)) == (0, (0,), {1, 2})
    late = world.produce(b"late")
    assert late.produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert not was_acked(early)
    assert world.nodes[0].partition().high_watermark == 1, "clients see what three have"
    assert world.end_offset().offset == 1
    # Clients and the controller see a leader that seems well, until it goes.
    world.crash(0)
    world.run_ms(1_000)
    state = world.state()
    assert state.leader in (1, 2), "an eligible one, which lacks nothing"
    world.cut.clear()
    world.restart(0)
    world.run_ms(LAG_MAX_MS)
    kept = world.produce(b"kept")
    world.run_ms(1_000)
    assert was_acked(kept)
    assert world.nodes[state.leader].values() == [b"acked", b"kept"]
    assert_equal_logs(world)


def test_a_leader_that_reaches_its_followers_again_acks_what_they_copy(world: World) -> None:
    """Rules B9 and C6: the same, and it lives: what it kept is committed when they are back."""
    world.isolate(0)
    early = world.produce(b"early", timeout_ms=120_000)
    world.run_ms(3 * LAG_MAX_MS)
    assert world.state().isr == (0,)
    assert not was_acked(early)
    world.cut.clear()
    world.run_ms(LAG_MAX_MS)
    assert set(world.state().isr) == {0, 1, 2}
    assert world.nodes[0].partition().high_watermark == 1
    assert_equal_logs(world)


def reassign(world: World, *targets: int) -> None:
    moved = [ReassignablePartition(partition_index=0, replicas=list(targets))]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=moved)]
    )
    answer, changes = alter_reassignments(world.image, request, world._policy)
    assert answer.responses[0].partitions[0].error_code == 0
    world.write(changes)


@pytest.mark.parametrize("seed", range(12))
def test_replicas_move_while_brokers_bounce(loop: SimLoop, seed: int) -> None:
    """Rule C8: the move ends when everybody is back, nothing acked is lost on its way."""
    random = Random(seed)
    world = World(loop)
    world.create_topic(replicas=(0, 1))
    sent: list[tuple[bytes, Pending]] = []

    def produce() -> None:
        if world.state().has_leader:
            value = b"%d" % len(sent)
            sent.append((value, world.produce(value)))

    for _ in range(10):
        produce()
        world.run_ms(20)
    before = world.state()
    reassign(world, 1, 2)
    assert world.state().adding == (2,)
    for _ in range(6):
        victim = random.choice((0, 1, 2, 2))
        world.run_ms(random.randint(0, 60))
        world.crash(victim)
        produce()
        world.run_ms(random.randint(0, 500))
        world.restart(victim)
        produce()
        world.run_ms(random.choice((5, 50, 2_000)))
    world.run_ms(4 * LAG_MAX_MS)
    state = world.state()
    assert (state.replicas, set(state.isr), state.adding) == ((1, 2), {1, 2}, ())
    assert state.leader_epoch > before.leader_epoch
    assert world.nodes[0].replicas.get("t", 0) is None
    held = world.nodes[state.leader].values()
    acked = [value for value, pending in sent if was_acked(pending)]
    assert len(acked) >= 10
    assert not set(acked) - set(held)
    assert world.nodes[1].values() == world.nodes[2].values()
    last = world.produce(b"last")
    world.run_ms(1_000)
    assert was_acked(last)
