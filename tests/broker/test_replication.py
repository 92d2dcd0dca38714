"""Replication between brokers, in virtual time: what is committed, and what an election costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.broker.equal_logs import assert_equal_logs
from tests.broker.replica_world import (
    FETCH_VERSION,
    LAG_MAX_MS,
    Pending,
    World,
)

from tidemill.broker.handlers.delete_records import delete_records
from tidemill.broker.handlers.fetch import fetch
from tidemill.broker.handlers.read_replicas import RACK_AWARE
from tidemill.errors import ErrorCode
from tidemill.replication.progress import FetchPosition
from tidemill.testing.loop import SimLoop
from tidemill.types import BrokerId, PartitionEpoch
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


# What is committed.


@pytest.mark.parametrize("policy", ["ack", "async"])
def test_a_record_is_acked_when_all_in_sync_have_it(loop: SimLoop, policy: str) -> None:
    """Rules B1 and E7: the answer waits for every follower's fetch, and that for its flush."""
    world = World(loop)
    world.create_topic(flush_policy=policy)
    answer = world.produce(b"a", b"b")
    assert not answer.is_there, "it takes a round trip to both followers"
    world.run_ms(50)
    assert answer.produced.error_code == 0
    assert world.nodes[0].partition().high_watermark == 2
    world.run_ms(50)
    assert [node.partition().high_watermark for node in world.nodes] == [2, 2, 2]
    assert_equal_logs(world)
    if policy == "ack":
        assert all(node.partition().log.flushed_offset == 2 for node in world.nodes)


def test_a_stricter_policy_flushes_what_was_committed_before(loop: SimLoop) -> None:
    """Rules E6 and F3: from `ack` on a crash loses nothing, of the time before either."""
    world = World(loop)
    world.create_topic(flush_policy="async")
    answer = world.produce(b"a")
    world.run_ms(100)
    assert answer.produced.error_code == 0
    assert [node.partition().log.flushed_offset for node in world.nodes] == [0, 0, 0]
    world.configure(flush_policy="ack")
    world.run_ms(100)
    assert [node.partition().log.flushed_offset for node in world.nodes] == [1, 1, 1]


def test_a_follower_reports_only_what_is_flushed(world: World) -> None:
    """Rule E7: while its disk is busy, the follower's position stands still."""
    executor = world.nodes[1].executor
    executor.is_stuck = True
    answer = world.produce(b"a")
    world.run_ms(1_000)
    assert world.nodes[1].partition().log.log_end_offset == 1
    assert not answer.is_there
    term = world.nodes[0].partition().term
    assert term is not None
    assert term.followers[world.nodes[1].broker_id].log_end_offset == 0
    executor.release()
    world.run_ms(100)
    assert answer.produced.error_code == 0


def test_a_follower_that_lags_leaves_the_isr_and_comes_back(world: World) -> None:
    """Rules C2, C3 and C6: without it producers go on; caught up, it is taken in again."""
    world.isolate(2)
    answer = world.produce(b"a")
    world.run_ms(100)
    assert not answer.is_there
    world.run_ms(2 * LAG_MAX_MS)
    assert world.state().isr == (0, 1)
    assert answer.produced.error_code == 0
    assert not world.nodes[2].values()
    world.cut.clear()
    world.run_ms(10_000)
    assert set(world.state().isr) == {0, 1, 2}
    assert_equal_logs(world)


def test_an_idle_follower_stays_in_sync(world: World) -> None:
    """Rule C2: nothing to copy is nothing to lag behind with, before and after a pause."""
    world.run_ms(20 * LAG_MAX_MS)
    assert world.produce(b"a").is_there is False
    world.run_ms(100)
    assert set(world.state().isr) == {0, 1, 2}
    assert world.state().partition_epoch == 0


def test_the_isr_is_looked_at_before_and_after(world: World) -> None:
    """Rule B9: too few in sync refuses, and a record that was written meanwhile says so."""
    world.isolate(1)
    world.isolate(2)
    waiting = world.produce(b"a", timeout_ms=60_000)
    world.run_ms(3 * LAG_MAX_MS)
    assert world.state().isr == (0,)
    refused = world.produce(b"b")
    assert refused.produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.nodes[0].values() == [b"a"]
    assert not waiting.is_there, "it cannot be committed (rule B2)"
    assert world.nodes[0].partition().high_watermark == 0


def test_a_record_that_was_committed_is_not_acked_when_too_few_are_left(world: World) -> None:
    """Rule B9: the second look, after the commit and before the answer."""
    world.isolate(0)
    waiting = world.produce(b"a", timeout_ms=60_000)
    world.run_ms(50)
    leader = world.nodes[0]
    partition = leader.partition()

    def commit_and_shrink() -> None:
        for follower in (1, 2):
            epoch = world.nodes[follower].epoch
            partition.record_follower_fetch(BrokerId(follower), FetchPosition(1, 0, epoch), 1)
        assert partition.high_watermark == 1
        alone = replace(world.state(), isr=(BrokerId(0),), partition_epoch=PartitionEpoch(9))
        partition.apply(alone)

    leader.domain.run(commit_and_shrink)
    world.run_ms(50)
    assert waiting.produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_an_isr_change_of_unknown_outcome_is_tried_again(world: World) -> None:
    """Rule C5: nobody answers; the old set counts until the controller has spoken."""
    world.controller_answers = False
    world.isolate(2)
    answer = world.produce(b"a", timeout_ms=120_000)
    world.run_ms(3 * LAG_MAX_MS)
    assert not answer.is_there
    world.controller_answers = True
    world.run_ms(3_000)
    assert world.state().isr == (0, 1)
    assert answer.produced.error_code == 0


# Elections.


def test_a_deposed_leader_acks_nothing(world: World) -> None:
    """Rule B10: who waited for it is sent to the new one."""
    world.isolate(0)
    answer = world.produce(b"a")
    world.lead(1)
    world.run_ms(10)
    assert answer.produced.error_code == NOT_LEADER
    current = answer.produced.current_leader
    assert current is not None
    assert (current.leader_id, current.leader_epoch) == (1, 1)
    assert answer.value.node_endpoints[0].host == "host-1"


def test_divergence_is_cut_away(world: World) -> None:
    """Rules D3, D5 and A8: what only the old leader had gives way to what the new one wrote."""
    world.produce(b"both")
    world.run_ms(100)
    world.isolate(0)
    world.produce(b"lost", b"lost too", acks=1)
    assert world.nodes[0].partition().log.log_end_offset == 3
    world.lead(1)
    world.run_ms(50)
    world.produce(b"kept")
    world.run_ms(50)
    world.cut.clear()
    world.run_ms(5_000)
    assert world.nodes[0].values() == [b"both", b"kept"]
    assert_equal_logs(world)
    assert world.nodes[1].partition().high_watermark == 2


def test_a_leader_that_hears_late_of_its_end_is_fenced(world: World) -> None:
    """Rules A4 and B1: its followers are gone, so it commits nothing any more."""
    world.lead(1, late=[0])
    world.run_ms(50)
    zombie = world.produce(b"zombie", at=0, timeout_ms=2_000)
    good = world.produce(b"good", at=1)
    world.run_ms(1_000)
    assert not zombie.is_there
    assert not good.is_there, "the new leader waits for the zombie, which is in its ISR"
    world.nodes[0].domain.call_soon(world.nodes[0].apply, world.image)
    world.run_ms(5_000)
    assert zombie.produced.error_code == NOT_LEADER
    assert good.produced.error_code == 0
    assert world.nodes[0].values() == [b"good"]
    assert_equal_logs(world)


def test_the_end_never_goes_back_for_clients(world: World) -> None:
    """Rule B5: a new leader says nothing of the end before it knows what was committed."""
    world.produce(b"a")
    world.run_ms(3)
    world.isolate(1)
    world.run_ms(100)
    assert world.end_offset().offset in (0, 1)
    follower = world.nodes[1].partition()
    follower.copy.high_watermark = 0  # It has the record, and has not heard that it is committed.
    follower.high_watermark = follower.copy.high_watermark  # type: ignore[assignment]
    assert follower.log.log_end_offset == 1
    world.lead(1)
    world.run_ms(10)
    assert world.end_offset(at=1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    ahead = world.consume(1, at=1, max_wait_ms=20)
    world.run_ms(100)
    assert ahead.fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    behind = world.consume(0, at=1)
    assert behind.fetched.error_code == 0
    world.cut.clear()
    world.run_ms(5_000)
    assert world.end_offset(at=1).offset == 1


def test_a_new_leader_is_heard_of_at_once(world: World) -> None:
    """A follower's long poll does not keep producers waiting after an election."""
    world.create_topic("u", replicas=(1, 2, 0))
    world.run_ms(5_000)  # All fetches wait for records by now.
    before_ms = world.clock.monotonic_ms()
    world.lead(1)
    answer = world.produce(b"a", at=1)
    while not answer.is_there:
        world.run_ms(1)
    assert answer.produced.error_code == 0
    assert world.clock.monotonic_ms() - before_ms < 100


def test_a_broker_that_lost_power_catches_up(world: World) -> None:
    """Nothing that was acked is lost with one broker's page cache."""
    answers = [world.produce(b"%d" % number) for number in range(20)]
    world.run_ms(200)
    assert all(answer.produced.error_code == 0 for answer in answers)
    world.crash(0)
    world.run_ms(200)
    assert world.state().leader == 1
    after = world.produce(b"after")
    world.run_ms(200)
    assert after.produced.error_code == 0
    world.restart(0)
    world.run_ms(5_000)
    assert set(world.state().isr) == {0, 1, 2}
    assert world.nodes[0].values() == [b"%d" % number for number in range(20)] + [b"after"]
    assert_equal_logs(world)


def test_an_unreachable_leader_is_asked_again(world: World) -> None:
    """A lost connection costs a pause, and the session is opened anew."""
    world.isolate(0)
    world.run_ms(8_000)
    world.cut.clear()
    world.produce(b"a", acks=1)
    world.run_ms(3_000)
    assert_equal_logs(world)
    assert world.nodes[2].values() == [b"a"]


def test_a_follower_that_is_too_far_behind_starts_over(world: World) -> None:
    """Rule D7: the leader has deleted all that the follower has; nothing is reset to zero."""
    world.isolate(2)
    for number in range(5):
        world.produce(b"%d" % number, acks=1)
    world.run_ms(3 * LAG_MAX_MS)
    world.nodes[0].partition().delete_records_before(4)
    world.cut.clear()
    world.run_ms(10_000)
    log = world.nodes[2].partition().log
    assert (log.log_start_offset, log.log_end_offset) == (4, 5)
    assert set(world.state().isr) == {0, 1, 2}


def test_deleted_records_are_deleted_everywhere(world: World) -> None:
    world.produce(b"a", b"b", b"c")
    world.run_ms(100)
    world.nodes[0].partition().delete_records_before(2)
    world.run_ms(2_000)
    assert [node.partition().log.log_start_offset for node in world.nodes] == [2, 2, 2]


def delete(world: World, offset: int, *, timeout_ms: int = 30_000) -> Pending:
    """A client's DeleteRecords to the leader."""
    asked = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=[asked])], timeout_ms=timeout_ms
    )
    return world.ask(0, lambda node: delete_records(node.broker, node.context(2), request))


def outcome(answer: Pending) -> tuple[int, int]:
    result = answer.value.topics[0].partitions[0]
    return result.error_code, result.low_watermark


def test_deleting_records_waits_for_every_live_replica(world: World) -> None:
    """The answer comes when the last of them has deleted them, soon and not with the next poll."""
    world.produce(b"a", b"b", b"c")
    world.run_ms(2_000)
    world.cut.add((0, 2))
    answer = delete(world, 2)
    world.run_ms(1_000)
    assert world.nodes[1].partition().log.log_start_offset == 2
    assert not answer.is_there
    world.cut.clear()
    world.run_ms(11_000)
    assert outcome(answer) == (0, 2)
    quick = delete(world, -1)
    world.run_ms(100)
    assert outcome(quick) == (0, 3)


def test_deleting_records_ends_with_its_time_or_with_the_leadership(world: World) -> None:
    world.produce(b"a", b"b", b"c")
    world.run_ms(100)
    world.isolate(2)
    late = delete(world, 1, timeout_ms=200)
    world.run_ms(300)
    assert outcome(late) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    deposed = delete(world, 2)
    world.run_ms(100)
    world.lead(1)
    world.run_ms(100)
    assert outcome(deposed) == (NOT_LEADER, -1)


def test_nobody_waits_for_a_dead_broker_to_delete_records(world: World) -> None:
    world.produce(b"a", b"b")
    world.run_ms(100)
    world.isolate(2)
    answer = delete(world, 1)
    world.run_ms(200)
    assert not answer.is_there
    world.fail(2)
    world.run_ms(1_000)
    assert outcome(answer) == (0, 1)


# Who may fetch as a follower.


def replica_fetch(world: World, replica_id: int, *, peer_id: int | None, epoch: int = 0) -> int:
    """The error code of a fetch in a replica's name."""
    node = world.nodes[0]
    asked = FetchPartition(
        partition=0, fetch_offset=0, current_leader_epoch=epoch, partition_max_bytes=1000
    )
    topic_id = world.image.topics["t"].topic_id
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=1_000),
        topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
    )
    context = node.context(FETCH_VERSION, peer_id)
    pending = world.ask(0, lambda _: fetch(node.broker, context, request))
    return pending.fetched.error_code


def test_only_a_proven_peer_fetches_as_a_replica(world: World) -> None:
    """CVE-2018-1288: anybody could otherwise claim to have what it does not have."""
    world.produce(b"a", acks=1)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert replica_fetch(world, 1, peer_id=None) == refused
    assert replica_fetch(world, 1, peer_id=2) == refused
    assert replica_fetch(world, 1, peer_id=1) == 0


def test_a_replica_that_is_not_assigned_is_not_noted(world: World) -> None:
    """Rule A5: it may be ahead of our news, so it is told to come back."""
    assert replica_fetch(world, 7, peer_id=7) == ErrorCode.UNKNOWN_LEADER_EPOCH
    term = world.nodes[0].partition().term
    assert term is not None
    assert 7 not in term.followers


def test_a_replica_of_another_epoch_is_not_noted(world: World) -> None:
    """Rule A4."""
    world.lead(0)
    world.run_ms(10)
    assert replica_fetch(world, 1, peer_id=1, epoch=0) == ErrorCode.FENCED_LEADER_EPOCH
    assert replica_fetch(world, 1, peer_id=1, epoch=2) == ErrorCode.UNKNOWN_LEADER_EPOCH


# Reading from followers (KIP-392).


def test_consumers_are_sent_to_a_replica_in_their_rack(loop: SimLoop) -> None:
    """Rule K4: a near one, if it is in sync and has what is asked for."""
    world = World(loop, racks=("a", "b", "c"), replica_selector_class=RACK_AWARE)
    world.create_topic()
    world.produce(b"v")
    world.run_ms(2_000)
    assert world.consume(0, rack_id="b").fetched.preferred_read_replica == 1
    assert not world.consume(0, rack_id="b").fetched.records
    assert world.consume(0, rack_id="a").fetched.preferred_read_replica == -1
    assert world.consume(0, rack_id="z").fetched.preferred_read_replica == -1
    assert world.consume(0, rack_id="b", at=1).fetched.records
    assert world.consume(0).fetched.records


def test_a_follower_shows_what_it_knows_to_be_committed(world: World) -> None:
    """Rule B8: it wakes its consumers when the leader tells it more."""
    waiting = world.consume(0, at=1, max_wait_ms=5_000)
    assert not waiting.is_there
    world.produce(b"v")
    world.run_ms(100)
    assert waiting.fetched.records
    assert waiting.fetched.high_watermark == 1
