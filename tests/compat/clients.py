"""The same two verbs, produce and consume without a group, spoken by each foreign client.

Every client sends `Sent` records to one partition and returns the offsets it was told; every client
reads a partition from an offset on and returns what it saw as `Seen`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka

LIMIT_S = 60
LINGER_MS = 30_000
"""Nothing is sent before its batch is full or the test flushes, so that batches are as large as can
be."""


class Sent(NamedTuple):
    """A record as a test hands it to a client."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


ODD_RECORDS = [
    Sent(b"plain"),
    Sent(b"keyed", key=b"k"),
    Sent(b"with headers", headers=(("one", b"1"), ("two", b""), ("one", b"again"))),
    Sent(b"earlier", timestamp_ms=1_600_000_000_123),
    Sent(None, key=b"tombstone"),
    Sent(b"", key=b"empty value"),
    Sent(b"empty key", key=b""),
    Sent("grüße ☃".encode(), key="ключ".encode()),
    Sent(bytes(range(256)) * 20, key=bytes(range(256))),
]
"""Whatever a record can be."""


class Seen(NamedTuple):
    """A record as a client hands it back."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


Produce = Callable[[str, str, int, str, Sequence[Sent]], list[int]]
Consume = Callable[[str, str, int, int, int], list[Seen]]


def confluent_produce(
    bootstrap: str, topic: str, partition: int, codec: str, records: Sequence[Sent]
) -> list[int]:
    offsets: list[int] = []
    errors: list[object] = []

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": LINGER_MS,
            "message.max.bytes": 2_000_000,
            "batch.size": 2_000_000,
            "enable.idempotence": True,
        }
    )
    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=partition,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
            on_delivery=delivered,
        )
    assert producer.flush(LIMIT_S) == 0
    assert not errors, errors[:3]
    return offsets


def confluent_consume(
    bootstrap: str, topic: str, partition: int, offset: int, count: int
) -> list[Seen]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
    seen: list[Seen] = []
    deadline = time.monotonic() + LIMIT_S
    while len(seen) < count and time.monotonic() < deadline:
        for message in consumer.consume(min(count - len(seen), 10_000), timeout=0.5):
            assert message.error() is None, message.error()
            seen.append(
                Seen(
                    message.offset(),
                    message.value(),
                    message.key(),
                    tuple(message.headers() or ()),
                    message.timestamp()[1],
                )
            )
    consumer.close()
    return seen


def kafka_python_produce(
    bootstrap: str, topic: str, partition: int, codec: str, records: Sequence[Sent]
) -> list[int]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=LINGER_MS,
        max_request_size=2_000_000,
        batch_size=500_000,
    )
    futures = [
        producer.send(
            topic,
            value=record.value,
            key=record.key,
            partition=partition,
            headers=list(record.headers),
            timestamp_ms=record.timestamp_ms,
        )
        for record in records
    ]
    producer.flush(timeout=LIMIT_S)
    offsets = [future.get(timeout=LIMIT_S).offset for future in futures]
    producer.close()
    return offsets


def kafka_python_consume(
    bootstrap: str, topic: str, partition: int, offset: int, count: int
) -> list[Seen]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, consumer_timeout_ms=LIMIT_S * 1000
    )
    where = kafka.TopicPartition(topic, partition)
    consumer.assign([where])
    consumer.seek(where, offset)
    seen: list[Seen] = []
    for message in consumer:
        seen.append(
            Seen(
                message.offset,
                message.value,
                message.key,
                tuple(message.headers),
                message.timestamp,
            )
        )
        if len(seen) == count:
            break
    consumer.close()
    return seen


def aiokafka_produce(
    bootstrap: str, topic: str, partition: int, codec: str, records: Sequence[Sent]
) -> list[int]:
    async def run() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=50,
            max_request_size=2_000_000,
            max_batch_size=500_000,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [(await asyncio.wait_for(future, LIMIT_S)).offset for future in futures]
        finally:
            await producer.stop()

    return asyncio.run(run())


def aiokafka_produce_batch(
    bootstrap: str, topic: str, partition: int, codec: str, records: Sequence[Sent]
) -> list[int]:
    """All records in one batch that the program builds: it has no other way to be sure of that."""

    async def run() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            max_batch_size=500_000,
        )
        await producer.start()
        try:
            batch = producer.create_batch()
            for record in records:
                assert batch.append(
                    value=record.value, key=record.key, timestamp=record.timestamp_ms
                )
            sent = await producer.send_batch(batch, topic, partition=partition)
            first = (await asyncio.wait_for(sent, LIMIT_S)).offset
            return list(range(first, first + len(records)))
        finally:
            await producer.stop()

    return asyncio.run(run())


def aiokafka_consume(
    bootstrap: str, topic: str, partition: int, offset: int, count: int
) -> list[Seen]:
    async def run() -> list[Seen]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            where = aiokafka.TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            seen: list[Seen] = []
            while len(seen) < count:
                message = await asyncio.wait_for(consumer.getone(), LIMIT_S)
                seen.append(
                    Seen(
                        message.offset,
                        message.value,
                        message.key,
                        tuple(message.headers),
                        message.timestamp,
                    )
                )
            return seen
        finally:
            await consumer.stop()

    return asyncio.run(run())


PRODUCERS: dict[str, Produce] = {
    "confluent-kafka": confluent_produce,
    "kafka-python": kafka_python_produce,
    "aiokafka": aiokafka_produce,
}
BATCH_PRODUCERS: dict[str, Produce] = {**PRODUCERS, "aiokafka": aiokafka_produce_batch}
"""Those that send what fits into one batch as one."""
CONSUMERS: dict[str, Consume] = {
    "confluent-kafka": confluent_consume,
    "kafka-python": kafka_python_consume,
    "aiokafka": aiokafka_consume,
}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
