"""Offset ranges against a live cluster: from the grammar's points to offsets per partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.cli import offsets
from tidemill.cli.exits import CommandError, Exit
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import TopicDescription


@dataclass(frozen=True, slots=True)
class Bounds:
    """One partition: it holds [first, last), and [start, stop) is wanted; stop None: for ever."""

    first: int
    last: int
    start: int
    stop: int | None


def choose_partitions(topic: TopicDescription, wanted: Sequence[int]) -> list[TopicPartition]:
    """The partitions asked for, or all of them; one that does not exist is an error."""
    existing = [p.index for p in topic.partitions]
    for index in wanted:
        if index not in existing:
            raise CommandError(
                f"{topic.name} has no partition {index}; it has 0 to {len(existing) - 1}",
                Exit.NOT_FOUND,
            )
    return [TopicPartition(topic.name, index) for index in (wanted or existing)]


async def settle_all(
    admin: Admin, partitions: Iterable[TopicPartition], span: offsets.Range
) -> dict[TopicPartition, Bounds]:
    """Ask the leaders where the ends and the times are; one request per kind of question."""
    from tidemill.client.admin_types import OffsetSpec

    wanted = list(partitions)
    first = (await admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.EARLIEST))).raise_first()
    last = (await admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.LATEST))).raise_first()
    times: dict[int, dict[TopicPartition, int | None]] = {}
    for point in span.points():
        if point.anchor == "timestamp" and point.value not in times:
            specs = dict.fromkeys(wanted, OffsetSpec.at_time(point.value))
            found = (await admin.list_offsets(specs)).raise_first()
            times[point.value] = {
                tp: None if listed.offset < 0 else listed.offset for tp, listed in found.items()
            }

    def settled(point: offsets.Point, tp: TopicPartition) -> int:
        at_time = times[point.value][tp] if point.anchor == "timestamp" else None
        return offsets.settle(point, first=first[tp].offset, last=last[tp].offset, at_time=at_time)

    return {
        tp: Bounds(
            first[tp].offset,
            last[tp].offset,
            settled(span.start, tp),
            None if span.stop is None else settled(span.stop, tp),
        )
        for tp in wanted
    }
