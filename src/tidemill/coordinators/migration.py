"""From a classic group to one of the newer protocol and back: the records that say so.

A live group moves as it is: same members, same partitions. What a classic consumer said about
itself is in its metadata, in the words of the consumers' own protocol, and is kept as it came, so
that the way back is open. Pure functions; `shard.py` and `mixed_group.py` say when.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.client.consumer_protocol import (
    VERSION_MAX,
    assignment_user_data,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tidemill.coordinators import subscriptions
from tidemill.coordinators.assignors import NO_PARTITIONS, Partitions
from tidemill.coordinators.classic_group import ClassicGroup
from tidemill.coordinators.classic_state import CONSUMER_PROTOCOL_TYPE, ClassicMember
from tidemill.coordinators.consumer_member import (
    ConsumerMember,
    assignment_record,
    metadata_record,
    target_record,
)
from tidemill.coordinators.consumer_state import ConsumerGroupState
from tidemill.coordinators.reconcile import Reported
from tidemill.coordinators.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.errors import WireError
from tidemill.image import ClusterImage
from tidemill.types import TopicId, TopicPartition

# The way there.


def why_not_upgradable(group: ClassicGroup, members_max: int) -> str | None:
    """What keeps a classic group from moving: all its members must be consumers that we can read,
    not too many, and without data that only their assignor understands.

    The words are Kafka's; `members_max` is 0 where no group may move.
    """
    members = list(group.members.values())
    trouble = None
    if not members_max:
        trouble = "online upgrade is disabled"
    elif not group.uses_consumer_protocol:
        trouble = "the group does not use the consumer embedded protocol"
    elif len(members) > members_max:
        trouble = "the group size exceeds the consumer group maximum size"
    elif not all(_is_readable(group, member) for member in members):
        trouble = "the embedded consumer protocol is malformed"
    elif any(assignment_user_data(member.assignment) for member in members):
        trouble = (
            "an unsupported custom assignor is in use. Please refer to the documentation or switch"
            " to a default assignor before re-attempting the upgrade"
        )
    if trouble is None:
        return None
    return f"Cannot upgrade classic group {group.group_id} to consumer group because {trouble}."


def _is_readable(group: ClassicGroup, member: ClassicMember) -> bool:
    try:
        decode_subscription(member.metadata(group.protocol) or member.protocols[0][1])
        _assigned(member)
    except (WireError, IndexError):
        return False
    return True


def _assigned(member: ClassicMember) -> Iterable[TopicPartition]:
    """What a classic member was given; one that has never synced has nothing."""
    return decode_assignment(member.assignment) if member.assignment else ()


def upgrade_records(
    group: ClassicGroup, image: ClusterImage, now_ms: int
) -> list[CoordinatorRecord]:
    """The classic group as one of the newer protocol: same members, same partitions."""
    epoch = group.generation
    members = [_converted(group, member_id, image, epoch) for member_id in group.members]
    names = {name for member in members for name in member.topic_names}
    key = ConsumerGroupMetadataKey(group_id=group.group_id)
    value = ConsumerGroupMetadataValue(
        epoch=epoch, metadata_hash=subscriptions.metadata_hash(names, image)
    )
    records = [metadata_record(group.group_id, member) for member in members]
    records.append(CoordinatorRecord(key, value))
    for member in members:
        target = {topic: frozenset(parts) for topic, parts in member.assigned.items()}
        records.append(target_record(group.group_id, member.member_id, target))
    records.append(
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )
    )
    return records + [assignment_record(group.group_id, member) for member in members]


def _converted(
    group: ClassicGroup, member_id: str, image: ClusterImage, epoch: int
) -> ConsumerMember:
    member = group.members[member_id]
    subscription = decode_subscription(member.metadata(group.protocol) or member.protocols[0][1])
    owned = owned_by_id(_assigned(member), image)
    return ConsumerMember(
        member_id,
        member_epoch=epoch,
        previous_epoch=epoch,
        instance_id=member.instance_id,
        rack_id=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=data) for name, data in member.protocols
            ],
        ),
        assigned={topic: dict.fromkeys(sorted(parts), epoch) for topic, parts in owned.items()},
    )


# The way back.


def common_protocols(members: Iterable[ConsumerMember]) -> set[str]:
    """What every one of these classic members can do."""
    offered = [set(offered_protocols(member)) for member in members]
    return set.intersection(*offered) if offered else set()


def downgrade_record(
    group: ConsumerGroupState, members: list[ConsumerMember], image: ClusterImage, now_ms: int
) -> CoordinatorRecord:
    """The classic group in which these members find themselves; it will rebalance at once.

    It has no leader yet, by which a coordinator that loads it knows the same: nobody has what the
    last member of the newer protocol had.
    """
    common = common_protocols(members)
    protocol = next(name for name in offered_protocols(members[0]) if name in common)
    value = GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.group_epoch,
        protocol=protocol,
        leader=None,
        current_state_timestamp=now_ms,
        members=[
            _stored(member, protocol, group.target.get(member.member_id, NO_PARTITIONS), image)
            for member in members
        ],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def _stored(
    member: ConsumerMember, protocol: str, target: Partitions, image: ClusterImage
) -> MemberMetadata:
    assert member.classic is not None
    offered = {each.name: each.metadata for each in member.classic.supported_protocols}
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.classic.session_timeout_ms,
        subscription=offered[protocol],
        assignment=in_classic_words(target, image, member),
    )


# Words.


def offered_protocols(member: ConsumerMember) -> list[str]:
    """What a classic member can do, best first."""
    assert member.classic is not None
    return [each.name for each in member.classic.supported_protocols]


def owned_by_id(owned: Iterable[TopicPartition], image: ClusterImage) -> Reported:
    """Partitions by the ids of their topics; those of topics that are gone are left out."""
    found: dict[TopicId, set[int]] = {}
    for name, partition in owned:
        topic = image.topic(name)
        if topic is not None and topic.partition(partition) is not None:
            found.setdefault(topic.topic_id, set()).add(partition)
    return {topic_id: frozenset(parts) for topic_id, parts in found.items()}


def in_classic_words(partitions: Partitions, image: ClusterImage, member: ConsumerMember) -> bytes:
    """An assignment as classic consumers write it, in the version that this member can read."""
    named = [
        TopicPartition(topic.name, partition)
        for topic_id, parts in partitions.items()
        if (topic := image.topic_by_id(topic_id)) is not None
        for partition in parts
    ]
    return encode_assignment(named, version=_spoken_version(member))


def _spoken_version(member: ConsumerMember) -> int:
    """The version in which the member wrote its metadata: what it can read."""
    assert member.classic is not None
    metadata = member.classic.supported_protocols[0].metadata
    return min(int.from_bytes(metadata[:2], "big", signed=True), VERSION_MAX)
