"""Partitions and clusters in few words, for tests of what the controller decides about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from tidemill.controller.changes import PartitionChange, PolicyOf
from tidemill.controller.election import ElectionPolicy
from tidemill.image import (
    BrokerImage,
    ClusterImage,
    LeaderRecovery,
    PartitionImage,
    TopicImage,
    with_broker,
    with_controller,
    with_partitions,
    with_topics,
)
from tidemill.types import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
)

CONTROLLER_EPOCH = ControllerEpoch(7)


def ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def partition(
    replicas: Sequence[int],
    isr: Sequence[int] | None = None,
    leader: int | None = None,
    *,
    index: int = 0,
    elr: Sequence[int] = (),
    last_known: Sequence[int] = (),
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    recovery: LeaderRecovery = LeaderRecovery.RECOVERED,
    leader_epoch: int = 4,
    partition_epoch: int = 9,
) -> PartitionImage:
    """By default all replicas are in sync, and the first in sync leads."""
    in_sync = ids(replicas if isr is None else isr)
    if leader is None:
        leader = in_sync[0] if in_sync else NO_BROKER
    return PartitionImage(
        index=PartitionIndex(index),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        replicas=ids(replicas),
        isr=in_sync,
        partition_epoch=PartitionEpoch(partition_epoch),
        elr=ids(elr),
        last_known_elr=ids(last_known),
        adding=ids(adding),
        removing=ids(removing),
        recovery=recovery,
        controller_epoch=ControllerEpoch(1),
    )


def broker(
    broker_id: int, *, fenced: bool = False, stopping: bool = False, epoch: int | None = None
) -> BrokerImage:
    """A broker whose epoch is a hundred times its id, unless said otherwise."""
    number = BrokerEpoch(broker_id * 100 if epoch is None else epoch)
    return BrokerImage(
        BrokerId(broker_id), number, (), fenced=fenced, in_controlled_shutdown=stopping
    )


def topic_id(number: int = 1) -> UUID:
    return UUID(int=number)


def cluster(
    brokers: Iterable[int | BrokerImage],
    topics: Mapping[str, Sequence[PartitionImage]] | Sequence[PartitionImage] = (),
) -> ClusterImage:
    """An image of these brokers; partitions alone are those of a topic `t`."""
    image = with_controller(ClusterImage(), BrokerId(1), CONTROLLER_EPOCH)
    for one in brokers:
        image = with_broker(image, broker(one) if isinstance(one, int) else one)
    named = topics if isinstance(topics, Mapping) else {"t": topics}
    return with_topics(
        image,
        [
            TopicImage(name, topic_id(number), tuple(partitions))
            for number, (name, partitions) in enumerate(named.items(), 1)
            if partitions
        ],
    )


def policy(min_isr: int = 1, *, unclean: bool = False, last_known_leader: bool = True) -> PolicyOf:
    return lambda _: ElectionPolicy(min_isr, unclean, last_known_leader)


def applied(image: ClusterImage, changes: Iterable[PartitionChange]) -> ClusterImage:
    for name, state in changes:
        image = with_partitions(image, name, [state])
    return image


def only(changes: Sequence[PartitionChange]) -> PartitionImage:
    """The next state of the one partition that changes."""
    assert len(changes) == 1, changes
    return changes[0].partition
