"""Where records wait: one queue of batches per partition, and a bound on the memory of them all.

`Accumulator.add` is the producer's inner loop: find the partition, append to its open batch, hand
back a `Delivery`. A record for a topic that is not known yet is held until it is. Whenever a batch
may be sent - it is full, has lingered, is flushed or awaited - `on_ready(queue)` tells the sender.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidemill.client.batches import Batch, Delivery, Held
from tidemill.client.cluster import Cluster
from tidemill.client.errors import BufferFullError, ClientError, SettingsError
from tidemill.client.partitioner import (
    CustomPartitioner,
    RoundRobin,
    StickyChoice,
    positive_hash,
)
from tidemill.client.producer_types import Headers
from tidemill.client.sequences import Sequences
from tidemill.client.settings import ProducerSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.records import RECORD_OVERHEAD_BYTES_MAX, BatchBuilder

_HEADER_OVERHEAD_BYTES = 10


class PartitionQueue:
    """The batches of one partition in order; only the last one can be open."""

    __slots__ = (
        "backing_off",
        "batches",
        "open",
        "opened",
        "partition",
        "preparing",
        "queued",
        "sequences",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.open: Batch | None = None
        self.opened = 0
        self.sequences = Sequences()
        self.backing_off = False
        self.preparing = False
        self.queued = False

    @property
    def is_due(self) -> bool:
        """Whether the first batch need not wait for more records."""
        return bool(self.batches) and (self.batches[0].closed or self.batches[0].due)

    def take(self) -> Batch:
        """The first batch, closed."""
        batch = self.batches.popleft()
        batch.closed = True
        if batch is self.open:
            self.open = None
        return batch

    def put_back(self, batch: Batch) -> None:
        """Return a batch that must be sent again to its place: before all that came later."""
        earlier = []
        while self.batches and self.batches[0].order < batch.order:
            earlier.append(self.batches.popleft())
        self.batches.appendleft(batch)
        self.batches.extendleft(reversed(earlier))


class _HeldRecord(NamedTuple):
    held: Held
    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    size_bytes: int


class _Route:
    """A topic's queues; while `held` has records, new ones must line up behind them."""

    __slots__ = ("available", "held", "queues", "sticky", "waiting")

    def __init__(self, sticky: StickyChoice) -> None:
        self.queues: list[PartitionQueue] = []
        self.available: list[int] = []
        self.sticky = sticky
        self.held: list[_HeldRecord] = []
        self.waiting: asyncio.Task[None] | None = None


class Accumulator:
    """All queues of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        on_ready: Callable[[PartitionQueue], None],
        on_new: Callable[[PartitionQueue, Batch], None],
    ) -> None:
        self.used_bytes = 0
        self._settings = settings
        self._cluster = cluster
        self._clock = cluster.clock
        self._on_ready = on_ready
        self._on_new = on_new
        self._batch_bytes = max(settings.batch_size, 1)
        self._linger_s = settings.linger_ms / 1000
        self._limit_bytes = settings.buffer_memory
        self._routes: dict[str, _Route] = {}
        self._custom = self._choose_partitioner()
        self._hash_keys = not settings.partitioner_ignore_keys
        self._unfinished: dict[Batch, None] = {}
        self._held_count = 0
        self._room: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop = asyncio.get_running_loop()

    def _choose_partitioner(self) -> CustomPartitioner | None:
        chosen: object = self._settings.partitioner
        if chosen is None or callable(chosen):
            return chosen
        if chosen in ("round-robin", "round_robin", "roundrobin"):
            return RoundRobin(self._cluster.random)
        raise SettingsError(f"`partitioner` must be a callable or `round-robin`, not {chosen!r}")

    # --- adding ----------------------------------------------------------------------------------

    def size_of(self, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """What a record may take at most, encoded; raises if no request could carry it."""
        size = RECORD_OVERHEAD_BYTES_MAX
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        for name, content in headers:
            size += len(name) * 4 + _HEADER_OVERHEAD_BYTES + (len(content) if content else 0)
        limit = self._settings.max_request_size
        if size + HEADER_BYTES > limit or size > self._limit_bytes:
            raise ClientError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes does not fit into max.request.size={limit}"
                f" and buffer.memory={self._limit_bytes}",
            )
        return size

    def add(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size: int,
        urgent: bool = False,
    ) -> Delivery:
        """Queue one record of `size` bytes at most; an urgent one makes its batch due."""
        if self.used_bytes + size > self._limit_bytes:
            raise BufferFullError(size, self._limit_bytes)
        route = self._routes.get(topic)
        if route is None or route.held or not route.queues:
            return self._hold(topic, partition, timestamp_ms, key, value, headers, size, urgent)
        queue = self._choose(route, topic, partition, key, value, size)
        batch, index = self._append(queue, timestamp_ms, key, value, headers, size)
        if urgent and not batch.due:
            self._make_due(queue, batch)
        return Delivery(batch, index, timestamp_ms)

    def _choose(
        self,
        route: _Route,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        size: int,
    ) -> PartitionQueue:
        queues = route.queues
        if partition is None:
            if self._custom is not None:
                partition = self._custom(topic, key, value, len(queues))
            elif key is not None and self._hash_keys:
                return queues[positive_hash(key) % len(queues)]
            elif route.sticky.take(size):
                return queues[route.sticky.current]
            else:
                return queues[self._stick_anew(route)]
        if not 0 <= partition < len(queues):
            raise ClientError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} has no partition {partition}, only 0 to {len(queues) - 1}",
            )
        return queues[partition]

    def _stick_anew(self, route: _Route) -> int:
        available = route.available or list(range(len(route.queues)))
        loads = None
        if self._settings.partitioner_adaptive_partitioning_enable:
            loads = [len(route.queues[index].batches) for index in available]
        return route.sticky.choose(available, loads)

    def _append(
        self,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size: int,
    ) -> tuple[Batch, int]:
        batch = queue.open
        if batch is None:
            batch = self._open_batch(queue)
        elif batch.size_bytes + size > self._batch_bytes:
            self._close(queue, batch)
            batch = self._open_batch(queue)
        index = batch.record_count
        assert batch.builder is not None
        total = batch.builder.append(timestamp_ms, key, value, headers)
        self.used_bytes += total - batch.size_bytes
        batch.size_bytes = total
        batch.record_count = index + 1
        if total >= self._batch_bytes:
            self._close(queue, batch)
        return batch, index

    def _open_batch(self, queue: PartitionQueue) -> Batch:
        queue.opened += 1
        batch = Batch(queue.partition, self._clock.monotonic_ms(), (queue.opened,))
        queue.batches.append(batch)
        queue.open = batch
        self._unfinished[batch] = None
        self._on_new(queue, batch)
        if self._linger_s > 0:
            self._loop.call_later(self._linger_s, self._make_due, queue, batch)
        else:
            self._make_due(queue, batch)
        return batch

    def _close(self, queue: PartitionQueue, batch: Batch) -> None:
        batch.closed = True
        queue.open = None
        self._on_ready(queue)

    def _make_due(self, queue: PartitionQueue, batch: Batch) -> None:
        if not batch.closed:
            batch.due = True
            self._on_ready(queue)

    def add_encoded(self, topic: str, partition: int, encoded: BatchBuilder) -> Delivery:
        """Queue a whole batch of a known topic; its delivery is that of its last record."""
        route = self._route(topic)
        if partition >= len(route.queues):
            self.update_routes()
        queue = self._choose(route, topic, partition, None, None, encoded.size_bytes)
        if queue.open is not None:
            self._close(queue, queue.open)
        queue.opened += 1
        batch = Batch(queue.partition, self._clock.monotonic_ms(), (queue.opened,), encoded)
        queue.batches.append(batch)
        self.used_bytes += batch.size_bytes
        self._unfinished[batch] = None
        self._on_new(queue, batch)
        self._on_ready(queue)
        return Delivery(batch, batch.record_count - 1, encoded.max_timestamp)

    # --- topics that are not known yet -----------------------------------------------------------

    def _hold(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size: int,
        urgent: bool,
    ) -> Delivery:
        route = self._route(topic)
        held = Held()
        held.urgent = urgent
        route.held.append(_HeldRecord(held, partition, timestamp_ms, key, value, headers, size))
        self.used_bytes += size
        self._held_count += 1
        if route.waiting is None:
            route.waiting = self._loop.create_task(self._wait_for_topic(topic, route))
        return Delivery(None, 0, timestamp_ms, held)

    def _route(self, topic: str) -> _Route:
        route = self._routes.get(topic)
        if route is None:
            route = _Route(StickyChoice(self._cluster.random, self._batch_bytes))
            self._routes[topic] = route
        return route

    async def _wait_for_topic(self, topic: str, route: _Route) -> None:
        try:
            await self._cluster.topic(topic, self._settings.max_block_ms)
            self.update_routes()
            self._release(topic, route, None)
        except ClientError as error:
            self._release(topic, route, error)
        finally:
            route.waiting = None

    def _release(self, topic: str, route: _Route, error: ClientError | None) -> None:
        """Let held records go where they belong, in order, or fail with the topic's error."""
        records, route.held = route.held, []
        for record in records:
            self.used_bytes -= record.size_bytes
            self._held_count -= 1
            record.held.error = error
            if error is None:
                self._place(topic, route, record)
        for record in records:
            record.held.settle()
        self._give_room()

    def _place(self, topic: str, route: _Route, record: _HeldRecord) -> None:
        held = record.held
        try:
            queue = self._choose(
                route, topic, record.partition, record.key, record.value, record.size_bytes
            )
        except ClientError as error:
            held.error = error
            return
        except Exception as error:  # noqa: BLE001 - a partitioner may raise anything
            held.error = ClientError(
                ErrorCode.INVALID_RECORD, f"the partitioner failed: {error!r}", hint=""
            )
            held.error.__cause__ = error
            return
        held.batch, held.index = self._append(
            queue, record.timestamp_ms, record.key, record.value, record.headers, record.size_bytes
        )
        held.batch.observed |= held.observed
        if held.urgent:
            self._make_due(queue, held.batch)

    def update_routes(self) -> None:
        """Follow the cluster's view: new partitions, and which ones have a leader."""
        for topic, route in self._routes.items():
            info = self._cluster.view.topics.get(topic)
            if info is None:
                continue
            for index in range(len(route.queues), len(info.partitions)):
                route.queues.append(PartitionQueue(TopicPartition(topic, index)))
            route.available = [
                index for index in info.partitions if self._cluster.view.leader(topic, index)
            ]

    # --- flushing, finishing, room ---------------------------------------------------------------

    async def flush(self) -> list[Batch]:
        """Wait until everything added so far is settled; returns the batches that failed."""
        held = [entry.held for route in self._routes.values() for entry in route.held]
        if held:
            await _all_called([entry.callbacks.append for entry in held])
        for route in self._routes.values():
            for queue in route.queues:
                if queue.open is not None:
                    self._make_due(queue, queue.open)
        failed: list[Batch] = []
        waiting = list(self._unfinished)
        while waiting:
            await _all_called([batch.when_finished for batch in waiting])
            failed += [batch for batch in waiting if batch.error is not None]
            waiting = [part for batch in waiting for _, part in batch.parts]
        return failed

    def finish(self, batch: Batch, error: ClientError | None) -> None:
        """The batch's outcome is known; its memory is free."""
        self._unfinished.pop(batch, None)
        self.used_bytes -= batch.size_bytes
        batch.finish(error)
        self._give_room()

    def replace(self, batch: Batch, parts: list[tuple[int, Batch]]) -> None:
        """`batch` was split: its records are in `parts` now."""
        for _, part in parts:
            part.observed = batch.observed
            self._unfinished[part] = None
            self.used_bytes += part.size_bytes
        batch.parts = parts
        self.finish(batch, None)

    async def room_for(self, size_bytes: int) -> None:
        """Wait until so many bytes fit; first come, first served."""
        if not self._room and self.used_bytes + size_bytes <= self._limit_bytes:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        entry = (size_bytes, future)
        self._room.append(entry)
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000):
                await future
        except TimeoutError:
            raise BufferFullError(size_bytes, self._limit_bytes) from None
        finally:
            if entry in self._room:
                self._room.remove(entry)

    def _give_room(self) -> None:
        """Let in whoever waits, as far as there is room, each with what it asked for."""
        promised = 0
        while self._room:
            size_bytes, future = self._room[0]
            if self.used_bytes + promised + size_bytes > self._limit_bytes:
                break
            self._room.popleft()
            if not future.done():
                promised += size_bytes
                future.set_result(None)
        if promised and self._room:
            # Those just let in run first; whoever takes less than it was promised, or nothing,
            # leaves room that no delivery will tell of.
            self._loop.call_soon(self._give_room)

    @property
    def idle(self) -> bool:
        return not self._unfinished and not self._held_count

    def fail_all(self, error: ClientError) -> None:
        """Give up on everything: the producer is closing."""
        for topic, route in self._routes.items():
            if route.waiting is not None:
                route.waiting.cancel()
            self._release(topic, route, error)
            for queue in route.queues:
                queue.batches.clear()
                queue.open = None
        for batch in list(self._unfinished):
            self.finish(batch, error)


async def _all_called(registrars: list[Callable[[Callable[[], None]], object]]) -> None:
    """Register a callback with each and wait until all were called."""
    left = len(registrars)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def called() -> None:
        nonlocal left
        left -= 1
        if left == 0 and not done.done():
            done.set_result(None)

    for register in registrars:
        register(called)
    await done
