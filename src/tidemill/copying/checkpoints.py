"""What a copier remembers, and what can be concluded from it.

A checkpoint says: everything before these offsets of the source is in the target, before those
offsets. It is written after the records are acknowledged, so the target may hold more than the last
one says: `Already` finds out what, and no record is copied twice. Old checkpoints are kept for a
while: with them the position of a group in the source becomes one in the target (`translate`).

Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.client.consumer_types import ConsumerRecord
from tidemill.copying.topics import CopyError

Content = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The `number`th of a copy; offsets by partition."""

    number: int
    source: Mapping[int, int]
    target: Mapping[int, int]
    topics: tuple[str, str] | None = None
    """The ids of the source's topic and the target's; None in checkpoints from before they were
    kept."""

    def encode(self) -> bytes:
        return json.dumps(
            {
                "number": self.number,
                "source": self.source,
                "target": self.target,
                "topics": self.topics,
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """`ValueError` if these bytes are no checkpoint."""
        try:
            found = json.loads(data)
            source, target, topics = found["source"], found["target"], found.get("topics")
            return cls(
                int(found["number"]),
                {int(index): int(offset) for index, offset in source.items()},
                {int(index): int(offset) for index, offset in target.items()},
                (str(topics[0]), str(topics[1])) if topics is not None else None,
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"no checkpoint: {data[:80]!r}") from error


def about(
    checkpoints: Sequence[Checkpoint], topic: str, name: str, topics: tuple[str, str]
) -> Sequence[Checkpoint]:
    """The checkpoints that speak of these very topics; none when the copy has been made anew.

    An original that was made anew begins at offset nought again: what its old copy is told of
    would be neither the one topic nor the other.
    """
    known = checkpoints[-1].topics if checkpoints else None
    if known is None:
        return checkpoints
    if known[1] != topics[1]:
        return ()
    if known[0] != topics[0]:
        raise CopyError(
            f"{topic} was deleted and created anew since it was copied to {name}, which holds the "
            f"records of the old one: delete {name}, and the copy begins anew; or keep it, and "
            "copy to another name"
        )
    return [checkpoint for checkpoint in checkpoints if checkpoint.topics == known]


def content_of(record: ConsumerRecord) -> Content:
    """What a copy has in common with its original."""
    return (record.timestamp_ms, record.key, record.value, record.headers)


def tail_of(records: Sequence[ConsumerRecord], length: int) -> list[Content]:
    """What so many offsets at a partition's end hold; nothing if some of it was compacted away.

    An older value that is gone would be taken for one that is missing, and copied behind the newer
    one. With nothing to skip all of them are copied again, in their order, and the last one wins.
    """
    return [content_of(record) for record in records] if len(records) == length else []


class Already:
    """The records that the target holds after the last checkpoint.

    Only records that were in the source when the copy resumed can be among them, so beyond the
    source's ends of that moment nothing is ever taken for copied.
    """

    def __init__(
        self, tails: Mapping[int, Iterable[Content]], source_ends: Mapping[int, int]
    ) -> None:
        self._tails = {partition: Counter(tail) for partition, tail in tails.items()}
        self._any_time: dict[int, dict[object, list[Content]]] = {}
        self._source_ends = source_ends
        self.count = sum(tail.total() for tail in self._tails.values())

    def has(self, record: ConsumerRecord, target_partition: int) -> bool:
        """Whether this record is there; each copy accounts for one original."""
        if not self.count or record.offset >= self._source_ends.get(record.partition, 0):
            return False
        tail = self._tails.get(target_partition)
        if not tail:
            return False
        content = content_of(record)
        if record.timestamp_ms < 0:
            content = self._at_any_time(target_partition, content)
        if not tail[content]:
            return False
        tail[content] -= 1
        self.count -= 1
        return True

    def _at_any_time(self, partition: int, content: Content) -> Content:
        """What is there of a record without a timestamp: its copy got that of its sending."""
        tail = self._tails[partition]
        if partition not in self._any_time:
            by_rest: dict[object, list[Content]] = {}
            for each in tail.elements():
                by_rest.setdefault(each[1:], []).append(each)
            self._any_time[partition] = by_rest
        copies = self._any_time[partition].get(content[1:], [])
        while copies:
            if tail[copies[-1]]:
                return copies.pop()
            copies.pop()
        return content


def translate(checkpoints: Sequence[Checkpoint], partition: int, offset: int) -> int | None:
    """Where a reader who is about to read `offset` of the source goes on in a mirrored partition.

    Never later than the copy of that record, so nothing is skipped; exact where the source has no
    gaps between two checkpoints. None while the copy has not come that far.
    """
    at_least = 0
    for checkpoint in checkpoints:
        if partition not in checkpoint.source:
            continue
        source, target = checkpoint.source[partition], checkpoint.target[partition]
        if source >= offset:
            return max(at_least, target - (source - offset))
        at_least = target
    return None
