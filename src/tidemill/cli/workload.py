"""The loops behind `perf` and the Kafka-named perf tests: load a producer, drain a consumer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.cli.latency import Latencies, Summary, Tally
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Consumer, Producer
    from tidemill.client.batches import Delivery
    from tidemill.wire.batch import BatchHeader

PACE_SLICE_S = 0.005
YIELD_EVERY = 512
FETCH_BYTES_MAX = 32 * 1024 * 1024


@dataclass(slots=True)
class ProduceLoad:
    """What to send: `payload(i)` is the i-th value; `throughput` is records/s, negative: no limit;
    the first `warmup` records are left out of the steady-state figures."""

    topic: str
    records: int
    payload: Callable[[int], bytes]
    throughput: float = -1
    warmup: int = 0
    report_every_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ProduceReport:
    """The whole run and, when records were warm-up, the run without them."""

    total: Summary
    steady: Summary | None


async def produce(
    producer: Producer, load: ProduceLoad, on_window: Callable[[str], None]
) -> ProduceReport:
    """Send `load` as fast as it says; deliveries are timed as their acks arrive."""
    run = _ProduceRun(producer, load, on_window)
    return await run.go()


class _ProduceRun:
    def __init__(
        self, producer: Producer, load: ProduceLoad, on_window: Callable[[str], None]
    ) -> None:
        self._producer = producer
        self._load = load
        self._on_window = on_window
        self._total = Latencies()
        self._steady = Latencies() if load.warmup else None
        self._window = Tally()
        self._failure: BaseException | None = None
        self._started = self._window_started = self._steady_started = time.perf_counter()

    async def go(self) -> ProduceReport:
        await self._producer.partitions_for(self._load.topic)
        self._started = self._window_started = self._steady_started = time.perf_counter()
        for index in range(self._load.records):
            if self._load.throughput >= 0:
                await self._pace(index)
            await self._send(self._load.payload(index))
            if index % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
                self._report()
        await self._producer.flush()
        if self._failure is not None:
            raise self._failure
        ended = time.perf_counter()
        steady = self._steady.summary(ended - self._steady_started) if self._steady else None
        return ProduceReport(self._total.summary(ended - self._started), steady)

    async def _send(self, value: bytes) -> None:
        from tidemill.client.errors import BufferFullError

        sent = time.perf_counter()
        try:
            delivery = self._producer.send_soon(self._load.topic, value)
        except BufferFullError:
            await self._producer.wait_for_room()
            delivery = self._producer.send_soon(self._load.topic, value)
        size = len(value)
        delivery.add_done_callback(lambda done: self._book(done, sent, size))

    async def _pace(self, index: int) -> None:
        """Sleep while we are ahead of the wanted rate; short sleeps would cost more than they
        give."""
        ahead = index / max(self._load.throughput, 1e-9) - (time.perf_counter() - self._started)
        if ahead > PACE_SLICE_S:
            await asyncio.sleep(ahead)
            self._report()

    def _report(self) -> None:
        now = time.perf_counter()
        if now - self._window_started >= self._load.report_every_s:
            self._on_window(self._window.line(now - self._window_started))
            self._window = Tally()
            self._window_started = now

    def _book(self, delivery: Delivery, sent: float, size: int) -> None:
        """One record's fate is known. A failure is raised at the end, so that a run over a
        broker's restart still reports."""
        now = time.perf_counter()
        error = delivery.exception()
        if error is not None:
            self._failure = self._failure or error
            return
        latency_ms = (now - sent) * 1000
        self._total.add(latency_ms, size)
        self._window.add(latency_ms, size)
        if self._steady is None:
            return
        if self._total.count == self._load.warmup:
            self._steady_started = now
        elif self._total.count > self._load.warmup:
            self._steady.add(latency_ms, size)


@dataclass(slots=True)
class Consumed:
    """What a consumer read so far."""

    records: int = 0
    bytes: int = 0
    timed_out: bool = False

    def add(self, header: BatchHeader, records_max: int) -> None:
        """Count a batch; of the last one only what is still wanted, and its share of the bytes."""
        taken = min(header.record_count, records_max - self.records)
        if taken > 0:
            self.records += taken
            self.bytes += header.size_bytes * taken // header.record_count


async def consume(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    records: int,
    *,
    timeout_s: float,
    on_progress: Callable[[Consumed], None] = lambda consumed: None,
) -> Consumed:
    """Read whole batches, uncounted by record, until `records` are read or none come for long."""
    consumer.assign(partitions)
    consumed = Consumed()
    last_seen = time.perf_counter()
    while consumed.records < records:
        batches = await consumer.poll_batches(max_bytes=FETCH_BYTES_MAX, timeout_ms=100)
        now = time.perf_counter()
        if not batches and now - last_seen > timeout_s:
            consumed.timed_out = True
            break
        for batch in batches:
            last_seen = now
            if not batch.header.is_control:
                consumed.add(batch.header, records)
        on_progress(consumed)
    return consumed
