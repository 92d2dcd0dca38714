"""A cluster as a client is told of it: who is there, who leads what, who is in sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.client import Admin
from tidemill.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Replicas:
    """Who has a partition, as the cluster says."""

    leader: int | None
    replicas: frozenset[int]
    isr: frozenset[int]

    @property
    def is_whole(self) -> bool:
        return self.leader is not None and self.isr == self.replicas


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at one moment."""

    controller: int | None
    alive: frozenset[int]
    partitions: Mapping[TopicPartition, Replicas]

    @property
    def is_whole(self) -> bool:
        """Everybody who has a replica is there and in sync, and each partition has a leader."""
        return all(
            each.is_whole and each.replicas <= self.alive for each in self.partitions.values()
        )

    def led_by(self, broker: int) -> list[TopicPartition]:
        return [key for key, each in self.partitions.items() if each.leader == broker]

    def of(self, topic: str) -> list[Replicas]:
        """The partitions of a topic, in order."""
        return [each for key, each in sorted(self.partitions.items()) if key.topic == topic]

    def __str__(self) -> str:
        lacking = ", ".join(
            f"{name}-{index} led by {each.leader} in sync {sorted(each.isr)}"
            for (name, index), each in self.partitions.items()
            if not each.is_whole
        )
        return f"controller {self.controller}, alive {sorted(self.alive)}, {lacking or 'all well'}"


async def look(admin: Admin) -> View:
    """Ask for the cluster and all its topics."""
    topics = (await admin.describe_topics()).raise_first()
    cluster = await admin.describe_cluster()
    partitions = {
        TopicPartition(name, each.index): Replicas(
            each.leader, frozenset(each.replicas), frozenset(each.isr)
        )
        for name, topic in topics.items()
        for each in topic.partitions
    }
    alive = frozenset(each.broker_id for each in cluster.brokers if not each.is_fenced)
    return View(cluster.controller_id, alive, partitions)
