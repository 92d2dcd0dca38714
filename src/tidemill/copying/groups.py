"""The positions of consumer groups, carried over to a mirror.

A group that has no members at the target is put where it would go on there: never beyond what it
has read at the source, and never back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.client.admin import Admin
from tidemill.copying.checkpoints import Checkpoint, translate
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

_TAKEN = frozenset({ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID})


def moves(
    committed: Mapping[TopicPartition, int],
    there: Mapping[TopicPartition, int],
    names: Mapping[str, str],
    checkpoints: Mapping[str, Sequence[Checkpoint]],
) -> dict[TopicPartition, int]:
    """Where a group's positions should move at the target. Pure."""
    result: dict[TopicPartition, int] = {}
    for partition, offset in committed.items():
        if partition.topic not in names:
            continue
        found = translate(checkpoints.get(partition.topic, ()), partition.partition, offset)
        goal = TopicPartition(names[partition.topic], partition.partition)
        if found is not None and found > there.get(goal, -1):
            result[goal] = found
    return result


async def carry_over(
    source: Admin,
    target: Admin,
    names: Mapping[str, str],
    checkpoints: Mapping[str, Sequence[Checkpoint]],
) -> dict[str, int]:
    """Move every group that may be moved; how many positions changed, by group."""
    changed: dict[str, int] = {}
    for listing in await source.list_groups():
        committed = await _committed(source, listing.group_id)
        if not any(partition.topic in names for partition in committed):
            continue
        there = await _committed(target, listing.group_id)
        wanted = moves(committed, there, names, checkpoints)
        if not wanted:
            continue
        outcome = await target.alter_group_offsets(listing.group_id, wanted)
        for error in outcome.errors().values():
            if error.code not in _TAKEN:
                raise error
        if outcome.successes():
            changed[listing.group_id] = len(outcome.successes())
    return changed


async def _committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    found = (await admin.list_group_offsets(group)).successes()
    return {tp: each.offset for tp, each in found.items() if each is not None}
