"""A cluster of real brokers, each a process, that share a store: to be hurt and healed.

async with ProcessCluster(directory, 3) as cluster:
    leader = await cluster.leader_of("orders", 0)
    await cluster.kill(leader)          # SIGKILL, as a crash would
    await cluster.start(leader)         # the same data directory and port again
    await cluster.in_sync("orders")     # every replica has caught up

Processes are started from the thread that runs the loop, which should be the main one: they stop
when it is gone, however it went.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tidemill.client import Admin, ClientError
from tidemill.testing.process import BrokerProcess
from tidemill.testing.view import Replicas, View, look
from tidemill.types import TopicPartition

T = TypeVar("T")

CALM_TIMEOUT_S = 60.0
"""How long a cluster may take to elect, to catch up, to find a controller."""
POLL_S = 0.05
API_TIMEOUT_MS = 5_000
VARIABLES_PREFIX = "TIDEMILL_"

SETTINGS: Mapping[str, str] = {"offsets.topic.num.partitions": "6"}
"""Like a small cluster in every respect; fewer partitions of offsets come up sooner."""


class ProcessCluster:
    """Brokers 1 to `count` on free ports of 127.0.0.1, in directories below one."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        store_url: str | None = None,
    ) -> None:
        shared = {
            "store.url": store_url or f"sqlite://{directory / 'store.db'}",
            "cluster.brokers.min": str(count),
            **SETTINGS,
            **(settings or {}),
        }
        # What the user's own brokers are told by variables is none of these brokers' business.
        nothing = {name: None for name in os.environ if name.startswith(VARIABLES_PREFIX)}
        self.brokers = {
            number: BrokerProcess(
                directory / f"broker-{number}",
                {**shared, "node.id": str(number)},
                environment=nothing,
                stops_with_parent=True,
            )
            for number in range(1, count + 1)
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def running(self) -> list[int]:
        return [number for number, broker in self.brokers.items() if broker.running]

    # Starting and stopping

    async def start(self, *numbers: int) -> None:
        """Start these brokers, or all that do not run; returns when they accept connections."""
        wanted = [self.brokers[number] for number in numbers or self.brokers]
        missing = [broker for broker in wanted if not broker.running]
        for broker in missing:
            broker.spawn()
        await asyncio.gather(*(asyncio.to_thread(broker.wait_until_ready) for broker in missing))

    async def stop(self, number: int) -> None:
        """Stop one in good order: it hands its partitions over first."""
        await asyncio.to_thread(self.brokers[number].stop)

    async def kill(self, *numbers: int) -> None:
        """SIGKILL, all of them at once."""
        await asyncio.gather(*(asyncio.to_thread(self.brokers[each].kill) for each in numbers))

    def destroy(self) -> None:
        """SIGKILL to whoever lives: for the end, when nobody wants the data."""
        for broker in self.brokers.values():
            broker.kill()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
            await self.all_joined()
        except BaseException:
            self.destroy()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()

    # Who does what

    async def controller(self) -> int:
        """The broker in office, as soon as there is one that runs."""
        return await self._sought(
            "a controller",
            lambda view: view.controller if view.controller in self.running else None,
        )

    async def leader_of(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, as soon as one that runs does."""

        def leader(view: View) -> int | None:
            found = view.partitions.get(TopicPartition(topic, partition))
            return found.leader if found is not None and found.leader in self.running else None

        return await self._sought(f"a leader of {topic}-{partition}", leader)

    async def all_joined(self) -> None:
        """Wait until whoever runs is a member of the cluster."""
        await self._sought(
            "all brokers in the cluster", lambda view: view.alive == set(self.running)
        )

    async def in_sync(self, topic: str) -> None:
        """Wait until every partition has a leader and all its replicas in sync."""
        what = f"all replicas of {topic} in sync"
        await self.until(topic, what, lambda partition: partition.is_whole)

    async def until(self, topic: str, what: str, holds: Callable[[Replicas], bool]) -> None:
        """Wait until something holds for all partitions of a topic."""

        def all_hold(view: View) -> bool:
            found = view.of(topic)
            return bool(found) and all(map(holds, found))

        await self._sought(what, all_hold)

    async def _sought(self, what: str, pick: Callable[[View], T | None]) -> T:
        """Ask the brokers that run, until one has an answer that counts."""
        seen: View | ClientError | OSError | None = None
        try:
            async with asyncio.timeout(CALM_TIMEOUT_S):
                while True:
                    for number in self.running:
                        try:
                            seen = await self._asked(number)
                        except (ClientError, OSError) as error:
                            seen = error
                        else:
                            if found := pick(seen):
                                return found
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise TimeoutError(f"not {what} within {CALM_TIMEOUT_S:g} s: {seen}") from None

    async def _asked(self, number: int) -> View:
        address = self.brokers[number].bootstrap
        async with Admin(address, default_api_timeout_ms=API_TIMEOUT_MS) as admin:
            return await look(admin)
