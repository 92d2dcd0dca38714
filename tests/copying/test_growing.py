"""A topic that is given more partitions while it is being repartitioned: none is left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.copying.copies import quiet

from tidemill.copying import jobs
from tidemill.types import TopicPartition

RECORDS = 10
"""Of each partition; a copier takes one partition per step."""


@dataclass
class Topic:
    """The source: how many partitions it has whenever somebody looks, and what was copied."""

    looks: Iterator[int]
    partitions: int = 0
    positions: dict[int, int] = field(default_factory=dict)

    def look(self) -> int:
        self.partitions = next(self.looks, self.partitions)
        return self.partitions


class FakeCopier:
    """Knows the partitions that there were when it was opened, as the real one."""

    def __init__(self, topic: Topic) -> None:
        for index in range(topic.partitions):
            topic.positions.setdefault(index, 0)
        self._topic = topic
        self._mine = range(topic.partitions)
        self.copies = [SimpleNamespace(positions=dict.fromkeys(self._mine, 0), copied=0)]

    async def step(self, wait_ms: float) -> int:
        for index in self._mine:
            if self._topic.positions[index] < RECORDS:
                self._topic.positions[index] = RECORDS
                self.copies[0].copied += RECORDS
                return RECORDS
        return 0

    async def lag(self, ends: Mapping[TopicPartition, int]) -> int:
        for partition in ends:
            if partition.partition not in self._mine:
                raise ValueError(f"{partition} is not assigned")
        return sum(
            end - self._topic.positions[partition.partition] for partition, end in ends.items()
        )


def ends(partitions: int) -> dict[TopicPartition, int]:
    return {TopicPartition("old", index): RECORDS for index in range(partitions)}


def arrange(patch: pytest.MonkeyPatch, topic: Topic) -> None:
    @asynccontextmanager
    async def clients(*_: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(source=None, target=None, target_cluster=None)

    async def shapes(*_: Any) -> dict[str, jobs.Shape]:
        return {"old": jobs.Shape(UUID(int=1), topic.look())}

    async def opened(*_: Any) -> FakeCopier:
        return FakeCopier(topic)

    async def behind(use: Any, copier: FakeCopier) -> int:
        return await copier.lag(ends(len(copier.copies[0].positions)))

    async def seal(*_: Any) -> dict[TopicPartition, int]:
        return ends(topic.look())

    for name, fake in {
        "clients": clients,
        "_shapes": shapes,
        "_open_repartition": opened,
        "_behind": behind,
        "seal": seal,
    }.items():
        patch.setattr(jobs, name, fake)


@pytest.mark.parametrize(
    ("hand_over", "looks"),
    [
        (False, [1, 3, 3, 3]),  # It has grown when the copy is about to end.
        (True, [1, 3, 3, 3]),  # It has grown when it is about to be sealed.
        (True, [1, 1, 3]),  # It has grown when it is sealed.
    ],
)
async def test_every_partition_is_copied(
    monkeypatch: pytest.MonkeyPatch, hand_over: bool, looks: list[int]
) -> None:
    topic = Topic(iter(looks))
    arrange(monkeypatch, topic)
    done = jobs.Repartitioned()
    settings = jobs.RepartitionSettings(
        jobs.Place("nowhere"), "old", "new", 8, hand_over=hand_over, once=True
    )
    await jobs.repartition(settings, quiet, done)
    assert topic.positions == dict.fromkeys(range(3), RECORDS)
    assert done.records == 3 * RECORDS
    assert done.handed_over == hand_over
