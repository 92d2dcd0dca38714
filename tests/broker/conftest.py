"""One running broker per test and a connection to it; replicas of three brokers in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.broker.harness import Client, connect, running_broker
from tests.broker.replica_world import World

from tidemill.broker.server import BrokerServer
from tidemill.testing.loop import SimLoop


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    async with running_broker(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: BrokerServer) -> AsyncIterator[Client]:
    async with connect(server.port) as connected:
        yield connected


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.close()
    assert made.unhandled == []


@pytest.fixture
def world(loop: SimLoop) -> World:
    made = World(loop)
    made.create_topic()
    return made
