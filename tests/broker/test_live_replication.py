"""Three brokers over real sockets: what a client sees of replication.

`test_replication.py` has the rules in virtual time; here the parts are put together as they run:
listeners, the hello between brokers, the controller, and a store that all share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.harness import batch, connect, fetch_request, list_offset, produce

from tidemill.broker.server import BrokerServer
from tidemill.client.producer import Producer
from tidemill.errors import ErrorCode
from tidemill.replication.partition import Partition
from tidemill.testing.in_process import InProcessCluster, until
from tidemill.wire.messages.fetch import ReplicaState
from tidemill.wire.messages.topics import CreatableTopic, CreatableTopicConfig

QUICK = {"replica.lag.time.max.ms": "2000", "replica.fetch.backoff.ms": "100"}
PATIENT = {**QUICK, "replica.lag.time.max.ms": "60000"}
"""Where all are to stay in sync, however long the machine keeps one waiting."""


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with InProcessCluster(tmp_path, 3, QUICK) as running:
        yield running


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with InProcessCluster(tmp_path, 3, PATIENT) as running:
        yield running


async def create_topic(brokers: InProcessCluster, **configs: str) -> None:
    wanted = CreatableTopic(
        name="t",
        num_partitions=1,
        replication_factor=3,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    (result,) = await brokers.in_office.controller.create_topics([wanted])
    assert result.error_code == 0, result.error_message
    await brokers.settled()


def leader_of(brokers: InProcessCluster) -> BrokerServer:
    return brokers[brokers.partition("t").leader]


def replicas(brokers: InProcessCluster) -> list[Partition]:
    found = [server.broker.replicas.get("t", 0) for server in brokers.servers.values()]
    return [partition for partition in found if partition is not None]


async def test_a_record_reaches_every_broker(patient: InProcessCluster) -> None:
    """Rule B1: acks=all comes back when all in sync have it."""
    await create_topic(patient)
    async with connect(leader_of(patient).port) as client:
        for number in range(50):
            assert (await produce(client, "t", batch([b"%d" % number]))).error_code == 0
    assert [each.log.log_end_offset for each in replicas(patient)] == [50, 50, 50]
    await until(lambda: all(each.high_watermark == 50 for each in replicas(patient)))


async def test_under_ack_every_broker_has_flushed(patient: InProcessCluster) -> None:
    """Rules E6 and E7."""
    await create_topic(patient, flush_policy="ack")
    async with connect(leader_of(patient).port) as client:
        for number in range(20):
            assert (await produce(client, "t", batch([b"%d" % number]))).error_code == 0
    assert [each.log.flushed_offset for each in replicas(patient)] == [20, 20, 20]


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_leader_that_goes_is_replaced_and_comes_back(
    brokers: InProcessCluster, is_clean: bool
) -> None:
    """Rules K1, A10 and C3: nothing is lost, and the broker is in sync again."""
    await create_topic(brokers, min_insync_replicas="2", flush_policy="ack")
    gone = brokers.partition("t").leader
    async with connect(brokers[gone].port) as client:
        assert (await produce(client, "t", batch([b"before"]))).error_code == 0
    await (brokers.stop(gone) if is_clean else brokers.fall(gone))
    await brokers.settled()
    await until(lambda: brokers.partition("t").leader not in (gone, -1))
    await brokers.settled()
    async with connect(leader_of(brokers).port) as client:
        result = await produce(client, "t", batch([b"while"]))
        assert (result.error_code, result.base_offset) == (0, 1)
    await brokers.start(gone)
    await until(lambda: set(brokers.partition("t").isr) == {1, 2, 3})
    await until(lambda: [each.log.log_end_offset for each in replicas(brokers)] == [2, 2, 2])
    async with connect(leader_of(brokers).port) as client:
        assert (await list_offset(client, "t", -1)).offset == 2


async def test_producing_goes_on_while_brokers_come_and_go(brokers: InProcessCluster) -> None:
    """Every acked record is there once, in order, though each broker was down for a while."""
    await create_topic(brokers, min_insync_replicas="2", flush_policy="ack")
    bootstrap = [f"127.0.0.1:{server.port}" for server in brokers.servers.values()]
    offsets: list[int] = []
    is_over = asyncio.Event()

    async def write() -> None:
        async with Producer(bootstrap, acks="all") as producer:
            while not is_over.is_set():
                sent = await producer.send("t", b"%d" % len(offsets))
                offsets.append(sent.offset)

    async def more(count: int) -> None:
        wanted = len(offsets) + count
        await until(lambda: len(offsets) >= wanted)

    writing = asyncio.create_task(write())
    ports = {broker_id: server.port for broker_id, server in brokers.servers.items()}
    for broker_id in (1, 2, 3):
        await more(20)
        await brokers.fall(broker_id)
        await more(20)
        listener = f"PLAINTEXT://127.0.0.1:{ports[broker_id]}"
        await brokers.start(broker_id, {"listeners": listener})
        await until(lambda: set(brokers.partition("t").isr) == {1, 2, 3})
    is_over.set()
    await asyncio.wait_for(writing, 30)
    assert offsets == list(range(len(offsets)))
    await until(lambda: len({each.log.log_end_offset for each in replicas(brokers)}) == 1)
    assert replicas(brokers)[0].log.log_end_offset == len(offsets)


async def test_a_stranger_cannot_fetch_as_a_replica(brokers: InProcessCluster) -> None:
    """CVE-2018-1288: the cluster's secret is not known to clients."""
    await create_topic(brokers)
    request = fetch_request(brokers.image.topics["t"].topic_id, 0)
    request.replica_state = ReplicaState(replica_id=1, replica_epoch=1)
    async with connect(leader_of(brokers).port) as client:
        answer = await client.ask(request, 17)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_follower_sends_producers_to_the_leader(brokers: InProcessCluster) -> None:
    await create_topic(brokers)
    leader = brokers.partition("t").leader
    follower = next(one for one in brokers.servers if one != leader)
    async with connect(brokers[follower].port) as client:
        result = await produce(client, "t", batch([b"v"]), version=12)
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result.current_leader is not None
    assert result.current_leader.leader_id == leader


async def test_replicas_move_between_disks_under_load(tmp_path: Path) -> None:
    """A leader's and a follower's log change directories; nobody falls out of sync for it."""
    brokers = InProcessCluster(tmp_path, settings=PATIENT)
    try:
        for broker_id in (1, 2, 3):
            dirs = [str(tmp_path / f"{broker_id}-{name}") for name in ("a", "b")]
            await brokers.start(broker_id, {"log.dirs": ",".join(dirs)})
        await brokers.settled()
        await create_topic(brokers, flush_policy="ack")
        epoch = brokers.partition("t").partition_epoch
        async with connect(leader_of(brokers).port) as client:
            for number in range(60):
                if number % 10 == 0:
                    move_all(brokers)
                assert (await produce(client, "t", batch([b"%d" % number]))).error_code == 0
        await until(
            lambda: (
                not any(each.broker.replicas.moves.under_way for each in brokers.servers.values())
            )
        )
        assert [each.log.log_end_offset for each in replicas(brokers)] == [60, 60, 60]
        assert brokers.partition("t").partition_epoch == epoch
    finally:
        await brokers.close()


def move_all(brokers: InProcessCluster) -> None:
    """Every replica to the directory where it is not."""
    for server in brokers.servers.values():
        partition = server.broker.replicas.get("t", 0)
        assert partition is not None
        here = partition.log.dir.path
        target = next(each.path for each in server.logs.dirs if each.path != here)
        server.broker.replicas.moves.move(partition, target)


def fill_disk(server: BrokerServer, *, is_full: bool = True) -> None:
    """Leave no room on a broker's disk, or give it back."""
    for directory in server.logs.dirs:
        directory.keep_in_reserve(1 << 62 if is_full else 0, is_wanted=True)


async def test_a_leader_without_room_hands_over(tmp_path: Path) -> None:
    """Rule E8: nobody waits for a full disk while others have room; with room it is back."""
    async with InProcessCluster(tmp_path, 3, PATIENT) as brokers:
        await create_topic(brokers)
        full = leader_of(brokers)
        async with connect(full.port) as client:
            assert (await produce(client, "t", batch([b"a"]))).error_code == 0
            fill_disk(full)
            refused = await produce(client, "t", batch([b"b"]))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        # It may be back in the ISR at once: while nothing is written it keeps up.
        await until(lambda: brokers.partition("t").leader != full.broker.broker_id)
        await brokers.settled()
        async with connect(leader_of(brokers).port) as client:
            assert (await produce(client, "t", batch([b"c"]))).base_offset == 1
        fill_disk(full, is_full=False)
        await until(lambda: len(brokers.partition("t").isr) == 3)
        assert {each.log.log_end_offset for each in replicas(brokers)} == {2}


async def test_a_follower_without_room_holds_up_nobody(tmp_path: Path) -> None:
    """Rule E8: it leaves the ISR when it knows, not when its leader has waited long enough."""
    async with InProcessCluster(tmp_path, 3, PATIENT) as brokers:
        await create_topic(brokers)
        leader = leader_of(brokers)
        full = next(each for each in brokers.servers.values() if each is not leader)
        fill_disk(full)
        async with connect(leader.port) as client:
            assert (await produce(client, "t", batch([b"a"]))).error_code == 0
            state = brokers.partition("t")
            assert (state.leader, len(state.isr)) == (leader.broker.broker_id, 2)
            fill_disk(full, is_full=False)
            await until(lambda: len(brokers.partition("t").isr) == 3)
