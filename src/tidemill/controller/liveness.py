"""What becomes of partitions when brokers come, go, or lose what they had.

Pure functions from an image to the partitions' next states. The image is the one before: the caller
writes the changes and then shows the broker as gone, fenced or alive in the image that it
publishes.

A broker that registers anew, however fast, was gone in between: first `brokers_failed` if it shut
down cleanly, else `unclean_restart`, and once it has caught up with the metadata
`broker_unfenced`. So a leader that comes back leads in a new epoch (rule A1), and one that may
have lost records is no longer taken to have them (rule F3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from tidemill.controller.changes import Changes, PartitionChange, PolicyOf
from tidemill.controller.election import without
from tidemill.image import ClusterImage, PartitionImage, ReplicaTrouble, TopicImage
from tidemill.types import BrokerId, TopicPartition


def brokers_failed(
    image: ClusterImage, broker_ids: Collection[BrokerId], policy_of: PolicyOf
) -> list[PartitionChange]:
    """These brokers' sessions are gone: they leave every in-sync set and lead nothing."""
    changes = Changes(image, policy_of, down=broker_ids)
    gone = frozenset(broker_ids)
    for topic, partition in _partitions(image):
        if not gone.isdisjoint(partition.isr):
            wanted = replace(partition, isr=without(partition.isr, gone))
            changes.settle(topic, partition, wanted)
    return changes.made


def controlled_shutdown(
    image: ClusterImage, broker_id: BrokerId, policy_of: PolicyOf
) -> list[PartitionChange]:
    """This broker is about to stop: others lead, and nobody waits for it any more (rule K1).

    From the image in which it is `in_controlled_shutdown` on, no leader can take it back into an
    in-sync set. A partition that has nobody else goes offline now, while the broker can still
    flush what it holds; the broker stays eligible.
    """
    return brokers_failed(image, (broker_id,), policy_of)


def broker_unfenced(
    image: ClusterImage, broker_id: BrokerId, policy_of: PolicyOf
) -> list[PartitionChange]:
    """This broker may lead from now on: give it the offline partitions that it can lead."""
    changes = Changes(image, policy_of, up=(broker_id,))
    for topic, partition in _partitions(image):
        if not partition.has_leader and broker_id in partition.replicas:
            changes.settle(topic, partition)
    return changes.made


def unclean_restart(
    image: ClusterImage, broker_id: BrokerId, policy_of: PolicyOf
) -> list[PartitionChange]:
    """This broker registers and cannot prove that it stopped cleanly: its log's end may be lost.

    It is taken out of all in-sync and eligible sets (rule F3).
    """
    changes = Changes(image, policy_of, down=(broker_id,))
    for topic, partition in _partitions(image):
        _take_out(changes, topic, partition, broker_id, trusted=False)
    return changes.made


def replicas_lost(
    image: ClusterImage,
    broker_id: BrokerId,
    partitions: Iterable[TopicPartition],
    policy_of: PolicyOf,
    trouble: ReplicaTrouble = ReplicaTrouble.GONE,
) -> list[PartitionChange]:
    """A live broker cannot use these replicas; its others are as they were.

    A replica that is full or damaged still has something: where nobody else is in sync it stays, to
    be read as far as that goes. A full one lacks nothing, so it remains eligible (rules E2, E8).
    """
    changes = Changes(image, policy_of, down=(broker_id,))
    for name, index in dict.fromkeys(partitions):
        topic = image.topics.get(name)
        partition = None if topic is None else topic.partition(index)
        if topic is None or partition is None:
            continue
        others = (each for each in partition.isr if each != broker_id)
        if trouble is not ReplicaTrouble.GONE and not any(map(changes.alive, others)):
            continue
        trusted = trouble is ReplicaTrouble.FULL
        _take_out(changes, topic, partition, broker_id, trusted=trusted)
    return changes.made


def take_stock(image: ClusterImage, policy_of: PolicyOf) -> list[PartitionChange]:
    """What a new controller has to put right: brokers may have come and gone with nobody looking.

    Whoever is not alive leaves the in-sync sets, offline partitions get a leader if they can, and
    nobody stays eligible where more was committed since with a lower minimum (rule F2).
    """
    changes = Changes(image, policy_of)
    for topic, partition in _partitions(image):
        in_sync = tuple(broker for broker in partition.isr if changes.alive(broker))
        if in_sync != partition.isr or partition.elr or not partition.has_leader:
            changes.settle(topic, partition, replace(partition, isr=in_sync))
    return changes.made


def min_isr_changed(
    image: ClusterImage, names: Iterable[str], policy_of: PolicyOf
) -> list[PartitionChange]:
    """`min.insync.replicas` of these topics changes to what `policy_of` says by now.

    With a lower one the high watermark moves on, and who was eligible may not be any longer: write
    this together with the setting.
    """
    changes = Changes(image, policy_of)
    for name in names:
        topic = image.topics[name]
        for partition in topic.partitions:
            if partition.elr:
                changes.settle(topic, partition)
    return changes.made


def _take_out(
    changes: Changes,
    topic: TopicImage,
    partition: PartitionImage,
    broker_id: BrokerId,
    *,
    trusted: bool,
) -> None:
    """Out of the in-sync set, and of the eligible one unless it is trusted to lack nothing."""
    if broker_id in partition.isr or (broker_id in partition.elr and not trusted):
        wanted = replace(partition, isr=without(partition.isr, (broker_id,)))
        distrusted = frozenset() if trusted else frozenset((broker_id,))
        changes.settle(topic, partition, wanted, distrusted=distrusted)


def _partitions(image: ClusterImage) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic in image.topics.values():
        for partition in topic.partitions:
            yield topic, partition
