"""The clients of a simulated cluster: real producers and consumers, each a process of its own.

Everything that they do and see goes into one history. A client that fails for good is started
again, under another name, as a process that died is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from tidemill.client.admin import Admin
from tidemill.client.admin_types import NewTopic
from tidemill.client.batches import Delivery
from tidemill.client.consumer import Consumer
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError, LogTruncatedError, OffsetResetError
from tidemill.client.producer import Producer
from tidemill.errors import ErrorCode
from tidemill.testing.history import History, Operation
from tidemill.testing.loop import VirtualClock
from tidemill.testing.network import SimHost
from tidemill.testing.simulation.plan import GROUP, REPLICAS, TOPIC
from tidemill.testing.simulation.world import World
from tidemill.types import PartitionIndex, TopicPartition

BURST_MAX = 4
VALUE_BYTES_MAX = 200
RESTART_PAUSE_S = 0.3

REQUEST_TIMEOUT_MS = 1_000
CLIENT_SETTINGS: dict[str, object] = {
    "request_timeout_ms": REQUEST_TIMEOUT_MS,
    "default_api_timeout_ms": 5_000,
    "socket_connection_setup_timeout_ms": 1_000,
    "metadata_max_age_ms": 5_000,
    "reconnect_backoff_max_ms": 300,
    "retry_backoff_ms": 50,
    "retry_backoff_max_ms": 300,
}


def key_of(partition: int) -> str:
    """A partition's name in the history."""
    return f"{TOPIC}-{partition}"


class Client:
    """One client's host, on which its process runs again and again until it is told to stop."""

    def __init__(
        self, work: Workload, name: str, life: Callable[[Client], Awaitable[None]]
    ) -> None:
        self.name = name
        self.work = work
        self.host: SimHost = work.world.network.host(name)
        self.lives = 0
        self.is_stopping = False
        self._life = life
        self._running: asyncio.Task[None] | None = None

    @property
    def process(self) -> str:
        """The process' name in the history."""
        return f"{self.name}.{self.lives}"

    def start(self) -> None:
        if not self.host.domain.is_alive:
            self.host.boot()
        self._running = self.host.run(self._live())

    async def _live(self) -> None:
        while not self.is_stopping:
            self.lives += 1
            try:
                await self._life(self)
            except ClientError as error:
                self.work.world.counts["client processes ended"] += 1
                self.work.world.note(f"{self.process} ended: {error}")
            if not self.is_stopping:
                await asyncio.sleep(RESTART_PAUSE_S)

    def kill(self) -> None:
        self.host.kill()

    async def stop(self, timeout_s: float) -> None:
        """Let it end what it does."""
        self.is_stopping = True
        if self._running is not None and self.host.domain.is_alive:
            await asyncio.wait([self._running], timeout=timeout_s)
            if not self._running.done():
                self.work.world.fail(f"{self.process} did not end within {timeout_s} s")
            elif self._running.exception() is not None:
                self.work.world.fail(f"{self.process} failed: {self._running.exception()!r}")


class Workload:
    """All clients, and the history of what they did."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.history = History(VirtualClock(world.loop))
        self.commits: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        """Offsets that the group committed, by partition, and whether that was acknowledged."""
        self.admin_host = world.network.host("admin")
        self._sent = 0
        self.clients = [
            *self._make("producer", self.plan.producers, self._produce),
            *self._make("careless", 1, self._produce_carelessly),
            *self._make("reader", self.plan.assigned_consumers, self._read),
            *self._make("member", self.plan.group_members, self._share),
        ]

    def _make(
        self, kind: str, count: int, life: Callable[[Client], Awaitable[None]]
    ) -> list[Client]:
        return [Client(self, f"{kind}-{number}", life) for number in range(1, count + 1)]

    def start(self) -> None:
        for client in self.clients:
            client.start()

    async def stop(self) -> None:
        await asyncio.gather(*(client.stop(60) for client in self.clients))

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, PartitionIndex(at)) for at in range(self.plan.partitions)]

    # Administration

    def admin(self) -> Admin:
        return Admin(
            self.world.bootstrap,
            clock=self.admin_host.clock,
            random=self.plan.random("admin"),
            connector=self.admin_host.connect,
            **CLIENT_SETTINGS,
        )

    async def create_topic(self) -> None:
        """The topic that everybody uses; called on the administrator's host."""
        topic = NewTopic(TOPIC, self.plan.partitions, REPLICAS)
        async with self.admin() as admin:
            while True:
                try:
                    results = await admin.create_topics([topic])
                    error = results.errors().get(TOPIC)
                    if error is None or error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                        return
                except ClientError as error:
                    self.world.note(f"the topic is not there yet: {error}")
                await asyncio.sleep(0.2)

    # Producing

    async def _produce(self, client: Client) -> None:
        """In order, once, and for good: the default settings."""
        await self._send_on(client, acks="all")

    async def _produce_carelessly(self, client: Client) -> None:
        """What it sends may get lost: it is there to make replicas differ."""
        await self._send_on(client, acks="1", enable_idempotence=False, retries=0)

    async def _send_on(self, client: Client, **settings: object) -> None:
        random = self.plan.random(client.process)
        producer = Producer(
            self.world.bootstrap,
            clock=client.host.clock,
            random=random,
            connector=client.host.connect,
            executor=self.world.executor(f"{client.process}/executor"),
            delivery_timeout_ms=random.choice((3_000, 10_000, 30_000)),
            linger_ms=random.choice((0, 5, 50)),
            max_block_ms=5_000,
            **CLIENT_SETTINGS,
            **settings,
        )
        async with producer:
            while not client.is_stopping:
                partition = random.randrange(self.plan.partitions)
                for _ in range(random.randint(1, BURST_MAX)):
                    self._send(client, producer, partition, random.randrange(VALUE_BYTES_MAX))
                await asyncio.sleep(random.expovariate(self.plan.records_per_s / BURST_MAX * 2))

    def _send(self, client: Client, producer: Producer, partition: int, padding: int) -> None:
        self._sent += 1
        value = self._sent
        operation = self.history.send(client.process, key_of(partition), value)
        payload = b"%d %s" % (value, b"x" * padding)
        delivery = producer.send_soon(TOPIC, payload, partition=partition)
        delivery.add_done_callback(partial(self._delivered, producer, operation))

    def _delivered(self, producer: Producer, operation: Operation, delivery: Delivery) -> None:
        counts = self.world.counts
        counts["resends"] += delivery.attempts > 1
        if delivery.exception() is not None or producer.settings.acks != "all":
            counts["records of unknown fate"] += 1
            self.history.info(operation)
        else:
            counts["records acked"] += 1
            self.history.ok(operation, offset=delivery.result().offset)

    # Consuming

    def _consumer(self, client: Client, **settings: object) -> Consumer:
        return Consumer(
            self.world.bootstrap,
            clock=client.host.clock,
            random=self.plan.random(client.process),
            connector=client.host.connect,
            fetch_max_wait_ms=400,
            **{**CLIENT_SETTINGS, **settings},
        )

    async def _read(self, client: Client) -> None:
        """One consumer of everything, from the beginning; its position must never be wrong."""
        consumer = self._consumer(client, auto_offset_reset="error")
        async with consumer:
            consumer.assign(self.partitions)
            for partition in self.partitions:
                consumer.seek(partition, 0)
            self.history.assigned(client.process)
            while not client.is_stopping:
                await self._poll(client, consumer)

    async def _poll(self, client: Client, consumer: Consumer) -> list[ConsumerRecord]:
        try:
            records = await consumer.poll(timeout_ms=400)
        except (OffsetResetError, LogTruncatedError) as error:
            self.world.fail(f"{client.process} was told that its position is wrong: {error}")
            raise
        self.history.polled(client.process, _by_key(records))
        self.world.counts["records polled"] += len(records)
        return records

    async def _share(self, client: Client) -> None:
        """One member of a group, which commits what it has read."""
        consumer = self._consumer(
            client,
            group_id=GROUP,
            group_protocol=self.plan.group_protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
        )
        async with consumer:
            consumer.subscribe([TOPIC], listener=_Rebalances(self, client))
            while not client.is_stopping:
                try:
                    records = await self._poll(client, consumer)
                    if records:
                        await self._commit(consumer, records)
                except ClientError as error:
                    self.world.note(f"{client.process} goes on after: {error}")
                    await asyncio.sleep(0.1)

    async def _commit(self, consumer: Consumer, records: list[ConsumerRecord]) -> None:
        done: dict[TopicPartition, int] = {}
        for record in records:
            done[TopicPartition(record.topic, record.partition)] = record.offset + 1
        begun_s = self.world.loop.time()
        try:
            await consumer.commit(done)
        except ClientError:
            self._note_commit(done, acked=False)
            raise
        self._note_commit(done, acked=True)
        if self.world.loop.time() - begun_s >= REQUEST_TIMEOUT_MS / 1000:
            # It was sent again. Nothing numbers commits, so the first one, stuck somewhere between,
            # may still come, and win over later ones.
            self._note_commit(done, acked=False)
        self.world.counts["commits acked"] += 1

    def _note_commit(self, done: dict[TopicPartition, int], *, acked: bool) -> None:
        for partition, offset in done.items():
            self.commits[partition.partition].append((offset, acked))

    # The end

    async def read_all(self) -> None:
        """The final read of everything, and of what the group has committed."""
        client = Client(self, "final", self._read)
        done = client.host.run(self._final(client))
        await asyncio.wait([done], timeout=60)
        if not done.done():
            self.world.fail("the final read did not end")
        elif done.exception() is not None:
            self.world.fail(f"the final read failed: {done.exception()!r}")

    async def _final(self, client: Client) -> None:
        consumer = self._consumer(client, group_id=GROUP, auto_offset_reset="error")
        async with consumer:
            ends = await consumer.end_offsets(self.partitions)
            consumer.assign(self.partitions)
            found: dict[str, list[tuple[int, int | str]]] = {
                key_of(partition.partition): [] for partition in self.partitions
            }
            for partition in self.partitions:
                consumer.seek(partition, 0)
            for partition in self.partitions:
                while await consumer.position(partition) < ends[partition]:
                    for key, pairs in _by_key(await consumer.poll(timeout_ms=400)).items():
                        found[key] += pairs
            self.history.polled("final", found, final=True)
            if self.commits:
                await self._check_commits(consumer)

    async def _check_commits(self, consumer: Consumer) -> None:
        """A commit that was acknowledged is not lost, unless a later one of unknown fate won."""
        stored = await consumer.committed(*self.partitions)
        for partition in self.partitions:
            made = self.commits[partition.partition]
            acked = max((offset for offset, is_acked in made if is_acked), default=-1)
            entry = stored.get(partition)
            found = -1 if entry is None else entry.offset
            if found < acked and (found, False) not in made:
                self.world.fail(f"the group committed {acked} of {partition}, and has {found}")


class _Rebalances:
    """Tells the history when a member's partitions change."""

    def __init__(self, work: Workload, client: Client) -> None:
        self._work = work
        self._client = client

    def _changed(self, partitions: set[TopicPartition]) -> None:
        self._work.world.counts["rebalances"] += 1
        keys = sorted(key_of(partition.partition) for partition in partitions)
        self._work.history.assigned(self._client.process, keys)

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        self._changed(partitions)

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self._changed(partitions)

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self._changed(partitions)


def _by_key(records: list[ConsumerRecord]) -> dict[str, list[tuple[int, int | str]]]:
    found: dict[str, list[tuple[int, int | str]]] = defaultdict(list)
    for record in records:
        assert record.value is not None
        value = int(record.value.split(b" ", 1)[0])
        found[key_of(record.partition)].append((record.offset, value))
    return found
