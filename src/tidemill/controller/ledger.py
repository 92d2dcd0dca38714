"""Several rounds of decisions, written as one.

A broker that comes back is first taken out of every in-sync set and then, perhaps, elected again:
two rounds, each decided on the image that the one before has made. `Ledger` keeps that image and,
at the end, says what to write: every partition once, on the condition that its node still has the
version that the first image knew (rule A2), and then the topics whose assignment changed. A
commit may be cut between the two: nobody may be in sync then who is no replica any more. What is
not written of an assignment is decided again: by whoever ends the moves that can end, or by the
client that asked.

A partition whose only replica is on the broker that came back ends where it began. Nobody else can
have led it or fetched from it meanwhile, so there is nobody to fence: with `spares_the_sole` it is
left alone, and a broker that is a cluster of its own restarts without writing anything.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tidemill.controller import tree
from tidemill.controller.changes import PartitionChange, PolicyOf
from tidemill.controller.election import was_unclean
from tidemill.controller.liveness import min_isr_changed
from tidemill.image import ClusterImage, PartitionImage, TopicImage, with_topics
from tidemill.store.base import Op, Put
from tidemill.types import PartitionEpoch

log = logging.getLogger(__name__)


class Ledger:
    """Collects rounds on an image; `image` is what they come to so far."""

    def __init__(
        self, image: ClusterImage, policy_of: PolicyOf, *, spares_the_sole: bool = False
    ) -> None:
        self.image = image
        self._policy_of = policy_of
        self._spares_the_sole = spares_the_sole
        self._before = image
        self._touched: dict[str, set[int]] = defaultdict(set)
        self._unclean: list[PartitionChange] = []

    def take(self, changes: Iterable[PartitionChange]) -> None:
        """Take in the changes of one round, decided on `image`."""
        by_topic: dict[str, list[PartitionImage]] = defaultdict(list)
        for change in changes:
            topic, partition = change
            by_topic[topic].append(partition)
            self._touched[topic].add(partition.index)
            # Looked at round by round: who led before the first may not have been trusted since.
            if was_unclean(self.image.topics[topic].partitions[partition.index], partition):
                self._unclean.append(change)
        if by_topic:
            self.image = with_topics(
                self.image,
                [_with(self.image.topics[name], after) for name, after in by_topic.items()],
            )

    def settle(self) -> list[Op]:
        """What to write; `image` then has the partitions as they will be stored."""
        self._follow_resized()
        ops = self._count_unclean()
        moved: list[Op] = []
        topics = []
        for name, indexes in self._touched.items():
            before, after = self._before.topics[name], self.image.topics[name]
            final = [
                self._final(before.partitions[i], after.partitions[i]) for i in sorted(indexes)
            ]
            after = _with(after, final)
            changed = [each for each in final if each is not before.partitions[each.index]]
            if any(_moves(before.partitions[each.index], each) for each in changed):
                moved.append(Put(tree.topic_path(name), tree.topic_value(after)))
            for each in changed:
                ops.append(_put(name, before.partitions[each.index], each))
            topics.append(after if changed else before)
        if topics:
            self.image = with_topics(self.image, topics)
        return ops + moved

    def _follow_resized(self) -> None:
        """Topics whose replicas are more or fewer now: where the minimum in sync depends on that,
        nobody stays eligible where a leader commits with fewer from now on (rule F2)."""
        topics = self.image.topics
        resized = [
            name
            for name in self._touched
            if topics[name].sure_factor != self._before.topics[name].sure_factor
        ]
        self.take(min_isr_changed(self.image, resized, self._policy_of))

    def _count_unclean(self) -> list[Op]:
        """An election that may cost records is never silent (rule A10)."""
        if not self._unclean:
            return []
        for topic, after in self._unclean:
            log.warning(
                "unclean election: broker %d leads %s-%d from epoch %d on, and records that only "
                "others had are lost", after.leader, topic, after.index, after.leader_epoch,
            )  # fmt: skip
        count = self.image.unclean_elections + len(self._unclean)
        self.image = replace(self.image, unclean_elections=count)
        return [Put(tree.UNCLEAN_ELECTIONS, str(count).encode())]

    def _final(self, before: PartitionImage, after: PartitionImage) -> PartitionImage:
        """However many rounds there were, the node is written once: its version grows by one."""
        is_sole = len(after.replicas) == 1
        if self._spares_the_sole and is_sole and _is_as_before(before, after):
            return before
        return replace(after, partition_epoch=PartitionEpoch(before.partition_epoch + 1))


def _with(topic: TopicImage, partitions: Iterable[PartitionImage]) -> TopicImage:
    changed = list(topic.partitions)
    for partition in partitions:
        changed[partition.index] = partition
    return replace(topic, partitions=tuple(changed))


def _is_as_before(before: PartitionImage, after: PartitionImage) -> bool:
    return before == replace(
        after,
        leader_epoch=before.leader_epoch,
        partition_epoch=before.partition_epoch,
        controller_epoch=before.controller_epoch,
    )


def _moves(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether the assignment changed, which the topic's node says."""
    return (before.replicas, before.adding, before.removing) != (
        after.replicas,
        after.adding,
        after.removing,
    )


def _put(topic: str, before: PartitionImage, after: PartitionImage) -> Op:
    path = tree.state_path(topic, after.index)
    return Put(path, tree.state_value(after), before.partition_epoch)
