"""Several brokers' controllers on one store: who is in office, who is let in, who leads what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.controller.helpers import ENDPOINT, broker_config, create, outcome, topic
from tests.controller.wires import Wires, proposal, propose
from tests.store.helpers import until

from tidemill.clock import SystemClock
from tidemill.controller import Controller, tree
from tidemill.controller.deltas import delta_between
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage, LeaderRecovery
from tidemill.store.base import OpResult
from tidemill.store.memory import MemoryStore
from tidemill.types import BrokerId, TopicPartition
from tidemill.wire.messages.cluster import ImageDeltaRequest
from tidemill.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    cluster = Wires()
    yield cluster
    await cluster.stop()


def deltas(wires: Wires, broker_id: int) -> list[ImageDeltaRequest]:
    return [
        message
        for to, message in wires.sent
        if to == broker_id and isinstance(message, ImageDeltaRequest)
    ]


# Coming in


async def test_a_broker_is_fenced_until_it_has_an_image_with_itself_in_it(wires: Wires) -> None:
    """Rule K2: registered, then told, then let in; and never before."""
    one = await wires.start(1)
    seen: list[bool | None] = []

    def look(image: ClusterImage) -> None:
        member = image.broker(2)
        seen.append(None if member is None else member.fenced)

    one.subscribe(look)
    two = await wires.start(2)
    assert seen == [True, False]
    first = deltas(wires, 2)[0]
    assert first.is_snapshot
    assert {each.broker_id: each.fenced for each in first.brokers} == {1: False, 2: True}
    assert not two.active
    assert two.controller_id == 1


async def test_a_broker_that_cannot_be_told_is_not_let_in(wires: Wires) -> None:
    """Rule K2: an address that the controller cannot reach is nobody's leader."""
    one = await wires.start(1)
    wires.cut.add(2)
    starting = asyncio.ensure_future(wires.start(2))
    await until(lambda: one.image.broker(2) is not None)
    await asyncio.sleep(0.05)
    member = one.image.broker(2)
    assert member is not None
    assert member.fenced
    [refused] = await create(one, topic("t", 1, 1, {0: [2]}))
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    wires.cut.clear()
    assert (await starting).image.broker(2) is not None


async def test_a_controller_that_was_never_let_in_lets_itself_in(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule K2: the one before was gone when it should have; a cluster's head leads partitions."""
    one = await wires.start(1)

    async def forget(broker_id: int, epoch: int) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(one._members, "admit", forget)
    starting = asyncio.ensure_future(wires.start(2))
    await until(lambda: bool(deltas(wires, 2)))
    await asyncio.sleep(0.05)
    member = one.image.broker(2)
    assert member is not None
    assert member.fenced
    wires.kill(1)
    two = await starting
    assert two.active
    [made] = await create(two, topic("t", 1, 1))
    assert made.error_code == ErrorCode.NONE
    assert wires.partition("t", 0).leader == 2


async def test_everybody_has_the_same_image_and_hears_only_what_changed(wires: Wires) -> None:
    one, two, three = await wires.start_all(1, 2, 3)
    await create(one, topic("a", 4, 3), topic("b", 4, 3))
    await wires.settled()
    for other in (two, three):
        assert other.image == one.image
    wires.sent.clear()
    leader = wires.partition("a", 2).leader
    assert await propose(one, "a", [leader]) in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    await wires.settled()
    for broker_id in (2, 3):
        for delta in deltas(wires, broker_id):
            assert not delta.is_snapshot
            assert [each.name for each in delta.topics] == ["a"]
            assert len(delta.topics[0].partitions) == 1
    assert two.image == one.image
    # What did not change is the same object: following it costs nothing.
    assert two.image.topics["b"] == one.image.topics["b"]


async def test_a_broker_that_cannot_be_reached_holds_up_nobody(wires: Wires) -> None:
    one, two, three = await wires.start_all(1, 2, 3)
    wires.cut.add(3)
    await create(one, topic("a", 1, 1, {0: [1]}))
    await until(lambda: "a" in two.image.topics)
    assert "a" not in three.image.topics
    wires.cut.clear()
    await until(lambda: three.image.version == one.image.version)
    assert three.image == one.image


async def test_topics_wait_until_the_cluster_is_whole(wires: Wires) -> None:
    """A topic made while brokers are still coming up would have too few replicas."""
    config = broker_config(broker_session_timeout_ms="500", cluster_brokers_min="2")
    one = await wires.start(1, config=config)
    making = asyncio.ensure_future(create(one, topic("t", 1, -1)))
    await asyncio.sleep(0.1)
    assert not making.done()
    await wires.start(2, config=config)
    [made] = await making
    assert (made.error_code, made.replication_factor) == (0, 2)
    wires.kill(2)
    await until(lambda: one.image.broker(2) is None)
    assert outcome((await create(one, topic("later")))[0])[1] == "NONE"


async def test_a_topic_that_does_not_say_counts_on_those_who_stay(wires: Wires) -> None:
    """Replicas as many as brokers, at most three; whoever is dead or leaving is none of them."""
    one, *_ = await wires.start_all(1, 2, 3, 4)
    [made] = await create(one, topic("three", 1, -1))
    assert made.replication_factor == 3
    await wires.members[4].controller.shut_down()
    wires.kill(3)
    await until(lambda: one.image.broker(3) is None)
    [made] = await create(one, topic("two", 1, -1))
    assert made.replication_factor == 2


# The office


async def test_another_broker_takes_the_office_and_the_dead_ones_partitions(wires: Wires) -> None:
    """Rules A1 and A10: in order of assignment, in a new epoch."""
    one, two, three = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 1, 3, {0: [1, 3, 2]}), topic("solo", 1, 1, {0: [1]}))
    await wires.settled()
    wires.kill(1)
    await wires.settled()
    state = wires.partition("t")
    assert (state.leader, set(state.isr), state.leader_epoch) == (3, {2, 3}, 1)
    solo = wires.partition("solo")
    assert (solo.leader, solo.isr, solo.elr) == (-1, (), (1,))
    assert wires.boss.image.controller_epoch == 2
    assert two.image == three.image
    told = [each for each in deltas(wires, 2) + deltas(wires, 3) if each.controller_epoch == 2]
    assert told[0].is_snapshot, "rule K3: all that there is comes before any change of leaders"
    assert {each.name for each in told[0].topics} == {"t", "solo"}
    assert {two.controller_id, three.controller_id} == {wires.boss.broker_id}


async def test_a_new_controllers_first_word_is_everything(wires: Wires) -> None:
    """Rule K3: who leads what is told together with who there is, never before it."""
    one, _, three = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 1, 3, {0: [1, 2, 3]}))
    await wires.settled()
    wires.sent.clear()
    wires.kill(1)
    await wires.settled()
    told = [m for _, m in wires.sent if isinstance(m, ImageDeltaRequest)]
    [first] = [delta for delta in told if delta.controller_epoch == 2][:1]
    assert first.is_snapshot
    assert [each.broker_id for each in first.brokers] == [2, 3]
    assert [(each.name, each.partitions[0].leader_id) for each in first.topics] == [("t", 2)]
    assert three.image.partition("t", 0) == wires.partition("t")


async def test_a_controller_that_was_deposed_changes_nothing_and_convinces_nobody(
    wires: Wires,
) -> None:
    """Rule A2: it slept through its own end; its writes fail and its images are refused."""
    one, two = await wires.start_all(1, 2)
    asleep = wires.members[1]
    asleep.store.pause()
    wires.tree.expire(asleep.store.session_id)
    await until(lambda: two.active)
    assert wires.members[1].controller.active, "it does not know yet"
    stale = delta_between(None, one.image)
    with pytest.raises(ApiError) as refused:
        await two.follow(stale)
    assert refused.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
    with pytest.raises(ApiError) as caught:
        await one._topics.create([topic("t", 1, 1, {0: [2]})], False)
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert not one.active
    assert "t" not in two.image.topics
    asleep.store.resume()
    await wires.settled()


async def test_a_broker_that_has_another_image_is_told_everything(wires: Wires) -> None:
    """It refuses what does not follow from what it has, and gets all of it instead."""
    one, two = await wires.start_all(1, 2)
    await wires.settled()
    two._office.image = replace(two.image, version=two.image.version - 1)
    wires.sent.clear()
    await create(one, topic("t"))
    await until(lambda: "t" in two.image.topics)
    deltas = [m.is_snapshot for _, m in wires.sent if isinstance(m, ImageDeltaRequest)]
    assert deltas[:2] == [False, True]


async def test_a_state_that_somebody_else_wrote_is_not_overwritten(wires: Wires) -> None:
    """Rule A2: each write is conditional on the version that it was decided on."""
    one, two = await wires.start_all(1, 2)
    await create(one, topic("t", 1, 2, {0: [1, 2]}))
    path = "/brokers/topics/t/partitions/0/state"
    other = wires.members[2].store
    node = await other.get(path)
    await other.put(path, node.value.replace(b'"isr":[1,2]', b'"isr":[1]'))
    with pytest.raises(ApiError):
        await one.alter_partition(proposal(one, "t", [1]))
    assert b'"isr":[1]' in (await other.get(path)).value
    await create(one, topic("later"))
    assert wires.partition("t").isr == (1,), "the truth was read again"
    await until(lambda: two.image.partition("t", 0) == wires.partition("t"))


class FarStore(MemoryStore):
    """A store that knows whether it can be reached."""

    connected = True


async def test_who_cannot_reach_the_store_for_a_sessions_time_leads_nothing(wires: Wires) -> None:
    """Rule A9: others may have taken it for dead, and nobody can tell it."""
    store = FarStore(wires.tree)
    config = broker_config(broker_session_timeout_ms="300")
    controller = Controller(store, config, SystemClock(), Random(1), broker_id=1)
    lost: list[bool] = []
    controller.on_session_lost(lambda: lost.append(controller.active))
    await controller.start()
    before = await controller.register_broker([ENDPOINT], directory_id="d")
    await asyncio.sleep(0.5)
    assert not lost
    store.connected = False
    await until(lambda: bool(lost))
    assert lost == [False], "it holds no office either"
    store.connected = True
    await until(lambda: controller.broker_epoch > before and controller.active)
    await controller.stop()
    await store.close()


async def test_news_that_do_not_fit_what_is_known_are_refused(wires: Wires) -> None:
    """Rule A1: a delta from another image, or another cluster, would make a picture of nothing."""
    one, two = await wires.start_all(1, 2)
    await wires.settled()
    known = one.image
    missed = replace(known, version=known.version + 1)
    latest = replace(known, version=known.version + 2)
    with pytest.raises(ApiError) as caught:
        await two.follow(delta_between(missed, latest))
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    with pytest.raises(ApiError) as caught:
        await two.follow(delta_between(None, replace(latest, cluster_id="another")))
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert two.image == known
    await two.follow(delta_between(known, known))
    assert two.image == known, "what is known already changes nothing"


async def test_a_lost_session_is_told_at_once_and_followed_by_a_new_incarnation(
    wires: Wires,
) -> None:
    """Rules A3 and A9: no leadership without a session; back with a new epoch, having lost
    nothing, since the process lives."""
    one, two = await wires.start_all(1, 2)
    await create(one, topic("t", 1, 2, {0: [2, 1]}, {"flush.policy": "async"}))
    await wires.settled()
    before = two.broker_epoch
    await wires.expire(2)
    assert wires.members[2].lost_sessions == 1
    assert two.broker_epoch == -1
    await wires.settled()
    await until(lambda: two.broker_epoch > before)
    await wires.settled()
    state = wires.partition("t")
    assert (state.leader, state.isr) == (1, (1,))
    stale = proposal(one, "t", [1, 2], epochs={2: before})
    answer = await one.alter_partition(stale)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    assert await propose(one, "t", [1, 2]) is ErrorCode.NONE


async def test_a_session_that_is_lost_while_its_broker_registers_is_not_the_last(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules A3 and A9: what was begun in a lost session counts for nothing in the next."""
    _, two = await wires.start_all(1, 2)
    store = wires.members[2].store
    create_node = store.create
    spoilt: list[int] = []

    async def create_and_lose(path: str, *args: Any, **options: Any) -> OpResult:
        created = await create_node(path, *args, **options)
        if path == tree.broker_path(2) and not spoilt:
            spoilt.append(store.session_id)
            wires.tree.expire(store.session_id)
            store.heartbeat()
            await asyncio.sleep(0)
        return created

    monkeypatch.setattr(store, "create", create_and_lose)
    before = two.broker_epoch
    await wires.expire(2)
    await until(lambda: bool(spoilt))
    await until(lambda: two.broker_epoch > before)
    await wires.settled()
    assert wires.members[2].lost_sessions == 2
    member = wires.boss.image.broker(2)
    assert member is not None
    assert member.epoch == two.broker_epoch


async def test_a_proposal_of_an_earlier_incarnation_is_refused(wires: Wires) -> None:
    """Rule A3."""
    one, two = await wires.start_all(1, 2)
    await create(one, topic("t", 1, 2, {0: [2, 1]}))
    stale = proposal(one, "t", [2])
    await wires.expire(2)
    await until(lambda: two.broker_epoch > stale.broker_epoch)
    await wires.settled()
    assert (await one.alter_partition(stale)).error_code == ErrorCode.STALE_BROKER_EPOCH


# Coming back


async def restart(wires: Wires, broker_id: int, **options: object) -> None:
    wires.kill(broker_id)
    await wires.settled()
    await wires.start(broker_id, **options)  # type: ignore[arg-type]
    await wires.settled()


@pytest.mark.parametrize("flush_policy", ["ack", "async"])
async def test_the_last_replica_standing_is_trusted_only_if_it_lost_nothing(
    wires: Wires, flush_policy: str
) -> None:
    """Rules F1 to F3: after a crash only what flushes before it commits is complete."""
    one = await wires.start(1)
    await wires.start(2, flush_policy=flush_policy)
    await wires.start(3)
    await create(
        one, topic("t", 1, 3, {0: [2, 1, 3]}, {"min.insync.replicas": "2"}), topic("x", 1, 1)
    )
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    assert set(wires.partition("t").elr) == {1, 3}
    wires.kill(2)
    await wires.settled()
    state = wires.partition("t")
    assert state.leader == 1, "the eligible one that comes first"
    assert set(state.elr) == {2, 3}
    await wires.start(2, flush_policy=flush_policy)
    await wires.settled()
    assert (2 in wires.partition("t").elr) == (flush_policy == "ack")


async def test_a_clean_stop_is_proved_by_the_epoch_that_stopped(wires: Wires) -> None:
    """Rule F3."""
    one = await wires.start(1)
    two = await wires.start(2, flush_policy="async")
    await create(one, topic("t", 1, 1, {0: [2]}))
    await restart(wires, 2, flush_policy="async", clean_shutdown_epoch=two.broker_epoch)
    state = wires.partition("t")
    assert (state.leader, state.isr, state.recovery) == (2, (2,), LeaderRecovery.RECOVERED)
    older = two.broker_epoch
    await restart(wires, 2, flush_policy="async", clean_shutdown_epoch=older)
    state = wires.partition("t")
    assert (state.leader, state.recovery) == (2, LeaderRecovery.RECOVERING)


async def test_another_disk_has_nothing_whatever_it_says(wires: Wires) -> None:
    """Rule F3: flushing is no help when the disk is gone."""
    one, _ = await wires.start_all(1, 2)
    await create(one, topic("t", 1, 2, {0: [2, 1]}, {"min.insync.replicas": "2"}))
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    assert wires.partition("t").elr == (1,)
    await restart(wires, 2, directory_id="a new disk")
    assert 2 not in (*wires.partition("t").isr, *wires.partition("t").elr)
    assert wires.partition("t").leader == 1


@pytest.mark.parametrize("way", ["before it crashed", "while it ran"])
async def test_how_the_dead_broker_lived_counts_and_not_what_it_promises_now(
    wires: Wires, way: str
) -> None:
    """Rule F3: it did not flush before it committed, whatever its settings say by now."""
    one = await wires.start(1)
    before = "async" if way == "before it crashed" else "ack"
    await wires.start(2, flush_policy=before)
    await create(one, topic("t", 1, 2, {0: [2, 1]}, {"min.insync.replicas": "2"}))
    if way == "while it ran":
        await set_default(wires, "log.flush.policy", "async")
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    await restart(wires, 2, flush_policy="ack")
    assert 2 not in (*wires.partition("t").isr, *wires.partition("t").elr)


async def test_a_broker_that_is_a_cluster_of_its_own_restarts_without_a_new_epoch(
    wires: Wires,
) -> None:
    one = await wires.start(1)
    await create(one, topic("t", 2, 1))
    before = one.image.topics["t"].partitions
    await one.stop()
    await wires.members.pop(1).store.close()
    again = await wires.start(1)
    assert again.image.topics["t"].partitions == before
    assert again.image.controller_epoch == 2


async def test_a_new_controller_distrusts_who_crashed_while_nobody_looked(wires: Wires) -> None:
    """Rule F3: itself, too; with nobody else to ask it leads on, by an unclean election."""
    two = await wires.start(2, flush_policy="async")
    await create(two, topic("t", 1, 1, {0: [2]}), topic("u", configs={"flush.policy": "ack"}))
    wires.kill(2)
    again = await wires.start(2, flush_policy="async")
    lossy, safe = wires.partition("t"), wires.partition("u")
    assert (lossy.leader, lossy.recovery) == (2, LeaderRecovery.RECOVERING)
    assert (safe.leader, safe.recovery) == (2, LeaderRecovery.RECOVERED)
    assert again.image.unclean_elections == 1


async def test_after_everybody_died_the_first_to_come_back_leads_what_it_has(wires: Wires) -> None:
    """Rule F2: those who were in sync together are all complete, whoever comes back first."""
    one, *_ = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 1, 3, {0: [2, 3, 1]}, {"min.insync.replicas": "2"}))
    await wires.settled()
    for broker_id in (1, 2, 3):
        wires.silence(wires.members[broker_id])
    for broker_id in (1, 2, 3):
        wires.tree.expire(wires.members.pop(broker_id).store.session_id)
    await wires.start(1)
    state = wires.partition("t")
    assert (state.leader, state.isr, set(state.elr)) == (1, (1,), {2, 3})
    assert state.recovery is LeaderRecovery.RECOVERED


async def test_a_restarted_broker_takes_over_what_its_dead_process_left(wires: Wires) -> None:
    """Rule K5: our own data directory proves that its old process is dead; its office goes, too."""
    one, two = await wires.start_all(1, 2)
    before = one.broker_epoch
    dead = wires.members.pop(1)
    wires.silence(dead)
    again = await wires.start(1)
    assert again.broker_epoch > before
    await wires.settled()
    assert wires.boss in (again, two)
    assert two.image.controller_epoch == 2


async def test_a_broker_that_comes_back_unseen_was_gone_all_the_same(wires: Wires) -> None:
    """Rules A3 and K5: the controller only sees that its registration is another one."""
    one, two = await wires.start_all(1, 2)
    await create(one, topic("t", 1, 2, {0: [2, 1]}))
    before = wires.partition("t")
    assert before.leader == 2
    older = two.broker_epoch
    store = wires.members[1].store
    wires.silence(wires.members.pop(2))
    async with one._office.lock:
        starting = asyncio.ensure_future(wires.start(2))
        async with asyncio.timeout(10):
            node = await store.exists("/brokers/ids/2")
            while node is None or node.created == older:
                await asyncio.sleep(0.01)
                node = await store.exists("/brokers/ids/2")
        assert one.image.brokers[BrokerId(2)].epoch == older, "nobody has looked meanwhile"
    await starting
    await wires.settled()
    after = wires.partition("t")
    assert after.leader == 1
    assert after.leader_epoch > before.leader_epoch
    with pytest.raises(ApiError) as caught:
        await one.shut_down_broker(2, older)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


async def test_another_data_directory_has_to_wait_and_is_refused(wires: Wires) -> None:
    """Rule K5: the holder of the id may live."""
    await wires.start(1)
    with pytest.raises(ApiError, match="Another live broker has the id 1") as caught:
        await wires.start(1, directory_id="elsewhere")
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    wires.members.pop(1)


# Going away


async def test_a_controlled_shutdown_moves_everything_first(wires: Wires) -> None:
    """Rule K1: others lead, nobody waits for it, and nobody takes it back in."""
    one, two, three = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 1, 3, {0: [2, 1, 3]}), topic("u", 1, 2, {0: [1, 2]}))
    await wires.settled()
    await two.shut_down()
    leaving = two.image.broker(2)
    assert leaving is not None
    assert leaving.in_controlled_shutdown, "it has heard of it when the call returns"
    state = wires.partition("t")
    assert (state.leader, state.isr) == (1, (1, 3))
    assert wires.partition("u").isr == (1,)
    assert await propose(one, "u", [1, 2]) is ErrorCode.INELIGIBLE_REPLICA
    assert three.image.partition("t", 0) == state


async def test_a_controller_that_stops_leaves_the_office_first(wires: Wires) -> None:
    """Rule K1: no session has to run out for the others to go on."""
    one, two = await wires.start_all(1, 2)
    await create(one, topic("t", 1, 2, {0: [1, 2]}))
    await wires.settled()
    await one.shut_down()
    await until(lambda: two.active)
    assert not one.active
    state = wires.partition("t")
    assert (state.leader, state.isr) == (2, (2,))
    member = two.image.broker(1)
    assert member is not None
    assert member.in_controlled_shutdown, "the next controller knows"


async def test_a_failed_log_directory_costs_only_its_own_partitions(wires: Wires) -> None:
    """Rule E1: the others elect, partition by partition; what nobody else has stays."""
    one, two = await wires.start_all(1, 2)
    await create(
        one,
        topic("a", 1, 2, {0: [2, 1]}),
        topic("b", 1, 2, {0: [2, 1]}),
        topic("solo", 1, 1, {0: [2]}),
    )
    await wires.settled()
    await two.replicas_lost([TopicPartition("a", 0), TopicPartition("solo", 0)])
    assert (wires.partition("a").leader, wires.partition("a").isr) == (1, (1,))
    assert wires.partition("b").leader == 2
    assert wires.partition("solo").leader == 2


# Moves and elections


async def stored(wires: Wires, path: str) -> dict[str, object]:
    store = MemoryStore(wires.tree)
    await store.open(session_timeout_ms=None)
    found: dict[str, object] = json.loads((await store.get(path)).value)
    await store.close()
    return found


async def test_a_move_is_written_to_the_topics_node_and_ends_with_the_last_target(
    wires: Wires,
) -> None:
    """Rule C8: grow, catch up, shrink."""
    one, *_ = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 2, 2, {0: [1, 2], 1: [1, 2]}))
    moved = ReassignablePartition(partition_index=0, replicas=[3, 2])
    await one.alter_reassignments(
        AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[moved])])
    )
    node = await stored(wires, "/brokers/topics/t")
    assert node["partitions"] == {"0": [3, 2, 1], "1": [1, 2]}
    assert (node["adding_replicas"], node["removing_replicas"]) == ({"0": [3]}, {"0": [1]})
    everything = ListPartitionReassignmentsRequest(topics=None)
    [listed] = (await one.list_reassignments(everything)).topics
    assert listed.partitions[0].adding_replicas == [3]
    await propose(one, "t", [1, 2, 3])
    state = wires.partition("t")
    assert (state.replicas, set(state.isr), state.adding, state.removing) == (
        (3, 2), {2, 3}, (), (),
    )  # fmt: skip
    node = await stored(wires, "/brokers/topics/t")
    assert node["partitions"] == {"0": [3, 2], "1": [1, 2]}
    assert (node["adding_replicas"], node["removing_replicas"]) == ({}, {})
    assert (await one.list_reassignments(everything)).topics == []


async def test_a_new_controller_ends_a_move_that_can_end(wires: Wires) -> None:
    """Rule C8: the one before died after the last target joined, and before it wrote the end."""
    one, *_ = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 1, 2, {0: [2, 3]}))
    path = "/brokers/topics/t"
    node = await stored(wires, path)
    node |= {"partitions": {"0": [3, 2, 1]}, "removing_replicas": {"0": [1]}}
    await wires.members[2].store.put(path, json.dumps(node).encode())
    wires.kill(1)
    await wires.settled()
    state = wires.partition("t")
    assert (state.replicas, state.removing) == ((3, 2), ())
    assert (await stored(wires, path))["partitions"] == {"0": [3, 2]}


async def test_a_topic_with_fewer_replicas_makes_nobody_eligible_any_more(wires: Wires) -> None:
    """Rule F2: without a setting the minimum in sync depends on the replicas, of all partitions."""
    one, *_ = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 2, 3, {0: [1, 2, 3], 1: [1, 2, 3]}))
    await one.alter_partition(proposal(one, "t", [1], index=1))
    assert set(wires.partition("t", 1).elr) == {2, 3}
    fewer = ReassignablePartition(partition_index=0, replicas=[1, 2])
    await one.alter_reassignments(
        AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[fewer])])
    )
    assert wires.partition("t", 0).replicas == (1, 2)
    assert wires.partition("t", 1).elr == ()


async def test_the_preferred_replica_leads_again(wires: Wires) -> None:
    """Rule K4: on command and by itself, and only if it is in sync."""
    one, *_ = await wires.start_all(1, 2)
    await create(one, topic("t", 2, 2, {0: [2, 1], 1: [2, 1]}))
    await restart(wires, 2)
    assert [wires.partition("t", index).leader for index in (0, 1)] == [1, 1]
    asked = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=1
    )
    [result] = (await one.elect_leaders(asked)).replica_election_results
    assert result.partition_result[0].error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    for index in (0, 1):
        request = proposal(one, "t", [1, 2], index=index)
        assert (await one.alter_partition(request)).error_code == 0
    [result] = (await one.elect_leaders(asked)).replica_election_results
    assert result.partition_result[0].error_code == 0
    assert wires.partition("t", 0).leader == 2
    assert await one.move_leaders_back() == 1
    assert wires.partition("t", 1).leader == 2


async def set_topic(wires: Wires, name: str, key: str, value: str) -> None:
    await set_one(wires, 2, name, key, value)


async def set_default(wires: Wires, key: str, value: str) -> None:
    """For all brokers, from which topics inherit."""
    await set_one(wires, 4, "", key, value)


async def set_one(wires: Wires, kind: int, name: str, key: str, value: str) -> None:
    change = IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[IncrementalAlterableConfig(name=key, config_operation=0, value=value)],
    )
    [plan] = await wires.boss.incremental_alter_configs([change])
    assert plan.error is None


async def test_an_unclean_election_only_where_the_topic_allows_it(
    wires: Wires, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule A10: off by default; switched on it takes effect at once, is logged and counted."""
    one, _, three = await wires.start_all(1, 2, 3)
    await create(one, topic("t", 1, 2, {0: [2, 1]}))
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    wires.kill(2)
    await wires.settled()
    assert wires.partition("t").leader == -1
    await set_topic(wires, "t", "unclean.leader.election.enable", "true")
    state = wires.partition("t")
    assert (state.leader, state.isr, state.recovery) == (1, (1,), LeaderRecovery.RECOVERING)
    assert "unclean election: broker 1 leads t-0" in caplog.text
    await until(lambda: three.image.unclean_elections == 1)
    wires.kill(1)
    await wires.settled()
    assert wires.boss is three
    assert three.image.unclean_elections == 1, "a new controller goes on counting"


async def test_a_broker_that_leads_again_though_it_may_have_lost_records_is_counted(
    wires: Wires, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule A10: the only replica comes back after a crash without a flush; nobody else could."""
    one = await wires.start(1)
    await wires.start(2, flush_policy="async")
    await create(one, topic("t", 1, 1, {0: [2]}))
    wires.kill(2)
    await wires.start(2, flush_policy="async")
    await wires.settled()
    assert wires.partition("t").leader == 2
    assert one.image.unclean_elections == 1
    assert "unclean election: broker 2 leads t-0" in caplog.text


async def test_a_lower_min_isr_makes_nobody_eligible_any_more(wires: Wires) -> None:
    """Rule F2: written together with the setting."""
    one, *_ = await wires.start_all(1, 2)
    await create(one, topic("t", 1, 2, {0: [1, 2]}, {"min.insync.replicas": "2"}))
    assert await propose(one, "t", [1]) is ErrorCode.NONE
    assert wires.partition("t").elr == (2,)
    await set_topic(wires, "t", "min.insync.replicas", "1")
    assert wires.partition("t").elr == ()


async def test_what_topics_inherit_counts_as_much_as_what_they_say(wires: Wires) -> None:
    """Rules A10 and F2: the brokers' defaults change, and with them who may be elected."""
    config = broker_config(broker_session_timeout_ms="500", min_insync_replicas="2")
    one = await wires.start(1, config=config)
    await wires.start(2, config=config)
    await create(one, topic("t", 1, 2, {0: [1, 2]}), topic("u", 1, 2, {0: [2, 1]}))
    assert await propose(one, "t", [1]) is ErrorCode.NONE
    assert wires.partition("t").elr == (2,)
    await set_default(wires, "min.insync.replicas", "1")
    assert wires.partition("t").elr == ()
    assert await propose(one, "u", [2]) is ErrorCode.NONE
    wires.kill(2)
    await wires.settled()
    await set_default(wires, "unclean.leader.election.enable", "true")
    assert wires.partition("u").leader == 1


async def test_a_new_controller_finds_nobody_eligible_under_a_lower_minimum(wires: Wires) -> None:
    """Rule F2: the minimum is lower than when the one before wrote; more was committed since."""
    strict = broker_config(broker_session_timeout_ms="500", min_insync_replicas="2")
    one = await wires.start(1, config=strict)
    await wires.start(2)
    await wires.start(3)
    await create(one, topic("t", 1, 2, {0: [2, 3]}))
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    assert wires.partition("t").elr == (3,)
    wires.kill(1)
    await wires.settled()
    assert wires.partition("t").elr == ()


async def test_a_generated_id_is_above_the_reserved_ones(wires: Wires) -> None:
    first = await wires.start(-1)
    assert first.broker_id == 1001
    assert first.image.broker(1001) is not None
    assert tree.broker_path(1001) in (await first._store.tree(tree.BROKER_IDS))
    assert first.image.brokers[first.broker_id].endpoints == (ENDPOINT,)
