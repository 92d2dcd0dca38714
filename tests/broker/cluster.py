"""A cluster of real brokers in one process: real sockets on 127.0.0.1, one store that they share.

async with cluster(tmp_path, 3) as brokers:
    async with connect(brokers[1].port) as client:
        ...
    await brokers.stop(1)
    await brokers.start(1)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tidemill.broker.server import BrokerServer
from tidemill.config import load_broker_config
from tidemill.image import ClusterImage, PartitionImage

WAIT_S = 15.0

SETTINGS = {
    # Whoever falls ends its session, and nobody is to lose one because the machine is busy.
    "broker.session.timeout.ms": "60000",
    "offsets.topic.num.partitions": "3",
    "log.flush.policy": "async",
}


class Cluster:
    """Brokers by id; those that are down keep their directories."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._settings = {
            "store.url": f"sqlite://{directory / 'store.db'}",
            **SETTINGS,
            **(settings or {}),
        }
        self.servers: dict[int, BrokerServer] = {}

    def __getitem__(self, broker_id: int) -> BrokerServer:
        return self.servers[broker_id]

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
        server = self.make(broker_id, settings)
        try:
            await server.start()
        except BaseException:
            await server.stop()
            raise
        self.servers[broker_id] = server
        return server

    async def stop(self, broker_id: int) -> None:
        await self.servers.pop(broker_id).stop()

    async def fall(self, broker_id: int) -> None:
        """Go without a word: no leadership is handed over."""
        server = self.servers.pop(broker_id)
        server._is_up = False
        await server.stop()

    async def close(self) -> None:
        for broker_id in list(self.servers):
            await self.fall(broker_id)

    @property
    def boss(self) -> BrokerServer:
        """The broker in office."""
        (active,) = [each for each in self.servers.values() if each.controller.active]
        return active

    @property
    def image(self) -> ClusterImage:
        return self.boss.controller.image

    def others(self) -> list[BrokerServer]:
        """Those that are not in office, by id."""
        return [
            self.servers[key]
            for key in sorted(self.servers)
            if not self.servers[key].controller.active
        ]

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        found = self.image.partition(topic, index)
        assert found is not None
        return found

    async def settled(self) -> None:
        """Somebody is in office, everybody else is let in, and all have one image."""
        await until(self._is_settled)

    def _is_settled(self) -> bool:
        bosses = [each for each in self.servers.values() if each.controller.active]
        if len(bosses) != 1:
            return False
        image = bosses[0].controller.image
        alive = {each.broker_id for each in image.alive_brokers()}
        return alive == set(self.servers) and all(
            each.broker.image.version == image.version for each in self.servers.values()
        )


async def until(condition: Callable[[], bool], within_s: float = WAIT_S) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - anything may be waited for, and nobody tells
            await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster(
    directory: Path, count: int = 3, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Cluster]:
    brokers = Cluster(directory, settings)
    try:
        for broker_id in range(1, count + 1):
            await brokers.start(broker_id)
        await brokers.settled()
        yield brokers
    finally:
        await brokers.close()
