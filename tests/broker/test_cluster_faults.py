"""A cluster under load while its brokers stop, fall, and lose their sessions: nothing acknowledged
is lost, nothing is there twice, and every record is where its producer was told.

Brokers in one process, so that many faults fit into few seconds; nothing is simulated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.controller.helpers import topic

from tidemill.client import Consumer, Producer
from tidemill.testing.in_process import InProcessCluster, until
from tidemill.testing.process import free_port
from tidemill.types import TopicPartition

PARTITIONS = 3
PRODUCERS = 2
UNANSWERED_MAX = 100
QUIET_POLLS = 4


@dataclass
class Load:
    """Producers that send until told to stop, and what they were told."""

    bootstrap: tuple[str, ...]
    acked: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    is_over: bool = False

    async def run(self, number: int) -> None:
        room = asyncio.Semaphore(UNANSWERED_MAX)
        sent = 0
        async with (
            Producer(
                bootstrap_servers=self.bootstrap,
                acks="all",
                delivery_timeout_ms=60_000,
                linger_ms=2,
            ) as producer,
            asyncio.TaskGroup() as waiting,
        ):
            while not self.is_over:
                await room.acquire()
                value = b"%d-%d" % (number, sent)
                waiting.create_task(self._send(producer, value, sent % PARTITIONS, room))
                sent += 1
                await asyncio.sleep(0.004)

    async def _send(
        self, producer: Producer, value: bytes, partition: int, room: asyncio.Semaphore
    ) -> None:
        told = await producer.send("t", value, partition=partition)
        self.acked[value] = (told.partition, told.offset)
        room.release()


class Faults:
    """One trouble after the other, each over before the next begins."""

    def __init__(self, brokers: InProcessCluster, ports: dict[int, int], random: Random) -> None:
        self._brokers = brokers
        self._ports = ports
        self._random = random

    async def start(self, broker_id: int) -> None:
        listeners = f"PLAINTEXT://127.0.0.1:{self._ports[broker_id]}"
        await self._brokers.start(broker_id, {"listeners": listeners})

    async def strike(self) -> None:
        brokers, random = self._brokers, self._random
        ids = sorted(brokers.servers)
        bosses = [key for key in ids if brokers[key].controller.active]
        broker_id = random.choice(bosses * 2 + ids)
        what = random.choice((brokers.stop, brokers.fall, brokers.lose_session))
        await what(broker_id)
        if broker_id not in brokers.servers:
            await asyncio.sleep(random.uniform(0, 0.5))
            await self.start(broker_id)
        if random.random() < 0.7:
            await brokers.settled()
            await until(self._is_whole)

    def _is_whole(self) -> bool:
        """Everybody is in sync, as far as whoever is in office knows."""
        bosses = [each for each in self._brokers.servers.values() if each.controller.active]
        return len(bosses) == 1 and all(
            len(each.isr) == 3 for each in bosses[0].controller.image.topics["t"].partitions
        )


async def everything(bootstrap: tuple[str, ...]) -> dict[bytes, list[tuple[int, int]]]:
    """Every record of the topic, by its value: where it is."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    quiet = 0
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", index) for index in range(PARTITIONS)])
        while quiet < QUIET_POLLS:
            records = await consumer.poll(timeout_ms=250)
            quiet = 0 if records else quiet + 1
            for record in records:
                found.setdefault(record.value, []).append((record.partition, record.offset))
    return found


async def live_through(directory: Path, seed: int, faults: int, flush_policy: str) -> None:
    settings = {"log.flush.policy": flush_policy, "min.insync.replicas": "2"}
    brokers = InProcessCluster(directory, settings=settings)
    trouble = Faults(brokers, {key: free_port() for key in (1, 2, 3)}, Random(seed))
    try:
        for broker_id in (1, 2, 3):
            await trouble.start(broker_id)
        await brokers.settled()
        [made] = await brokers.in_office.controller.create_topics([topic("t", PARTITIONS, 3)])
        assert made.error_code == 0, made.error_message
        load = Load(tuple(f"127.0.0.1:{server.port}" for server in brokers.servers.values()))
        async with asyncio.TaskGroup() as running:
            for number in range(PRODUCERS):
                running.create_task(load.run(number))
            for _ in range(faults):
                await asyncio.sleep(0.3)
                await trouble.strike()
            load.is_over = True
        found = await everything(load.bootstrap)
    finally:
        await brokers.close()
    assert len(load.acked) > 50 * faults, "the load went on"
    assert {value for value in load.acked if value not in found} == set(), "lost"
    assert {value: where for value, where in found.items() if len(where) > 1} == {}, "twice"
    assert {value: [where] for value, where in load.acked.items()} == {
        value: found[value] for value in load.acked
    }


@pytest.mark.parametrize("flush_policy", ["ack", "async"])
async def test_nothing_acknowledged_is_lost_or_there_twice(
    tmp_path: Path, flush_policy: str
) -> None:
    """Rules A2, A3, A9, B9, C4, D3, F2, G2, K1: all of them at once, a few times over."""
    await live_through(tmp_path, seed=11, faults=6, flush_policy=flush_policy)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_for_long(tmp_path: Path, seed: int) -> None:
    flush_policy = "async" if seed % 2 else "ack"
    await live_through(tmp_path, seed, faults=60, flush_policy=flush_policy)
