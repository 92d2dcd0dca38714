"""Whether the records of a topic have keys, found out from a sample.

A topic may have had keys once, or in some partitions, or in some records only. So the sample is
taken at several places of each partition, the end first, and of many partitions; but it is over
after a few seconds and a few megabytes, however large the topic is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.cli.options import Common
    from tidemill.client import Consumer
    from tidemill.client.admin_types import TopicDescription
    from tidemill.client.consumer_types import ConsumerRecord

PLACES = 4
"""The end, the beginning, and two between them."""
PARTITIONS_PER_PLACE_MAX = 64
RECORDS = 4_000
RECORDS_PER_PLACE_MIN = 10
BYTES_MAX = 16 << 20
FETCH_BYTES = 64 << 10
TIMEOUT_MS = 3_000

Spans = dict[TopicPartition, tuple[int, int]]
"""The first offset and the end of each partition that has records."""


async def has_keys(common: Common, topic: TopicDescription) -> bool:
    """Whether any record of the sample has a key."""
    partitions = [
        TopicPartition(topic.name, p.index) for p in topic.partitions if p.leader is not None
    ]
    async with common.target.consumer(
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    ) as consumer:
        first = await consumer.beginning_offsets(partitions)
        last = await consumer.end_offsets(partitions)
        spans = {p: (first[p], last[p]) for p in partitions if last[p] > first[p]}
        return await _Sample(consumer, spans).finds_key()


class _Sample:
    """A consumer that is sent from place to place until it finds a key or has seen enough."""

    def __init__(self, consumer: Consumer, spans: Spans) -> None:
        self._consumer = consumer
        self._spans = spans
        self._whole: set[TopicPartition] = set()  # partitions that were read from end to end
        self._bytes_left = BYTES_MAX
        self._deadline_s = time.monotonic() + TIMEOUT_MS / 1000

    async def finds_key(self) -> bool:
        everywhere = sorted(self._spans)
        step = max(1, -(-len(everywhere) // PARTITIONS_PER_PLACE_MAX))
        for place in range(PLACES):
            # Of very many partitions, each place looks at others.
            chosen = [p for p in everywhere[place % step :: step] if p not in self._whole]
            if not chosen or self._bytes_left <= 0:
                continue
            left_s = self._deadline_s - time.monotonic()
            if await self._finds_key_at(place, chosen, left_s / (PLACES - place)):
                return True
        return False

    async def _finds_key_at(self, place: int, chosen: list[TopicPartition], limit_s: float) -> bool:
        count = max(RECORDS_PER_PLACE_MIN, RECORDS // (PLACES * len(chosen)))
        ends = self._go_to(place, chosen, count)
        deadline_s = time.monotonic() + limit_s
        while ends and self._bytes_left > 0 and (left_s := deadline_s - time.monotonic()) > 0:
            records = await self._consumer.poll(count, timeout_ms=left_s * 1000)
            if any(record.key is not None for record in records):
                return True
            self._note(records, ends)
        return False

    def _go_to(
        self, place: int, chosen: list[TopicPartition], count: int
    ) -> dict[TopicPartition, int]:
        """Read from this place of each; where it has been seen, by the last offset that counts."""
        self._consumer.assign(chosen)
        self._consumer.resume(*chosen)
        ends = {}
        for partition in chosen:
            first, end = self._spans[partition]
            start = max(first, end - count)
            if place > 0:
                start = first + (start - first) * (place - 1) // (PLACES - 1)
            self._consumer.seek(partition, start)
            if end - first <= count:
                self._whole.add(partition)
            ends[partition] = min(end, start + count) - 1
        return ends

    def _note(self, records: list[ConsumerRecord], ends: dict[TopicPartition, int]) -> None:
        for record in records:
            self._bytes_left -= len(record.value or b"")
            partition = TopicPartition(record.topic, record.partition)
            if record.offset >= ends.get(partition, record.offset + 1):
                del ends[partition]
                self._consumer.pause(partition)
