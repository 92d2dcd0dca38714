"""What a client knows of a cluster: brokers, topics, leaders. Values only; `cluster` keeps them.

`merge` is the one rule worth knowing: a broker that lags behind may describe the past, so a
partition's older leader epoch never replaces a newer one - unless the topic was created anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidemill.client.connection import Address
from tidemill.client.errors import ClientError, failure_of
from tidemill.types import ZERO_TOPIC_ID
from tidemill.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


@dataclass(frozen=True, slots=True)
class Node:
    """One broker as clients reach it."""

    node_id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who leads and who follows; `leader` is -1 while there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic; `topic_id` is zero when the broker is too old to have ids."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One consistent picture; replaced as a whole, never changed."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    errors: Mapping[str, ClientError] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> PartitionInfo | None:
        """The partition if it has a leader that we could talk to."""
        info = self.topics.get(topic)
        found = info.partitions.get(partition) if info is not None else None
        return found if found is not None and found.leader in self.nodes else None


def merge(before: ClusterView, answer: MetadataResponse, *, all_topics: bool) -> ClusterView:
    """The view after an answer; topics that were not asked about stay as they were."""
    topics = {} if all_topics else dict(before.topics)
    errors = {} if all_topics else dict(before.errors)
    for topic in answer.topics:
        name = topic.name or ""
        errors.pop(name, None)
        if topic.error_code:
            errors[name] = failure_of(f"topic {name!r}", topic.error_code)
            topics.pop(name, None)
        else:
            topics[name] = _merge_topic(before.topics.get(name), topic)
    nodes = {
        broker.node_id: Node(broker.node_id, Address(broker.host, broker.port), broker.rack)
        for broker in answer.brokers
    }
    return ClusterView(
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        nodes=nodes or before.nodes,
        topics=topics,
        errors=errors,
    )


def _merge_topic(before: TopicInfo | None, topic: MetadataResponseTopic) -> TopicInfo:
    known: Mapping[int, PartitionInfo] = {}
    if before is not None and before.topic_id == topic.topic_id:
        known = before.partitions
    partitions = {}
    for answered in sorted(topic.partitions, key=lambda entry: entry.partition_index):
        new, old = _partition(answered), known.get(answered.partition_index)
        stale = old is not None and 0 <= new.leader_epoch < old.leader_epoch
        partitions[new.index] = old if stale and old is not None else new
    return TopicInfo(
        name=topic.name or "",
        topic_id=topic.topic_id or ZERO_TOPIC_ID,
        is_internal=topic.is_internal,
        partitions=partitions,
    )


def _partition(answered: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        index=answered.partition_index,
        leader=answered.leader_id,
        leader_epoch=answered.leader_epoch,
        replicas=tuple(answered.replica_nodes),
        isr=tuple(answered.isr_nodes),
        offline_replicas=tuple(answered.offline_replicas),
    )
