"""Three brokers' replicas in virtual time: real logs, purgatory and handlers, a network of calls.

Each node is a domain of the simulated loop with a disk of its own. Fetches go through the real
handler, encoded and decoded as on the wire; the controller is `isr_changes.judge` and the election
functions on one image. Listeners and stores are left out.

    world = World(loop)
    world.create_topic("t")
    world.run_ms(100)
    world.produce("t", b"value")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from tests.storage.helpers import read_all

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext
from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.broker.handlers.fetch import StoredRecords, fetch
from tidemill.broker.handlers.list_offsets import list_offsets
from tidemill.broker.handlers.produce import produce
from tidemill.broker.isr_updates import IsrUpdates
from tidemill.broker.outbox import PIECE_BYTES_MAX
from tidemill.broker.purgatory import Purgatory
from tidemill.broker.replication_settings import replication_settings
from tidemill.broker.ticker import Ticker
from tidemill.broker.topic_settings import TopicSettings
from tidemill.config import load_broker_config
from tidemill.controller.changes import PartitionChange
from tidemill.controller.election import ElectionPolicy
from tidemill.controller.isr_changes import judge
from tidemill.controller.liveness import broker_unfenced, brokers_failed, replicas_lost
from tidemill.errors import ApiError, ErrorCode
from tidemill.executor import Then
from tidemill.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    PartitionImage,
    ReplicaTrouble,
    TopicImage,
    frozen,
    with_broker,
    with_partitions,
    with_topic,
)
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.storage.manager import LogManager
from tidemill.testing.disk import CrashDisk
from tidemill.testing.loop import Domain, SimLoop, VirtualClock, VirtualExecutor
from tidemill.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicPartition,
)
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidemill.wire.messages.isr import AlterPartitionRequest, AlterPartitionResponse
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

HOP_S = 0.001
CALL_TIMEOUT_S = 3.0
FETCH_VERSION = 18
LISTENER = "PLAINTEXT"
LAG_MAX_MS = 10_000


class StallingExecutor(VirtualExecutor):
    """An executor whose threads can all be stuck, as on a disk that does not answer."""

    is_stuck = False

    def __init__(self, loop: SimLoop, random: Random) -> None:
        super().__init__(loop, random, delay_ms_max=2)
        self._held: list[tuple[Callable[[], Any], Then[Any]]] = []

    def submit(self, work: Callable[[], Any], then: Then[Any]) -> None:
        if self.is_stuck:
            self._held.append((work, then))
        else:
            super().submit(work, then)

    def release(self) -> None:
        self.is_stuck = False
        held, self._held = self._held, []
        for work, then in held:
            self.submit(work, then)


class Node:
    """One broker: what survives a crash is its disk."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = BrokerId(broker_id)
        self.disk = CrashDisk(Random(broker_id))
        self.is_up = False
        self.domain: Domain
        self.replicas: ReplicaManager
        self.executor: StallingExecutor
        self.broker: Broker
        self.lost: list[TopicPartition] = []

    @property
    def epoch(self) -> BrokerEpoch:
        return self.world.image.brokers[self.broker_id].epoch

    def start(self) -> None:
        loop = self.world.loop
        self.domain = loop.domain(f"broker-{self.broker_id}")
        self.is_up = True
        loop.run_until_complete(self.domain.create_task(self._boot()))

    async def _boot(self) -> None:
        world, clock = self.world, self.world.clock
        overrides = {"replica.lag.time.max.ms": str(LAG_MAX_MS), **world.settings}
        config, _ = load_broker_config(environ={}, overrides=overrides)
        executor = self.executor = StallingExecutor(world.loop, Random(self.broker_id))
        settings = TopicSettings(config)
        logs = LogManager(
            ["/data"],
            files=self.disk,
            clock=clock,
            random=Random(self.broker_id),
            executor=executor,
            config_for=lambda tp: settings.of(world.image.topics[tp.topic]).log,
        )
        logs.start()
        timers = Ticker(clock, world.loop)
        purgatory = Purgatory(timers, world.loop.call_soon)
        self.replicas = ReplicaManager(
            self.broker_id,
            logs,
            clock,
            executor,
            settings.of,
            purgatory.partition_moved,
            timers.schedule,
            on_appended=purgatory.partition_appended,
            on_led=purgatory.partition_led,
            replication=replication_settings(config),
        )
        self.broker = cast(
            "Broker",
            SimpleNamespace(
                broker_id=self.broker_id,
                config=config,
                clock=clock,
                timers=timers,
                purgatory=purgatory,
                executor=executor,
                logs=logs,
                replicas=self.replicas,
                fetch_sessions=FetchSessions(100, clock, Random(self.broker_id)),
                image=world.image,
            ),
        )
        isr_updates = IsrUpdates(self.broker_id, lambda: self.epoch, self._alter)
        self.replicas.replicate(self, isr_updates, self)
        self.replicas.apply(world.image, at_once=True)

    def apply(self, image: ClusterImage) -> None:
        self.broker.image = image
        self.replicas.apply(image)

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        found = self.replicas.get(topic, index)
        assert found is not None
        return found

    def values(self, topic: str = "t") -> list[bytes | None]:
        return [record.value for record in read_all(self.partition(topic).log)]

    def context(self, version: int, peer_id: int | None = None) -> RequestContext:
        connection = SimpleNamespace(
            listener_name=LISTENER, client_address="127.0.0.1", peer_id=peer_id
        )
        return RequestContext(0, version, 0, "test", cast("Any", connection))

    # What replication is given (`LeaderLink` and `ReplicaReports`).

    async def fetch(self, leader_id: BrokerId, request: FetchRequest) -> FetchResponse:
        wired = decode(FetchRequest, FETCH_VERSION, encode(request, FETCH_VERSION))
        self.world.fetches += 1

        def serve(leader: Node) -> Any:
            context = leader.context(FETCH_VERSION, self.broker_id)
            return fetch(leader.broker, context, wired)

        response: FetchResponse = await self.world.call(self, leader_id, serve)
        wired_back = _wired(response)
        if self.world.spoil is not None:
            self.world.spoil(wired_back)
        return wired_back

    async def list_offsets(
        self, leader_id: BrokerId, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        def serve(leader: Node) -> Any:
            return list_offsets(leader.broker, leader.context(11, self.broker_id), request)

        response: ListOffsetsResponse = await self.world.call(self, leader_id, serve)
        return response

    def report(self, partitions: Sequence[TopicPartition], trouble: ReplicaTrouble) -> None:
        self.lost += partitions
        self.world.replicas_lost(self.broker_id, partitions, trouble)

    async def _alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        await asyncio.sleep(HOP_S)
        if not self.world.controller_answers:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        response = self.world.alter(request)
        await asyncio.sleep(HOP_S)
        return response


def _wired(response: FetchResponse) -> FetchResponse:
    for topic in response.responses:
        for data in topic.partitions:
            records: Any = data.records
            if isinstance(records, StoredRecords):
                pieces = records.pieces(PIECE_BYTES_MAX)
                data.records = b"".join(piece.read_blocking() for piece in pieces)
    return decode(FetchResponse, FETCH_VERSION, encode(response, FETCH_VERSION))


class World:
    """Three nodes, the image that they follow, and what goes on between them."""

    def __init__(self, loop: SimLoop, *, racks: Sequence[str] = (), **settings: str) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.settings = {key.replace("_", "."): value for key, value in settings.items()}
        self.image = ClusterImage(cluster_id="c")
        self.cut: set[tuple[int, int]] = set()
        """Pairs of brokers of which the first does not reach the second."""
        self.controller_answers = True
        self.deaf: set[int] = set()
        """Nodes that no image reaches."""
        self.fetches = 0
        self.spoil: Callable[[FetchResponse], None] | None = None
        self.min_isr = 2
        self._epochs = 1_000
        self.nodes = [Node(self, number) for number in range(3)]
        for number in range(3):
            rack = racks[number] if racks else None
            self.image = with_broker(self.image, _broker(number, 100 + number, rack))
        for node in self.nodes:
            node.start()

    def run_ms(self, duration_ms: int) -> None:
        self.loop.run_for(duration_ms / 1000)

    # The controller.

    def create_topic(
        self, name: str = "t", replicas: Sequence[int] = (0, 1, 2), **configs: str
    ) -> None:
        assigned = tuple(map(BrokerId, replicas))
        partition = PartitionImage(
            PartitionIndex(0), assigned[0], LeaderEpoch(0), assigned, assigned, PartitionEpoch(0)
        )
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        topic_id = UUID(int=sum(name.encode()))
        topic = TopicImage(name, topic_id, (partition,), frozen(settings))
        self.publish(with_topic(self.image, topic))
        self.run_ms(50)

    def publish(self, image: ClusterImage, *, late: Sequence[int] = ()) -> None:
        """A new image reaches every node but those that are `late`."""
        self.image = image
        for node in self.nodes:
            if node.is_up and node.broker_id not in self.deaf.union(late):
                node.domain.call_soon(node.apply, image)

    def write(self, changes: Sequence[PartitionChange]) -> None:
        image = self.image
        for change in changes:
            image = with_partitions(image, change.topic, [change.partition])
        self.publish(image)

    def _policy(self, topic: TopicImage) -> ElectionPolicy:
        return ElectionPolicy(min_isr=self.min_isr)

    def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        response, changes = judge(self.image, request, self._policy)
        self.write(changes)
        return response

    def replicas_lost(
        self, broker_id: BrokerId, lost: Sequence[TopicPartition], trouble: ReplicaTrouble
    ) -> None:
        self.write(replicas_lost(self.image, broker_id, lost, self._policy, trouble))

    def state(self, topic: str = "t") -> PartitionImage:
        found = self.image.partition(topic, 0)
        assert found is not None
        return found

    def lead(self, broker_id: int, topic: str = "t", *, late: Sequence[int] = ()) -> None:
        """Elect that broker, as a preferred-leader election does."""
        before = self.state(topic)
        after = replace(
            before,
            leader=BrokerId(broker_id),
            leader_epoch=LeaderEpoch(before.leader_epoch + 1),
            partition_epoch=PartitionEpoch(before.partition_epoch + 1),
        )
        self.publish(with_partitions(self.image, topic, [after]), late=late)

    def configure(self, topic: str = "t", **configs: str) -> None:
        """The topic has these settings from now on."""
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        changed = replace(self.image.topics[topic], configs=frozen(settings))
        self.publish(with_topic(self.image, changed))

    def assign(
        self,
        replicas: Sequence[int],
        isr: Sequence[int],
        leader: int,
        topic: str = "t",
        adding: Sequence[int] = (),
    ) -> None:
        before = self.state(topic)
        after = replace(
            before,
            replicas=tuple(map(BrokerId, replicas)),
            isr=tuple(map(BrokerId, isr)),
            adding=tuple(map(BrokerId, adding)),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(before.leader_epoch + 1),
            partition_epoch=PartitionEpoch(before.partition_epoch + 1),
        )
        self.publish(with_partitions(self.image, topic, [after]))

    # Faults.

    def crash(self, broker_id: int, *, noticed: bool = True) -> None:
        node = self.nodes[broker_id]
        node.is_up = False
        node.domain.crash()
        node.disk.power_on()
        if noticed:
            self.fail(broker_id)

    def fail(self, broker_id: int) -> None:
        """The controller takes the broker for dead."""
        changes = brokers_failed(self.image, [BrokerId(broker_id)], self._policy)
        brokers = {key: one for key, one in self.image.brokers.items() if key != broker_id}
        self.image = replace(self.image, brokers=frozen(brokers))
        self.write(changes)

    def restart(self, broker_id: int) -> None:
        self._register(broker_id)
        self.nodes[broker_id].start()
        self.register(broker_id)

    def register(self, broker_id: int) -> None:
        """The broker comes (back) into the cluster, in a new incarnation."""
        if BrokerId(broker_id) not in self.image.brokers:
            self._register(broker_id)
        self.write(broker_unfenced(self.image, BrokerId(broker_id), self._policy))

    def _register(self, broker_id: int) -> None:
        self._epochs += 1
        self.image = with_broker(self.image, _broker(broker_id, self._epochs, None))

    def isolate(self, broker_id: int) -> None:
        for other in range(3):
            self.cut |= {(broker_id, other), (other, broker_id)}

    # The network.

    async def call(self, caller: Node, callee_id: int, serve: Callable[[Node], Any]) -> Any:
        """Have another node do something; its answer comes back, or an error after a while."""
        callee = self.nodes[callee_id]
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def back(value: Any) -> None:
            if (callee.broker_id, caller.broker_id) not in self.cut and caller.is_up:
                caller.domain.call_at_ns(_in_a_hop(self.loop), lambda: _set(answered, value))

        def arrive() -> None:
            result = serve(callee)
            if isinstance(result, Deferred):
                result.listen(back)
            else:
                back(result)

        if not callee.is_up:
            await asyncio.sleep(HOP_S)
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, "nobody there")
        if (caller.broker_id, callee.broker_id) not in self.cut:
            callee.domain.call_at_ns(_in_a_hop(self.loop), arrive)
        try:
            return await asyncio.wait_for(answered, CALL_TIMEOUT_S)
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None

    def ask(self, broker_id: int, serve: Callable[[Node], Any]) -> Pending:
        """A client's request to one node."""
        node = self.nodes[broker_id]
        pending = Pending(self)

        def arrive() -> None:
            result = serve(node)
            if isinstance(result, Deferred):
                result.listen(pending.set)
            else:
                pending.set(result)

        node.domain.call_soon(arrive)
        self.run_ms(1)
        return pending

    # Clients.

    def produce(
        self,
        *values: bytes,
        at: int | None = None,
        topic: str = "t",
        acks: int = -1,
        timeout_ms: int = 30_000,
    ) -> Pending:
        leader = self.state(topic).leader if at is None else at
        records = [Record(place, 1_000, b"k", value, ()) for place, value in enumerate(values)]
        data = PartitionProduceData(index=0, records=bytearray(build_batch(records)))
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        return self.ask(leader, lambda node: produce(node.broker, node.context(12), request))

    def consume(self, offset: int, *, at: int | None = None, **options: Any) -> Pending:
        leader = self.state().leader if at is None else at
        rack_id = options.pop("rack_id", "")
        max_wait_ms = options.pop("max_wait_ms", 0)
        asked = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **options
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            rack_id=rack_id,
            topics=[FetchTopic(topic_id=self.image.topics["t"].topic_id, partitions=[asked])],
        )
        return self.ask(
            leader, lambda node: fetch(node.broker, node.context(FETCH_VERSION), request)
        )

    def end_offset(self, *, at: int | None = None) -> ListOffsetsPartitionResponse:
        leader = self.state().leader if at is None else at
        asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])]
        )
        pending = self.ask(
            leader, lambda node: list_offsets(node.broker, node.context(11), request)
        )
        response: ListOffsetsResponse = pending.value
        return response.topics[0].partitions[0]


class Pending:
    """An answer that may not be there yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._value: Any = None

    def set(self, value: Any) -> None:
        self._value = value

    @property
    def is_there(self) -> bool:
        return self._value is not None

    @property
    def value(self) -> Any:
        assert self._value is not None, "no answer yet"
        return self._value

    @property
    def produced(self) -> PartitionProduceResponse:
        response: ProduceResponse = self.value
        return response.responses[0].partition_responses[0]

    @property
    def fetched(self) -> PartitionData:
        response: FetchResponse = self.value
        return response.responses[0].partitions[0]


def _broker(broker_id: int, epoch: int, rack: str | None) -> BrokerImage:
    endpoint = Endpoint(LISTENER, f"host-{broker_id}", 9092)
    return BrokerImage(BrokerId(broker_id), BrokerEpoch(epoch), (endpoint,), rack)


def _in_a_hop(loop: SimLoop) -> int:
    return loop.now_ns + round(HOP_S * 1_000_000_000)


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
