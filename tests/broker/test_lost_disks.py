"""Replicas that have no disk, or no log on it, in virtual time: somebody else leads who can."""

from __future__ import annotations

from typing import NoReturn

import pytest
from tests.broker.replica_world import LAG_MAX_MS, World

from tidemill.controller.election import ElectionPolicy
from tidemill.storage.disk_errors import DiskFailedError, DiskFullError
from tidemill.testing.loop import SimLoop
from tidemill.types import NO_BROKER, TopicPartition


def lose_disk(world: World, broker_id: int) -> None:
    node = world.nodes[broker_id]
    node.partition().log.dir.fail(DiskFailedError("broken"))
    node.domain.run(node.replicas.take_offline, [TopicPartition("t", 0)])
    world.run_ms(100)


def allow_unclean_elections(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ElectionPolicy(min_isr=1, unclean_allowed=True)
    monkeypatch.setattr(world, "_policy", lambda topic: policy)


def test_a_replica_without_a_disk_does_not_stay_the_leader(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules A10 and E1: it was the last to lead, but another one can serve."""
    world = World(loop)
    allow_unclean_elections(world, monkeypatch)
    world.create_topic(replicas=(0, 1), min_insync_replicas="1")
    world.crash(1)
    world.run_ms(100)
    lose_disk(world, 0)
    assert world.state().leader == NO_BROKER
    world.restart(1)
    world.run_ms(1_000)
    assert world.state().leader == 1
    assert world.produce(b"a").produced.error_code == 0


def test_replicas_without_disks_do_not_elect_each_other_for_ever(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules A10 and E1: each says once that it cannot lead, and then waits for somebody new."""
    world = World(loop)
    allow_unclean_elections(world, monkeypatch)
    world.create_topic(replicas=(0, 1), min_insync_replicas="1")
    lose_disk(world, 0)
    lose_disk(world, 1)
    world.run_ms(1_000)
    settled = world.state()
    assert settled.leader_epoch < 10
    world.run_ms(10 * LAG_MAX_MS)
    assert world.state() == settled


def test_a_replica_without_a_log_does_not_lead(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule E8: nobody waits for a full disk while others have room; with room it is back."""
    world = World(loop)

    def refuse(*about: object) -> NoReturn:
        raise DiskFullError("no room for a directory")

    with monkeypatch.context() as patch:
        patch.setattr(world.nodes[0].broker.logs, "create", refuse)
        world.create_topic()
        world.run_ms(10_000)
        state = world.state()
        assert (state.leader, set(state.isr)) == (1, {1, 2})
        assert world.nodes[0].lost == [TopicPartition("t", 0)], "it is said once"
        answer = world.produce(b"a")
        world.run_ms(100)
        assert answer.produced.error_code == 0
    world.run_ms(10_000)
    assert set(world.state().isr) == {0, 1, 2}
