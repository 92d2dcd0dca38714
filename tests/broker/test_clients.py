"""Real clients against a real broker in a thread: produce and consume without a group."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import make_server

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker on its own loop and thread: the clients here block."""
    directory = tmp_path_factory.mktemp("data")
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        server = make_server(Path(directory))
        found["loop"] = asyncio.get_running_loop()
        found["stop"] = asyncio.Event()
        await server.start()
        found["port"] = server.port
        ready.set()
        await found["stop"].wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield f"127.0.0.1:{found['port']}"
    found["loop"].call_soon_threadsafe(found["stop"].set)
    thread.join(20)
    assert not thread.is_alive()


def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def values(count: int = 100) -> list[bytes]:
    return [f"value {number} ".encode() * 20 for number in range(count)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_confluent_kafka(address: str, codec: str, acks: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = name()
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": acks == "all",
        }
    )
    for number, value in enumerate(values()):
        producer.produce(
            topic,
            value,
            key=str(number),
            headers=[("h", b"1")],
            partition=0,
            on_delivery=lambda error, message: errors.append(error) if error else None,
        )
    assert producer.flush(20) == 0
    assert errors == []
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    got: list[bytes] = []
    try:
        for _ in range(200):
            for message in consumer.consume(100, timeout=0.2):
                assert message.error() is None
                assert message.headers() == [("h", b"1")]
                got.append(message.value())
            if len(got) == 100:
                break
    finally:
        consumer.close()
    assert got == values()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python(address: str, codec: str | None) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    topic = name()
    producer = KafkaProducer(bootstrap_servers=address, compression_type=codec, acks="all")
    sent = [producer.send(topic, value, key=b"k", partition=0) for value in values()]
    assert [future.get(20).offset for future in sent] == list(range(100))
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=10_000
    )
    consumer.assign([TopicPartition(topic, 0)])
    got = []
    for message in consumer:
        got.append(message.value)
        if len(got) == 100:
            break
    consumer.close()
    assert got == values()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_aiokafka(address: str, codec: str | None) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    topic = name()
    producer = AIOKafkaProducer(bootstrap_servers=address, compression_type=codec)
    await producer.start()
    try:
        for value in values():
            await producer.send(topic, value, partition=0)
        await producer.flush()
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    await consumer.start()
    got: list[bytes] = []
    try:
        while len(got) < 100:
            message = await asyncio.wait_for(consumer.getone(), 20)
            got.append(message.value)
    finally:
        await consumer.stop()
    assert got == values()
