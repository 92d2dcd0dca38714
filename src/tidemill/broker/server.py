"""A broker's life: how it comes up, serves, and goes down.

Up: raise the file limit, load and recover the logs, open the store, join the cluster, make the
partitions follow its image, then listen. Nobody is served before all of that is done (rule K2).
Down: stop accepting, leave the cluster, flush and mark every log clean, let go of the directories.

`run` is what `tidemill up` calls. `BrokerServer` is the same broker inside a process that has
more to do: tests, and clusters in one process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random, SystemRandom

from tidemill import __version__
from tidemill.broker import handlers, status
from tidemill.broker.compaction import make_cleaner
from tidemill.broker.connection import Connection, Limits
from tidemill.broker.context import Broker
from tidemill.broker.directories import cluster_of, report_strays
from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.broker.housekeeping import Housekeeping
from tidemill.broker.listener import (
    UNLIMITED,
    ConnectionCaps,
    ConnectionCounts,
    Listener,
    SocketOptions,
)
from tidemill.broker.offsets_topic import OffsetsTopic
from tidemill.broker.producer_ids import ProducerIds
from tidemill.broker.purgatory import Purgatory
from tidemill.broker.receive import Scratch
from tidemill.broker.request_memory import RequestMemory
from tidemill.broker.ticker import Ticker
from tidemill.broker.topic_settings import TopicSettings
from tidemill.clock import Clock, SystemClock
from tidemill.config import BrokerConfig, Source
from tidemill.controller import Controller
from tidemill.coordinators.coordinator import GroupCoordinator, runtime_settings
from tidemill.coordinators.runtime import Machinery
from tidemill.executor import ThreadExecutor
from tidemill.image import ClusterImage, Endpoint, TopicImage
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.storage.files import Files, OsFiles
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.storage.scrub import Scrubber, ScrubLimits
from tidemill.store.sqlite import SqliteStore
from tidemill.types import ZERO_TOPIC_ID, TopicPartition

log = logging.getLogger(__name__)

STORE_NAME = "store.db"
WORK_THREADS = 4
FLUSH_CHECK_MS = 1_000
REMOVAL_CHECK_MS = 1_000
SCRUB_CHECK_MS = 1_000
_GC_THRESHOLD = 50_000
_SWITCH_INTERVAL_S = 0.0005
"""How long a worker thread may keep the interpreter while the loop wants it; Python's 5 ms is an
answer's worth of waiting, again and again, while a checkpoint is written."""

_CONNECTION_KEYS = (
    "socket.request.max.bytes",
    "connections.max.idle.ms",
    "connection.handshake.timeout.ms",
    "connection.partial.frame.timeout.ms",
)
_CAP_KEYS = (
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
)
_STORAGE_KEYS = ("log.disk.reserve.bytes", "producer.id.expiration.ms")

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
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._files = files or OsFiles(config.int("log.open.files.max"))
        self._dirs = [str(path.absolute()) for path in config.log_dirs]
        self._undo = AsyncExitStack()
        self._broker_epoch = -1
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
        self._bind()
        await self._open_store(await loop.run_in_executor(None, self._prepare_directories))
        await self._load_logs(loop)
        self._broker_epoch = await self.controller.register_broker(
            self._endpoints, rack=self.config.optional_str("broker.rack")
        )
        self.timers = Ticker(self._clock, loop, self._timer_failed)
        self._undo.callback(self.timers.close)
        self._make_broker(loop)
        await self._serve(loop)
        self._start_housekeeping()
        status.write(self._dirs[0], self.status())
        self._undo.callback(status.remove, self._dirs[0])

    async def stop(self) -> None:
        """Go down cleanly, undoing what `start` did in the reverse order (rule K1).

        Everything is flushed, the next start needs no recovery, and the session ends last.
        """
        await self._undo.aclose()

    # Coming up.

    def _bind(self) -> None:
        """Take the addresses first: one that is in use is an error before anything is touched."""
        self._caps = ConnectionCaps(UNLIMITED, UNLIMITED, {})
        self._read_caps()
        counts = ConnectionCounts(self._clock)
        options = SocketOptions(
            self.config.int("socket.listen.backlog.size"),
            self.config.int("socket.send.buffer.bytes"),
            self.config.int("socket.receive.buffer.bytes"),
        )
        self.listeners = [
            Listener(each.name, each.host, each.port, self._caps, counts, options)
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
                each.host or _machine_name(bound[each.name].host),
                each.port or bound[each.name].port,
                each.protocol,
            )
            for each in self.config.advertised_listeners
        ]

    def _prepare_directories(self) -> str:
        """Make those that are missing; the id of the cluster that they belong to, if any."""
        Path(self._dirs[0]).mkdir(parents=True, exist_ok=True)
        for directory in self._dirs[1:]:
            # The store is in the first; a log directory that cannot be used is an offline one.
            with suppress(OSError):
                Path(directory).mkdir(parents=True, exist_ok=True)
        return cluster_of(self._files, self._dirs, self.config.broker_id)

    async def _open_store(self, cluster_id: str) -> None:
        path = Path(self._dirs[0]) / STORE_NAME
        self.store = SqliteStore(path, self._clock, self._executor)
        self.controller = Controller(
            self.store,
            self.config,
            self._clock,
            self._random,
            broker_id=self.config.broker_id,
            cluster_id=cluster_id,
        )
        self._undo.push_async_callback(self.store.close)
        self._undo.push_async_callback(self.controller.stop)
        await self.controller.start()
        self._apply_dynamic(self.controller.image)
        self._topic_settings = TopicSettings(self.config)

    async def _load_logs(self, loop: asyncio.AbstractEventLoop) -> None:
        image = self.controller.image
        no_topic = TopicImage("", ZERO_TOPIC_ID, ())

        def config_for(topic_partition: TopicPartition) -> LogConfig:
            topic = image.topic(topic_partition.topic)
            return self._topic_settings.of(topic or no_topic).log

        self.logs = LogManager(
            self._dirs,
            files=self._files,
            clock=self._clock,
            random=self._random,
            executor=self._executor,
            config_for=config_for,
            cluster_id=image.cluster_id,
            node_id=self.controller.broker_id,
            flush_executor=self._flush_executor,
            on_dir_failure=self._dir_failed,
        )
        self._read_storage_limits()
        self._undo.push_async_callback(self._close_logs)
        # Recovery reads whole segments: not on the loop, so that a signal can still end it.
        await loop.run_in_executor(None, self.logs.start)

    async def _close_logs(self) -> None:
        marks = {} if self.replicas is None else self.replicas.high_watermarks()
        epoch = self._broker_epoch
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: self.logs.shutdown(marks, broker_epoch=epoch))

    def _flush_executor(self, directory: str) -> ThreadExecutor:
        """Threads of its own for each directory: one slow disk does not hold up another."""
        return self._make_executor(self.config.int("log.flush.threads"), "tidemill-flush")

    def _make_executor(self, threads: int, name: str) -> ThreadExecutor:
        loop = asyncio.get_running_loop()
        executor = ThreadExecutor(loop.call_soon_threadsafe, threads=threads, name=name)

        async def close() -> None:
            await loop.run_in_executor(None, executor.close)

        self._undo.push_async_callback(close)
        return executor

    def _make_broker(self, loop: asyncio.AbstractEventLoop) -> None:
        config, image = self.config, self.controller.image
        self.purgatory = Purgatory(self.timers, loop.call_soon)
        replicas = self.replicas = ReplicaManager(
            self.controller.broker_id,
            self.logs,
            self._clock,
            self._executor,
            self._topic_settings.of,
            self._partition_moved,
            self.timers.schedule,
        )
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
            offsets_topic=OffsetsTopic(self.controller, config),
            image=image,
        )
        self.cleaner = make_cleaner(
            self.logs, replicas, config, self._clock, self._executor, self.timers
        )
        report_strays(self.logs.logs.values(), image)
        replicas.apply(image, at_once=True)
        self.groups.apply(image)
        self.controller.subscribe(self._image_changed)

    def _make_groups(
        self, loop: asyncio.AbstractEventLoop, replicas: ReplicaManager
    ) -> GroupCoordinator:
        config = self.config
        machinery = Machinery(
            self._clock,
            self.timers,
            self._executor,
            loop.call_soon,
            runtime_settings(config),
        )
        return GroupCoordinator(config, self._random, machinery, replicas.get)

    def _partition_moved(self, partition: Partition) -> None:
        self.purgatory.partition_moved(partition)
        self.groups.partition_moved(partition)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = Limits(0, 0, 0, 0)
        self._read_limits()
        self.config.subscribe(_CONNECTION_KEYS, lambda changed: self._read_limits())
        self.config.subscribe(_CAP_KEYS, lambda changed: self._read_caps())
        self.config.subscribe(_STORAGE_KEYS, lambda changed: self._read_storage_limits())
        pool_bytes = self.config.int("queued.max.request.bytes")
        memory = RequestMemory(
            pool_bytes if pool_bytes > 0 else 2**62, self._clock, self.timers.schedule
        )
        scratch = Scratch()

        def make_connection(listener: Listener) -> Connection:
            return Connection(self.broker, listener, memory, scratch, self._limits, loop)

        for listener in self.listeners:
            await listener.start(make_connection)
            self._undo.push_async_callback(listener.drain)
        # Whoever waits in a rebalance is sent off before the connections are drained.
        self._undo.callback(self.groups.close)

    def _start_housekeeping(self) -> None:
        housekeeping = Housekeeping(self.timers, self.config)
        self._undo.callback(housekeeping.stop)
        every = housekeeping.every
        every("replica.high.watermark.checkpoint.interval.ms", "checkpoint", self._checkpoint)
        every("log.retention.check.interval.ms", "retention", self._retention)
        every(FLUSH_CHECK_MS, "flush", self._flush_overdue)
        every("offsets.retention.check.interval.ms", "offsets expiry", self._expire_offsets)
        every(REMOVAL_CHECK_MS, "removal of deleted files", self._remove_deleted)
        self._undo.callback(self.cleaner.stop)
        every("log.cleaner.backoff.ms", "compaction", self.cleaner.run)
        self.scrubber = Scrubber(
            self.logs,
            self._files,
            self._clock,
            self._executor,
            self.timers.schedule,
            self._scrub_limits,
        )
        self._undo.callback(self.scrubber.stop)
        every(SCRUB_CHECK_MS, "scrub", self.scrubber.run_if_due)

    # Staying up.

    def _image_changed(self, image: ClusterImage) -> None:
        self._apply_dynamic(image)
        self._topic_settings.forget()
        self.broker.apply_image(image)

    def _apply_dynamic(self, image: ClusterImage) -> None:
        own = image.broker_configs.get(self.controller.broker_id, {})
        self.config.apply_dynamic(own, image.default_broker_config)

    def _read_limits(self) -> None:
        config, limits = self.config, self._limits
        limits.request_bytes_max = config.int("socket.request.max.bytes")
        limits.idle_ms = config.int("connections.max.idle.ms")
        limits.handshake_ms = config.int("connection.handshake.timeout.ms")
        limits.frame_ms = config.int("connection.partial.frame.timeout.ms")

    def _read_caps(self) -> None:
        config = self.config
        self._caps.total = min(config.int("max.connections"), _half_of_file_limit())
        self._caps.per_address = config.int("max.connections.per.ip")
        self._caps.new_per_second = config.int("max.connection.creation.rate")
        self._caps.per_address_overrides = _overrides(
            config.str("max.connections.per.ip.overrides")
        )

    def _read_storage_limits(self) -> None:
        config = self.config
        self.logs.producer_expiration_ms = config.int("producer.id.expiration.ms")
        reserve_bytes = config.int("log.disk.reserve.bytes")
        is_wanted = config.source("log.disk.reserve.bytes") is not Source.DEFAULT
        for log_dir in self.logs.dirs:
            log_dir.keep_in_reserve(reserve_bytes, is_wanted=is_wanted)

    def _scrub_limits(self) -> ScrubLimits:
        return ScrubLimits(
            self.config.int("log.scrub.bytes.per.second"),
            self.config.int("log.scrub.interval.ms"),
        )

    def _checkpoint(self, done: Callable[[], None]) -> None:
        self.logs.write_checkpoints(self.broker.replicas.high_watermarks(), then=done)

    def _retention(self, done: Callable[[], None]) -> None:
        steps = self.logs.retention_steps(self.broker.replicas.high_watermarks())
        self._step_by_step(steps, done)

    def _expire_offsets(self, done: Callable[[], None]) -> None:
        self._step_by_step(self.groups.expiry(), done)

    def _step_by_step(self, steps: Iterator[object], done: Callable[[], None]) -> None:
        """A little per turn of the loop: ten thousand logs must not be felt by anybody."""
        over = object()

        def step() -> None:
            if next(steps, over) is over:
                done()
            else:
                self.timers.schedule(1, step)

        step()

    def _flush_overdue(self, done: Callable[[], None]) -> None:
        self.logs.flush_overdue()
        done()

    def _remove_deleted(self, done: Callable[[], None]) -> None:
        self.logs.remove_doomed()
        done()

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
    server = BrokerServer(config)
    try:
        await server.start()
        _calm_garbage_collector()
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
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(config, on_ready=on_ready))


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: connections and segments need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _calm_garbage_collector() -> None:
    """What start-up made stays: leave it out of every later collection, and collect more rarely.

    Requests make no cycles, so reference counting frees them; each full collection that is not
    run is a pause that the slowest percentile does not see.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(_GC_THRESHOLD, 20, 100)


def _half_of_file_limit() -> int:
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _overrides(text: str) -> dict[str, int]:
    """`HOST:COUNT,HOST:COUNT` as a mapping; what does not parse is left out."""
    pairs = (pair.rpartition(":") for pair in text.split(",") if pair.strip())
    return {
        host.strip(): int(count) for host, _, count in pairs if host and count.strip().isdigit()
    }


def _machine_name(host: str) -> str:
    """The name to tell clients for a listener on all interfaces."""
    import socket

    return socket.getfqdn() if host in ("", "0.0.0.0", "::") else host
