"""Who leads a partition and where it is, told to a client that asked the wrong broker (KIP-951)."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidemill.broker.context import Broker
from tidemill.image import PartitionImage


class Node(NamedTuple):
    """A broker as answers name it."""

    node_id: int
    host: str
    port: int
    rack: str | None


def partition_image(broker: Broker, topic: str | UUID, index: int) -> PartitionImage | None:
    """The partition as the cluster's image has it, also where it has no replica here."""
    image = broker.image
    found = image.topic_by_id(topic) if isinstance(topic, UUID) else image.topic(topic)
    return None if found is None else found.partition(index)


def node_of(broker: Broker, broker_id: int, listener: str) -> Node | None:
    """Where a client that came in by this listener finds the broker."""
    found = broker.image.broker(broker_id)
    endpoint = found.endpoint(listener) if found is not None else None
    if found is None or endpoint is None:
        return None
    return Node(found.broker_id, endpoint.host, endpoint.port, found.rack)
