"""Several brokers' controllers on one store: who is in office, who is let in, who leads what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
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
from tidemill.image import ClusterImage
from tidemill.store.base import Create, Op, OpResult, StoreUnavailable
from tidemill.store.memory import MemoryStore
from tidemill.wire.messages.cluster import ImageDeltaRequest


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
    """As many as brokers, at most three; one that is down will be back, one that leaves may not."""
    one, *_ = await wires.start_all(1, 2, 3, 4)
    [made] = await create(one, topic("three", 1, -1))
    assert made.replication_factor == 3
    await wires.members[4].controller.shut_down()
    wires.kill(3)
    await until(lambda: one.image.broker(3) is None)
    [made] = await create(one, topic("again-three", 1, -1))
    assert made.replication_factor == 3
    assert set(wires.partition("again-three").isr) == {1, 2}
    await wires.members[2].controller.shut_down()
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


class ForgetfulStore(MemoryStore):
    """The first answer to a broker that takes the office is lost on its way."""

    is_lost = False

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        results = await super().multi(ops)
        takes_office = any(isinstance(op, Create) and op.path == "/controller" for op in ops)
        if takes_office and not self.is_lost:
            self.is_lost = True
            raise StoreUnavailable("nobody knows what came of it")
        return results


async def test_a_controller_that_did_not_hear_that_it_won_takes_up_its_own_epoch(
    wires: Wires,
) -> None:
    """Rule A2: not the epoch of its last office, in which nobody would believe it."""
    first = await wires.start(1)
    store = ForgetfulStore(wires.tree)
    config = broker_config(broker_session_timeout_ms="500")
    heir = Controller(store, config, SystemClock(), Random(1), broker_id=2)
    await heir.start()
    await heir.register_broker([ENDPOINT], directory_id="d")
    wires.kill(1)
    await until(lambda: heir.active)
    assert store.is_lost
    assert heir.image.controller_epoch == first.image.controller_epoch + 1
    stored_epoch = await store.get("/controller_epoch")
    assert int(stored_epoch.value) == heir.image.controller_epoch
    await create(heir, topic("t"))
    await store.put("/controller_epoch", b"99")
    with pytest.raises(ApiError) as caught:
        await heir._topics.create([topic("u")], False)
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    await heir.stop()
    await store.close()


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


# Machines


async def test_replicas_are_on_two_machines_if_there_are_two_whoever_is_in_office(
    wires: Wires,
) -> None:
    """Without racks, too; and clients are not told of racks that nobody has named."""
    for broker_id, machine in ((1, "m1"), (2, "m1"), (3, "m2"), (4, "m2")):
        await wires.start(broker_id, machine=machine)
    for name in ("before", "after"):
        await wires.settled()
        result = await create(wires.boss, topic(name, 8, 2))
        assert outcome(result[0])[1] == "NONE"
        for partition in wires.boss.image.topics[name].partitions:
            assert len({broker_id <= 2 for broker_id in partition.replicas}) == 2, partition
        assert {each.rack for each in wires.boss.image.brokers.values()} == {None}
        if name == "before":
            await wires.members[wires.boss.broker_id].controller.shut_down()
            await until(lambda: any(m.controller.active for m in list(wires.members.values())[1:]))
            wires.kill(1)
