"""How handlers find what a request names, and what they say when it is not there."""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.errors import ApiError
from tidemill.image import ClusterImage, PartitionImage
from tidemill.replication.partition import Partition

NOT_ASKED = -(2**31)
"""The value of an authorized-operations field that the request did not ask for."""

TOPIC_OPERATIONS = 0b1101_1111_1000
"""All operations on a topic: everybody may do everything until there are ACLs."""

CLUSTER_OPERATIONS = 0b1_1111_1010_0000
"""All operations on the cluster."""


def offline_replicas(partition: PartitionImage, image: ClusterImage) -> list[int]:
    """The replicas whose brokers are not there."""
    return [
        broker_id
        for broker_id in partition.replicas
        if (broker := image.brokers.get(broker_id)) is None or broker.fenced
    ]


def leading_partition(
    broker: Broker, topic: str, index: int, current_leader_epoch: int = -1
) -> Partition:
    """The partition, if this broker leads it in the epoch that the client knows."""
    partition = broker.replicas.get(topic, index)
    if partition is None:
        raise ApiError(broker.replicas.why_missing(topic, index))
    partition.check_leader(current_leader_epoch)
    return partition
