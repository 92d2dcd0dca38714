"""Moves of replicas and elections of leaders, through several brokers' controllers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from tests.controller.helpers import ENDPOINT, broker_config, create, topic
from tests.controller.wires import Wires, proposal, propose, restart, set_default, set_topic
from tests.store.helpers import until

from tidemill.controller import tree
from tidemill.errors import ErrorCode
from tidemill.image import LeaderRecovery
from tidemill.store.memory import MemoryStore
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
