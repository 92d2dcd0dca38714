"""One running broker per test, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.harness import Client, connect, running_broker

from tidemill.broker.server import BrokerServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    async with running_broker(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: BrokerServer) -> AsyncIterator[Client]:
    async with connect(server.port) as connected:
        yield connected
