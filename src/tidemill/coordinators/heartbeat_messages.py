"""Between the messages of the newer group protocol and what the coordinator thinks in."""

from __future__ import annotations

from tidemill.coordinators.assignors import Partitions, in_order
from tidemill.coordinators.consumer_member import JOIN_EPOCH, ConsumerMember
from tidemill.coordinators.reconcile import Reported
from tidemill.image import ClusterImage
from tidemill.types import TopicId
from tidemill.wire.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    DescribedAssignment,
    DescribedTopicPartitions,
    Member,
    TopicPartitions,
)

MEMBER_TYPE_CLASSIC = 0
MEMBER_TYPE_CONSUMER = 1


def read_owned(topics: list[TopicPartitions] | None) -> Reported | None:
    """What the member says it owns; None when it does not say."""
    if topics is None:
        return None
    found: dict[TopicId, frozenset[int]] = {}
    for topic in topics:
        before = found.get(topic.topic_id, frozenset())
        found[topic.topic_id] = before.union(topic.partitions)
    return found


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member told everything, as it does when it joins or is not sure of its state."""
    subscribes = request.subscribed_topic_names is not None or (
        request.subscribed_topic_regex is not None
    )
    tells_all = request.rebalance_timeout_ms != -1 and request.topic_partitions is not None
    return request.member_epoch == JOIN_EPOCH or (subscribes and tells_all)


def assignment_of(member: ConsumerMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(member.assigned[topic_id]))
            for topic_id in in_order(member.assigned)
        ]
    )


def described_member(member: ConsumerMember, target: Partitions, image: ClusterImage) -> Member:
    assigned = {topic: frozenset(parts) for topic, parts in member.assigned.items()}
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_described(assigned, image),
        target_assignment=_described(target, image),
        member_type=MEMBER_TYPE_CLASSIC if member.classic else MEMBER_TYPE_CONSUMER,
    )


def _described(partitions: Partitions, image: ClusterImage) -> DescribedAssignment:
    topics = []
    for topic_id in in_order(partitions):
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(
                DescribedTopicPartitions(
                    topic_id=topic_id,
                    topic_name=topic.name,
                    partitions=sorted(partitions[topic_id]),
                )
            )
    return DescribedAssignment(topic_partitions=topics)
