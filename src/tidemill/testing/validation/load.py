"""The load that a trial runs by itself: one producer, two consumers, with a user's settings.

The producer sends growing numbers, round robin over the partitions. The consumers share a group or,
where the settings name none, one of them reads everything. What they do and see goes into the
evidence as it happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidemill.client import Admin, ClientError, Consumer, ConsumerRecord, Producer
from tidemill.client.batches import Delivery
from tidemill.client.errors import BufferFullError
from tidemill.clock import SystemClock
from tidemill.testing.history import Operation
from tidemill.testing.validation.evidence import (
    Evidence,
    FinalLog,
    Place,
    Rank,
    key_of,
    until_delivered,
    value_of,
)
from tidemill.testing.validation.promises import Commits, Setup
from tidemill.types import TopicPartition

CONSUMERS = 2
POLL_MS = 100
JOIN_TIMEOUT_S = 60.0
ERRORS_MAX = 1_000
PRODUCER = "producer"


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is sent."""

    rate: int
    """Records per second."""
    records: int
    """At most so many in one trial."""


class Load:
    """One trial's load; `start`, then `stop_sending`, then `drain`."""

    numbers = True

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        setup: Setup,
        pace: Pace,
        producer: Mapping[str, Any],
        consumer: Mapping[str, Any],
        *,
        only_writes: bool = False,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._setup = setup
        self._pace = pace
        self._producer_settings = dict(producer)
        self._consumer_settings = dict(consumer)
        self._only_writes = only_writes
        self.evidence = Evidence()
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self._over = asyncio.Event()
        self._news = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._readers: list[_Reader] = []

    # Life

    async def start(self) -> None:
        """Everybody is there: the consumers have their partitions, the producer begins."""
        if not self._only_writes:
            await self._start_reading()
        producer = await self._stack.enter_async_context(
            Producer(self._bootstrap, **self._producer_settings)
        )
        self._sending = asyncio.create_task(self._send_all(producer))

    async def _start_reading(self) -> None:
        await self._give_positions()
        settings = self._consumer_settings
        count = 1 if self._setup.commits is Commits.NEVER else CONSUMERS
        for number in range(1, count + 1):
            consumer = await self._stack.enter_async_context(Consumer(self._bootstrap, **settings))
            self._readers.append(_Reader(f"consumer-{number}", consumer, self))
        for reader in self._readers:
            reader.begin(self._partitions())
        await self._until_all_are_read()

    async def stop_sending(self) -> None:
        """Send no more, and wait for what is under way."""
        self._over.set()
        if self._sending is not None:
            await self._sending

    async def drain(self, log: FinalLog) -> None:
        """Give the consumers time to get everything that is in the log, and end."""
        await until_delivered(self.evidence, log)
        await self.close()

    async def close(self) -> None:
        self._over.set()
        tasks = [reader.task for reader in self._readers if reader.task is not None]
        if self._sending is not None:
            tasks.append(self._sending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()

    def struck(self) -> None:
        """The cluster is about to be hurt."""

    @property
    def is_running(self) -> bool:
        return self._sending is not None and not self._sending.done()

    # The producer

    async def _send_all(self, producer: Producer) -> None:
        began_ms = self._clock.monotonic_ms()
        for number in range(self._pace.records):
            if self._over.is_set():
                break
            await self._send(producer, number)
            ahead_s = number / self._pace.rate - (self._clock.monotonic_ms() - began_ms) / 1000
            if ahead_s > 0:
                await self._pause(ahead_s)
        try:
            await producer.flush()
        except ClientError:
            pass  # Each record's own failure has been noted.

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    async def _send(self, producer: Producer, number: int) -> None:
        where = number % self._setup.topic.partitions
        sending = self.evidence.history.send(PRODUCER, key_of(self._topic, where), number)
        self.evidence.ranks[number] = Rank(PRODUCER, number)
        data = str(number).encode()
        while True:
            try:
                delivery = producer.send_soon(self._topic, data, partition=where)
                break
            except BufferFullError:
                await producer.wait_for_room()
            except ClientError:
                self.evidence.failed += 1
                return
        delivery.add_done_callback(partial(self._delivered, number, sending))

    def _delivered(self, number: int, sending: Operation, delivery: Delivery) -> None:
        evidence = self.evidence
        if delivery.exception() is not None:
            evidence.failed += 1
            evidence.history.info(sending)
            return
        offset = delivery.result().offset
        evidence.history.ok(sending, offset=offset if offset >= 0 else None)
        evidence.acked[number] += 1
        evidence.ack_times_ms.append(self._clock.monotonic_ms())

    # The consumers

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, i) for i in range(self._setup.topic.partitions)]

    async def _give_positions(self) -> None:
        """With `auto.offset.reset=none` somebody else has to say where a group begins."""
        consumer = self._setup.consumer
        if self._setup.commits is Commits.NEVER or consumer.auto_offset_reset not in (
            "none",
            "error",
        ):
            return
        async with Admin(self._bootstrap) as admin:
            offsets = dict.fromkeys(self._partitions(), 0)
            altered = await admin.alter_group_offsets(consumer.group_id, offsets)
            altered.raise_first()
        self.evidence.notes.append("auto.offset.reset=none: the group was given offset 0 to begin")

    async def _until_all_are_read(self) -> None:
        """Wait until every partition is somebody's, with a position."""
        wanted = set(self._partitions())
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            while wanted != set().union(*(reader.positioned for reader in self._readers)):
                await self._news.wait()
                self._news.clear()

    def received(self, process: str, records: Iterable[ConsumerRecord]) -> None:
        """A consumer has worked on these."""
        found: dict[str, list[tuple[int, int]]] = {}
        for record in records:
            number = value_of(record.value, numbers=True)
            assert isinstance(number, int)
            self.evidence.delivered[Place(record.partition, record.offset, number)] += 1
            key = key_of(record.topic, record.partition)
            found.setdefault(key, []).append((record.offset, number))
        if found:
            self.evidence.history.polled(process, found)
            self.evidence.read_now(self._clock.monotonic_ms())

    @property
    def commits(self) -> Commits:
        return self._setup.commits

    def positioned(self) -> None:
        """A consumer knows where it is."""
        self._news.set()

    def assigned(self, process: str, partitions: Iterable[TopicPartition]) -> None:
        self.evidence.history.assigned(process, [key_of(*each) for each in partitions])


class _Reader:
    """One consumer's loop; also the listener that hears of rebalances."""

    def __init__(self, name: str, consumer: Consumer, load: Load) -> None:
        self._name = name
        self._consumer = consumer
        self._load = load
        self._errors = 0
        self.positioned: set[TopicPartition] = set()
        self.task: asyncio.Task[None] | None = None

    def begin(self, partitions: list[TopicPartition]) -> None:
        if self._load.commits is Commits.NEVER:
            self._consumer.assign(partitions)
        else:
            self._consumer.subscribe({each.topic for each in partitions}, listener=self)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._errors < ERRORS_MAX:
            try:
                records = await self._consumer.poll(timeout_ms=POLL_MS)
                await self._look_where_we_are()
                await self._work(records)
            except ClientError:
                self._errors += 1
                await asyncio.sleep(POLL_MS / 1000)

    async def _look_where_we_are(self) -> None:
        """A partition counts as read once its position is known, so that nothing sent later can
        come before it."""
        assignment = self._consumer.assignment()
        self.positioned &= assignment
        for partition in assignment - self.positioned:
            await self._consumer.position(partition)
            self.positioned.add(partition)
            self._load.positioned()

    async def _work(self, records: list[ConsumerRecord]) -> None:
        if not records:
            return
        if self._load.commits is Commits.BEFORE:
            await self._consumer.commit(_behind(records))
        self._load.received(self._name, records)
        if self._load.commits is Commits.AFTER:
            await self._consumer.commit(_behind(records))

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        self._load.assigned(self._name, partitions)

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self.positioned -= partitions

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self.on_revoked(partitions)


def _behind(records: list[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Where each partition is after these."""
    return {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}
