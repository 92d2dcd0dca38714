"""Brokers in processes of their own that share a store: killed, and back at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.harness import batch, connect, fetch, metadata_of, produce
from tests.waiting import LONG_S

from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess
from tidemill.testing.zookeeper import ZooKeeperServer, unavailable_reason
from tidemill.wire.messages.metadata import MetadataResponse
from tidemill.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)

SESSION_MS = 4_000
LONG_SESSION_MS = 120_000
"""Far longer than anybody waits here."""


def processes(
    directory: Path, store_url: str, count: int = 2, session_ms: int = SESSION_MS
) -> list[BrokerProcess]:
    settings = {
        "store.url": store_url,
        "broker.session.timeout.ms": str(session_ms),
        "min.insync.replicas": "1",
    }
    return [
        BrokerProcess(directory / f"broker-{number}", {**settings, "node.id": str(number)})
        for number in range(1, count + 1)
    ]


@pytest.fixture
def session_ms() -> int:
    """For how long a silent broker of the pair is taken for alive."""
    return SESSION_MS


@pytest.fixture
def pair(tmp_path: Path, session_ms: int) -> Iterator[list[BrokerProcess]]:
    """Two brokers on a SQLite file."""
    store_url = f"sqlite://{tmp_path / 'store.db'}"
    brokers = processes(tmp_path, store_url, session_ms=session_ms)
    try:
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()


async def described(broker: BrokerProcess, *topics: str) -> MetadataResponse:
    async with connect(broker.port) as client:
        answer: MetadataResponse = await client.ask(metadata_of(*topics), 12)
        return answer


async def wait_until_led_by(broker: BrokerProcess, leader: int, within_s: float) -> float:
    """How long it takes until this broker says who leads the topic t."""
    started = time.monotonic()
    async with asyncio.timeout(within_s):
        while True:
            answer = await described(broker, "t")
            partitions = answer.topics[0].partitions
            if partitions and partitions[0].leader_id == leader:
                return time.monotonic() - started
            await asyncio.sleep(0.02)


async def make_topic(broker: BrokerProcess, *replicas: int) -> None:
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
    wanted = CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    async with connect(broker.port) as client:
        [result] = (await client.ask(CreateTopicsRequest(topics=[wanted]), 7)).topics
    assert result.error_code == 0, result.error_message


async def kill_and_return(brokers: list[BrokerProcess], *, at_once: bool) -> None:
    one, two = brokers
    await make_topic(one, 1, 2)
    await wait_until_led_by(two, 1, LONG_S)
    async with connect(one.port) as client:
        assert (await produce(client, "t", batch([b"kept"]))).error_code == 0
    one.kill()
    if not at_once:
        await wait_until_led_by(two, 2, SESSION_MS / 1000 + LONG_S)
    started = time.monotonic()
    await asyncio.to_thread(one.start)
    assert time.monotonic() - started < SESSION_MS / 1000 + 5
    await wait_until_led_by(two, 2, SESSION_MS / 1000 + LONG_S)
    answer = await described(one, "t")
    assert {each.node_id for each in answer.brokers} == {1, 2}
    async with connect(two.port) as client:
        assert (await produce(client, "t", batch([b"more"]))).error_code == 0
        partition = (await fetch(client, "t", 0)).responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("session_ms", [LONG_SESSION_MS])
async def test_a_killed_broker_is_noticed_at_once_and_comes_back(pair: list[BrokerProcess]) -> None:
    """Rules A10, K5: the lock of a dead process is free, so nobody waits for its session."""
    one, two = pair
    await make_topic(one, 1, 2)
    await wait_until_led_by(two, 1, LONG_S)
    one.kill()
    await wait_until_led_by(two, 2, LONG_S)
    await asyncio.to_thread(one.start)
    answer = await described(one, "t")
    assert {each.node_id for each in answer.brokers} == {1, 2}
    assert answer.controller_id == 2


async def test_a_broker_that_restarts_right_after_its_death_keeps_its_id(
    pair: list[BrokerProcess],
) -> None:
    """Rules A3, K5: its own data directory proves that the old process is dead."""
    await kill_and_return(pair, at_once=True)


async def test_a_stopped_broker_is_taken_for_dead_and_finds_out(pair: list[BrokerProcess]) -> None:
    """Rule A9: its session runs out; awake again it leads nothing, and joins anew (rule A3)."""
    one, two = pair
    await make_topic(one, 1, 2)
    await wait_until_led_by(two, 1, LONG_S)
    os.kill(one.pid, signal.SIGSTOP)
    try:
        waited_s = await wait_until_led_by(two, 2, SESSION_MS / 1000 + LONG_S)
    finally:
        os.kill(one.pid, signal.SIGCONT)
    assert waited_s > SESSION_MS / 2000, "a living process is given its session's time"
    await wait_until_led_by(one, 2, LONG_S)
    async with connect(one.port) as client:
        refused = await produce(client, "t", batch([b"late"]))
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    async with asyncio.timeout(LONG_S):
        while len((await described(two)).brokers) < 2:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)


def test_a_cluster_on_zookeeper(tmp_path: Path) -> None:
    """The same on a real server, which does not know that a process is dead: the registration that
    is left is taken over (rule K5)."""
    if reason := unavailable_reason():
        pytest.skip(f"NO ZOOKEEPER: it cannot run here: {reason}")
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        brokers = processes(tmp_path, f"zk://{server.address}/some/cluster")
        try:
            for broker in brokers:
                broker.start()
            asyncio.run(kill_and_return(brokers, at_once=True))
        finally:
            for broker in brokers:
                broker.kill()
