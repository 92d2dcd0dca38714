"""Settings of the storage in a real broker process, set and changed while it serves."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.broker.crafted import contradictions
from tests.broker.harness import Client, connect, fetch, produce

from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess
from tidemill.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidemill.wire.messages.producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidemill.wire.records import Record, build_batch

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
NOW_MS = int(time.time() * 1000)
CONTRADICTIONS = contradictions(NOW_MS)


def batch(values: list[bytes], **options: Any) -> bytes:
    """Records of today: retention and expiry go by their time, and run often here."""
    records = [Record(place, NOW_MS, b"k", value, ()) for place, value in enumerate(values)]
    return build_batch(records, **options)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("live-storage") / "data"
    with BrokerProcess(data_dir, {"log.retention.check.interval.ms": "100"}) as running:
        yield running


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with connect(broker.port) as connected:
        yield connected


async def create(client: Client, name: str, configs: Mapping[str, str] | None = None) -> None:
    settings = [CreatableTopicConfig(name=key, value=text) for key, text in (configs or {}).items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=settings)
    response = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert response.topics[0].error_code == 0, response.topics[0].error_message


async def change(client: Client, kind: int, name: str, key: str, value: str | None) -> None:
    """Set the key while the broker runs; None takes the value back."""
    operation = DELETE if value is None else SET
    setting = IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[setting]
    )
    response = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert response.responses[0].error_code == 0, response.responses[0].error_message


async def end_of(client: Client, topic: str) -> int:
    found: int = (await fetch(client, topic, 0)).responses[0].partitions[0].high_watermark
    return found


@pytest.mark.parametrize("title", CONTRADICTIONS)
async def test_full_validation_refuses_what_the_header_does_not_show(
    client: Client, title: str
) -> None:
    """Rule E2: header and checksum are right, the records are not. Nothing of them is kept."""
    topic = "strict-" + title.replace(" ", "-").replace(",", "")
    await create(client, topic, {"record.validation": "full"})
    refused = await produce(client, topic, CONTRADICTIONS[title])
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert await end_of(client, topic) == 0
    accepted = await produce(client, topic, batch([b"a", b"b"]))
    assert (accepted.error_code, accepted.base_offset) == (0, 0)


@pytest.mark.parametrize("title", CONTRADICTIONS)
async def test_batch_validation_believes_a_sound_header(client: Client, title: str) -> None:
    topic = "trusting-" + title.replace(" ", "-").replace(",", "")
    await create(client, topic)
    assert (await produce(client, topic, CONTRADICTIONS[title])).error_code == 0


async def test_record_validation_changes_while_running(client: Client) -> None:
    """A topic's own value, and the brokers' value for the topics that have none."""
    bad, good = CONTRADICTIONS["garbage"], batch([b"a"])
    await create(client, "own")
    await create(client, "inherits")

    async def answers() -> list[int]:
        return [(await produce(client, topic, bad)).error_code for topic in ("own", "inherits")]

    refused = int(ErrorCode.INVALID_RECORD)
    assert await answers() == [0, 0]
    await change(client, TOPIC, "own", "record.validation", "full")
    assert await answers() == [refused, 0]
    await change(client, BROKER, "", "record.validation", "full")
    try:
        assert await answers() == [refused, refused]
        await change(client, TOPIC, "own", "record.validation", "batch")
        assert await answers() == [0, refused]
        assert (await produce(client, "inherits", good)).error_code == 0
    finally:
        await change(client, BROKER, "", "record.validation", None)
    assert await answers() == [0, 0]


@pytest.mark.parametrize("scope", ["", "0"], ids=["all brokers", "this broker"])
async def test_the_disk_reserve_changes_while_running(
    client: Client, tmp_path: Path, scope: str
) -> None:
    """Rule E8: from the next write on, and back; reads do not mind."""
    topic = f"reserve-{scope or 'all'}"
    await create(client, topic)
    assert (await produce(client, topic, batch([b"a"]))).error_code == 0
    everything = str(shutil.disk_usage(tmp_path).total)
    await change(client, BROKER, scope, "log.disk.reserve.bytes", everything)
    try:
        refused = await produce(client, topic, batch([b"b"]))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert await end_of(client, topic) == 1
    finally:
        await change(client, BROKER, scope, "log.disk.reserve.bytes", None)
    accepted = await produce(client, topic, batch([b"c"]))
    assert (accepted.error_code, accepted.base_offset) == (0, 1)


async def test_the_expiry_of_producers_changes_while_running(client: Client) -> None:
    """An idle producer is forgotten by the new limit, one that comes back is new to the log."""
    await create(client, "producers")
    first = batch([b"a"], producer_id=4_000_001, producer_epoch=0, base_sequence=0)
    assert (await produce(client, "producers", first)).error_code == 0
    await asyncio.sleep(0.5)
    assert await producers_of(client, "producers") == [4_000_001], "the default is a day"
    await change(client, BROKER, "", "producer.id.expiration.ms", "1")
    try:
        await forgotten(client, "producers")
    finally:
        await change(client, BROKER, "", "producer.id.expiration.ms", None)
    assert (await produce(client, "producers", first)).base_offset == 1, "no duplicate any more"


async def producers_of(client: Client, topic: str) -> list[int]:
    asked = TopicRequest(name=topic, partition_indexes=[0])
    response = await client.ask(DescribeProducersRequest(topics=[asked]), 0)
    partition = response.topics[0].partitions[0]
    assert partition.error_code == 0
    return [each.producer_id for each in partition.active_producers]


async def forgotten(client: Client, topic: str) -> None:
    for _ in range(200):
        if not await producers_of(client, topic):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the producer is still known after 10 seconds")
