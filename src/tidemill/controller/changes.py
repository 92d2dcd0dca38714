"""One round of changes of partitions, decided on one image.

`Changes` is how the controller's decisions about partitions are made: it knows who is alive and
what each topic's settings allow, asks `election.next_state`, and collects what is to be written.
Each partition changes at most once in a round, because a round is one write for each of them:
`partition_epoch` then is what the version of its node will be. Whoever writes a change does it on
the condition that the node still has the version before, so that a decision made on an old image
fails whole. A change of `replicas`, `adding` or `removing` is written to the topic's node as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import replace
from typing import NamedTuple

from tidemill.controller.election import (
    NOBODY,
    ElectionPolicy,
    complete_reassignment,
    next_state,
)
from tidemill.errors import ErrorCode
from tidemill.image import ClusterImage, LeaderRecovery, PartitionImage, TopicImage
from tidemill.invariant import invariant
from tidemill.types import BrokerId

CHANGES_PER_ROUND_MAX = 10_000
"""A request that would change more is done in part, and told which partitions were left."""

PolicyOf = Callable[[TopicImage], ElectionPolicy]
"""What a topic's settings say about its elections."""


class PartitionChange(NamedTuple):
    """The next state of one partition of a topic."""

    topic: str
    partition: PartitionImage


class Changes:
    """Decides and collects; `down` and `up` are brokers whose state the image does not show yet."""

    def __init__(
        self,
        image: ClusterImage,
        policy_of: PolicyOf,
        *,
        down: Collection[BrokerId] = (),
        up: Collection[BrokerId] = (),
    ) -> None:
        self.image = image
        self._policy_of = policy_of
        alive = {broker.broker_id for broker in image.brokers.values() if broker.alive}
        self._alive = frozenset(alive.union(up).difference(down))
        self._policies: dict[str, ElectionPolicy] = {}
        self._changed: dict[tuple[str, int], PartitionChange] = {}

    @property
    def made(self) -> list[PartitionChange]:
        """What is to be written, in the order of the decisions."""
        return list(self._changed.values())

    def __len__(self) -> int:
        return len(self._changed)

    def alive(self, broker_id: BrokerId) -> bool:
        return broker_id in self._alive

    def policy(self, topic: TopicImage) -> ElectionPolicy:
        policy = self._policies.get(topic.name)
        if policy is None:
            policy = self._policies[topic.name] = self._policy_of(topic)
        return policy

    def refusal(self, topic: TopicImage, index: int) -> ErrorCode | None:
        """Why this partition cannot change in this round any more; nothing was tried then."""
        if len(self._changed) >= CHANGES_PER_ROUND_MAX or (topic.name, index) in self._changed:
            return ErrorCode.OPERATION_NOT_ATTEMPTED
        return None

    def settle(
        self,
        topic: TopicImage,
        before: PartitionImage,
        wanted: PartitionImage | None = None,
        *,
        preferred: bool = False,
        distrusted: Set[BrokerId] = NOBODY,
        policy: ElectionPolicy | None = None,
    ) -> PartitionImage | None:
        """Make `wanted` of `before` come true, or only elect; None if that changes nothing."""
        after = next_state(
            before,
            before if wanted is None else wanted,
            self.alive,
            policy or self.policy(topic),
            preferred=preferred,
            distrusted=distrusted,
        )
        return None if after is None else self.add(topic, self._moved(topic, after))

    def _moved(self, topic: TopicImage, after: PartitionImage) -> PartitionImage:
        """`after`, with its move ended if the election brought the last target in sync.

        Nobody would propose that change: it would stay half moved until something else happens.
        After an unclean election it does: what the others have may be wanted yet.
        """
        is_clean = after.recovery is LeaderRecovery.RECOVERED
        if not is_clean or complete_reassignment(after) == after:
            return after
        ended = next_state(after, after, self.alive, self.policy(topic))
        invariant(ended is not None, "a move that ends changes the assignment")
        assert ended is not None
        return replace(
            ended, leader_epoch=after.leader_epoch, partition_epoch=after.partition_epoch
        )

    def add(self, topic: TopicImage, after: PartitionImage) -> PartitionImage:
        """Take in a next state of `next_state`, signed with the controller's epoch."""
        key = (topic.name, after.index)
        invariant(key not in self._changed, "a partition changes once in a round", key=key)
        after = replace(after, controller_epoch=self.image.controller_epoch)
        self._changed[key] = PartitionChange(topic.name, after)
        return after
