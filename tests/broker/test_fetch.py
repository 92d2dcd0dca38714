"""Fetch as Kafka 4.3 answers it: bounds, long polls, sessions, fencing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.broker.harness import (
    Client,
    batch,
    connect,
    create_topic,
    fetch,
    fetch_request,
    list_offset,
    produce,
    running_broker,
)
from tests.waiting import LONG_S

from tidemill.broker import outbox
from tidemill.broker.handlers.fetch import (
    COLD_BYTES_MAX,
    EAGER_BYTES_TOTAL_MAX,
    SLICE_BYTES_MAX,
    FetchJob,
    StoredRecords,
)
from tidemill.broker.outbox import PIECE_BYTES_MAX
from tidemill.broker.server import BrokerServer
from tidemill.errors import ErrorCode
from tidemill.storage.files import OsFiles
from tidemill.storage.slice import LogSlice
from tidemill.testing.in_process import until
from tidemill.wire.batch import iter_headers
from tidemill.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)


@pytest.fixture
async def topic_id(server: BrokerServer) -> UUID:
    return await create_topic(server, "t", partitions=3)


def only(response: FetchResponse) -> PartitionData:
    (topic,) = response.responses
    (partition,) = topic.partitions
    return partition


def offsets(data: PartitionData) -> list[tuple[int, int]]:
    """The first and last offset of each batch that came back."""
    return [(h.base_offset, h.last_offset) for _, h in iter_headers(data.records or b"")]


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_version_reads(client: Client, topic_id: UUID, version: int) -> None:
    await produce(client, "t", batch([b"a", b"b"]))
    topic = topic_id if version >= 13 else "t"
    data = only(await fetch(client, topic, 0, version=version))
    assert offsets(data) == [(0, 1)]
    assert (data.high_watermark, data.last_stable_offset) == (2, 2)
    assert data.log_start_offset == (0 if version >= 5 else -1)
    assert data.aborted_transactions is None


async def test_the_whole_batch_that_holds_the_offset_comes_back(
    client: Client, topic_id: UUID
) -> None:
    await produce(client, "t", batch([b"a"] * 10))
    await produce(client, "t", batch([b"b"] * 10))
    assert offsets(only(await fetch(client, "t", 7))) == [(0, 9), (10, 19)]


async def test_one_batch_comes_whatever_the_limits(client: Client, topic_id: UUID) -> None:
    await produce(client, "t", batch([b"x" * 50_000]))
    await produce(client, "t", batch([b"y" * 50_000]))
    data = only(await fetch(client, "t", 0, max_bytes=10, partition_max_bytes=10))
    assert offsets(data) == [(0, 0)]


async def test_limits_hold_over_partitions(client: Client, topic_id: UUID) -> None:
    for partition in range(3):
        await produce(client, "t", batch([b"x" * 40_000]), partition=partition)
    asked = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(3)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50_000,
        topics=[FetchTopic(topic="t", partitions=asked)],
    )
    response = await client.ask(request, 12)
    sizes = [len(p.records or b"") for p in response.responses[0].partitions]
    assert sizes[0] > 40_000
    assert sizes[1:] == [0, 0]


async def test_the_broker_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """`fetch.max.bytes` bounds an answer, and so what a fetch may wait for."""
    settings = {"fetch.max.bytes": "50000"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        await create_topic(server, "t", partitions=3)
        for partition in range(3):
            await produce(client, "t", batch([b"x" * 60_000]), partition=partition)
        asked = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(3)]
        request = FetchRequest(
            max_wait_ms=60_000,
            min_bytes=100_000,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic="t", partitions=asked)],
        )
        async with asyncio.timeout(20):
            response = await client.ask(request, 12)
    sizes = [len(p.records or b"") for p in response.responses[0].partitions]
    assert sizes[0] > 60_000
    assert sizes[1:] == [0, 0]


@pytest.mark.parametrize("offset", [-5, 3, 1000])
async def test_out_of_range(client: Client, topic_id: UUID, offset: int) -> None:
    await produce(client, "t", batch([b"a", b"b"]))
    data = only(await fetch(client, "t", offset))
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (-1, -1, -1)
    assert data.aborted_transactions is None


async def test_at_the_end_there_is_nothing_and_no_error(client: Client, topic_id: UUID) -> None:
    """Rule B8: at and above the high watermark a fetch is empty, not wrong."""
    await produce(client, "t", batch([b"a"]))
    data = only(await fetch(client, "t", 1))
    assert (data.error_code, data.records) == (0, b"")


async def test_a_long_poll_wakes_with_the_append(
    server: BrokerServer, client: Client, topic_id: UUID
) -> None:
    client.send(fetch_request("t", 0, max_wait_ms=90_000), 12)
    await until(lambda: len(server.purgatory) == 1)
    async with connect(server.port) as producer:
        await produce(producer, "t", batch([b"a"]))
    _, response = await asyncio.wait_for(client.receive(FetchRequest, 12), LONG_S)
    assert offsets(only(response)) == [(0, 0)]


async def test_a_long_poll_ends_with_its_time(client: Client, topic_id: UUID) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    data = only(await fetch(client, "t", 0, max_wait_ms=200))
    assert data.error_code == 0
    assert loop.time() - began > 0.15


async def test_a_long_poll_waits_for_min_bytes(
    server: BrokerServer, client: Client, topic_id: UUID
) -> None:
    client.send(fetch_request("t", 0, max_wait_ms=10_000, min_bytes=2_000), 12)
    async with connect(server.port) as producer:
        await produce(producer, "t", batch([b"x" * 100]))
        await asyncio.sleep(0.1)
        await produce(producer, "t", batch([b"x" * 3_000]))
    _, response = await client.receive(FetchRequest, 12)
    assert offsets(only(response)) == [(0, 0), (1, 1)]


async def test_a_long_poll_ends_when_its_topic_is_deleted(
    server: BrokerServer, client: Client, topic_id: UUID
) -> None:
    """Rule A11: whoever waits for a deleted topic is told at once."""
    client.send(fetch_request("t", 0, max_wait_ms=90_000), 12)
    await until(lambda: len(server.purgatory) == 1)
    await server.controller.delete_topics(["t"])
    _, response = await asyncio.wait_for(client.receive(FetchRequest, 12), LONG_S)
    assert only(response).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_unknown_places(client: Client, topic_id: UUID) -> None:
    by_name = only(await fetch(client, "missing", 0))
    assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert by_name.aborted_transactions == []
    by_id = only(await fetch(client, UUID(int=5), 0, version=13))
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    beyond = only(await fetch(client, "t", 0, partition=9))
    assert beyond.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_leader_epochs_fence(client: Client, topic_id: UUID) -> None:
    """Rule A4: a client that knows a newer epoch is told to wait for us."""
    data = only(await fetch(client, "t", 0, current_leader_epoch=99))
    assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert only(await fetch(client, "t", 0, current_leader_epoch=0)).error_code == 0


async def test_a_history_that_is_not_ours_diverges(client: Client, topic_id: UUID) -> None:
    """Rule D5: the answer says where both histories part."""
    await produce(client, "t", batch([b"a"]))
    unknown = only(await fetch(client, "t", 0, last_fetched_epoch=99))
    assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    longer = only(await fetch(client, "t", 1, last_fetched_epoch=0))
    assert longer.diverging_epoch is None
    ahead = only(await fetch(client, "t", 9, last_fetched_epoch=0))
    assert ahead.diverging_epoch is not None
    assert (ahead.diverging_epoch.epoch, ahead.diverging_epoch.end_offset) == (0, 1)


async def test_read_committed_has_a_list_of_aborted_transactions(
    client: Client, topic_id: UUID
) -> None:
    await produce(client, "t", batch([b"a"]))
    data = only(await fetch(client, "t", 0, isolation_level=1))
    assert offsets(data) == [(0, 0)]
    assert data.aborted_transactions == []


async def test_a_fetch_in_the_name_of_a_replica_is_refused(client: Client, topic_id: UUID) -> None:
    """CVE-2018-1288: a client must not be able to play a follower."""
    old = fetch_request("t", 0)
    old.replica_id = 1
    assert (await client.ask(old, 12)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    new = fetch_request(topic_id, 0)
    new.replica_state = ReplicaState(replica_id=1)
    assert (await client.ask(new, 15)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_sessions_over_the_wire(client: Client, topic_id: UUID) -> None:
    """KIP-227: after the first answer only news is sent."""
    await produce(client, "t", batch([b"a"]))
    opened = await fetch(client, "t", 0, session_epoch=0)
    assert opened.session_id != 0
    again = FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=1, topics=[])
    news = await client.ask(again, 12)
    assert offsets(only(news)) == [(0, 0)], "the offset did not move, so the data is news again"
    moved = fetch_request("t", 1, session_id=opened.session_id, session_epoch=2)
    assert (await client.ask(moved, 12)).responses == []
    again.session_epoch = 9
    wrong = await client.ask(again, 12)
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_quiet_session_hears_of_everything_that_changes(
    client: Client, server: BrokerServer, topic_id: UUID
) -> None:
    """Partitions without news are passed over unread, and each kind of change ends that."""
    await produce(client, "t", batch([b"a"]))
    opened = await fetch(client, "t", 1, session_epoch=0)
    quiet = FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=1, topics=[])
    assert (await client.ask(quiet, 12)).responses == []
    partition = server.broker.replicas.get("t", 0)
    assert partition is not None

    partition.log.advance_log_start(1)
    quiet.session_epoch = 2
    assert only(await client.ask(quiet, 12)).log_start_offset == 1

    quiet.session_epoch, quiet.max_wait_ms, quiet.min_bytes = 3, 5_000, 1
    waiting = asyncio.ensure_future(client.ask(quiet, 12))
    await asyncio.sleep(0.05)
    async with connect(server.port) as other:
        await produce(other, "t", batch([b"b"]))
    assert offsets(only(await waiting)) == [(1, 1)]

    partition.mark_gone()
    caught_up = fetch_request("t", 2, session_id=opened.session_id, session_epoch=4)
    assert only(await client.ask(caught_up, 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_large_answer_arrives_whole(client: Client, topic_id: UUID) -> None:
    for number in range(30):
        await produce(client, "t", batch([bytes([number]) * 100_000]), acks=1)
    await produce(client, "t", batch([b"end"]))
    next_offset = 0
    while next_offset < 31:
        data = only(await fetch(client, "t", next_offset, max_bytes=50_000_000,
                                partition_max_bytes=50_000_000))  # fmt: skip
        got = offsets(data)
        assert got[0][0] == next_offset
        next_offset = got[-1][1] + 1


@pytest.mark.parametrize("size", [1_000, 4_000, 40_000])
async def test_an_answer_for_many_partitions_arrives_whole(
    server: BrokerServer, client: Client, size: int
) -> None:
    """Few bytes are read at once, many while they are sent: the client cannot tell."""
    await create_topic(server, "wide", partitions=200)
    for partition in range(200):
        await produce(client, "wide", batch([b"x" * size]), partition=partition, acks=1)
    asked = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(200)]
    request = FetchRequest(
        max_wait_ms=5_000,
        min_bytes=200 * len(batch([b"x" * size])),
        max_bytes=1 << 26,
        topics=[FetchTopic(topic="wide", partitions=asked)],
    )
    for version in (11, 12):
        response = await client.ask(request, version)
        assert [offsets(data) for data in response.responses[0].partitions] == [[(0, 0)]] * 200


async def test_an_answer_that_waits_for_its_reader_holds_little_in_memory(
    server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twenty partitions with 60 kB each, only the first half a megabyte is read at once."""
    await create_topic(server, "wide", partitions=20)
    for partition in range(20):
        await produce(client, "wide", batch([b"x" * 60_000]), partition=partition, acks=1)
    referred: list[int] = []

    class Counted(StoredRecords):
        def __init__(self, stored: LogSlice) -> None:
            super().__init__(stored)
            referred.append(len(self))

    monkeypatch.setattr("tidemill.broker.handlers.fetch.StoredRecords", Counted)
    asked = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(20)]
    topics = [FetchTopic(topic="wide", partitions=asked)]
    request = FetchRequest(max_wait_ms=5_000, min_bytes=1_200_000, max_bytes=1 << 26, topics=topics)
    response = await client.ask(request, 12)
    assert all(offsets(data) == [(0, 0)] for data in response.responses[0].partitions)
    assert 20 * 60_000 - sum(referred) <= EAGER_BYTES_TOTAL_MAX


async def test_a_cold_answer_is_read_while_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, with nothing in the page cache: an answer is not built of what it sends."""
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        await create_topic(server, "wide", partitions=12)
        for partition in range(12):
            await produce(client, "wide", batch([b"x" * 900_000]), partition=partition)
    built: list[int] = []
    respond = FetchJob._response

    def counted(job: FetchJob, answers: Any) -> FetchResponse:
        built.append(sum(len(d.records) for _, d in answers if isinstance(d.records, bytes)))
        return respond(job, answers)

    monkeypatch.setattr(FetchJob, "_response", counted)
    monkeypatch.setattr(OsFiles, "pread_now", lambda *_: None)
    asked = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(12)]
    request = FetchRequest(max_bytes=1 << 26, topics=[FetchTopic(topic="wide", partitions=asked)])
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        response = await client.ask(request, 12)
    assert all(offsets(data) == [(0, 0)] for data in response.responses[0].partitions)
    assert 0 < built[0] <= COLD_BYTES_MAX


async def test_a_cold_share_is_no_larger_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a disk that fails is told as an error of the partition."""
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        await create_topic(server, "deep")
        for _ in range(4):
            await produce(client, "deep", batch([b"x" * 900_000]))
    monkeypatch.setattr(OsFiles, "pread_now", lambda *_: None)
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        limits = {"max_bytes": 1 << 26, "partition_max_bytes": 1 << 26}
        data = only(await fetch(client, "deep", 0, **limits))
    assert offsets(data) == [(0, 0), (1, 1)]
    assert len(data.records or b"") <= COLD_BYTES_MAX


async def test_fetches_that_wait_take_a_bounded_amount_of_memory(
    server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection may pipeline what is small; of what is large, little waits at a time."""
    await create_topic(server, "wide", partitions=50)
    asked = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(50)]
    topics = [FetchTopic(topic="wide", partitions=asked)]
    monkeypatch.setattr(outbox, "OWED_BYTES_MAX", 40_000)
    sent = [
        client.send(FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics), 12) for _ in range(4)
    ]
    await asyncio.sleep(0.3)
    assert 0 < len(server.broker.purgatory) <= 2 * 50
    assert [(await client.receive(FetchRequest, 12))[0] for _ in sent] == sent


async def test_one_partition_has_a_bounded_share_of_an_answer(
    server: BrokerServer, client: Client, topic_id: UUID
) -> None:
    """However much the request allows: the rest comes with the next fetch."""
    for _ in range(10):
        await produce(client, "t", batch([b"x" * 900_000]), acks=1)
    end = await list_offset(client, "t", -1)
    while end.offset < 10:
        end = await list_offset(client, "t", -1)
    data = only(await fetch(client, "t", 0, max_bytes=1 << 30, partition_max_bytes=1 << 30))
    assert offsets(data) == [(n, n) for n in range(9)]
    assert PIECE_BYTES_MAX < len(data.records or b"") <= SLICE_BYTES_MAX


async def test_nobody_waits_for_more_than_an_answer_takes(
    server: BrokerServer, client: Client, topic_id: UUID
) -> None:
    """More is there, and one share holds no more: waiting would not bring `min_bytes`."""
    for _ in range(10):
        await produce(client, "t", batch([b"x" * 900_000]))
    waits = {"max_wait_ms": 600_000, "min_bytes": 1 << 26}
    data = only(
        await fetch(client, "t", 0, max_bytes=1 << 27, partition_max_bytes=1 << 27, **waits)
    )
    assert len(offsets(data)) == 9
    client.send(fetch_request("t", 9, max_bytes=1 << 27, partition_max_bytes=1 << 27, **waits), 12)
    async with connect(server.port) as producer:
        for _ in range(9):
            await produce(producer, "t", batch([b"x" * 900_000]))
    _, response = await asyncio.wait_for(client.receive(FetchRequest, 12), LONG_S)
    assert len(offsets(only(response))) == 9


async def test_many_idle_connections_cost_the_busy_nothing(
    server: BrokerServer, client: Client, topic_id: UUID
) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(300):
            idle = await stack.enter_async_context(connect(server.port))
            idle.send(fetch_request("t", 0, max_wait_ms=60_000), 12)
        for count in range(20):
            result = await asyncio.wait_for(produce(client, "t", batch([b"v"]), partition=1), 5)
            assert result.base_offset == count
    await until(lambda: len(server.purgatory) == 0)  # Whoever hangs up is forgotten.
