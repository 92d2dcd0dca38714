"""The machines of a simulated cluster and what joins them: loop, network, store, disks, brokers.

A `Machine` is one broker's host and disk. Its process is the real `BrokerServer`; it can be killed,
lose its power, stand still, be stopped in good order, and it is started again by whoever says so.
A process that cannot start exits, and is started again after a moment, as a service manager does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

from tidemill.broker.connection import Connection
from tidemill.broker.listener import SocketOptions
from tidemill.broker.server import BrokerServer
from tidemill.config import load_broker_config
from tidemill.errors import TidemillError
from tidemill.replication.partition import Partition
from tidemill.testing.disk import CrashDisk
from tidemill.testing.ensemble import HOST, Ensemble
from tidemill.testing.far_store import CuttingStore, FarStore
from tidemill.testing.loop import SimLoop, VirtualExecutor
from tidemill.testing.network import SimHost, SimNetwork
from tidemill.testing.simulation.plan import MIN_ISR, PORT, REPLICAS, Plan

RESTART_PAUSE_S = 0.5
STOP_LOOK_S = 0.02
TRACE_MAX = 2_000


class World:
    """Everything that one seed's cluster consists of."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, plan.random("network"), plan.quality)
        self.ensemble = Ensemble(self.network.host(HOST))
        self.machines = [Machine(self, number) for number in range(1, plan.brokers + 1)]
        self.counts: Counter[str] = Counter()
        """How often what happened: whether the seeds explore can be seen here."""
        self.trace: list[str] = []
        self.failures: list[str] = []

    @property
    def bootstrap(self) -> list[str]:
        return [f"{machine.name}:{PORT}" for machine in self.machines]

    def note(self, text: str) -> None:
        """Remember what happened, with its time: the story that a failing seed tells."""
        if len(self.trace) < TRACE_MAX:
            self.trace.append(f"{self.loop.time():9.4f} {text}")

    def fail(self, text: str) -> None:
        """Something that must not happen did."""
        self.note(f"FAILED {text}")
        if text not in self.failures:
            self.failures.append(text)

    def executor(self, what: str) -> VirtualExecutor:
        random = self.plan.random(what)
        return VirtualExecutor(self.loop, random, delay_ms_max=self.plan.disk_ms_max)

    def close(self) -> None:
        self.loop.close()


class Machine:
    """One broker's host, disk and process."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.broker_id = broker_id
        self.name = f"broker-{broker_id}"
        self.host: SimHost = world.network.host(self.name)
        self.disk = CrashDisk(world.plan.random(f"{self.name}/disk"))
        self.disk.on_cut = self._power_went
        self.server: BrokerServer | None = None
        self.is_up = False
        """Whether its broker has come up and serves clients."""
        self.is_on = False
        """Whether there is a process."""
        self.starts = 0
        self._world = world
        self._lost_power = False

    def __repr__(self) -> str:
        return self.name

    # The process

    def boot(self) -> None:
        """Start a process, with what the disk has kept."""
        if self.is_on:
            return
        if self.starts:
            self.disk.power_on() if self._lost_power else self.disk.restart()
            self.host.boot()
        self._lost_power = False
        self.starts += 1
        self.is_on = True
        self.server = self.host.domain.run(self._make)
        self.host.run(self._serve(self.server))

    def _make(self) -> BrokerServer:
        world, life = self._world, f"{self.name}.{self.starts}"
        config, _ = load_broker_config(environ={}, overrides=self._settings())
        executors = (world.executor(f"{life}/work-{number}") for number in range(100))
        return BrokerServer(
            config,
            clock=self.host.clock,
            random=world.plan.random(life),
            files=self.disk,
            store=self._store(),
            connector=self.host.connect,
            binder=self._bind,
            executors=lambda *, threads, name: next(executors),
        )

    def _store(self) -> FarStore:
        post, ops_max = self._world.ensemble.post, self._world.plan.ops_per_commit
        if ops_max:
            store = CuttingStore(post, self.host.connect, self.host.clock, ops_max=ops_max)
            store.on_cut = self._commit_was_cut
            return store
        return FarStore(post, self.host.connect, self.host.clock)

    def _commit_was_cut(self) -> None:
        self._world.counts["cut commits"] += 1
        self._world.note(f"a commit of {self.name} was cut")

    def _settings(self) -> dict[str, str]:
        plan = self._world.plan
        return {
            "node.id": str(self.broker_id),
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "store.url": f"zk://{HOST}:2181/",
            "log.dirs": "/data",
            "log.flush.policy": plan.flush_policy,
            "min.insync.replicas": str(MIN_ISR),
            "default.replication.factor": str(REPLICAS),
            "broker.session.timeout.ms": str(plan.session_timeout_ms),
            "replica.lag.time.max.ms": str(plan.lag_max_ms),
            "replica.fetch.wait.max.ms": "300",
            "replica.fetch.backoff.ms": "200",
            "replica.socket.timeout.ms": "1500",
            "controller.socket.timeout.ms": "1500",
            "replica.high.watermark.checkpoint.interval.ms": "1000",
            "leader.imbalance.check.interval.seconds": "4",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": str(REPLICAS),
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }

    def _bind(self, host: str, port: int, options: SocketOptions) -> _Port:
        return _Port(self.host, port)

    async def _serve(self, server: BrokerServer) -> None:
        world = self._world
        try:
            await server.start()
        except (TidemillError, OSError) as error:
            world.counts["failed starts"] += 1
            world.note(f"{self.name} could not start: {error}")
            await server.stop()
            self._exit()
            world.loop.root.call_at_ns(_in(world.loop, RESTART_PAUSE_S), self.boot)
            return
        self.is_up = True
        world.note(f"{self.name} is up")

    async def stop(self) -> None:
        """Go down in good order, from outside of the process."""
        server = self.server
        if not self.is_up or server is None:
            return
        self.is_up = False
        stopping = self.host.run(server.stop())
        while not stopping.done() and self.server is server:  # noqa: ASYNC110
            await asyncio.sleep(STOP_LOOK_S)
        if self.server is not server:
            return  # It fell on its way.
        problem = "cancelled" if stopping.cancelled() else stopping.exception()
        if problem is not None:
            self._world.fail(f"{self.name} did not stop well: {problem!r}")
        self._exit()

    def kill(self) -> None:
        """SIGKILL: the page cache stays."""
        if self.is_on:
            self._exit()

    def _exit(self) -> None:
        self._is_gone()
        self.host.kill()

    def cut_power(self) -> None:
        """What was not flushed is lost, or a part of it."""
        if self.is_on:
            self._power_went()

    def _power_went(self) -> None:
        if self.is_on:
            self._lost_power = True
            self._is_gone()
            self.host.power_off()

    def _is_gone(self) -> None:
        self.is_on = self.is_up = False
        self.server = None

    # What it has

    def partitions(self) -> Iterator[Partition]:
        """The replicas of a broker that is up, for those who look from outside."""
        if self.is_up and self.server is not None and self.server.replicas is not None:
            yield from self.server.replicas

    @property
    def session_id(self) -> int:
        return 0 if self.server is None or not self.is_up else self.server.store.session_id

    @property
    def is_controller(self) -> bool:
        return self.is_up and self.server is not None and self.server.controller.active


class _Port:
    """An address of the simulated network; implements `broker.listener.Bound`."""

    def __init__(self, host: SimHost, port: int) -> None:
        self.port = port
        self._host = host

    async def serve(self, make_protocol: Callable[[], Connection]) -> asyncio.AbstractServer:
        return self._host.listen(make_protocol, self.port)

    def close(self) -> None:
        """Nothing was taken yet."""


def _in(loop: SimLoop, delay_s: float) -> int:
    return loop.now_ns + round(delay_s * 1_000_000_000)
