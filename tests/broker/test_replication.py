"""Replication between brokers, in virtual time: what is committed, and what an election costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.broker.replica_world import FETCH_VERSION, LAG_MAX_MS, Pending, World

from tidemill.broker.handlers.delete_records import delete_records
from tidemill.broker.handlers.fetch import fetch
from tidemill.broker.handlers.read_replicas import RACK_AWARE
from tidemill.errors import ErrorCode
from tidemill.replication.progress import FetchPosition
from tidemill.storage.disk_errors import DiskFailedError
from tidemill.storage.log import Log
from tidemill.storage.segment_check import SegmentCheck
from tidemill.testing.loop import SimLoop
from tidemill.types import BrokerId, PartitionEpoch, TopicPartition
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.close()
    assert made.unhandled == []


@pytest.fixture
def world(loop: SimLoop) -> World:
    made = World(loop)
    made.create_topic()
    return made


def assert_equal_logs(world: World, topic: str = "t") -> None:
    first = world.nodes[0]
    for node in world.nodes[1:]:
        assert node.values(topic) == first.values(topic)
        assert epochs_of(node.partition(topic).log) == epochs_of(first.partition(topic).log)


def epochs_of(log: Log) -> list[tuple[int, int]]:
    """The leader epochs that left records."""
    return [entry for entry in log.leader_epochs.entries if entry[1] < log.log_end_offset]


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


# Replicas come and go.


def test_a_replica_that_moved_away_is_deleted(world: World) -> None:
    """Rule C8: the log goes, and clients are sent to those who lead."""
    world.produce(b"a")
    world.run_ms(100)
    world.assign((0, 1), (0, 1), leader=0)
    world.run_ms(100)
    node = world.nodes[2]
    assert node.replicas.get("t", 0) is None
    assert node.replicas.why_missing("t", 0) is NOT_LEADER
    assert node.broker.logs.get(TopicPartition("t", 0)) is None
    stray = world.produce(b"b", at=2).produced
    assert stray.error_code == NOT_LEADER
    assert stray.current_leader is not None
    assert stray.current_leader.leader_id == 0


def test_a_new_replica_copies_everything_and_joins(loop: SimLoop) -> None:
    world = World(loop)
    world.create_topic(replicas=(0, 1))
    for number in range(30):
        world.produce(b"%d" % number, acks=1)
    world.assign((0, 1, 2), (0, 1), leader=0)
    world.run_ms(3_000)
    assert set(world.state().isr) == {0, 1, 2}
    assert_equal_logs(world)


def test_a_failed_disk_costs_its_replicas_only(world: World) -> None:
    """Rule E1: the partition is led elsewhere; the broker goes on."""
    world.create_topic("u", replicas=(0, 1, 2))
    node = world.nodes[0]
    node.partition().log.dir.fail(DiskFailedError("broken"))
    node.domain.run(node.replicas.take_offline, [TopicPartition("t", 0)])
    world.run_ms(500)
    assert [partition.topic_partition.topic for partition in node.lost] == ["t"]
    assert world.state().leader == 1
    assert set(world.state().isr) == {1, 2}
    answer = world.produce(b"a", at=1)
    world.run_ms(100)
    assert answer.produced.error_code == 0
    assert world.state("u").leader == 0


# More replicas, fewer replicas.


def test_the_minimum_in_sync_follows_the_replicas_of_the_topic(loop: SimLoop) -> None:
    """Rules B2 and F2: leader and controller mean the same number, before, during and after a move.

    A leader that committed alone what the controller takes for impossible would lose it with its
    death: the controller would elect somebody else as complete.
    """
    world = World(loop)
    world.create_topic(replicas=(0,))
    world.isolate(0)
    world.assign((0, 1, 2), (0,), leader=0, adding=(1, 2))
    world.run_ms(50)
    alone = world.produce(b"a")
    world.run_ms(50)
    assert alone.produced.error_code == 0, "a move must not keep producers waiting"
    world.cut.clear()
    world.run_ms(15_000)
    assert set(world.state().isr) == {0, 1, 2}
    world.assign((0, 1, 2), (0, 1, 2), leader=0)
    world.run_ms(50)
    assert [node.partition().settings.min_insync_replicas for node in world.nodes] == [2, 2, 2]
    world.isolate(0)
    world.assign((0, 1, 2), (0,), leader=0)
    world.run_ms(50)
    refused = world.produce(b"b")
    assert refused.produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    world.assign((0,), (0,), leader=0)
    world.run_ms(50)
    alone = world.produce(b"c")
    world.run_ms(50)
    assert alone.produced.error_code == 0


def test_a_leader_that_has_not_heard_of_a_higher_minimum_commits_nothing_by_itself(
    loop: SimLoop,
) -> None:
    """Rules B2, C4 and F2: the controller takes those who leave for complete, by the new minimum.

    The leader asks for a smaller ISR and gets it, but images reach it late: until it knows the
    minimum by which that was judged, it must not ack what only it has.
    """
    world = World(loop)
    world.min_isr = 1
    world.create_topic(min_insync_replicas="1")
    world.deaf.add(0)
    world.min_isr = 2
    world.configure(min_insync_replicas="2")
    world.isolate(1)
    world.isolate(2)
    answer = world.produce(b"a", timeout_ms=600_000)
    world.run_ms(4 * LAG_MAX_MS)
    assert (world.state().isr, set(world.state().elr)) == ((0,), {1, 2})
    assert not answer.is_there
    assert world.nodes[0].partition().high_watermark == 0
    world.deaf.clear()
    world.publish(world.image)
    world.run_ms(100)
    assert world.nodes[0].partition().isr == (0,)
    assert world.produce(b"b").produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS


# Throttles.


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_copying_for_a_reassignment_is_throttled(loop: SimLoop, side: str) -> None:
    """A replica that is catching up takes its time; one in sync is never held back."""
    world = World(loop)
    rate = {f"{side}.replication.throttled.rate": "10000"}
    for node in world.nodes:
        node.broker.config.apply_dynamic({}, rate)
    world.create_topic(replicas=(0, 1), **{f"{side}_replication_throttled_replicas": "0:1,0:2"})
    for _ in range(20):
        answer = world.produce(b"x" * 5_000)
    world.run_ms(300)
    assert answer.produced.error_code == 0, "what is in sync is not throttled"
    world.assign((0, 1, 2), (0, 1), leader=0)
    world.run_ms(4_000)
    assert 2 not in world.state().isr
    world.run_ms(20_000)
    assert set(world.state().isr) == {0, 1, 2}


@pytest.mark.parametrize("way", ["raised", "removed", "not for this replica"])
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttle_that_is_lifted_while_a_move_runs_speeds_it_up(
    loop: SimLoop, side: str, way: str
) -> None:
    """A move that would take hours is done at once when the throttle is raised or goes."""
    world = World(loop)
    rate, chosen = f"{side}.replication.throttled.rate", f"{side}.replication.throttled.replicas"
    for node in world.nodes:
        node.broker.config.apply_dynamic({}, {rate: "10"})
    world.create_topic(replicas=(0, 1), **{chosen.replace(".", "_"): "0:2"})
    for _ in range(20):
        world.produce(b"x" * 5_000)
        world.run_ms(20)
    for node in world.nodes:
        node.replicas.leader_throttle.take(10_000_000)
    world.assign((0, 1, 2), (0, 1), leader=0)
    world.run_ms(60_000)
    assert 2 not in world.state().isr
    for node in world.nodes:
        node.broker.config.apply_dynamic({}, {rate: "10000000"} if way == "raised" else {})
    if way == "not for this replica":
        for node in world.nodes:
            node.broker.config.apply_dynamic({}, {rate: "10"})
        world.configure(**{chosen.replace(".", "_"): "0:1"})
    world.run_ms(5_000)
    assert set(world.state().isr) == {0, 1, 2}


def test_partitions_that_are_new_keep_to_the_throttle_too(loop: SimLoop) -> None:
    """Many partitions that move together share the rate from their first fetch on."""
    world = World(loop)
    for node in world.nodes:
        node.broker.config.apply_dynamic({}, {"follower.replication.throttled.rate": "10000"})
    names = [f"t{number}" for number in range(10)]
    for name in names:
        world.create_topic(name, replicas=(0, 1), follower_replication_throttled_replicas="*")
        for _ in range(10):
            world.produce(b"x" * 5_000, topic=name)
    world.run_ms(500)
    world.assign((0, 1, 2), (0, 1), leader=0, topic=names[0])
    world.run_ms(1_000)
    for name in names[1:]:
        world.assign((0, 1, 2), (0, 1), leader=0, topic=name)
    world.run_ms(2_000)
    copied = [name for name in names if world.nodes[2].values(name)]
    assert copied == names[:1]


def test_throttled_replicas_without_a_rate_are_not_held_back(loop: SimLoop) -> None:
    world = World(loop)
    throttled = {f"{side}_replication_throttled_replicas": "*" for side in ("leader", "follower")}
    world.create_topic(replicas=(0, 1), **throttled)
    for _ in range(20):
        world.produce(b"x" * 5_000)
    world.assign((0, 1, 2), (0, 1), leader=0)
    world.run_ms(500)
    assert set(world.state().isr) == {0, 1, 2}


# Sessions.


def test_quiet_partitions_cost_few_fetches(world: World) -> None:
    """A fetch waits for records, and names only what changed."""
    world.run_ms(5_000)
    before = world.fetches
    world.run_ms(10_000)
    assert world.fetches - before <= 2 * 21


def test_a_burst_takes_few_fetches(world: World) -> None:
    world.run_ms(5_000)
    before = world.fetches
    world.produce(*[b"x"] * 100)
    world.run_ms(200)
    assert world.fetches - before <= 8


def test_a_corrupt_answer_is_fetched_again(world: World) -> None:
    """Rules D9 and E2: bad bytes cost their partition a pause, and reach no log."""
    world.create_topic("u", replicas=(0, 1, 2))
    spoiled = 0

    def spoil(response: FetchResponse) -> None:
        nonlocal spoiled
        for topic in response.responses:
            for data in topic.partitions:
                if topic.topic_id == world.image.topics["t"].topic_id and data.records:
                    spoiled += 1
                    records = bytearray(data.records)
                    records[-1] ^= 1
                    data.records = bytes(records)

    world.spoil = spoil
    bad, good = world.produce(b"a"), world.produce(b"b", topic="u")
    world.run_ms(3_000)
    assert good.produced.error_code == 0
    assert not bad.is_there
    assert 2 <= spoiled <= 10
    assert not world.nodes[1].values()
    world.spoil = None
    world.run_ms(3_000)
    assert bad.produced.error_code == 0
    assert_equal_logs(world)


# Damage.


def damaged_log(world: World, broker_id: int) -> Log:
    """A replica of twelve large records with a wrong byte in its closed segment, found out."""
    world.create_topic(segment_bytes=str(1 << 20))
    for number in range(12):
        world.produce(b"%06d" % number + b"." * 100_000)
        world.run_ms(20)
    node = world.nodes[broker_id]
    log = node.partition().log
    segment = log.closed_segments[0]
    files = log.closed_files(segment)
    byte = node.disk.pread(segment.log_path, 300_000, 1)
    node.disk.write_at(segment.log_path, 300_000, (bytes([byte[0] ^ 1]),))
    check = SegmentCheck(node.disk, files)
    while not check.is_done:
        check.step(1 << 20)
    assert log.note_damage(segment, check.damage)
    leads = world.state().leader == broker_id
    # A follower sends consumers to the leader, which has only itself to refuse them.
    refusal = ErrorCode.CORRUPT_MESSAGE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.consume(2, at=broker_id).fetched.error_code == refusal
    node.domain.call_soon(node.replicas.damaged, log)
    return log


@pytest.mark.parametrize("broker_id", [0, 1])
def test_damage_is_repaired_with_a_peer(loop: SimLoop, broker_id: int) -> None:
    """Rule E2: whoever is damaged is neither in sync nor the leader until it is repaired."""
    world = World(loop)
    log = damaged_log(world, broker_id)
    while broker_id in world.state().isr:
        world.run_ms(1)
    assert log.damage, "it stands aside before it is repaired"
    assert world.state().leader != broker_id
    meanwhile = world.produce(b"meanwhile")
    world.run_ms(2_000)
    assert meanwhile.produced.error_code == 0
    assert log.damage == []
    assert world.consume(2).fetched.error_code == 0
    assert set(world.state().isr) == {0, 1, 2}
    assert_equal_logs(world)


def test_a_repair_is_tried_for_as_long_as_it_takes(loop: SimLoop) -> None:
    """Rule E2: who stands aside comes back, however long its peers cannot be reached."""
    world = World(loop)
    log = damaged_log(world, 1)
    while 1 in world.state().isr:
        world.run_ms(1)
    world.isolate(1)
    world.run_ms(600_000)
    assert log.damage
    world.cut.clear()
    world.run_ms(30_000)
    assert log.damage == []
    assert set(world.state().isr) == {0, 1, 2}
    assert_equal_logs(world)


def test_a_replica_that_cannot_be_repaired_is_copied_anew(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule E2: nobody counts on it, so that it may begin again with nothing."""
    monkeypatch.setattr("tidemill.storage.repair.REPAIR_BYTES_MAX", 0)
    world = World(loop)
    log = damaged_log(world, 1)
    world.run_ms(5_000)
    assert log.damage == []
    assert log.log_end_offset == 12
    assert set(world.state().isr) == {0, 1, 2}
    assert_equal_logs(world)
