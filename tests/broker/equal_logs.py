"""Replicas that agree: the same records, of the same leaders."""

from __future__ import annotations

from tests.broker.replica_world import World

from tidemill.storage.log import Log


def assert_equal_logs(world: World, topic: str = "t") -> None:
    first = world.nodes[0]
    for node in world.nodes[1:]:
        assert node.values(topic) == first.values(topic)
        assert epochs_of(node.partition(topic).log) == epochs_of(first.partition(topic).log)


def epochs_of(log: Log) -> list[tuple[int, int]]:
    """The leader epochs that left records."""
    return [entry for entry in log.leader_epochs.entries if entry[1] < log.log_end_offset]
