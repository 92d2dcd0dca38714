"""Brokers that fail, stop, return or lose records, and what becomes of their partitions."""

from __future__ import annotations

from tests.controller.partitions import applied, broker, cluster, ids, only, partition, policy

from tidemill.controller.liveness import (
    broker_unfenced,
    brokers_failed,
    controlled_shutdown,
    min_isr_changed,
    replicas_lost,
    take_stock,
    unclean_restart,
)
from tidemill.image import LeaderRecovery, ReplicaTrouble, with_broker, without_broker
from tidemill.types import NO_BROKER, BrokerId, TopicPartition

ONE = BrokerId(1)


def test_a_failed_broker_leaves_every_set_and_only_its_partitions_change() -> None:
    image = cluster(
        [1, 2, 3],
        {
            "a": [partition([1, 2]), partition([2, 3], index=1)],
            "b": [partition([3, 1])],
        },
    )
    changes = brokers_failed(image, [ONE], policy())
    states = {(name, state.index): (state.leader, state.isr) for name, state in changes}
    assert states == {("a", 0): (2, (2,)), ("b", 0): (3, (3,))}


def test_brokers_that_fail_together_leave_together() -> None:
    """Rule F2: all of them were complete, so any of them may lead when it returns."""
    image = cluster([1, 2, 3], [partition([1, 2, 3])])
    after = only(brokers_failed(image, ids([1, 2, 3]), policy(2)))
    assert (after.leader, after.isr, after.elr) == (NO_BROKER, (), (1, 2, 3))
    assert after.last_known_elr == (1,)


def test_a_stopping_broker_hands_over_and_stays_eligible_where_it_was_alone() -> None:
    """Rule K1: leaderships move, in-sync sets go on without it."""
    image = cluster([1, 2], [partition([1, 2]), partition([1], index=1)])
    changes = controlled_shutdown(image, ONE, policy())
    moved, alone = (change.partition for change in changes)
    assert (moved.leader, moved.isr) == (2, (2,))
    assert (alone.leader, alone.isr, alone.elr) == (NO_BROKER, (), (1,))
    stopped = without_broker(applied(image, changes), ONE)
    assert brokers_failed(stopped, [ONE], policy()) == []
    back = only(broker_unfenced(with_broker(stopped, broker(1, fenced=True)), ONE, policy()))
    assert (back.index, back.leader, back.recovery) == (1, 1, LeaderRecovery.RECOVERED)


def test_a_leader_that_comes_back_at_once_leads_in_a_new_epoch() -> None:
    """Rule A1: a new incarnation never goes on in the epoch of the old one."""
    before = partition([1])
    image = cluster([1], [before])
    image = applied(image, brokers_failed(image, [ONE], policy()))
    back = only(broker_unfenced(image, ONE, policy()))
    assert back.leader == before.leader
    assert back.leader_epoch > before.leader_epoch
    assert back.partition_epoch > before.partition_epoch


def test_an_unclean_restart_costs_the_broker_its_places() -> None:
    """Rule F3: out of all in-sync and eligible sets, whoever leads."""
    image = cluster(
        [1, 2, 3],
        [
            partition([1, 2, 3]),
            partition([2, 1, 3], [2], index=1, elr=[1]),
            partition([2, 3], index=2),
            partition([1, 2, 3], [1], index=3, elr=[2]),
        ],
    )
    states = [change.partition for change in unclean_restart(image, ONE, policy(2))]
    found = [(s.index, s.leader, s.isr, s.elr) for s in states]
    assert found == [(0, 2, (2, 3), ()), (1, 2, (2,), ()), (3, 2, (2,), ())]


def test_a_sole_replica_that_was_killed_returns_as_the_last_known_leader() -> None:
    """Rule F3: nobody is complete for sure, so it is marked as recovering; others stay offline
    where the policy does not allow that."""
    image = cluster([1], [partition([1])])
    lost = applied(image, unclean_restart(image, ONE, policy()))
    state = lost.partition("t", 0)
    assert state is not None
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (NO_BROKER, (), (), (1,))
    back = only(broker_unfenced(lost, ONE, policy()))
    assert (back.leader, back.isr, back.recovery) == (1, (1,), LeaderRecovery.RECOVERING)
    assert broker_unfenced(lost, ONE, policy(last_known_leader=False)) == []


def test_an_unclean_election_on_failure_needs_the_topics_consent() -> None:
    """Rule A10."""
    image = cluster([1, 2], [partition([1, 2], [1])])
    offline = only(brokers_failed(image, [ONE], policy()))
    assert offline.leader == NO_BROKER
    lossy = only(brokers_failed(image, [ONE], policy(unclean=True)))
    assert (lossy.leader, lossy.isr, lossy.recovery) == (2, (2,), LeaderRecovery.RECOVERING)


def test_a_lost_log_directory_takes_only_its_partitions() -> None:
    image = cluster([1, 2], [partition([1, 2]), partition([1, 2], index=1)])
    gone = [TopicPartition("t", 1), TopicPartition("t", 1), TopicPartition("t", 9)]
    after = only(replicas_lost(image, ONE, gone, policy(2)))
    assert (after.index, after.leader, after.isr, after.elr) == (1, 2, (2,), ())


def test_a_full_replica_stands_aside_and_stays_eligible() -> None:
    """Rule E8: it lacks nothing; where nobody else is in sync it goes on, to be read."""
    image = cluster([1, 2], [partition([1, 2]), partition([1, 2], [1], index=1)])
    lost = [TopicPartition("t", 0), TopicPartition("t", 1)]
    after = only(replicas_lost(image, ONE, lost, policy(2), ReplicaTrouble.FULL))
    assert (after.index, after.leader, after.isr, after.elr) == (0, 2, (2,), (1,))


def test_a_damaged_replica_stands_aside_where_others_can_lead() -> None:
    """Rule E2: what cannot be read is worse than none, unless there is none."""
    image = cluster([1, 2], [partition([1, 2]), partition([1, 2], [1], index=1)])
    lost = [TopicPartition("t", 0), TopicPartition("t", 1)]
    after = only(replicas_lost(image, ONE, lost, policy(2), ReplicaTrouble.DAMAGED))
    assert (after.index, after.leader, after.isr, after.elr) == (0, 2, (2,), ())


def test_a_new_controller_puts_right_what_happened_before_it() -> None:
    image = cluster(
        [2, 3, broker(4, fenced=True)],
        [
            partition([1, 2]),
            partition([2, 4], index=1),
            partition([3, 1], [], index=2, elr=[3]),
            partition([2, 3], index=3),
            partition([1], [], index=4, elr=[1]),
        ],
    )
    states = [change.partition for change in take_stock(image, policy(2))]
    assert [(s.index, s.leader, s.isr, s.elr) for s in states] == [
        (0, 2, (2,), (1,)),
        (1, 2, (2,), (4,)),
        (2, 3, (3,), ()),
    ]
    assert take_stock(applied(image, take_stock(image, policy(2))), policy(2)) == []


def test_an_election_that_brings_the_last_target_in_sync_ends_the_move() -> None:
    """Rule C8: nobody will propose another change, so it would stay half moved for good."""
    moving = partition([3, 4], leader=4, isr=[4], elr=[3], removing=[4])
    image = cluster([3], [moving])
    after = only(take_stock(image, policy(2)))
    assert (after.leader, after.replicas, after.isr, after.removing) == (3, (3,), (3,), ())
    assert after.recovery is LeaderRecovery.RECOVERED


def test_a_lower_minimum_forgets_the_eligible() -> None:
    """Rule F2: one in sync commits alone from now on."""
    state = partition([1, 2], [1], elr=[2])
    image = cluster([1, 2], {"t": [state], "other": [state]})
    assert min_isr_changed(image, ["t"], policy(2)) == []
    (change,) = min_isr_changed(image, ["t"], policy(1))
    assert change.topic == "t"
    assert change.partition.elr == ()
    assert change.partition.leader_epoch == state.leader_epoch


def test_an_unfenced_broker_gets_only_what_it_can_lead() -> None:
    image = cluster(
        [broker(1, fenced=True), 2],
        [
            partition([1, 2], [], elr=[1]),
            partition([2, 3], [], index=1, elr=[3]),
            partition([1, 2], [2], index=2),
        ],
    )
    after = only(broker_unfenced(image, ONE, policy()))
    assert (after.index, after.leader) == (0, 1)
