"""What consumers of one classic group tell each other through their coordinator.

The coordinator passes these bytes on unread: a `Subscription` from each member to the leader, an
`Assignment` from the leader to each. An int16 with the version comes first; a reader takes what it
knows of a newer one. v1 has the partitions owned now, v2 since which generation, v3 the rack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemill.errors import WireError
from tidemill.types import TopicPartition
from tidemill.wire.codec import decode, encode
from tidemill.wire.declare import Message, Struct, array, binary, int32, int32s, string, strings

VERSION_MAX = 3
NO_GENERATION = -1
_VERSION = struct.Struct(">h")


class TopicPartitionList(Struct):
    topic: str = string()
    partitions: list[int] = int32s()


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[str] = strings()
    user_data: bytes | None = binary(nullable="0+", default=None)
    owned_partitions: list[TopicPartitionList] = array(TopicPartitionList, "1+", ignorable=True)
    generation_id: int = int32("2+", default=NO_GENERATION, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[TopicPartitionList] = array(TopicPartitionList)
    user_data: bytes | None = binary(nullable="0+", default=None)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member wants and has."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: frozenset[TopicPartition] = field(default_factory=frozenset)
    generation: int = NO_GENERATION
    rack: str | None = None
    instance_id: str | None = None


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=by_topic(subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack or None,
    )
    return _VERSION.pack(version) + encode(message, version)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    version = _version(data)
    message = decode(ConsumerProtocolSubscription, version, data, _VERSION.size)
    return Subscription(
        topics=tuple(message.topics),
        user_data=message.user_data,
        owned=flat(message.owned_partitions),
        generation=message.generation_id,
        rack=message.rack_id,
        instance_id=instance_id,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None, version: int = VERSION_MAX
) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=by_topic(partitions), user_data=user_data
    )
    return _VERSION.pack(version) + encode(message, version)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """The partitions; no bytes at all is what a member gets that was given nothing."""
    if not data:
        return frozenset()
    message = decode(ConsumerProtocolAssignment, _version(data), data, _VERSION.size)
    return flat(message.assigned_partitions)


def assignment_user_data(data: bytes) -> bytes:
    """What the leader's assignor added for the member's own."""
    if not data:
        return b""
    message = decode(ConsumerProtocolAssignment, _version(data), data, _VERSION.size)
    return bytes(message.user_data or b"")


def by_topic(partitions: Iterable[TopicPartition]) -> list[TopicPartitionList]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [TopicPartitionList(topic=name, partitions=found) for name, found in topics.items()]


def flat(topics: Iterable[TopicPartitionList]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(t.topic, p) for t in topics for p in t.partitions)


def grouped(partitions: Iterable[TopicPartition]) -> Mapping[str, frozenset[int]]:
    return {t.topic: frozenset(t.partitions) for t in by_topic(partitions)}


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise WireError("a member's metadata is too short to say its version")
    version = int(_VERSION.unpack_from(data)[0])
    if version < 0:
        raise WireError(f"a member's metadata has version {version}")
    return min(version, VERSION_MAX)
