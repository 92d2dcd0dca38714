"""Changes of partitions that somebody asks for: in-sync sets, moves, elections."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.controller.changes import PartitionChange
from tidemill.controller.isr_changes import judge
from tidemill.controller.ledger import Ledger
from tidemill.controller.office import Office
from tidemill.controller.policies import Policies
from tidemill.controller.preferred import elect_leaders, moves_back
from tidemill.controller.reassignment import alter_reassignments
from tidemill.wire.messages.isr import AlterPartitionRequest, AlterPartitionResponse
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)


class PartitionChanges:
    """Each is decided on the image of the moment, and written before it is answered."""

    def __init__(self, office: Office, policies: Policies) -> None:
        self._office = office
        self._policies = policies

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Leaders propose other in-sync sets."""
        async with self._office.deciding():
            response, changes = judge(self._office.image, request, self._policies.of)
            await self._write(changes)
            return response

    async def reassign(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Move replicas to other brokers, or stop a move."""
        async with self._office.deciding():
            response, changes = alter_reassignments(self._office.image, request, self._policies.of)
            await self._write(changes)
            return response

    async def elect(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Elect leaders on command."""
        async with self._office.deciding():
            response, changes = elect_leaders(self._office.image, request, self._policies.of)
            await self._write(changes)
            return response

    async def move_leaders_back(self) -> int:
        """Give partitions back to their preferred leaders where too many are astray; how many."""
        async with self._office.deciding():
            changes = moves_back(self._office.image, self._policies.of)
            await self._write(changes)
            return len(changes)

    async def _write(self, changes: Sequence[PartitionChange]) -> None:
        if not changes:
            return
        ledger = Ledger(self._office.image, self._policies.of)
        ledger.take(changes)
        await self._office.commit(ledger.settle())
        await self._office.publish(ledger.image)
