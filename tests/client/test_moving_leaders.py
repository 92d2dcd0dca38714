"""Leaders move between two brokers while records flow: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from tests.client.scripted import ScriptedBroker

from tidemill.client.consumer import Consumer
from tidemill.client.producer import Producer
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey

PARTITIONS = [TopicPartition("t", index) for index in range(4)]
QUICK: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
}


@pytest.fixture
async def brokers() -> AsyncIterator[list[ScriptedBroker]]:
    async with ScriptedBroker({"t": 4}) as first, ScriptedBroker(beside=first) as second:
        yield [first, second]


async def move_leaders(brokers: list[ScriptedBroker], times: int, random: Random) -> None:
    for _ in range(times):
        await asyncio.sleep(0.01)
        random.choice(brokers).lead(random.choice(PARTITIONS))


async def test_producing_while_leaders_move(brokers: list[ScriptedBroker]) -> None:
    random = Random(11)
    async with Producer(
        brokers[0].bootstrap, random=random, linger_ms=1, batch_size=200, **QUICK
    ) as producer:
        moving = asyncio.create_task(move_leaders(brokers, 30, random))
        deliveries = []
        for number in range(2000):
            deliveries.append(producer.send_soon("t", b"%d" % number, partition=number % 4))
            if number % 50 == 0:
                await asyncio.sleep(0.005)
        metadata = await asyncio.gather(*deliveries)
        await moving
    for index, partition in enumerate(PARTITIONS):
        values = [int(r.value or b"") for r in brokers[0].partitions[partition].records()]
        assert values == list(range(index, 2000, 4))
        offsets = [entry.offset for entry in metadata if entry.partition == index]
        assert offsets == list(range(500))
    assert all(broker.seen(ApiKey.PRODUCE) for broker in brokers)


async def test_consuming_while_leaders_move(brokers: list[ScriptedBroker]) -> None:
    random = Random(12)
    seen: dict[int, list[int]] = {index: [] for index in range(4)}
    async with (
        Producer(brokers[0].bootstrap, random=random, **QUICK) as producer,
        Consumer(
            brokers[1].bootstrap,
            random=random,
            fetch_max_wait_ms=10,
            auto_offset_reset="earliest",
            **QUICK,
        ) as consumer,
    ):
        consumer.assign(PARTITIONS)
        moving = asyncio.create_task(move_leaders(brokers, 30, random))
        for number in range(400):
            producer.send_soon("t", b"%d" % number, partition=number % 4)
            for record in await consumer.poll(timeout_ms=1):
                seen[record.partition].append(record.offset)
        await moving
        await producer.flush()
        while sum(map(len, seen.values())) < 400:
            records = await consumer.poll(timeout_ms=2000)
            assert records
            for record in records:
                seen[record.partition].append(record.offset)
    assert all(offsets == list(range(100)) for offsets in seen.values())
