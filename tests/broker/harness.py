"""A real broker on a free port of 127.0.0.1, inside the test's loop, and a client made of frames.

async with running_broker(tmp_path) as server:
    async with connect(server.port) as client:
        response = await client.ask(MetadataRequest(topics=None), 12)
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from tidemill.broker import status
from tidemill.broker.server import BrokerServer
from tidemill.config import load_broker_config
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.declare import Message
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.messages.topics import CreatableTopic, CreatableTopicConfig
from tidemill.wire.records import Record, build_batch

_KEYS: dict[type[Any], ApiKey] = {api.request: key for key, api in APIS.items()}

CLOSED_WITHIN_S = 8.0
"""Before any connection without a request is closed, which takes `connection.handshake.timeout.ms`:
ten seconds."""


class Client:
    """One connection that sends requests and reads answers, nothing more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent = 0

    def send(self, request: Message, version: int) -> int:
        """Send without waiting; returns the correlation id."""
        self._sent += 1
        key = _KEYS[type(request)]
        self.writer.write(encode_request(key, version, self._sent, "test", request))
        return self._sent

    async def receive(self, request_type: type[Any], version: int) -> tuple[int, Any]:
        """The next answer and its correlation id."""
        frame = await self.receive_frame()
        return decode_response(_KEYS[request_type], version, frame)

    async def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ask(self, request: Message, version: int) -> Any:
        sent = self.send(request, version)
        received, response = await asyncio.wait_for(self.receive(type(request), version), 20)
        assert received == sent
        return response

    async def is_closed(self) -> bool:
        """Whether the broker closes the connection, without another byte."""
        try:
            return await asyncio.wait_for(self.reader.read(1), CLOSED_WITHIN_S) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def running_broker(
    directory: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[BrokerServer]:
    server = make_server(directory, settings)
    try:
        await server.start()
        with status.noted(server.status()):
            yield server
    finally:
        await server.stop()


def make_server(directory: Path, settings: Mapping[str, str] | None = None) -> BrokerServer:
    overrides = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        **(settings or {}),
    }
    config, _ = load_broker_config(environ={}, overrides=overrides)
    return BrokerServer(config)


async def create_topic(
    server: BrokerServer,
    name: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> UUID:
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )
    (result,) = await server.controller.create_topics([wanted])
    assert result.error_code == 0, result.error_message
    return result.topic_id


def batch(values: Sequence[bytes | None], **options: Any) -> bytes:
    """A record batch with these values, one second apart from 1,000 ms on."""
    records = [
        Record(place, 1_000 * (place + 1), b"k", value, ()) for place, value in enumerate(values)
    ]
    return build_batch(records, **options)


async def produce(
    client: Client,
    topic: str | UUID,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = 9,
    timeout_ms: int = 10_000,
) -> PartitionProduceResponse:
    request = produce_request(topic, records, partition=partition, acks=acks, timeout_ms=timeout_ms)
    response = await client.ask(request, version)
    result: PartitionProduceResponse = response.responses[0].partition_responses[0]
    return result


def produce_request(
    topic: str | UUID,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    data = TopicProduceData(partition_data=[PartitionProduceData(index=partition, records=records)])
    if isinstance(topic, UUID):
        data.topic_id = topic
    else:
        data.name = topic
    return ProduceRequest(
        transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=[data]
    )


def fetch_request(
    topic: str | UUID,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
) -> FetchRequest:
    asked = FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
        current_leader_epoch=current_leader_epoch,
        last_fetched_epoch=last_fetched_epoch,
    )
    entry = FetchTopic(partitions=[asked])
    if isinstance(topic, UUID):
        entry.topic_id = topic
    else:
        entry.topic = topic
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[entry],
    )


async def fetch(
    client: Client, topic: str | UUID, offset: int, version: int = 12, **options: int
) -> FetchResponse:
    response: FetchResponse = await client.ask(fetch_request(topic, offset, **options), version)
    return response


async def list_offset(
    client: Client, topic: str, timestamp: int, *, version: int = 11, isolation_level: int = 0
) -> ListOffsetsPartitionResponse:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
            )
        ],
    )
    response = await client.ask(request, version)
    result: ListOffsetsPartitionResponse = response.topics[0].partitions[0]
    return result


def metadata_of(*names: str, may_create: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=may_create,
    )
