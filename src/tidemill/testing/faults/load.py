"""What clients do while faults strike: a program that writes and reads, and notes all it was told.

    python -m tidemill.testing.faults.load --bootstrap HOST:PORT,... --history FILE

This is the load by Tidemill's own client: an idempotent producer writes to the topic `exact`, one
without idempotence to `plain`, both with acks=all; a consumer reads both topics, and somebody asks
again and again how far the partitions go. Other clients have programs of their own, with the same
options: they run until SIGTERM, wait for what is under way, write their history and end with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tidemill.client import Admin, ClientError, Consumer, Producer
from tidemill.client.admin_types import OffsetSpec
from tidemill.client.batches import Delivery
from tidemill.clock import SystemClock
from tidemill.testing.faults.cluster import CLIENTS, EXACT, PARTITIONS, PLAIN, TOPICS
from tidemill.testing.history import History, Operation
from tidemill.types import TopicPartition

TICK_S = 0.02
WINDOW = 200
"""Records under way per partition: one without a leader must not hold up the others."""
ASK_S = 0.2
REQUEST_TIMEOUT_MS = 5_000
DELIVERY_TIMEOUT_MS = 120_000
VALUE_BYTES = 100

KEYS = [TopicPartition(topic, index) for topic in TOPICS for index in range(PARTITIONS)]


class Options(msgspec.Struct, frozen=True):
    """What every load program is told."""

    bootstrap: str
    history: Path
    rate: float
    """Records per second and producer."""


class OffsetWatch(msgspec.Struct):
    """How far partitions went, as somebody was told who kept asking."""

    asked: int = 0
    answered: int = 0
    backwards: list[str] = []


def options(arguments: Sequence[str] | None = None) -> Options:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="load")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=100)
    given = parser.parse_args(arguments)
    return Options(given.bootstrap, given.history, given.rate)


def offsets_path(history: Path) -> Path:
    """Where a load writes what it was told of offsets, if it asks for them."""
    return history.with_suffix(".offsets")


def key_of(topic: str, partition: int) -> str:
    """How a history names a partition."""
    return f"{topic}-{partition}"


def value_of(text: str) -> bytes:
    """What is sent for a value: long enough for segments to fill."""
    return text.encode().ljust(VALUE_BYTES, b".")


def text_of(value: bytes | None) -> str:
    return (value or b"").rstrip(b".").decode()


@dataclass(slots=True)
class Writer:
    """One producer, its records under way, and where it notes what became of them."""

    name: str
    topic: str
    history: History
    rate: float
    sent: int = 0
    under_way: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    failures: int = 0

    async def run(self, producer: Producer, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        began, due = loop.time(), 0.0
        while not stop.is_set():
            await asyncio.sleep(TICK_S)
            due += (loop.time() - began) * self.rate
            began = loop.time()
            while due >= 1:
                due -= 1
                self._send(producer)

    def _send(self, producer: Producer) -> None:
        partition = self.sent % PARTITIONS
        self.sent += 1
        if self.under_way[partition] >= WINDOW:
            return
        value = f"{self.name}:{self.sent}"
        operation = self.history.send(self.name, key_of(self.topic, partition), value)
        try:
            delivery = producer.send_soon(self.topic, value_of(value), partition=partition)
        except ClientError:
            self.history.fail(operation)
            return
        self.under_way[partition] += 1
        delivery.add_done_callback(lambda done: self._delivered(operation, partition, done))

    def _delivered(self, operation: Operation, partition: int, delivery: Delivery) -> None:
        self.under_way[partition] -= 1
        error = delivery.exception()
        if error is None:
            offset = delivery.result().offset
            self.history.ok(operation, offset=offset if offset >= 0 else None)
        else:
            self.failures += 1
            self.history.info(operation)
            sys.stderr.write(f"{self.name}: {error}\n")


async def _write(told: Options, history: History, stop: asyncio.Event, topic: str) -> None:
    name = f"tidemill-{topic}"
    is_exact = topic == EXACT
    producer = Producer(
        told.bootstrap,
        client_id=f"{CLIENTS}-{name}",
        acks="all",
        enable_idempotence=is_exact,
        max_in_flight_requests_per_connection=5 if is_exact else 1,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
    )
    async with producer:
        await Writer(name, topic, history, told.rate).run(producer, stop)


async def _read(told: Options, history: History, stop: asyncio.Event) -> None:
    name = "tidemill-reader"
    consumer = Consumer(
        told.bootstrap,
        client_id=f"{CLIENTS}-{name}",
        auto_offset_reset="earliest",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )
    async with consumer:
        consumer.assign(KEYS)
        while not stop.is_set():
            try:
                records = await consumer.poll(timeout_ms=200)
            except ClientError as error:
                sys.stderr.write(f"{name}: {error}\n")
                await asyncio.sleep(TICK_S)
                continue
            found: dict[str, list[tuple[int, str]]] = {}
            for each in records:
                key = key_of(each.topic, each.partition)
                found.setdefault(key, []).append((each.offset, text_of(each.value)))
            if found:
                history.polled(name, found)


async def _ask_offsets(told: Options, watch: OffsetWatch, stop: asyncio.Event) -> None:
    """What ListOffsets says of the end never goes back (rule B5)."""
    highest: dict[TopicPartition, int] = {}
    admin = Admin(
        told.bootstrap,
        client_id=f"{CLIENTS}-tidemill-offsets",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        default_api_timeout_ms=REQUEST_TIMEOUT_MS,
    )
    async with admin:
        while not stop.is_set():
            await asyncio.sleep(ASK_S)
            watch.asked += len(KEYS)
            try:
                answer = await admin.list_offsets(dict.fromkeys(KEYS, OffsetSpec.LATEST))
            except ClientError as error:
                sys.stderr.write(f"offsets: {error}\n")
                continue
            for key, listed in answer.successes().items():
                watch.answered += 1
                before = highest.setdefault(key, listed.offset)
                if listed.offset < before:
                    watch.backwards.append(f"{key}: {listed.offset} after {before}")
                highest[key] = max(before, listed.offset)


async def _run(told: Options) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    history, watch = History(SystemClock()), OffsetWatch()
    async with asyncio.TaskGroup() as work:
        work.create_task(_write(told, history, stop, EXACT))
        work.create_task(_write(told, history, stop, PLAIN))
        work.create_task(_read(told, history, stop))
        work.create_task(_ask_offsets(told, watch, stop))
    history.save(told.history)
    offsets_path(told.history).write_bytes(msgspec.json.encode(watch))


if __name__ == "__main__":
    asyncio.run(_run(options()))
