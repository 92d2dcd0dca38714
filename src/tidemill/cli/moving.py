"""Watching moves: how much of each partition has arrived, and a progress bar until all have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.cli import moves
from tidemill.cli.progress import Progress
from tidemill.client.admin_types import Reassignment, Replica
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin

LOOK_AGAIN_S = 0.5


def copied(tp: TopicPartition, move: Reassignment, sizes: Mapping[Replica, int]) -> tuple[int, int]:
    """(bytes that have arrived, bytes that are to arrive) at the replicas being added."""
    whole = max((sizes.get(Replica(*tp, broker), 0) for broker in move.replicas), default=0)
    arrived = sum(min(whole, sizes.get(Replica(*tp, broker), 0)) for broker in move.adding)
    return arrived, whole * len(move.adding)


async def watch(
    admin: Admin, begun: Sequence[TopicPartition], total_bytes: int, *, no_color: bool
) -> None:
    """Show progress until none of these moves is under way any more.

    Partitions grow while they move, so what is left says more than what has arrived: the bar shows
    the expected bytes less those that are missing.
    """
    shown = 0
    with Progress("moving", total_bytes or None, no_color=no_color) as bar:
        while ongoing := await admin.list_partition_reassignments(begun):
            sizes = await moves.sizes(admin)
            pairs = [copied(tp, move, sizes) for tp, move in ongoing.items()]
            missing = sum(total - done for done, total in pairs)
            now = max(shown, total_bytes - missing)
            bar.advance(now - shown)
            shown = now
            await asyncio.sleep(LOOK_AGAIN_S)
        bar.advance(total_bytes - shown)
