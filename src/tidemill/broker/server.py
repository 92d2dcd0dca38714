"""A broker's life: how it comes up, serves, and goes down.

Up: raise the file limit, open the store, load and recover the logs, listen to the other brokers,
register, make the partitions follow the image in which this broker is registered, and wait until
the controller has let it in. No client is served before all of that is done (rule K2). Down: hand
leadership over, stop accepting, flush and mark every log clean, and end the session last (K1).

`run` is what `tidemill up` calls. `BrokerServer` is the same broker inside a process that has
more to do: tests, and clusters in one process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random, SystemRandom

from tidemill import __version__
from tidemill.broker import handlers, status
from tidemill.broker.busy_poll import BusyPoll
from tidemill.broker.compaction import make_cleaner
from tidemill.broker.connection import Connection
from tidemill.broker.context import Broker
from tidemill.broker.directories import (
    directory_ids,
    make_directories,
    owner_of,
    report_strays,
)
from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.broker.isr_updates import IsrUpdates
from tidemill.broker.listener import (
    Binder,
    ConnectionCounts,
    Listener,
    SocketOptions,
    TcpAddress,
)
from tidemill.broker.live_limits import LiveLimits
from tidemill.broker.meeting_place import store_url, wanted_id
from tidemill.broker.offsets_topic import OffsetsTopic
from tidemill.broker.peers import Identity, LeaderLinks, Peers
from tidemill.broker.process import (
    calm_garbage_collector,
    cores,
    loop_factory,
    machine_name,
    raise_file_limit,
)
from tidemill.broker.producer_ids import ProducerIds
from tidemill.broker.purgatory import Purgatory
from tidemill.broker.receive import Scratch
from tidemill.broker.replica_reports import Reports
from tidemill.broker.replication_settings import replication_settings
from tidemill.broker.request_memory import RequestMemory
from tidemill.broker.stalls import Stalls
from tidemill.broker.ticker import Ticker
from tidemill.broker.topic_settings import TopicSettings
from tidemill.broker.upkeep import Upkeep
from tidemill.client.connection import Connector, connect_tcp
from tidemill.clock import Clock, SystemClock, monotonic_us
from tidemill.config import BrokerConfig
from tidemill.controller import Controller
from tidemill.coordinators.coordinator import GroupCoordinator, runtime_settings
from tidemill.coordinators.runtime import Machinery
from tidemill.errors import TidemillError
from tidemill.executor import ExecutorFactory, OwnedExecutor, thread_executor
from tidemill.image import ClusterImage, Endpoint, TopicImage
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.storage.files import Files, OsFiles
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.store.base import Store
from tidemill.store.sqlite_session import boot_id
from tidemill.store.url import ZooKeeperUrl, make_store
from tidemill.types import ZERO_TOPIC_ID, TopicPartition

log = logging.getLogger(__name__)

HAND_OVER_S_MAX = 30
WORK_THREADS = 4
GROUP_THREADS = 2
_SWITCH_INTERVAL_S = 0.0005
"""How long a worker thread may keep the interpreter while the loop wants it; Python's 5 ms is an
answer's worth of waiting, again and again, while a checkpoint is written."""

assert handlers  # importing the package fills the dispatch table


class BrokerServer:
    """One broker on the running loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        files: Files | None = None,
        store: Store | None = None,
        connector: Connector = connect_tcp,
        binder: Binder = TcpAddress,
        executors: ExecutorFactory = thread_executor,
        is_own_process: bool = False,
    ) -> None:
        """A simulation brings all of these; `store` is otherwise where the configuration says.

        Whoever has more to do in its process than this broker leaves `is_own_process` alone.
        """
        self.config = config
        self._is_own_process = is_own_process
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._undo = AsyncExitStack()
        self._files = files or self._own_files()
        self._dirs = [str(path.absolute()) for path in config.log_dirs]
        self._given_store = store
        self._connector = connector
        self._binder = binder
        self._executors = executors
        self._broker_epoch = -1
        self._epoch_in_doubt: int | None = None
        """As whom we may have been taken for dead, until the store has spoken."""
        self._is_up = False
        self.peers: Peers | None = None
        self.replicas: ReplicaManager | None = None

    @property
    def host(self) -> str:
        """The first listener's host, as clients are told."""
        return self._endpoints[0].host

    @property
    def port(self) -> int:
        return self.listeners[0].port

    async def start(self) -> None:
        """Come up; when this returns, clients are served."""
        loop = asyncio.get_running_loop()
        self._executor = self._make_executor(WORK_THREADS, "tidemill-work")
        # What clients have us do may queue for long. A lease must be renewed meanwhile, and groups
        # must find their coordinator.
        self._store_executor = self._make_executor(1, "tidemill-store")
        self._group_executor = self._make_executor(GROUP_THREADS, "tidemill-groups")
        self._bind()
        await self._open_store(*await loop.run_in_executor(None, self._prepare_directories))
        await self._load_logs(loop)
        self.timers = Ticker(self._clock, loop, self._timer_failed)
        self._undo.callback(self.timers.close)
        self._make_broker(loop)
        self._replicate()
        await self._serve(loop)
        await self._join()
        self._start_upkeep()

    async def stop(self, *, hands_over: bool = True) -> None:
        """Go down cleanly, undoing what `start` did in the reverse order (rule K1).

        Everything is flushed, the next start needs no recovery, and the session ends last. Tests
        have a broker go without handing over what it leads.
        """
        was_up, self._is_up = self._is_up, False
        if was_up and hands_over:
            await self._hand_over()
        await self._undo.aclose()

    async def _hand_over(self) -> None:
        """Have others take over what this broker leads, before it stops to answer."""
        others = [
            each
            for each in self.controller.image.alive_brokers()
            if each.broker_id != self.controller.broker_id
        ]
        if not others or not self.config.bool("controlled.shutdown.enable"):
            return
        try:
            async with asyncio.timeout(HAND_OVER_S_MAX):
                await self.controller.shut_down()
        except (TidemillError, TimeoutError) as error:
            log.warning("stopping without having handed over leadership: %s", error)

    # Coming up.

    def _own_files(self) -> Files:
        """Files of this machine; what is held open of them is closed last of all."""
        files = OsFiles(self.config.int("log.open.files.max"))
        self._undo.callback(files.close_all)
        return files

    def _bind(self) -> None:
        """Take the addresses first: one that is in use is an error before anything is touched."""
        self._limits = LiveLimits(self.config)
        counts = ConnectionCounts(self._clock)
        options = SocketOptions(
            self.config.int("socket.listen.backlog.size"),
            self.config.int("socket.send.buffer.bytes"),
            self.config.int("socket.receive.buffer.bytes"),
        )
        self.listeners = [
            Listener(
                each.name, each.host, each.port, self._limits.caps, counts, options, self._binder
            )
            for each in self.config.listeners
        ]
        for listener in self.listeners:
            listener.bind()
            self._undo.callback(listener.stop_accepting)
        self._endpoints = self._advertised()

    def _advertised(self) -> list[Endpoint]:
        """What clients are told: a port that was left open and a host that was left out are those
        that the listener got."""
        bound = {listener.name: listener for listener in self.listeners}
        return [
            Endpoint(
                each.name,
                each.host or machine_name(bound[each.name].host),
                each.port or bound[each.name].port,
                each.protocol,
            )
            for each in self.config.advertised_listeners
        ]

    def _prepare_directories(self) -> tuple[str, int]:
        """Make those that are missing; the ids of cluster and node that they belong to."""
        make_directories(self._files, self._dirs)
        return owner_of(self._files, self._dirs, wanted_id(self.config))

    async def _open_store(self, cluster_id: str, broker_id: int) -> None:
        self.store = self._given_store or make_store(
            store_url(self.config), self._clock, self._store_executor
        )
        self.controller = Controller(
            self.store,
            self.config,
            self._clock,
            self._random,
            broker_id=broker_id,
            cluster_id=cluster_id,
        )
        self._undo.push_async_callback(self.store.close)
        self._undo.callback(self._close_peers)
        self._undo.push_async_callback(self.controller.stop)
        await self.controller.start()
        self._connect_peers()
        self.controller.on_session_lost(self._session_lost)
        self._apply_dynamic(self.controller.image)
        self._topic_settings = TopicSettings(self.config)

    @property
    def _is_ensemble(self) -> bool:
        """Whether brokers of several machines meet, each in its own time."""
        return isinstance(store_url(self.config), ZooKeeperUrl)

    def _connect_peers(self) -> None:
        controller = self.controller
        identity = Identity(
            controller.broker_id, lambda: controller.broker_epoch, lambda: controller.secret
        )
        self.peers = Peers(
            identity,
            lambda: controller.image,
            self._clock,
            self._random,
            listener=self.config.optional_str("inter.broker.listener.name"),
            connector=self._connector,
        )
        controller.connect(self.peers)
        controller.subscribe(self.peers.follow)

    def _close_peers(self) -> None:
        if self.peers is not None:
            self.peers.close()

    async def _load_logs(self, loop: asyncio.AbstractEventLoop) -> None:
        image = self.controller.image
        no_topic = TopicImage("", ZERO_TOPIC_ID, ())

        def config_for(topic_partition: TopicPartition) -> LogConfig:
            return self._topic_settings.of(image.topic(topic_partition.topic) or no_topic).log

        self.logs = LogManager(
            self._dirs,
            files=self._files,
            clock=self._clock,
            random=self._random,
            executor=self._executor,
            config_for=config_for,
            expected=image.replicas_of(self.controller.broker_id),
            cluster_id=image.cluster_id,
            node_id=self.controller.broker_id,
            flush_executor=self._flush_executor,
            on_dir_failure=self._dir_failed,
        )
        self._limits.apply_to(self.logs)
        self._undo.push_async_callback(self._close_logs)
        # Recovery reads whole segments: not on the loop, so that a signal can still end it.
        await loop.run_in_executor(None, self.logs.start)

    async def _close_logs(self) -> None:
        marks = {} if self.replicas is None else self.replicas.high_watermarks()
        # Whoever was never let in has changed nothing since the last clean stop.
        epoch = self._broker_epoch if self._broker_epoch >= 0 else self.logs.previous_broker_epoch
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: self.logs.shutdown(marks, broker_epoch=epoch))

    def _flush_executor(self, directory: str) -> OwnedExecutor:
        """Threads of its own for each directory: one slow disk does not hold up another."""
        return self._make_executor(self.config.int("log.flush.threads"), "tidemill-flush")

    def _make_executor(self, threads: int, name: str) -> OwnedExecutor:
        loop = asyncio.get_running_loop()
        executor = self._executors(threads=threads, name=name)

        async def close() -> None:
            await loop.run_in_executor(None, executor.close)

        self._undo.push_async_callback(close)
        return executor

    def _make_broker(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        self.purgatory = Purgatory(self.timers, loop.call_soon)
        replicas = self.replicas = ReplicaManager(
            self.controller.broker_id,
            self.logs,
            self._clock,
            self._executor,
            self._topic_settings.of,
            self._partition_moved,
            self.timers.schedule,
            on_appended=self.purgatory.partition_appended,
            on_led=self.purgatory.partition_led,
            replication=replication_settings(config),
        )
        self._undo.push_async_callback(replicas.close)
        self.groups = self._make_groups(loop, replicas)
        slots = config.int("max.incremental.fetch.session.cache.slots")
        self.broker = Broker(
            broker_id=self.controller.broker_id,
            config=config,
            clock=self._clock,
            random=self._random,
            timers=self.timers,
            purgatory=self.purgatory,
            executor=self._executor,
            logs=self.logs,
            controller=self.controller,
            replicas=replicas,
            fetch_sessions=FetchSessions(slots, self._clock, self._random),
            producer_ids=ProducerIds(self.controller.allocate_producer_ids),
            groups=self.groups,
            offsets_topic=OffsetsTopic(self.controller, config, is_patient=self._is_ensemble),
            image=self.controller.image,
        )
        self.cleaner = make_cleaner(
            self.logs, replicas, config, self._clock, self._executor, self.timers
        )
        self.controller.subscribe(self._image_changed)

    def _replicate(self) -> None:
        """Bring partitions together with the way to other brokers."""
        controller, config = self.controller, self.config
        assert self.peers is not None
        assert self.replicas is not None
        isr_updates = IsrUpdates(
            controller.broker_id, lambda: controller.broker_epoch, controller.alter_partition
        )
        reports = Reports(controller.replicas_lost)
        self._undo.callback(isr_updates.close)
        self._undo.callback(reports.close)
        links = LeaderLinks(self.peers, lambda: config.int("replica.socket.timeout.ms"))
        self.replicas.replicate(links, isr_updates, reports)

    async def _join(self) -> None:
        """Register, and wait until the controller, if that is not us, has let us in (rule K2)."""
        config = self.config
        await self.controller.register_broker(
            self._endpoints,
            rack=config.optional_str("broker.rack"),
            directory_id=directory_ids(self._files, self._dirs),
            clean_shutdown_epoch=self.logs.previous_broker_epoch,
            flush_policy=config.str("log.flush.policy"),
            machine=boot_id(),
        )
        await self.controller.admitted(config.int("initial.broker.registration.timeout.ms"))
        self.broker.serves_clients = True
        self._is_up = True

    def _make_groups(
        self, loop: asyncio.AbstractEventLoop, replicas: ReplicaManager
    ) -> GroupCoordinator:
        config = self.config
        machinery = Machinery(
            self._clock,
            self.timers,
            self._group_executor,
            loop.call_soon,
            runtime_settings(config),
        )
        return GroupCoordinator(config, self._random, machinery, replicas.get)

    def _partition_moved(self, partition: Partition) -> None:
        self.purgatory.partition_moved(partition)
        self.groups.partition_moved(partition)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        pool_bytes = self.config.int("queued.max.request.bytes")
        memory = RequestMemory(
            pool_bytes if pool_bytes > 0 else 2**62, self._clock, self.timers.schedule
        )
        scratch = Scratch()
        busy_poll = self._make_busy_poll(loop)

        def make_connection(listener: Listener) -> Connection:
            limits = self._limits.connection
            return Connection(self.broker, listener, memory, scratch, limits, busy_poll, loop)

        for listener in self.listeners:
            await listener.start(make_connection)
            self._undo.push_async_callback(listener.drain)
        # Whoever waits in a rebalance is sent off before the connections are drained.
        self._undo.callback(self.groups.close)

    def _make_busy_poll(self, loop: asyncio.AbstractEventLoop) -> BusyPoll:
        """One that polls if the process is all ours, and has a core to spare for clients."""
        key = "socket.busy.poll.us"
        busy_poll = BusyPoll(loop.call_soon, monotonic_us)

        def read() -> None:
            busy_poll.limit_us = self.config.int(key)

        if self._is_own_process and cores() > 1:
            read()
            self.config.subscribe((key,), lambda changed: read())
        return busy_poll

    def _start_upkeep(self) -> None:
        self.upkeep = Upkeep(self.broker, self._files, self.cleaner)
        self._undo.callback(self.upkeep.stop)
        self.upkeep.start()
        self.stalls = Stalls(
            self._clock,
            self.timers.schedule,
            lambda: self.config.int("broker.session.timeout.ms"),
            self.store,
            fence=self._session_in_doubt,
            confirmed=self._session_confirmed,
        )
        self._undo.callback(self.stalls.stop)
        self.stalls.start()

    # Staying up.

    def _image_changed(self, image: ClusterImage) -> None:
        """Follow the image, if this broker, as it is now, is in it.

        An image without it says nothing of what it should do: it was made before our time, or
        after we were taken for dead. It still says who else there is. So does one that comes while
        that is in doubt: it may be from before.
        """
        self._apply_dynamic(image)
        self._topic_settings.forget()
        own = image.broker(self.controller.broker_id)
        epoch = self.controller.broker_epoch
        if own is None or own.epoch != epoch or epoch == self._epoch_in_doubt:
            self.broker.image = image
            return
        if self._broker_epoch < 0:
            report_strays(self.logs.logs.values(), image)
            self.broker.replicas.apply(image, at_once=True)
        self._broker_epoch = own.epoch
        self.broker.apply_image(image)

    def _session_lost(self) -> None:
        """Others may lead by now what we lead: stop until we are registered anew (rule A9)."""
        if self.replicas is not None:
            self.replicas.stop_leading()

    def _session_in_doubt(self) -> None:
        """Lead nothing, whatever images come, until the store or a new registration says more."""
        self._epoch_in_doubt = self.controller.broker_epoch
        self._session_lost()

    def _session_confirmed(self) -> None:
        """After a stall nobody has taken us for dead: lead again what the last image says."""
        self._epoch_in_doubt = None
        if self.controller.broker_epoch >= 0:
            self._image_changed(self.controller.image)

    def _apply_dynamic(self, image: ClusterImage) -> None:
        own = image.broker_configs.get(self.controller.broker_id, {})
        self.config.apply_dynamic(own, image.default_broker_config)

    def _dir_failed(self, directory: str, lost: list[TopicPartition]) -> None:
        causes = (str(each.failure) for each in self.logs.dirs if each.path == directory)
        log.error(
            "log directory %s failed, %d partitions are offline: %s",
            directory, len(lost), next(causes, "unknown"),
        )  # fmt: skip
        if self.replicas is not None:
            self.replicas.take_offline(lost)

    def _timer_failed(self, error: Exception) -> None:
        log.error("a timer failed", exc_info=error)

    def status(self) -> status.BrokerStatus:
        """What tools on this machine are told."""
        return status.BrokerStatus(
            id=self.controller.broker_id,
            host=self.host,
            port=self.port,
            pid=os.getpid(),
            cluster_id=self.broker.cluster_id,
            version=__version__,
            started_ms=self._clock.now_ms(),
            data_dir=self._dirs[0],
        )


async def serve(
    config: BrokerConfig,
    *,
    on_ready: Callable[[BrokerServer], object] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run a broker until `stop` is set, or until SIGTERM or SIGINT comes."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = BrokerServer(config, is_own_process=True)
    try:
        await server.start()
        calm_garbage_collector()
        with status.noted(server.status()):
            if on_ready is not None:
                on_ready(server)
            await stop.wait()
    finally:
        await server.stop()


def run(config: BrokerConfig, *, on_ready: Callable[[BrokerServer], object] | None = None) -> None:
    """Run a broker in this process, in the foreground: the body of `tidemill up`."""
    raise_file_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.disable()  # Until the broker is up: what a start makes stays, and there is nothing to find.
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(config, on_ready=on_ready))
