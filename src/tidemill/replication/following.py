"""The leaders that this broker follows, and which partition is copied from which of them.

`attend` is called whenever a partition may have changed its role; it sees to it that exactly the
driver of its leader copies it, in its present epoch. A leader of nothing has no driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from tidemill.clock import Clock
from tidemill.replication.channels import LeaderLink
from tidemill.replication.driver import LeaderDriver
from tidemill.replication.follower import FollowerFetcher, FollowerSettings
from tidemill.replication.partition import Partition
from tidemill.replication.progress import NO_BROKER_EPOCH
from tidemill.replication.throttle import Throttle
from tidemill.types import BrokerEpoch, BrokerId


class Following:
    """All drivers of this broker, by the leader's id."""

    def __init__(
        self,
        broker_id: BrokerId,
        link: LeaderLink,
        clock: Clock,
        settings: FollowerSettings,
        throttle: Throttle,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = NO_BROKER_EPOCH
        self._link = link
        self._clock = clock
        self._settings = settings
        self._throttle = throttle
        self._drivers: dict[BrokerId, LeaderDriver] = {}
        self._leaders: dict[Partition, BrokerId] = {}
        self._ending: dict[asyncio.Task[None], None] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._leaders)

    def driver_of(self, partition: Partition) -> LeaderDriver | None:
        leader = self._leaders.get(partition)
        return None if leader is None else self._drivers[leader]

    def identify(self, broker_epoch: BrokerEpoch) -> None:
        """Fetch in the name of this incarnation of the broker from now on (rule A3)."""
        self._broker_epoch = broker_epoch
        for driver in self._drivers.values():
            driver.fetcher.broker_epoch = broker_epoch

    def attend(self, partition: Partition) -> None:
        """Copy the partition from its leader if it has one elsewhere, and from nobody else."""
        leader = partition.leader if partition.follows else None
        if self._leaders.get(partition) != leader:
            self.leave(partition)
        if leader is not None:
            self._leaders[partition] = leader
            driver = self._drivers.get(leader) or self._start(leader)
            driver.follow(partition)

    def leave(self, partition: Partition) -> None:
        leader = self._leaders.pop(partition, None)
        if leader is None:
            return
        driver = self._drivers[leader]
        driver.unfollow(partition)
        if not len(driver):
            del self._drivers[leader]
            self._end(driver)

    def copied(self, partition: Partition) -> None:
        """What was copied is flushed: it may be fetched on."""
        driver = self.driver_of(partition)
        if driver is not None:
            driver.wake()

    def touch(self, partition: Partition) -> None:
        """The partition's settings or its log have changed."""
        driver = self.driver_of(partition)
        if driver is not None:
            driver.touch(partition)

    def _start(self, leader: BrokerId) -> LeaderDriver:
        fetcher = FollowerFetcher(self._broker_id, self._broker_epoch, self._settings)
        driver = self._drivers[leader] = LeaderDriver(
            self._broker_id, leader, fetcher, self._link, self._clock, self._throttle
        )
        driver.start()
        return driver

    def _end(self, driver: LeaderDriver) -> None:
        task = driver.stop()
        if task is not None:
            self._ending[task] = None
            task.add_done_callback(self._ending.pop)

    async def close(self) -> None:
        """Stop copying; when this returns nothing is appended any more."""
        for driver in self._drivers.values():
            self._end(driver)
        self._drivers.clear()
        self._leaders.clear()
        for task in list(self._ending):
            with suppress(asyncio.CancelledError):
                await task
