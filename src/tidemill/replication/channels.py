"""How replication reaches other brokers: protocols that the broker implements and hands in.

Replication decides what to say, to the leaders that it follows and to the controller. Who carries
it, over which connection and with which proof of identity, is the broker's business; a simulation
brings messengers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.replication.isr import IsrAnswer, IsrProposal
from tidemill.types import BrokerId, TopicPartition
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse
from tidemill.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

if TYPE_CHECKING:
    from tidemill.image import ReplicaTrouble
    from tidemill.replication.partition import Partition

OnIsrAnswer = Callable[[IsrAnswer | None], None]


class IsrChannel(Protocol):
    """Carries proposals for another ISR to the controller (AlterPartition)."""

    def propose(self, partition: Partition, proposal: IsrProposal, answered: OnIsrAnswer) -> None:
        """Send the proposal until there is an answer, and call `answered` with it.

        It is called with None each time that nobody knows what came of an attempt: no controller,
        a time-out, a lost connection. The channel then tries again after a while, unless
        `partition.wants(proposal)` is no longer true. It never answers within this call.
        """
        ...


class LeaderLink(Protocol):
    """Asks another broker in the name of this one, on a connection that has proved the secret.

    Both raise an `ApiError` when there is no answer, and wait for one only so long.
    """

    async def fetch(self, leader_id: BrokerId, request: FetchRequest) -> FetchResponse: ...

    async def list_offsets(
        self, leader_id: BrokerId, request: ListOffsetsRequest
    ) -> ListOffsetsResponse: ...


class ReplicaReports(Protocol):
    """Tells the controller of replicas that this broker cannot use (OfflineReplicas)."""

    def report(self, partitions: Sequence[TopicPartition], trouble: ReplicaTrouble) -> None:
        """Have these replicas taken out of their ISRs, and others elected where they lead.

        It is told until the controller knows; what came of it, images will say.
        """
        ...
