"""Replicas come and go, are throttled, and are repaired, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.broker.equal_logs import assert_equal_logs
from tests.broker.replica_world import (
    LAG_MAX_MS,
    World,
)

from tidemill.errors import ErrorCode
from tidemill.image import with_partitions
from tidemill.storage.disk_errors import DiskFailedError
from tidemill.storage.log import Log
from tidemill.storage.segment_check import SegmentCheck
from tidemill.testing.loop import SimLoop
from tidemill.types import BrokerId, PartitionEpoch, TopicPartition
from tidemill.wire.batch import iter_headers
from tidemill.wire.messages.fetch import (
    FetchResponse,
)

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


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
    assert [partition.topic for partition in node.lost] == ["t"]
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


def test_a_log_that_cannot_be_written_slows_nobody_down(world: World) -> None:
    """Rule D9: its partition is not copied any more, and others of its leader as fast as ever.

    There is nothing to copy for it, so that it fails in following what the leader says of its log.
    """
    world.create_topic("u")
    world.nodes[1].partition("t").log.abandon()
    world.lead(0, "t")
    world.run_ms(LAG_MAX_MS // 2)
    before = world.fetches
    answers = []
    for number in range(10):
        answers.append(world.produce(b"%d" % number, topic="u"))
        world.run_ms(100)
    assert [answer.is_there for answer in answers] == [True] * 10
    assert world.fetches - before < 100


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


def test_a_repair_whose_flush_failed_is_not_believed(loop: SimLoop) -> None:
    """Rule E1: the directory is offline, whoever asked for the flush; no second one makes it true.

    What is in the page cache looks right, and may never have reached the disk.
    """
    world = World(loop)
    log = damaged_log(world, 1)
    node = world.nodes[1]
    node.broker.logs.on_dir_failure = lambda _, lost: node.replicas.take_offline(lost)
    repaired = log.closed_segments[0].log_path
    failed: list[str] = []

    def fails_once(path: str) -> bool:
        if path != repaired or failed:
            return False
        failed.append(path)
        return True

    node.disk.fails_sync = fails_once
    world.run_ms(60_000)
    assert failed
    assert log.dir.is_offline
    assert 1 not in world.state().isr


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


def test_a_replica_that_cannot_be_repaired_is_copied_anew_when_nobody_counts_on_it_any_more(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule E2: the look at it comes before the controller has heard, and again after."""
    monkeypatch.setattr("tidemill.storage.repair.REPAIR_BYTES_MAX", 0)
    world = World(loop)
    node = world.nodes[1]
    tell = node.report

    def tell_late(*report: Any) -> None:
        loop.call_later(0.5, tell, *report)

    monkeypatch.setattr(node, "report", tell_late)
    log = damaged_log(world, 1)
    world.run_ms(5_000)
    assert log.damage == []
    assert set(world.state().isr) == {0, 1, 2}
    assert_equal_logs(world)


def test_a_damaged_replica_outside_the_isr_is_not_eligible(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules E2 and F2: whoever is copied anew has nothing for a while, and must not be elected."""
    monkeypatch.setattr("tidemill.storage.repair.REPAIR_BYTES_MAX", 0)
    world = World(loop)
    with monkeypatch.context() as patch:
        patch.setattr(world.nodes[1], "report", lambda *report: None)
        log = damaged_log(world, 1)
        world.run_ms(100)
    assert log.damage
    before = world.state()
    epoch = PartitionEpoch(before.partition_epoch + 1)
    alone = replace(before, isr=(BrokerId(0),), elr=(BrokerId(1),), partition_epoch=epoch)
    world.isolate(0)
    world.publish(with_partitions(world.image, "t", [alone]))
    world.run_ms(1_000)
    assert 1 not in world.state().elr
    assert log.log_end_offset == 0
    world.cut.clear()
    world.run_ms(15_000)
    assert set(world.state().isr) == {0, 1, 2}


def test_damage_that_the_start_finds_is_repaired(
    loop: SimLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule E2: no scrub has to come by to say what is known already."""
    world = World(loop)
    world.create_topic(flush_policy="ack")
    for number in range(6):
        world.produce(b"%d" % number)
        world.run_ms(50)
    node = world.nodes[1]
    marks = node.replicas.high_watermarks()
    node.domain.call_soon(lambda: node.broker.logs.write_checkpoints(marks, then=lambda: None))
    world.run_ms(200)
    segment = node.partition().log.segments[-1]
    stored = node.disk.pread(segment.log_path, 0, segment.size)
    third = [position for position, _ in iter_headers(stored)][2]
    world.crash(1)
    world.run_ms(100)
    node.disk.write_at(segment.log_path, third + 65, (b"!",))
    node.disk.fdatasync(segment.log_path)
    world.restart(1)
    assert f"{segment.log_path} is damaged" in caplog.text
    world.run_ms(30_000)
    assert set(world.state().isr) == {0, 1, 2}
    assert_equal_logs(world)
