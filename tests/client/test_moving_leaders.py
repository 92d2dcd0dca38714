"""Leaders move between two brokers while records flow: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest
from tests.client.scripted import Fault, ScriptedBroker

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
            records = await consumer.poll(timeout_ms=15_000)
            assert records
            for record in records:
                seen[record.partition].append(record.offset)
    assert all(offsets == list(range(100)) for offsets in seen.values())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - the scripted broker tells nobody
            await asyncio.sleep(0.01)


def hang(broker: ScriptedBroker) -> None:
    """The broker takes everything and answers nothing, as a stopped process does."""
    broker.fault = lambda _key, _request: Fault(silent=True)


@pytest.mark.parametrize("counted_out", [False, True])
async def test_a_leader_that_hangs_is_left_for_its_successor(
    brokers: list[ScriptedBroker], counted_out: bool
) -> None:
    """Nothing waits for `request.timeout.ms` when the others know who leads now."""
    first, second = brokers
    async with Producer(first.bootstrap, random=Random(13), **QUICK) as producer:
        await producer.send("t", b"0", partition=0)
        hang(first)
        waiting = asyncio.create_task(producer.send("t", b"1", partition=0))
        await until(lambda: len(first.seen(ApiKey.PRODUCE)) == 2)
        second.lead(PARTITIONS[0])
        if counted_out:
            first.brokers.remove(first)  # Metadata names living brokers only.
        async with asyncio.timeout(15):
            assert (await waiting).offset == 1
            assert (await producer.send("t", b"2", partition=0)).offset == 2
        assert producer.settings.request_timeout_ms == 30_000
    values = [record.value for record in second.partitions[PARTITIONS[0]].records()]
    assert values == [b"0", b"1", b"2"]


async def test_without_numbers_nothing_overtakes_on_the_way_to_another_leader(
    brokers: list[ScriptedBroker],
) -> None:
    """One request at a time means one per partition, whoever leads it."""
    first, second = brokers
    second.lead(PARTITIONS[1])
    async with Producer(
        first.bootstrap, random=Random(17), enable_idempotence=False, max_in_flight=1, **QUICK
    ) as producer:
        await producer.send("t", b"0", partition=0)
        await producer.send("t", b"", partition=1)  # So the second is who answered last.
        first.fault = lambda key, _: Fault(silent=True) if key is ApiKey.PRODUCE else None
        earlier = asyncio.create_task(producer.send("t", b"1", partition=0))
        await until(lambda: len(first.seen(ApiKey.PRODUCE)) == 2)
        second.lead(PARTITIONS[0])
        await producer._cluster.refresh()
        later = asyncio.create_task(producer.send("t", b"2", partition=0))
        async with asyncio.timeout(20):
            await asyncio.gather(earlier, later)
    values = [record.value for record in second.partitions[PARTITIONS[0]].records()]
    assert values == [b"0", b"1", b"2"]


async def test_a_leader_that_only_accepts_is_left_for_its_successor(
    brokers: list[ScriptedBroker],
) -> None:
    """A stopped process's port still takes connections; the agreement on versions never comes."""
    first, second = brokers
    hang(first)
    async with Producer(second.bootstrap, random=Random(14), **QUICK) as producer:
        waiting = asyncio.create_task(producer.send("t", b"0", partition=0))
        await until(lambda: bool(first.seen(ApiKey.API_VERSIONS)))
        second.lead(PARTITIONS[0])
        async with asyncio.timeout(8):
            assert (await waiting).offset == 0
        assert producer.settings.socket_connection_setup_timeout_ms == 10_000


async def test_a_slow_leader_that_still_leads_is_waited_for(brokers: list[ScriptedBroker]) -> None:
    """Late is not wrong: without a successor nothing is sent twice."""
    first, second = brokers
    second.lead(PARTITIONS[1])
    async with Producer(first.bootstrap, random=Random(15), **QUICK) as producer:
        for index in (0, 1):
            await producer.send("t", b"0", partition=index)
        first.fault = lambda key, _: Fault(silent=True) if key is ApiKey.PRODUCE else None
        waiting = asyncio.create_task(producer.send("t", b"1", partition=0))
        asked = metadata_count(brokers)
        await until(lambda: metadata_count(brokers) >= asked + 2)
        assert len(first.seen(ApiKey.PRODUCE)) == 2
        assert not waiting.done()
        first.fault = lambda _key, _request: None
        first.drop_connections()
        assert (await waiting).offset == 1


def metadata_count(brokers: list[ScriptedBroker]) -> int:
    return sum(len(broker.seen(ApiKey.METADATA)) for broker in brokers)


@pytest.mark.parametrize("hung", [0, 1])
async def test_who_leads_is_asked_of_another_broker_when_one_hangs(
    brokers: list[ScriptedBroker], hung: int
) -> None:
    servers = [broker.bootstrap for broker in brokers]
    async with Producer(servers, random=Random(16), **QUICK) as producer:
        for broker in brokers:
            broker.lead(PARTITIONS[broker.node_id])
            await producer.send("t", b"", partition=broker.node_id)
        hang(brokers[hung])
        async with asyncio.timeout(8):
            for _ in range(3):
                await producer._cluster.refresh()


async def test_a_new_leader_is_asked_as_soon_as_the_old_one_has_let_go(
    brokers: list[ScriptedBroker],
) -> None:
    """The old leader dies with a fetch under way, which ends after the new leader is known."""
    first, second = brokers
    partition = PARTITIONS[0]
    async with (
        Producer(second.bootstrap, **QUICK) as producer,
        Consumer(second.bootstrap, auto_offset_reset="earliest", retry_backoff_ms=200) as consumer,
    ):
        consumer.assign([partition])
        await consumer.position(partition)
        first.fault = lambda key, _: Fault(silent=True) if key is ApiKey.FETCH else None
        while not first.seen(ApiKey.FETCH):
            assert await consumer.poll(timeout_ms=10) == []
        second.lead(partition)
        await first.stop()
        await producer.send("t", b"news", partition=0)
        [record] = await consumer.poll(timeout_ms=5_000)
        assert record.value == b"news"


async def test_a_leader_that_hangs_is_left_by_its_readers(brokers: list[ScriptedBroker]) -> None:
    """A fetch that is never answered holds nothing up when the others know who leads now."""
    first, second = brokers
    partition = PARTITIONS[0]
    async with Consumer(
        second.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=10, **QUICK
    ) as consumer:
        consumer.assign([partition])
        await consumer.position(partition)
        first.fault = lambda key, _: Fault(silent=True) if key is ApiKey.FETCH else None
        while not first.seen(ApiKey.FETCH):
            assert await consumer.poll(timeout_ms=10) == []
        hang(first)
        second.lead(partition)
        async with Producer(second.bootstrap, **QUICK) as producer:
            await producer.send("t", b"news", partition=0)
        [record] = await consumer.poll(timeout_ms=15_000)
        assert record.value == b"news"
        assert consumer.settings.request_timeout_ms == 30_000
