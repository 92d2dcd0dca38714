"""Brokers that crash, come back, stop, and lose disks: what the controller makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.controller.helpers import create, topic
from tests.controller.wires import Wires, propose, restart, set_default, set_topic
from tests.store.helpers import until
from tests.waiting import LONG_S

from tidemill.controller import Controller
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import LeaderRecovery
from tidemill.types import BrokerId, TopicPartition


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    cluster = Wires()
    yield cluster
    await cluster.stop()


# Coming back


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


async def suspect(wires: Wires) -> Controller:
    """Broker 1 is the controller, 2 of `t` was the last in sync, does not flush, and crashed."""
    one = await wires.start(1)
    await wires.start(2, flush_policy="async")
    await wires.start(3)
    await create(one, topic("t", 1, 3, {0: [2, 1, 3]}, {"min.insync.replicas": "2"}))
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    wires.kill(2)
    await wires.settled()
    assert 2 in wires.partition("t").elr
    return one


@pytest.mark.parametrize("sessions", [1, 2])
async def test_a_crash_is_not_forgotten_when_the_next_session_is_lost_unseen(
    wires: Wires, sessions: int
) -> None:
    """Rule F3: a process that no controller has seen yet has still to account for the one before.

    It says that it is the same process when it registers again, which proves nothing of the crash.
    """
    one = await suspect(wires)
    async with one._office.lock:
        starting = asyncio.ensure_future(wires.start(2, flush_policy="async"))
        await until(lambda: 2 in wires.members and wires.members[2].controller.broker_epoch > 0)
        for _ in range(sessions):
            epoch = wires.members[2].controller.broker_epoch
            await wires.expire(2)
            await until(lambda: wires.members[2].controller.broker_epoch > epoch)  # noqa: B023
    await asyncio.gather(starting, return_exceptions=True)
    await wires.settled()
    assert 2 not in (*wires.partition("t").isr, *wires.partition("t").elr)


async def test_a_session_that_was_lost_costs_a_living_process_no_trust(wires: Wires) -> None:
    """Rule F3: the controller has seen this process before, and it has not died since."""
    one = await wires.start(1)
    await wires.start(2, flush_policy="async")
    await wires.start(3)
    await create(one, topic("t", 1, 3, {0: [2, 1, 3]}, {"min.insync.replicas": "2"}))
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    older = wires.members[2].controller.broker_epoch
    for _ in range(2):
        await wires.expire(2)
        await until(lambda: wires.members[2].controller.broker_epoch > older)
        await wires.members[2].controller.admitted(5_000)
        await wires.settled()
    assert 2 in (*wires.partition("t").isr, *wires.partition("t").elr)


@pytest.mark.parametrize("level", ["topic", "all brokers"])
async def test_a_policy_that_became_safe_while_the_broker_ran_vouches_for_nothing(
    wires: Wires, level: str
) -> None:
    """Rule F3: what it had not flushed by then it may not have flushed before the power went."""
    one = await wires.start(1)
    await wires.start(2, flush_policy="ack")
    other = {"min.insync.replicas": "2"}
    own = {**other, "flush.policy": "async"} if level == "topic" else other
    await create(one, topic("t", 1, 2, {0: [2, 1]}, own), topic("u", 1, 2, {0: [2, 1]}, other))
    if level == "topic":
        await set_topic(wires, "t", "flush.policy", "ack")
    else:
        await set_default(wires, "log.flush.policy", "async")
        await set_default(wires, "log.flush.policy", "ack")
    await set_topic(wires, "t", "retention.ms", "1000")
    assert await propose(one, "t", [2]) is ErrorCode.NONE
    assert await propose(one, "u", [2]) is ErrorCode.NONE
    await restart(wires, 2, flush_policy="ack")
    doubted = [name for name in "tu" if 2 not in wires.partition(name).elr]
    assert doubted == (["t"] if level == "topic" else ["t", "u"])
    # The next incarnation has flushed from its first record on.
    for name in "tu":
        assert await propose(one, name, [1, 2]) is ErrorCode.NONE
        assert await propose(one, name, [1]) is ErrorCode.NONE
    await restart(wires, 2, flush_policy="ack")
    assert wires.partition("t").elr == wires.partition("u").elr == (2,)


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


@pytest.mark.parametrize("flush_policy", ["ack", "async"])
async def test_after_the_power_went_everywhere_nobody_is_guessed_to_be_complete(
    wires: Wires, flush_policy: str
) -> None:
    """Rule F4: who flushes is complete. Where nobody does, only the last leader leads unasked."""
    for broker_id in (1, 2, 3):
        await wires.start(broker_id, flush_policy=flush_policy)
    one = wires.boss
    await create(one, topic("t", 1, 3, {0: [2, 3, 1]}, {"min.insync.replicas": "2"}))
    await wires.settled()
    for broker_id in (1, 2, 3):
        wires.silence(wires.members[broker_id])
    for broker_id in (1, 2, 3):
        wires.tree.expire(wires.members.pop(broker_id).store.session_id)
    await wires.start(3, flush_policy=flush_policy)
    await wires.start(1, flush_policy=flush_policy)
    await wires.settled()
    state = wires.partition("t")
    if flush_policy == "ack":
        assert (state.leader, state.recovery) == (3, LeaderRecovery.RECOVERED)
        return
    assert not state.has_leader, "it waits for 2, which led last, and whose log may be longer"
    await wires.start(2, flush_policy=flush_policy)
    await wires.settled()
    state = wires.partition("t")
    assert (state.leader, state.isr, state.recovery) == (2, (2,), LeaderRecovery.RECOVERING)
    assert wires.boss.image.unclean_elections == 1, "and it is told"


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
        async with asyncio.timeout(LONG_S):
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
