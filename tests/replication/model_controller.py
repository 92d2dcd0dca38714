"""The controller of the model: it elects and changes the ISR by the rules, and no more."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.replication.helpers import partition_image

from tidemill.errors import ErrorCode
from tidemill.image import PartitionImage
from tidemill.replication.isr import IsrAnswer, IsrProposal
from tidemill.types import NO_BROKER, BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

NODES = tuple(BrokerId(number) for number in range(3))


@dataclass(frozen=True, slots=True)
class View:
    """One image as it was published, with the brokers that were alive in it."""

    partition: PartitionImage
    alive: dict[BrokerId, BrokerEpoch]


class Controller:
    """Elects from the in-sync replicas, and changes them when asked by the right leader."""

    def __init__(self) -> None:
        first = partition_image(leader=NODES[0], replicas=NODES, isr=NODES)
        self._epochs = 0
        self.views = [View(first, {node: self._next_epoch() for node in NODES})]

    @property
    def now(self) -> View:
        return self.views[-1]

    def _next_epoch(self) -> BrokerEpoch:
        self._epochs += 1
        return BrokerEpoch(self._epochs)

    def register(self, node: BrokerId) -> BrokerEpoch:
        if node in self.now.alive:
            self.fence(node)
        epoch = self._next_epoch()
        self._publish(self.now.partition, {**self.now.alive, node: epoch})
        return epoch

    def fence(self, node: BrokerId) -> None:
        alive = {one: epoch for one, epoch in self.now.alive.items() if one != node}
        partition = self.now.partition
        isr = tuple(one for one in partition.isr if one != node) or partition.isr
        if isr != partition.isr:
            partition = replace(partition, isr=isr, partition_epoch=_after(partition))
        if partition.leader == node:
            partition = _led_by(partition, NO_BROKER)
        self._publish(partition, alive)

    def move_leader(self, number: int) -> None:
        """Let another replica lead that is in sync, as preferred-leader election does."""
        partition = self.now.partition
        fit = [node for node in partition.isr if node in self.now.alive]
        if len(fit) > 1:
            self._publish(_led_by(partition, fit[number % len(fit)]), self.now.alive)

    def _publish(self, partition: PartitionImage, alive: dict[BrokerId, BrokerEpoch]) -> None:
        if partition.leader == NO_BROKER:
            fit = [node for node in partition.replicas if node in partition.isr and node in alive]
            if fit:
                partition = _led_by(partition, fit[0])
        self.views.append(View(partition, alive))

    def alter(self, proposal: IsrProposal) -> IsrAnswer:
        partition, alive = self.now.partition, self.now.alive
        if proposal.leader_epoch != partition.leader_epoch:
            return IsrAnswer(ErrorCode.FENCED_LEADER_EPOCH)
        if set(proposal.isr) != set(partition.isr):
            if proposal.partition_epoch != partition.partition_epoch:
                return IsrAnswer(ErrorCode.INVALID_UPDATE_VERSION)
            for member in proposal.members:
                epoch = alive.get(member.broker_id)
                if epoch is None or member.broker_epoch not in (-1, epoch):
                    return IsrAnswer(ErrorCode.INELIGIBLE_REPLICA)
            partition = replace(partition, isr=proposal.isr, partition_epoch=_after(partition))
            self._publish(partition, alive)
        return IsrAnswer(
            ErrorCode.NONE, partition.leader_epoch, partition.partition_epoch, partition.isr
        )


def _after(partition: PartitionImage) -> PartitionEpoch:
    return PartitionEpoch(partition.partition_epoch + 1)


def _led_by(partition: PartitionImage, leader: BrokerId) -> PartitionImage:
    return replace(
        partition,
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
        partition_epoch=_after(partition),
    )
