"""Which replica a consumer should read from: one in its own rack, if there is one (KIP-392).

Only the leader chooses, only with `replica.selector.class` set to Kafka's rack-aware selector, and
only among replicas that are in sync, alive, and have the offset (rule K4).
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.replication.partition import Partition
from tidemill.types import NO_BROKER, BrokerId

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def nearest_replica(
    broker: Broker, partition: Partition, offset: int, rack_id: str, listener: str
) -> BrokerId:
    """The replica to read from in the consumer's rack; -1 means that it is well served here."""
    term = partition.term
    if term is None or broker.config.optional_str("replica.selector.class") != RACK_AWARE:
        return NO_BROKER
    own = broker.image.broker(broker.broker_id)
    if own is not None and own.rack == rack_id:
        return NO_BROKER
    near = [
        follower
        for follower in term.followers.values()
        if follower.broker_id in partition.isr
        and follower.log_start_offset <= offset <= follower.log_end_offset
        and _is_in_rack(broker, follower.broker_id, rack_id, listener)
    ]
    best = max(near, key=lambda follower: follower.log_end_offset, default=None)
    return NO_BROKER if best is None else best.broker_id


def _is_in_rack(broker: Broker, broker_id: BrokerId, rack_id: str, listener: str) -> bool:
    image = broker.image.broker(broker_id)
    if image is None or not image.alive or image.rack != rack_id:
        return False
    return image.endpoint(listener) is not None
