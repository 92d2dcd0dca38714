"""A cluster of real brokers in this process: real sockets on 127.0.0.1, one store that they share.

async with InProcessCluster(directory, 3) as cluster:
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send("orders", b"first")
    await cluster.fall(cluster.controller_id)   # without a word, as the others see a crash
    await cluster.settled()                     # somebody else is in office by now

It comes up in a second, a debugger steps through all of it, and a test may look at what each broker
holds (`cluster[1].broker`). The brokers share one loop: what blocks it stands them all still, and
what they leave to the operating system survives a `fall`. `cluster.py` has brokers that are
processes, to be killed and stopped for real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemill.broker.server import BrokerServer
from tidemill.config import load_broker_config
from tidemill.image import ClusterImage, PartitionImage
from tidemill.store.sqlite import SqliteStore

WAIT_S = 15.0
_LOOK_S = 0.01

SETTINGS: Mapping[str, str] = {
    # Whoever falls ends its session, and nobody is to lose one because the machine is busy.
    "broker.session.timeout.ms": "60000",
    "offsets.topic.num.partitions": "3",
    "log.flush.policy": "async",
}
"""What differs from the defaults: what a test of many brokers on one machine wants."""


class InProcessCluster:
    """Brokers by id, from 1 on; those that are down keep their directories."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        store_url: str | None = None,
    ) -> None:
        """`async with` starts `count` brokers; `start` starts one, without."""
        self._directory = directory
        self._count = count
        self._settings = {
            "store.url": store_url or f"sqlite://{directory / 'store.db'}",
            **SETTINGS,
            **(settings or {}),
        }
        self.servers: dict[int, BrokerServer] = {}
        """The brokers that are up."""

    def __getitem__(self, broker_id: int) -> BrokerServer:
        return self.servers[broker_id]

    async def __aenter__(self) -> Self:
        try:
            for broker_id in range(1, self._count + 1):
                await self.start(broker_id)
            await self.settled()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def bootstrap(self) -> str:
        """Where clients find the brokers that are up."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers.values())

    # Starting and stopping

    def make(self, broker_id: int, settings: Mapping[str, str] | None = None) -> BrokerServer:
        """A broker that is not started; a setting without a value is left out."""
        overrides = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self._directory / f"broker-{broker_id}"),
            "node.id": str(broker_id),
            **self._settings,
            **(settings or {}),
        }
        wanted = {key: value for key, value in overrides.items() if value}
        config, _ = load_broker_config(environ={}, overrides=wanted)
        return BrokerServer(config)

    async def start(
        self, broker_id: int, settings: Mapping[str, str] | None = None
    ) -> BrokerServer:
        """Start a broker, the first time or again; when this returns, it serves clients."""
        server = self.make(broker_id, settings)
        try:
            await server.start()
        except BaseException:
            await server.stop()
            raise
        self.servers[broker_id] = server
        return server

    async def stop(self, broker_id: int) -> None:
        """Stop one in good order: it hands its partitions over first."""
        await self.servers.pop(broker_id).stop()

    async def fall(self, broker_id: int) -> None:
        """Go without a word: no leadership is handed over, and the session ends."""
        await self.servers.pop(broker_id).stop(hands_over=False)

    async def lose_session(self, broker_id: int) -> None:
        """Others take this broker for dead, and it lives; on a SQLite file only."""
        store = self.servers[broker_id].store
        if not isinstance(store, SqliteStore):
            raise TypeError("sessions can be ended from outside on a SQLite file only")
        await store.expire_session()

    async def close(self) -> None:
        """The end: nobody wants the data any more."""
        for broker_id in list(self.servers):
            await self.fall(broker_id)

    # Who does what

    @property
    def in_office(self) -> BrokerServer:
        """The broker that is the controller; there is one for certain after `settled`."""
        (active,) = [each for each in self.servers.values() if each.controller.active]
        return active

    @property
    def image(self) -> ClusterImage:
        """The cluster as the controller sees it."""
        return self.in_office.controller.image

    @property
    def controller_id(self) -> int:
        return self.in_office.broker.broker_id

    def others(self) -> list[BrokerServer]:
        """Those that are not in office, by id."""
        return [
            self.servers[key]
            for key in sorted(self.servers)
            if not self.servers[key].controller.active
        ]

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        """Who leads it and who is in sync; `KeyError` if there is no such partition."""
        found = self.image.partition(topic, index)
        if found is None:
            raise KeyError(f"{topic}-{index}")
        return found

    async def settled(self) -> None:
        """Somebody is in office, everybody else is let in, and all have one image."""
        await until(self._is_settled)

    def _is_settled(self) -> bool:
        active = [each for each in self.servers.values() if each.controller.active]
        if len(active) != 1:
            return False
        image = active[0].controller.image
        alive = {each.broker_id for each in image.alive_brokers()}
        return alive == set(self.servers) and all(
            each.broker.image.version == image.version for each in self.servers.values()
        )


async def until(condition: Callable[[], bool], within_s: float = WAIT_S) -> None:
    """Wait until it is so; `TimeoutError` if it never is."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - anything may be waited for, and nobody tells
            await asyncio.sleep(_LOOK_S)
