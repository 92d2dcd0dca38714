"""Where a group's offsets are and where they shall go: shared by `tidemill group` and Kafka's tool.

A move is planned first and shown; only then may it be done.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.cli import offsets, ranges
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.offsets import Point
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_groups import GroupDescription, MemberDescription

STATES = (
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)
FILE_LINES_MAX = 1_000_000

Chosen = Mapping[str, frozenset[int]]
"""Per topic the partitions meant; none named means all of them."""


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's committed offset, before and after."""

    topic: str
    partition: int
    before: int | None
    after: int


def parse_topics(words: Sequence[str]) -> Chosen:
    """`clicks`, `orders:0,2` as a choice; no words choose everything."""
    chosen: dict[str, frozenset[int]] = {}
    for word in words:
        name, colon, numbers = word.partition(":")
        try:
            indexes = frozenset(int(part) for part in numbers.split(",")) if colon else frozenset()
        except ValueError:
            raise CommandError(
                f"{word!r} is no topic; write TOPIC or TOPIC:0,1", Exit.USAGE
            ) from None
        chosen[name] = indexes
    return chosen


def is_chosen(tp: TopicPartition, chosen: Chosen) -> bool:
    if not chosen:
        return True
    return tp.topic in chosen and (not chosen[tp.topic] or tp.partition in chosen[tp.topic])


def readers(group: GroupDescription) -> dict[TopicPartition, MemberDescription]:
    """Who reads what."""
    return {tp: member for member in group.members for tp in member.assignment}


def check_idle(group: GroupDescription) -> None:
    if group.is_active:
        raise CommandError(
            f"group {group.group_id!r} is in use: it is {group.state} with "
            f"{len(group.members)} members",
            Exit.FAILED,
            hint="stop its consumers first; `tidemill group members` shows them",
        )


async def refuse_if_active(admin: Admin, group_id: str) -> None:
    """A group that is not there yet may be given offsets; one with members may not."""
    from tidemill.errors import ErrorCode

    described = (await admin.describe_groups([group_id]))[group_id]
    if not isinstance(described, Exception):
        check_idle(described)
    elif described.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        raise described


async def ends(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The end of each partition that can be asked."""
    from tidemill.client.admin_types import OffsetSpec

    found = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {tp: listed.offset for tp, listed in found.successes().items()}


async def plan(
    admin: Admin,
    group_id: str,
    *,
    to: Point | None,
    shift: int | None,
    file: str | None,
    chosen: Chosen,
) -> list[Move]:
    """What each offset would become, kept within what the partitions hold."""
    committed = await _committed(admin, group_id)
    if file is not None:
        wanted = {tp: at for tp, at in read_file(file).items() if is_chosen(tp, chosen)}
        bounds = await ranges.settle_all(admin, wanted, offsets.Range(offsets.START))
        after = {tp: _within(at, bounds[tp]) for tp, at in wanted.items()}
    else:
        partitions = await _partitions(admin, committed, chosen)
        span = offsets.Range(to or offsets.START)
        bounds = await ranges.settle_all(admin, partitions, span)
        after = {
            tp: _within(_shifted(tp, committed, shift), found) if to is None
            else _within(found.start, found)
            for tp, found in bounds.items()
        }  # fmt: skip
    return [Move(tp.topic, tp.partition, committed.get(tp), after[tp]) for tp in sorted(after)]


async def _committed(admin: Admin, group_id: str) -> dict[TopicPartition, int]:
    found = (await admin.list_group_offsets(group_id)).raise_first()
    return {tp: at.offset for tp, at in found.items() if at is not None}


async def _partitions(
    admin: Admin, committed: Mapping[TopicPartition, int], chosen: Chosen
) -> list[TopicPartition]:
    """Those named; of a topic without numbers all; without any topic what the group has."""
    if not chosen:
        if not committed:
            raise CommandError(
                "the group has committed nothing, so name the topics with --topic", Exit.USAGE
            )
        return sorted(committed)
    described = (await admin.describe_topics(list(chosen))).raise_first()
    return [
        tp
        for name, indexes in chosen.items()
        for tp in ranges.choose_partitions(described[name], sorted(indexes))
    ]


def _shifted(tp: TopicPartition, committed: Mapping[TopicPartition, int], shift: int | None) -> int:
    if tp not in committed:
        raise CommandError(
            f"the group has committed nothing for {tp}, so it cannot be shifted",
            Exit.NOT_FOUND,
            hint="use --to",
        )
    return committed[tp] + (shift or 0)


def _within(offset: int, bounds: ranges.Bounds) -> int:
    return max(bounds.first, min(offset, bounds.last))


def read_file(path: str) -> dict[TopicPartition, int]:
    """Offsets from lines TOPIC,PARTITION,OFFSET or from what `group offsets` prints as JSON."""
    with open(path, encoding="utf-8", newline="") as source:
        text = source.read()
    try:
        if text.lstrip().startswith("["):
            rows = json.loads(text)
            return {TopicPartition(r["topic"], int(r["partition"])): int(r["offset"]) for r in rows}
        found: dict[TopicPartition, int] = {}
        for row in csv.reader(text.splitlines()[:FILE_LINES_MAX]):
            if row:
                topic, partition, offset = row
                found[TopicPartition(topic.strip(), int(partition))] = int(offset)
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} holds no offsets: {error}",
            Exit.USAGE,
            hint="each line is TOPIC,PARTITION,OFFSET",
        ) from None
