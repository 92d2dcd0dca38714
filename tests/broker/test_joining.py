"""How a broker comes to a cluster: where it meets the others, and whom it serves meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from tests.broker.harness import connect, metadata_of
from tests.controller.helpers import ENDPOINT, broker_config

from tidemill.broker.directories import NO_NODE
from tidemill.broker.hello import Greeting, same
from tidemill.broker.meeting_place import store_url, wanted_id
from tidemill.broker.server import BrokerServer
from tidemill.clock import SystemClock
from tidemill.config import BrokerConfig, load_broker_config
from tidemill.controller import Controller
from tidemill.errors import ApiError
from tidemill.store.memory import MemoryStore, MemoryTree
from tidemill.store.url import SqliteUrl, ZooKeeperUrl
from tidemill.testing.in_process import until
from tidemill.wire.messages.api_versions import ApiVersionsRequest


def config_of(directory: Path, settings: Mapping[str, str] | None = None) -> BrokerConfig:
    overrides = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        **(settings or {}),
    }
    return load_broker_config(environ={}, overrides=overrides)[0]


def test_where_brokers_meet(tmp_path: Path) -> None:
    alone = config_of(tmp_path)
    assert store_url(alone) == SqliteUrl(str(tmp_path / "store.db"))
    shared = config_of(tmp_path, {"store.url": "sqlite:///var/store.db"})
    assert store_url(shared) == SqliteUrl("/var/store.db")
    servers = ("h1:2181", "h2:2182")
    ensemble = config_of(tmp_path, {"store.url": "zk://h1,h2:2182/a"})
    assert store_url(ensemble) == ZooKeeperUrl(servers, "/a")
    old = config_of(tmp_path, {"zookeeper.connect": "h1:2181,h2:2182/a"})
    assert store_url(old) == ZooKeeperUrl(servers, "/a")


def test_a_broker_without_a_number_waits_for_one_only_where_others_are(tmp_path: Path) -> None:
    shared = {"store.url": "sqlite:///var/store.db"}
    assert wanted_id(config_of(tmp_path)) == 0
    assert wanted_id(config_of(tmp_path, shared)) == NO_NODE
    assert wanted_id(config_of(tmp_path, {**shared, "node.id": "7"})) == 7
    assert wanted_id(config_of(tmp_path, {**shared, "broker.id": "8"})) == 8


def test_a_proof_is_good_for_one_greeting_and_one_side() -> None:
    greeting = Greeting(1, 5, b"a" * 32, b"b" * 32)
    proof = greeting.proof_of_asking(b"secret")
    assert same(proof, Greeting(1, 5, b"a" * 32, b"b" * 32).proof_of_asking(b"secret"))
    others = [
        greeting.proof_of_asked(b"secret", 1),
        greeting.proof_of_asking(b"other secret"),
        Greeting(2, 5, b"a" * 32, b"b" * 32).proof_of_asking(b"secret"),
        Greeting(1, 6, b"a" * 32, b"b" * 32).proof_of_asking(b"secret"),
        Greeting(1, 5, b"c" * 32, b"b" * 32).proof_of_asking(b"secret"),
        Greeting(1, 5, b"a" * 32, b"c" * 32).proof_of_asking(b"secret"),
    ]
    assert len({proof, *others}) == 7


@asynccontextmanager
async def shut_out(directory: Path, patience_ms: int) -> AsyncIterator[BrokerServer]:
    """A broker that has not begun; whoever is in office reaches nobody, so it lets nobody in."""
    tree = MemoryTree(SystemClock())
    boss = Controller(MemoryStore(tree), broker_config(), SystemClock(), Random(9), broker_id=9)
    await boss.start()
    await boss.register_broker([ENDPOINT])
    settings = {"node.id": "1", "initial.broker.registration.timeout.ms": str(patience_ms)}
    server = BrokerServer(config_of(directory, settings), store=MemoryStore(tree))
    try:
        yield server
    finally:
        await server.stop()
        await boss.stop()


def accepts(server: BrokerServer) -> bool:
    """Whether it takes connections yet; it binds its addresses long before."""
    listeners = getattr(server, "listeners", [])
    return bool(listeners) and all(each._server is not None for each in listeners)


async def test_no_client_is_served_before_the_controller_has_let_the_broker_in(
    tmp_path: Path,
) -> None:
    """Rule K2: peers may come, clients are sent away."""
    async with shut_out(tmp_path, patience_ms=600_000) as server:
        starting = asyncio.ensure_future(server.start())
        await until(lambda: accepts(server))
        async with connect(server.port) as client:
            assert (await client.ask(ApiVersionsRequest(), 0)).error_code == 0
            client.send(metadata_of(), 12)
            assert await client.is_closed()
        assert not starting.done()
        starting.cancel()
        await asyncio.wait([starting])


async def test_a_broker_does_not_wait_for_ever_to_be_let_in(tmp_path: Path) -> None:
    async with shut_out(tmp_path, patience_ms=300) as server:
        with pytest.raises(ApiError, match="broker 9, did not let this broker in within 300 ms"):
            await server.start()
