"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId, DescribeProducers, log dirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.harness import (
    Client,
    batch,
    connect,
    create_topic,
    fetch,
    list_offset,
    produce,
    running_broker,
)

from tidemill.broker.handlers import producers
from tidemill.broker.server import BrokerServer
from tidemill.errors import ErrorCode
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.leader_epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.messages.log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tidemill.wire.messages.producers import (
    DescribeProducersRequest,
    InitProducerIdRequest,
    TopicRequest,
)


@pytest.fixture
async def filled(server: BrokerServer, client: Client) -> str:
    """A topic with records at 1,000 and 2,000 ms, offsets 0 and 1."""
    await create_topic(server, "t", partitions=2)
    await produce(client, "t", batch([b"a", b"b"]))
    return "t"


@pytest.mark.parametrize(
    ("timestamp", "offset", "found_ms", "epoch"),
    [
        (-1, 2, -1, 0),
        (-2, 0, -1, 0),
        (-3, 1, 2000, 0),
        (-4, 0, -1, 0),
        (-5, -1, -1, -1),
        (-6, -1, -1, -1),
        (0, 0, 1000, 0),
        (1500, 1, 2000, 0),
        (2000, 1, 2000, 0),
        (99_999, -1, -1, -1),
    ],
)
async def test_places(
    client: Client, filled: str, timestamp: int, offset: int, found_ms: int, epoch: int
) -> None:
    result = await list_offset(client, filled, timestamp)
    assert result.error_code == 0
    assert (result.offset, result.timestamp, result.leader_epoch) == (offset, found_ms, epoch)


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12)]
)
async def test_a_place_that_the_version_does_not_know(
    client: Client, filled: str, timestamp: int, first_version: int
) -> None:
    for version in range(1, 12):
        result = await list_offset(client, filled, timestamp, version=version)
        expected = 0 if version >= first_version else ErrorCode.UNSUPPORTED_VERSION
        assert result.error_code == expected


@pytest.mark.parametrize("version", range(1, 12))
async def test_latest_in_every_version(client: Client, filled: str, version: int) -> None:
    result = await list_offset(client, filled, -1, version=version)
    assert (result.error_code, result.offset) == (0, 2)
    assert result.leader_epoch == (0 if version >= 4 else -1)


async def test_a_partition_named_twice_is_refused_once(client: Client, filled: str) -> None:
    twice = [ListOffsetsPartition(partition_index=0, timestamp=at) for at in (-1, -2)]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=filled, partitions=twice)]
    )
    response = await client.ask(request, 7)
    codes = [p.error_code for p in response.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST]


async def test_latest_never_goes_back(tmp_path: Path) -> None:
    """Checklist: restart included."""
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        await create_topic(server, "t")
        for _ in range(5):
            await produce(client, "t", batch([b"a"]))
        before = (await list_offset(client, "t", -1)).offset
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        assert (await list_offset(client, "t", -1)).offset == before == 5


@pytest.mark.parametrize(
    ("epoch", "answer"), [(-1, (-1, -1)), (0, (0, 2)), (1, (-1, -1)), (5, (-1, -1))]
)
async def test_offset_for_leader_epoch(
    client: Client, filled: str, epoch: int, answer: tuple[int, int]
) -> None:
    """Rule D2."""
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=filled, partitions=[asked])]
    )
    for version in (2, 3, 4):
        response = await client.ask(request, version)
        result = response.topics[0].partitions[0]
        assert (result.leader_epoch, result.end_offset) == answer
    asked.current_leader_epoch = 9
    fenced = (await client.ask(request, 4)).topics[0].partitions[0]
    assert fenced.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def trim(client: Client, topic: str, offset: int, version: int = 2) -> tuple[int, int]:
    asked = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        timeout_ms=1000, topics=[DeleteRecordsTopic(name=topic, partitions=[asked])]
    )
    response = await client.ask(request, version)
    result = response.topics[0].partitions[0]
    return result.error_code, result.low_watermark


async def test_delete_records(client: Client, filled: str) -> None:
    """Rule B12: only up to the high watermark."""
    assert await trim(client, filled, 1) == (0, 1)
    assert await trim(client, filled, 0) == (0, 1), "a start never goes back"
    assert await trim(client, filled, 9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await trim(client, filled, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await trim(client, "missing", 1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert (await list_offset(client, filled, -2)).offset == 1
    below = (await fetch(client, filled, 0)).responses[0].partitions[0]
    assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await trim(client, filled, -1, version=0) == (0, 2)


async def test_a_compacted_topic_is_not_trimmed(server: BrokerServer, client: Client) -> None:
    await create_topic(server, "c", configs={"cleanup.policy": "compact"})
    assert await trim(client, "c", 0) == (ErrorCode.POLICY_VIOLATION, -1)


@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_given_out_once(client: Client, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    ids = set()
    for _ in range(20):
        response = await client.ask(request, version)
        assert (response.error_code, response.producer_epoch) == (0, 0)
        ids.add(response.producer_id)
    assert len(ids) == 20


async def test_producer_ids_are_not_given_out_again_after_a_restart(tmp_path: Path) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    ids = []
    for _ in range(2):
        async with running_broker(tmp_path) as server, connect(server.port) as client:
            ids.append((await client.ask(request, 4)).producer_id)
    assert ids[0] < ids[1]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitProducerIdRequest(transactional_id=""), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(transactional_id=None, producer_epoch=1), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(transactional_id="x"), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_producer_ids_that_are_refused(
    client: Client, request_: InitProducerIdRequest, code: ErrorCode
) -> None:
    response = await client.ask(request_, 4)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


async def test_describe_producers(client: Client, filled: str) -> None:
    records = batch([b"a"], producer_id=5, producer_epoch=2, base_sequence=0)
    await produce(client, filled, records)
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name=filled, partition_indexes=[0, 9]),
            TopicRequest(name="missing", partition_indexes=[0]),
        ]
    )
    response = await client.ask(request, 0)
    known, missing = response.topics
    (producer,) = known.partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch) == (5, 2)
    assert (producer.last_sequence, producer.last_timestamp) == (0, 1000)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
    assert known.partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert missing.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_naming_a_partition_again_and_again_does_not_multiply_the_answer(
    client: Client, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka a partition that is named twice is answered twice, but not for ever."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 10)
    for producer_id in (5, 6):
        records = batch([b"a"], producer_id=producer_id, producer_epoch=2, base_sequence=0)
        await produce(client, filled, records)
    repeated = TopicRequest(name=filled, partition_indexes=[0] * 100)
    (topic,) = (await client.ask(DescribeProducersRequest(topics=[repeated]), 0)).topics
    assert [len(each.active_producers) for each in topic.partitions] == [2] * 5 + [0] * 95
    codes = [each.error_code for each in topic.partitions]
    assert codes == [0] * 5 + [ErrorCode.INVALID_REQUEST] * 95


@pytest.mark.parametrize("version", range(1, 6))
async def test_describe_log_dirs(client: Client, filled: str, tmp_path: Path, version: int) -> None:
    response = await client.ask(DescribeLogDirsRequest(topics=None), version)
    (result,) = response.results
    assert (result.error_code, result.log_dir) == (0, str(tmp_path))
    (topic,) = result.topics
    sizes = {p.partition_index: p.partition_size for p in topic.partitions}
    assert sizes[0] > 0
    assert sizes[1] == 0
    if version >= 4:
        assert result.total_bytes > result.usable_bytes > 0
    named = [DescribableLogDirTopic(topic=filled, partitions=[1, 7])]
    response = await client.ask(DescribeLogDirsRequest(topics=named), version)
    (topic,) = response.results[0].topics
    assert [p.partition_index for p in topic.partitions] == [1]
