"""The records of `__consumer_offsets`, byte for byte as Kafka writes them.

A key begins with an int16 that says what kind of record it is, a value with the int16 of its own
version. Foreign tools read these logs, and a log that Kafka wrote loads here, so nothing in the
declarations below is ours to change. `encode_record` and `decode_record` are the door.

Kinds: 0 and 1 are committed offsets (0 is how old brokers wrote them), 2 is a classic group, 3 to
8 and 16 are groups of the newer protocol. Kinds we do not know (share and streams groups) decode to
None: they are passed over, as Kafka passes over what it does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from tidemill.coordinators.result import CoordinatorRecord, Encoded, RecordFormat
from tidemill.errors import WireError
from tidemill.wire.codec import decode, encode
from tidemill.wire.declare import (
    Message,
    Struct,
    array,
    binary,
    int8,
    int32,
    int32s,
    int64,
    optional_struct,
    string,
    strings,
    uuid,
)

_VERSION = struct.Struct(">h")
_KEY_VERSION = 0


class OffsetCommitKey(Message, versions="0"):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    offset: int = int64()
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: UUID = uuid("4+", tag=0, ignorable=True)


class LegacyOffsetCommitKey(Message, versions="0"):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class LegacyOffsetCommitValue(Message, versions="0"):
    offset: int = int64()
    metadata: str = string()
    commit_timestamp: int = int64()


class GroupMetadataKey(Message, versions="0"):
    group: str = string()


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+", default=None)
    leader: str | None = string(nullable="0+", default=None)
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


class ConsumerGroupMetadataKey(Message, versions="0"):
    group_id: str = string()


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ConsumerGroupPartitionMetadataKey(Message, versions="0"):
    group_id: str = string()


class PartitionMetadata(Struct):
    partition: int = int32()
    racks: list[str] = strings()


class TopicMetadata(Struct):
    topic_id: UUID = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = array(TopicMetadata)


class ConsumerGroupMemberMetadataKey(Message, versions="0"):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = binary()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = strings()
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | None = optional_struct(
        ClassicMemberMetadata, tag=0, null_is_sent=True
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="0"):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="0"):
    group_id: str = string()
    member_id: str = string()


class TargetTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = int32s()


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    topic_partitions: list[TargetTopicPartitions] = array(TargetTopicPartitions)


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="0"):
    group_id: str = string()
    member_id: str = string()


class CurrentTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = int32s()
    assignment_epochs: list[int] | None = int32s(nullable="0+", default=None, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)
    partitions_pending_revocation: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)


class ConsumerGroupRegularExpressionKey(Message, versions="0"):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible="0+"):
    topics: list[str] = strings()
    version: int = int64()
    timestamp: int = int64()


class _Kind(NamedTuple):
    """One kind of record; `written` is the version in which Kafka 4.3 writes its values."""

    number: int
    key: type[Message]
    value: type[Message]
    written: int = 0


OFFSET_VERSION = 4
OFFSET_VERSION_EXPIRING = 1
"""The only version that has a time of its own at which the offset expires."""

_KINDS = (
    _Kind(0, LegacyOffsetCommitKey, LegacyOffsetCommitValue),
    _Kind(1, OffsetCommitKey, OffsetCommitValue, OFFSET_VERSION),
    _Kind(2, GroupMetadataKey, GroupMetadataValue, 3),
    _Kind(3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    _Kind(4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    _Kind(5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    _Kind(6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    _Kind(7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    _Kind(8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    _Kind(16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)
KINDS: Mapping[int, _Kind] = {kind.number: kind for kind in _KINDS}
_BY_KEY: Mapping[type[Message], _Kind] = {kind.key: kind for kind in _KINDS}


def encode_record(record: CoordinatorRecord) -> Encoded:
    """The bytes of a record's key and value; no value is a tombstone."""
    kind = _BY_KEY[type(record.key)]
    key = _VERSION.pack(kind.number) + encode(record.key, _KEY_VERSION)
    if record.value is None:
        return key, None
    version = _version_of(record.value, kind)
    return key, _VERSION.pack(version) + encode(record.value, version)


def _version_of(value: Message, kind: _Kind) -> int:
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp >= 0:
        return OFFSET_VERSION_EXPIRING
    return kind.written


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """The typed record; None for a kind from elsewhere. What does not parse is a `WireError`."""
    kind = KINDS.get(_number(key))
    if kind is None:
        return None
    typed_key = decode(kind.key, _KEY_VERSION, key, _VERSION.size)
    if value is None:
        return CoordinatorRecord(typed_key, None)
    version = _number(value)
    if version not in kind.value.version_range():
        raise WireError(
            f"{kind.value.__name__} has no version {version}; written by a newer Kafka?"
        )
    return CoordinatorRecord(typed_key, decode(kind.value, version, value, _VERSION.size))


def _number(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise WireError("a record of __consumer_offsets is too short to say what it is")
    return int(_VERSION.unpack_from(data)[0])


GROUP_RECORDS = RecordFormat(encode_record, decode_record)
