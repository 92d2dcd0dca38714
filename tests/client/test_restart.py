"""The client while its broker is killed and comes back: a real process, SIGKILL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.client.test_live import create, read_all

from tidemill.client import Consumer, Producer
from tidemill.client.batches import Delivery
from tidemill.testing.process import BrokerProcess


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
async def test_nothing_is_lost_or_doubled_over_sigkill(tmp_path: Path, kills: int) -> None:
    """Rule G2 end to end: a batch whose answer was lost is recognised after the restart."""
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker.bootstrap, "t", partitions=3)
        sent: list[int] = []
        stop = asyncio.Event()
        latest: list[Delivery] = []

        async def produce(producer: Producer) -> None:
            while not stop.is_set():
                number = len(sent)
                sent.append(number)
                latest[:] = [producer.send_soon("t", b"%d" % number)]
                await asyncio.sleep(0 if number % 20 else 0.001)
            await producer.flush()

        async with Producer(broker.bootstrap, linger_ms=1, batch_size=500) as producer:
            producing = asyncio.create_task(produce(producer))
            for _ in range(kills):
                await asyncio.sleep(0.5)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
                await latest[0]  # It serves again: else the next kill might come before it did.
            stop.set()
            await producing
        records = await read_all(broker.bootstrap, "t", len(sent))
        assert sorted(int(record.value) for record in records) == sent
        for index in range(3):
            values = [int(record.value) for record in records if record.partition == index]
            assert values == sorted(values)


async def test_a_consumer_goes_on_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker.bootstrap, "t")
        async with (
            Producer(broker.bootstrap) as producer,
            Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([("t", 0)])
            for number in range(3):
                assert (await producer.send("t", b"%d" % number)).offset == number
                (record,) = await consumer.poll(timeout_ms=10_000)
                assert record.value == b"%d" % number
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
