"""Produce as Kafka 4.3 answers it: offsets, acks, idempotence, and every refusal."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

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

from tidemill.broker.server import BrokerServer
from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.partition import Partition
from tidemill.wire.batch import iter_headers, read_header
from tidemill.wire.compression import Codec
from tidemill.wire.records import iter_records


@pytest.fixture
async def topic(server: BrokerServer) -> str:
    await create_topic(server, "t")
    return "t"


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [-1, 1])
async def test_offsets_are_assigned_in_order(
    client: Client, topic: str, version: int, acks: int
) -> None:
    first = await produce(client, topic, batch([b"a", b"b"]), version=version, acks=acks)
    second = await produce(client, topic, batch([b"c"]), version=version, acks=acks)
    assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
    assert first.log_append_time_ms == -1
    assert first.log_start_offset == (0 if version >= 5 else -1)


async def test_topics_by_id(server: BrokerServer, client: Client) -> None:
    topic_id = await create_topic(server, "t")
    assert (await produce(client, topic_id, batch([b"a"]), version=13)).error_code == 0
    unknown = await produce(client, UUID(int=77), batch([b"a"]), version=13)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def _damaged(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch([b"a"]) + batch([b"b"]), ErrorCode.INVALID_RECORD),
        (batch([b"a"])[:-3], ErrorCode.INVALID_RECORD),
        (_damaged(batch([b"a"])), ErrorCode.CORRUPT_MESSAGE),
        (batch([b"a"])[:8] + bytes(4) + batch([b"a"])[12:], ErrorCode.CORRUPT_MESSAGE),
        (batch([b"x" * 1_100_000]), ErrorCode.MESSAGE_TOO_LARGE),
        (
            batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (
            batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0, control=True),
            ErrorCode.INVALID_RECORD,
        ),
    ],
    ids=["null", "empty", "two", "torn", "crc", "length", "large", "transactional", "control"],
)
async def test_records_that_are_refused(
    client: Client, topic: str, records: bytes | None, code: ErrorCode
) -> None:
    """Rule E2: nothing of them reaches the log."""
    result = await produce(client, topic, records)
    assert result.error_code == code
    assert result.base_offset == -1
    assert (await list_offset(client, topic, -1)).offset == 0


async def test_a_torn_second_batch_is_dropped(client: Client, topic: str) -> None:
    assert (await produce(client, topic, batch([b"a"]) + b"torn")).error_code == 0
    assert (await list_offset(client, topic, -1)).offset == 1


@pytest.mark.parametrize("acks", [2, -2, 5])
async def test_unknown_acks(client: Client, topic: str, acks: int) -> None:
    result = await produce(client, topic, batch([b"a"]), acks=acks)
    assert result.error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_unknown_places(client: Client, topic: str) -> None:
    missing = await produce(client, "missing", batch([b"a"]))
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    beyond = await produce(client, topic, batch([b"a"]), partition=9)
    assert beyond.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_belongs_to_the_cluster_is_not_written_by_clients(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "__consumer_offsets")
    result = await produce(client, "__consumer_offsets", batch([b"v"]))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await list_offset(client, "__consumer_offsets", -1)).offset == 0


async def test_zstd_needs_version_seven(client: Client, topic: str) -> None:
    records = batch([b"a"], codec=Codec.ZSTD)
    refused = await produce(client, topic, records, version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await produce(client, topic, records, version=7)).error_code == 0


async def test_an_idempotent_retry_gets_its_first_offset(client: Client, topic: str) -> None:
    """Rules G2 and G3: repeated batches are recognised, gaps are refused."""

    def numbered(sequence: int, epoch: int = 0) -> bytes:
        return batch([b"a"], producer_id=5, producer_epoch=epoch, base_sequence=sequence)

    for sequence in range(5):
        assert (await produce(client, topic, numbered(sequence))).base_offset == sequence
    for sequence in range(5):
        again = await produce(client, topic, numbered(sequence))
        assert (again.error_code, again.base_offset) == (0, sequence)
    gap = await produce(client, topic, numbered(7))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert gap.log_start_offset == 0
    assert (await produce(client, topic, numbered(0, epoch=1))).base_offset == 5
    old = await produce(client, topic, numbered(5))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_append_time(server: BrokerServer, client: Client) -> None:
    await create_topic(server, "t", configs={"message.timestamp.type": "LogAppendTime"})
    result = await produce(client, "t", batch([b"a"]))
    assert result.log_append_time_ms > 1_600_000_000_000
    response = await fetch(client, "t", 0)
    records = response.responses[0].partitions[0].records
    assert records is not None
    assert read_header(records).max_timestamp == result.log_append_time_ms


async def test_a_record_without_a_key_on_a_compacted_topic(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "t", configs={"cleanup.policy": "compact"})
    from tidemill.wire.records import Record, build_batch

    result = await produce(client, "t", build_batch([Record(0, 1000, None, b"v", ())]))
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in result.record_errors] == [0]
    assert result.error_message


async def test_a_timestamp_from_the_future_is_refused(client: Client, topic: str) -> None:
    from tidemill.wire.records import Record, build_batch

    result = await produce(client, topic, build_batch([Record(0, 2**50, b"k", b"v", ())]))
    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    assert len(result.record_errors) == 1


@pytest.mark.parametrize("size", [10, 200_000], ids=["on the loop", "in the executor"])
async def test_compression_type_converts(server: BrokerServer, client: Client, size: int) -> None:
    await create_topic(server, "t", configs={"compression.type": "lz4"})
    values = [b"x" * size, b"y"]
    assert (await produce(client, "t", batch(values, codec=Codec.GZIP))).error_code == 0
    response = await fetch(client, "t", 0)
    records = response.responses[0].partitions[0].records
    assert records is not None
    ((position, header),) = iter_headers(records)
    assert header.codec is Codec.LZ4
    got = [r.value for r in iter_records(records, position, header, limit_bytes=1 << 20)]
    assert got == values


async def test_too_few_in_sync_at_the_end_is_no_success(
    server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule B9: the second look is taken when the records are committed, before the ack."""
    await create_topic(server, "t")
    assert (await produce(client, "t", batch([b"a"]))).error_code == 0

    def too_few(self: Partition) -> None:
        raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    monkeypatch.setattr(Partition, "check_still_enough_in_sync", too_few)
    result = await produce(client, "t", batch([b"b"]))
    assert result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert result.base_offset == -1
    assert (await produce(client, "t", batch([b"c"]), acks=1)).error_code == 0


@pytest.mark.parametrize("policy", ["ack", "async"])
async def test_acks_all_is_visible_when_answered(tmp_path: Path, policy: str) -> None:
    """Rules B8 and B9: what acks=all answered is below the high watermark at once."""
    async with (
        running_broker(tmp_path, {"log.flush.policy": policy}) as server,
        connect(server.port) as client,
    ):
        await create_topic(server, "t")
        for count in range(1, 20):
            await produce(client, "t", batch([b"v"]))
            assert (await list_offset(client, "t", -1)).offset == count


async def test_acks_one_becomes_visible_after_the_flush(client: Client, topic: str) -> None:
    """Under `ack` consumers see acks=1 records once they are on disk, without another append."""
    await produce(client, topic, batch([b"v"]), acks=1)
    response = await fetch(client, topic, 0, max_wait_ms=5_000)
    assert response.responses[0].partitions[0].high_watermark == 1
