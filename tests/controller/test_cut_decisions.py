"""Decisions that a store cut in two: whatever was written of one, the rest follows from it.

The connection breaks once, at every place where it can; the controller goes on, or dies there and
another one takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from tests.controller.cutting_store import CuttingStore
from tests.controller.helpers import create, topic
from tests.controller.wires import Wires, proposal
from tests.store.helpers import until

from tidemill.controller import Controller, tree
from tidemill.controller.election import target_replicas
from tidemill.errors import ApiError
from tidemill.image import PartitionImage
from tidemill.store.base import Put
from tidemill.types import BrokerId
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.messages.topics import CreatePartitionsTopic

PARTITIONS = 3
WRITES = range(PARTITIONS + 3)
"""Where a decision on every partition can be cut, and a little beyond."""


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    cluster = Wires(CuttingStore)
    yield cluster
    await cluster.stop()


def store_of(wires: Wires, broker_id: int) -> CuttingStore:
    store = wires.members[broker_id].store
    assert isinstance(store, CuttingStore)
    return store


def partitions(wires: Wires) -> Iterable[PartitionImage]:
    return wires.boss.image.topics["t"].partitions


async def led_by_two(wires: Wires) -> Controller:
    """Broker 1 is the controller, 2 leads everything and does not flush, 3 follows."""
    one = await wires.start(1)
    await wires.start(2, flush_policy="async")
    await wires.start(3)
    await create(one, topic("t", assignments={index: [2, 1, 3] for index in range(PARTITIONS)}))
    await wires.settled()
    return one


def check_two_has_lost_its_places(wires: Wires, older: int) -> None:
    assert wires.boss.image.brokers[BrokerId(2)].epoch != older
    for partition in partitions(wires):
        assert 2 not in partition.isr, partition
        assert (partition.leader, partition.leader_epoch) == (1, 1), partition


@pytest.mark.parametrize("cut", WRITES)
async def test_who_crashed_keeps_no_place_when_the_review_of_it_is_cut(
    wires: Wires, cut: int
) -> None:
    """Rules A1, A3, F3: an incarnation is noted when all that follows from it is written."""
    one = await led_by_two(wires)
    older = one.image.brokers[BrokerId(2)].epoch
    wires.silence(wires.members.pop(2))
    store_of(wires, 1).break_once(cut)
    await wires.start(2, flush_policy="async")
    await wires.settled()
    check_two_has_lost_its_places(wires, older)


@pytest.mark.parametrize("cut", WRITES)
async def test_who_crashed_keeps_no_place_when_the_take_over_is_cut(wires: Wires, cut: int) -> None:
    """Rules A1, A3, F3: the same for a controller that begins, and dies, and the next one."""
    one = await led_by_two(wires)
    older = one.image.brokers[BrokerId(2)].epoch
    wires.silence(wires.members.pop(2))
    boss = wires.members.pop(1)
    wires.silence(boss)
    store_of(wires, 3).break_once(cut)
    starting = asyncio.ensure_future(wires.start(2, flush_policy="async"))
    await until(lambda: 2 in wires.members and wires.members[2].controller.broker_epoch > older)
    wires.members[2].controller._presence._runs = False
    wires.tree.expire(boss.store.session_id)
    await starting
    await until(lambda: 1 not in wires.boss.image.brokers)
    for partition in partitions(wires):
        assert 2 not in partition.isr, partition
        assert partition.leader == 3, partition
        assert partition.leader_epoch > 0, partition


# Moves


def reassign(replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    moved = [
        ReassignablePartition(partition_index=index, replicas=replicas)
        for index in range(PARTITIONS)
    ]
    return AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=moved)]
    )


async def move(controller: Controller, replicas: list[int] | None) -> None:
    """Begin a move of all partitions, or cancel it."""
    answer = await controller.alter_reassignments(reassign(replicas))
    assert answer.error_code == 0
    assert {each.error_code for each in answer.responses[0].partitions} == {0}


async def catch_up(controller: Controller, isr: list[int]) -> None:
    """The leaders of all partitions propose the same in-sync set, in one request."""
    request = proposal(controller, "t", isr)
    for index in range(1, PARTITIONS):
        more = proposal(controller, "t", isr, index=index)
        assert more.broker_id == request.broker_id
        request.topics[0].partitions.extend(more.topics[0].partitions)
    answer = await controller.alter_partition(request)
    assert answer.error_code == 0


async def moving(wires: Wires) -> Controller:
    """Four brokers; all partitions of t are on 1, 2 and 3, and u is led by 3."""
    one, *_ = await wires.start_all(1, 2, 3, 4)
    assigned = {index: [1, 2, 3] for index in range(PARTITIONS)}
    await create(one, topic("t", assignments=assigned), topic("u", assignments={0: [3, 4]}))
    await wires.settled()
    return one


async def broken(wires: Wires, dies: bool) -> None:
    """The controller of the moment, whose connection broke, goes on or dies."""
    if dies:
        wires.kill(1)
        await until(lambda: any(m.controller.active for m in wires.members.values()))
        await until(lambda: 1 not in wires.boss.image.brokers)
    else:
        # It looks again by itself, and settles what it finds.
        await until(lambda: not wires.boss._office._stale)
    await wires.settled()


def check_sound(wires: Wires) -> None:
    for partition in partitions(wires):
        assert set(partition.isr) <= set(partition.replicas), partition
        assert set(partition.elr) <= set(partition.replicas), partition
        assert partition.leader in partition.isr, partition


async def check_others_are_seen_to(wires: Wires) -> None:
    """Whatever was found, brokers that go are still replaced."""
    wires.kill(3)
    await until(lambda: 3 not in wires.boss.image.brokers)
    assert wires.partition("u").leader == 4


Dies = pytest.mark.parametrize("dies", [False, True], ids=["goes-on", "dies"])
Cut = pytest.mark.parametrize("cut", range(PARTITIONS + 1))


@Dies
@Cut
async def test_a_move_whose_beginning_is_cut_begins_when_it_is_asked_for_again(
    wires: Wires, cut: int, dies: bool
) -> None:
    """Rule C8: until the topic says where its replicas are to go, nothing moves."""
    one = await moving(wires)
    store_of(wires, 1).break_once(cut)
    with pytest.raises(ApiError, match="gone"):
        await move(one, [1, 2, 4])
    await broken(wires, dies)
    check_sound(wires)
    await move(wires.boss, [2, 1, 4])
    for partition in partitions(wires):
        assert (partition.adding, partition.removing) == ((4,), (3,)), partition
    await check_others_are_seen_to(wires)


@Dies
@Cut
async def test_a_move_whose_end_is_cut_ends(wires: Wires, cut: int, dies: bool) -> None:
    """Rule C8: nobody is in sync who is no replica, at no moment; the rest of the end follows."""
    one = await moving(wires)
    await move(one, [2, 1, 4])
    await wires.settled()
    store_of(wires, 1).break_once(cut)
    with pytest.raises(ApiError, match="gone"):
        await catch_up(one, [1, 2, 3, 4])
    await broken(wires, dies)
    check_sound(wires)
    await check_others_are_seen_to(wires)
    if any(partition.adding for partition in partitions(wires)):
        # These the leader proposes again, as nothing was written of them.
        await catch_up(wires.boss, [2, 4] if dies else [1, 2, 4])
    for partition in partitions(wires):
        assert target_replicas(partition) == (2, 1, 4), partition
        assert dies or not partition.removing, "whoever is dead is waited for"
    check_sound(wires)


@Dies
@Cut
async def test_a_move_whose_cancelling_is_cut_can_be_cancelled_again(
    wires: Wires, cut: int, dies: bool
) -> None:
    one = await moving(wires)
    await move(one, [4, 2, 3])
    await wires.settled()
    await catch_up(one, [1, 2, 4])
    store_of(wires, 1).break_once(cut)
    with pytest.raises(ApiError, match="gone"):
        await move(one, None)
    await broken(wires, dies)
    check_sound(wires)
    await move(wires.boss, None)
    for partition in partitions(wires):
        assert set(partition.replicas) == {1, 2, 3}, partition
        assert 4 not in partition.isr, partition
    check_sound(wires)
    await check_others_are_seen_to(wires)


@Dies
@Cut
async def test_a_move_that_ends_at_once_is_cut(wires: Wires, cut: int, dies: bool) -> None:
    """Fewer replicas, all of them in sync: the move ends as it begins."""
    one = await moving(wires)
    store_of(wires, 1).break_once(cut)
    with pytest.raises(ApiError, match="gone"):
        await move(one, [2, 1])
    await broken(wires, dies)
    check_sound(wires)
    await move(wires.boss, [2, 1])
    for partition in partitions(wires):
        assert target_replicas(partition) == (2, 1), partition
        assert dies or partition.replicas == (2, 1), "whoever is dead is waited for"
    check_sound(wires)
    await check_others_are_seen_to(wires)


@pytest.mark.parametrize("replicas", [[1, 2], [4, 2], [4]])
async def test_in_sync_replicas_that_the_topic_does_not_have_block_nobody(
    wires: Wires, replicas: list[int]
) -> None:
    """What a controller of old left half done: they are taken to be on their way out (C8)."""
    one = await moving(wires)
    path = tree.topic_path("t")
    node = await store_of(wires, 1).get(path)
    value = tree.load(node.value)
    value["partitions"]["0"] = replicas
    await store_of(wires, 1).multi([Put(path, tree.dump(value))])
    assert one.active
    await broken(wires, dies=True)
    state = wires.partition("t")
    assert set(replicas) <= set(state.replicas)
    assert set(state.isr) <= set(state.replicas)
    assert state.leader in state.isr, "who is in sync leads on"
    await check_others_are_seen_to(wires)
    check_sound(wires)


# Topics


@Cut
async def test_topics_are_made_and_grown_by_the_controller_whose_connection_broke(
    wires: Wires, cut: int
) -> None:
    """What it left half made, it removes itself, and the name is free."""
    one = await wires.start(1)
    store_of(wires, 1).break_once(cut)
    with pytest.raises(ApiError, match="gone"):
        await create(one, topic("t", 3))
    assert [each.error_code for each in await create(one, topic("t", 3))] == [0]
    grown = CreatePartitionsTopic(name="t", count=6, assignments=None)
    store_of(wires, 1).break_once(cut)
    with pytest.raises(ApiError, match="gone"):
        await one.create_partitions([grown])
    assert len(one.image.topics["t"].partitions) == 3
    assert [plan.error for plan in await one.create_partitions([grown])] == [None]
    assert len(one.image.topics["t"].partitions) == 6
