"""The engine of `mirror` and `repartition`: rounds of records from one topic into another.

A round is read, sent, acknowledged and noted in a checkpoint before the next one begins. After a
crash the copier looks what the target holds beyond the last checkpoint and skips just that: each
record is copied once, in the order of its source partition. That the target has no other writer is
part of the bargain, and checked: every acknowledged offset must be the one expected. A request that
a killed copier left on its way is such a writer, if it arrives after the look: then a round is
there twice, and the copier stops.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.client.batches import Delivery
from tidemill.client.consumer import Consumer
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import BufferFullError
from tidemill.client.producer import Producer
from tidemill.copying import store
from tidemill.copying.checkpoints import Already, Checkpoint
from tidemill.copying.routes import Route
from tidemill.copying.topics import CopyError
from tidemill.types import TopicPartition

ROUND_BYTES = 8 * 1024 * 1024
RECORD_BYTES = 64
"""What a record counts for besides its key and value."""

POLL_RECORDS = 5_000


@dataclass(slots=True)
class TopicCopy:
    """One topic on its way: the next offset to read of each partition, the next to write."""

    source: str
    target: str
    route: Route
    positions: dict[int, int]
    ends: dict[int, int]
    topics: tuple[str, str]
    """The ids of the two topics."""
    number: int = 0
    already: Already | None = None
    history: deque[Checkpoint] = field(default_factory=lambda: deque(maxlen=store.SLOTS))
    copied: int = 0

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.number, dict(self.positions), dict(self.ends), self.topics)


@dataclass(slots=True)
class _Sent:
    """What a round sent to the partitions of one topic."""

    counts: Counter[int] = field(default_factory=Counter)
    lasts: dict[int, Delivery] = field(default_factory=dict)


class Copier:
    """Copies topics of one cluster; `step` does one round."""

    def __init__(
        self, consumer: Consumer, producer: Producer, job: str, copies: list[TopicCopy]
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._job = job
        self._copies = {copy.source: copy for copy in copies}
        consumer.assign(
            TopicPartition(copy.source, index) for copy in copies for index in copy.positions
        )
        for copy in copies:
            for index, offset in copy.positions.items():
                consumer.seek(TopicPartition(copy.source, index), offset)

    async def step(self, wait_ms: float) -> int:
        """One round; how many records it read. Waits so long for the first."""
        records = await self._read(wait_ms)
        sent: dict[str, _Sent] = {}
        for record in records:
            copy = self._copies[record.topic]
            await self._send(copy, record, sent.setdefault(record.topic, _Sent()))
        await self._producer.flush()
        for topic, each in sent.items():
            _account(self._copies[topic], each)
        for topic, index in {(record.topic, record.partition) for record in records}:
            position = await self._consumer.position(TopicPartition(topic, index))
            self._copies[topic].positions[index] = position
        await self._note(list(sent))
        return len(records)

    @property
    def copies(self) -> list[TopicCopy]:
        return list(self._copies.values())

    async def lag(self, ends: Mapping[TopicPartition, int]) -> int:
        """How far reading is behind these ends; gaps that hold no records do not count."""
        behind = 0
        for partition, end in ends.items():
            behind += max(0, end - await self._consumer.position(partition))
        return behind

    async def _read(self, wait_ms: float) -> list[ConsumerRecord]:
        records = await self._consumer.poll(POLL_RECORDS, wait_ms)
        size = _size(records)
        while size < ROUND_BYTES and (more := await self._consumer.poll(POLL_RECORDS)):
            records += more
            size += _size(more)
        return records

    async def _send(self, copy: TopicCopy, record: ConsumerRecord, sent: _Sent) -> None:
        partition = copy.route(record)
        if copy.already is not None and copy.already.has(record, partition):
            return
        timestamp_ms = record.timestamp_ms if record.timestamp_ms >= 0 else None
        while True:
            try:
                delivery = self._producer.send_soon(
                    copy.target,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                )
                break
            except BufferFullError:
                await self._producer.wait_for_room()
        sent.counts[partition] += 1
        sent.lasts[partition] = delivery

    async def _note(self, topics: list[str]) -> None:
        notes = []
        for topic in topics:
            copy = self._copies[topic]
            copy.number += 1
            checkpoint = copy.checkpoint()
            notes.append(store.keep(self._producer, self._job, topic, checkpoint))
            copy.history.append(checkpoint)
        for note in notes:
            await note


def _account(copy: TopicCopy, sent: _Sent) -> None:
    """Move the target's ends; somebody else's records in between would make all offsets wrong."""
    for partition, count in sent.counts.items():
        expected = copy.ends[partition] + count
        end = sent.lasts[partition].result().offset + 1
        if end not in (0, expected):  # 0: a repeated batch whose offset the broker has forgotten.
            raise CopyError(
                f"{copy.target}-{partition} ends at {end} and not at {expected}: somebody else "
                "writes to it, and a copy cannot be kept exact beside another writer"
            )
        copy.ends[partition] = expected
        copy.copied += count


def _size(records: list[ConsumerRecord]) -> int:
    return sum(len(each.key or b"") + len(each.value or b"") + RECORD_BYTES for each in records)
