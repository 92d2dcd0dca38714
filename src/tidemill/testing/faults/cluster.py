"""The cluster that faults strike: three broker processes, the links between all, and their store.

Every broker is reached through a link of a proxy, by clients and by other brokers alike, since that
is the address it advertises; a link tells them apart by their client ids. On ZooKeeper every broker
also has links of its own to each server of the ensemble. One broker has a small disk of its own,
where this process may mount one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tidemill.client import Admin, ClientError
from tidemill.client.admin_types import NewTopic
from tidemill.testing.faults.plan import Store
from tidemill.testing.process import BrokerProcess, free_port
from tidemill.testing.proxy_control import LinkControl, ProxyProcess
from tidemill.testing.view import View, look
from tidemill.testing.zookeeper import ZooKeeperEnsemble
from tidemill.types import TopicPartition

BROKERS = 3
PARTITIONS = 3
EXACT = "exact"
PLAIN = "plain"
LOOSE = "loose"
TOPICS = (EXACT, PLAIN, LOOSE)
"""Written by producers with idempotence; without, but one request at a time; and with neither."""

SESSION_MS = 6_000
WHOLE_S_MAX = 90
DISK_BYTES = 512 << 20
CLIENTS = "load"
"""How the client ids of the load begin."""

SETTINGS: Mapping[str, str] = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": "6000",
    "replica.socket.timeout.ms": "5000",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(BROKERS),
    "log.roll.ms": "10000",
    "log.scrub.interval.ms": "2000",
    "log.scrub.bytes.per.second": str(64 << 20),
}


class BrokenClusterError(RuntimeError):
    """The cluster did not get well again by itself."""


def peer(broker: int) -> str:
    """How a broker names itself to another; none is the beginning of another's name."""
    return f"tidemill-broker-{broker}"


class FaultCluster:
    """From `start` to `stop`; brokers are known by their ids, 1 to 3."""

    def __init__(
        self, folder: Path, store: Store, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.store = store
        self.brokers: dict[int, BrokerProcess] = {}
        self.links: dict[int, LinkControl] = {}
        self.store_links: dict[int, list[LinkControl]] = {}
        self.ensemble: ZooKeeperEnsemble | None = None
        self.small_disk: int | None = None
        """The broker whose disk is small and its own, if there is one."""
        self._proxy = ProxyProcess()
        self._settings = {**SETTINGS, **(settings or {})}
        self._admin: Admin | None = None
        self._is_ending = False

    @property
    def ids(self) -> list[int]:
        return sorted(self.brokers)

    @property
    def bootstrap(self) -> str:
        return ",".join(link.address for link in self.links.values())

    @property
    def admin(self) -> Admin:
        assert self._admin is not None
        return self._admin

    # Life.

    async def start(self) -> None:
        """Start everything, and make the topics."""
        await asyncio.to_thread(self._start_processes)
        self._admin = Admin(self.bootstrap, client_id="watch", default_api_timeout_ms=30_000)
        await self._admin.start()
        made = await self._admin.create_topics(
            [NewTopic(name, PARTITIONS, BROKERS) for name in TOPICS]
        )
        made.raise_first()
        await self.whole()

    def _start_processes(self) -> None:
        self._proxy.start()
        if self.store is Store.ZOOKEEPER:
            self.ensemble = ZooKeeperEnsemble(self.folder / "zookeeper").start()
        for broker in range(1, BROKERS + 1):
            self._add(broker)
        for process in self.brokers.values():
            if self._is_ending:
                return
            process.start()

    def _add(self, broker: int) -> None:
        port = free_port()
        link = self.links[broker] = self._proxy.link(port)
        directory = self.folder / f"broker-{broker}"
        if broker == BROKERS and _mount(directory):
            self.small_disk = broker
        settings = {
            **self._settings,
            "node.id": str(broker),
            "store.url": self._store_url(broker),
            "advertised.listeners": f"PLAINTEXT://{link.address}",
        }
        self.brokers[broker] = BrokerProcess(directory, settings, port=port)

    def _store_url(self, broker: int) -> str:
        if self.ensemble is None:
            return f"sqlite://{self.folder / 'store.db'}"
        links = [self._proxy.link(server.port) for server in self.ensemble.servers]
        self.store_links[broker] = links
        return f"zk://{','.join(link.address for link in links)}/faults"

    async def stop(self) -> None:
        """Stop the brokers cleanly, all at once, and then the rest; logs and data stay."""
        self._is_ending = True
        if self._admin is not None:
            await self._admin.close()
            self._admin = None
        stopping = [asyncio.to_thread(each.stop) for each in self.brokers.values()]
        await asyncio.gather(*stopping, return_exceptions=True)
        if self.ensemble is not None:
            await asyncio.to_thread(self.ensemble.stop)
        await asyncio.to_thread(self._proxy.stop)

    def unmount(self, *, keep: bool) -> None:
        """Give back the small disk, and with `keep` have a copy of what was on it."""
        if self.small_disk is None:
            return
        directory = self.brokers[self.small_disk].data_dir
        if keep:
            shutil.copytree(directory, directory.with_suffix(".kept"))
        subprocess.run(["umount", directory], capture_output=True, check=False)

    # Looking at it.

    async def view(self) -> View:
        return await look(self.admin)

    async def whole(self, within_s: float = WHOLE_S_MAX) -> View:
        """Wait until everybody is back in sync."""
        deadline = time.monotonic() + within_s
        seen: View | ClientError | None = None
        while time.monotonic() < deadline:
            try:
                seen = await self.view()
                if seen.is_whole:
                    return seen
            except ClientError as error:
                seen = error
            await asyncio.sleep(0.1)
        raise BrokenClusterError(f"not whole after {within_s:g} s: {seen}")

    def logs_of(self, broker: int, partition: TopicPartition) -> list[Path]:
        """A replica's segments, in order; the last one is being written."""
        name = f"{partition.topic}-{partition.partition}"
        return sorted((self.brokers[broker].data_dir / name).glob("*.log"))

    # What faults do to it.

    async def restart(self, broker: int) -> None:
        """Start a broker that is down."""
        try:
            await asyncio.to_thread(self.brokers[broker].start)
        except RuntimeError as error:
            raise BrokenClusterError(f"broker {broker} does not start: {error}") from error

    def fill_disk(self, broker: int) -> None:
        """Leave no room for another byte of a broker's logs."""
        process = self.brokers[broker]
        if broker == self.small_disk:
            _fill(process.data_dir / _BALLAST)
        else:
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))

    def empty_disk(self, broker: int) -> None:
        process = self.brokers[broker]
        if broker == self.small_disk:
            (process.data_dir / _BALLAST).unlink()
        else:
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))


_BALLAST = ".ballast"
_PAGE_BYTES = 4096


def _fill(path: Path) -> None:
    """A file that takes all the room there is, while others take some of it, too."""
    size, end = DISK_BYTES, 0
    with path.open("wb") as ballast:
        while size >= _PAGE_BYTES:
            try:
                os.posix_fallocate(ballast.fileno(), end, size)
                end += size
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2


def _mount(directory: Path) -> bool:
    """Put a small file system of its own there; False where we may not."""
    if os.geteuid() != 0:
        return False
    directory.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tidemill-faults"]
    command.append(str(directory))
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
