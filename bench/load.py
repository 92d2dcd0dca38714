"""The load generators, each in its own process: `python -m bench.load NAME OPTIONS` prints JSON.

librdkafka (through confluent-kafka) drives produce and fetch, because it is the fastest client at
hand and both systems are meant to be measured, not the client. Round trips use a plain socket and
one pre-encoded request, so that the broker's share of the time is as large as it can be.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import struct
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.ask import RawConnection
from bench.awake import cores_awake
from tidemill.wire.apis import ApiKey
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

LIMIT_S = 300
PARTITIONS_AT_ONCE_MAX = 2_000
"""Kafka refuses requests that make more than about this many at a time."""


def create_topic(bootstrap: str, topic: str, partitions: int, replicas: int = 1) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    begin = time.perf_counter()
    count = min(partitions, PARTITIONS_AT_ONCE_MAX)
    admin.create_topics([NewTopic(topic, count, replicas)], request_timeout=LIMIT_S)[topic].result()
    while count < partitions:
        count = min(partitions, count + PARTITIONS_AT_ONCE_MAX)
        grown = admin.create_partitions([NewPartitions(topic, count)], request_timeout=LIMIT_S)
        grown[topic].result()
    elapsed = time.perf_counter() - begin
    # A topic is ready when every partition has a leader.
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=60).topics[topic]
        if len(found.partitions) == partitions and all(
            partition.leader >= 0 for partition in found.partitions.values()
        ):
            return {"seconds": elapsed}
        time.sleep(0.2)
    raise RuntimeError(f"{topic} did not get its leaders")


def delete_topic(bootstrap: str, topic: str) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # Must outlive the request.
    admin.delete_topics([topic])[topic].result()
    return {}


def end_offsets(bootstrap: str, topic: str, partitions: int) -> dict[str, Any]:
    """How many records all partitions hold together."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    bounds = [
        consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=LIMIT_S)
        for index in range(partitions)
    ]
    consumer.close()
    return {"count": sum(high - low for low, high in bounds)}


def values_of(size: int, *, varied: bool) -> list[bytes]:
    """One value, or a thousand that differ as much as text does, for what compresses."""
    if not varied:
        return [b"x" * size]
    chance = random.Random(size)
    words = [b"%x" % chance.getrandbits(chance.randrange(8, 48)) for _ in range(2_000)]
    texts = (b" ".join(chance.choices(words, k=size // 2)) for _ in range(1_000))
    return [text[:size] for text in texts]


def produce(
    bootstrap: str,
    topic: str,
    count: int,
    size: int,
    acks: str,
    partitions: int,
    codec: str = "none",
    varied: bool = False,
) -> dict[str, Any]:
    """Send `count` values of `size` bytes round robin over the partitions; wait for every ack."""
    failed: list[object] = []

    def on_delivery(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "delivery.report.only.error": True,
            "on_delivery": on_delivery,
            "compression.type": codec,
        }
    )
    values = itertools.cycle(values_of(size, varied=varied))
    send, poll = producer.produce, producer.poll
    begin = time.perf_counter()
    for number, value in zip(range(count), values, strict=False):
        while True:
            try:
                send(topic, value, partition=number % partitions)
                break
            except BufferError:
                poll(0.01)
        if number % 10_000 == 0:
            poll(0)
    left = producer.flush(LIMIT_S)
    elapsed = time.perf_counter() - begin
    if left or failed:
        why = f", the first with {failed[0]}" if failed else ""
        raise RuntimeError(f"{left} records were not sent, {len(failed)} failed{why}")
    return {"seconds": elapsed, "bytes": count * size, "count": count}


def fetch(bootstrap: str, topic: str, count: int, partitions: int) -> dict[str, Any]:
    """Read `count` records of all partitions from the beginning, as fast as librdkafka goes."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 131_072,
            "fetch.message.max.bytes": 4_194_304,
            # The default of 1,000 ms would punish the broker that fills the queue first.
            "fetch.queue.backoff.ms": 1,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    seen = value_bytes = 0
    first: float | None = None
    deadline = time.monotonic() + LIMIT_S
    while seen < count and time.monotonic() < deadline:
        messages = consumer.consume(10_000, timeout=1)
        if messages and first is None:
            first = time.perf_counter()
        seen += len(messages)
        value_bytes += sum(len(message.value()) for message in messages)
    elapsed = time.perf_counter() - (first or 0)
    consumer.close()
    if seen < count:
        raise RuntimeError(f"read {seen} of {count} records")
    return {"seconds": elapsed, "bytes": value_bytes, "count": seen}


def encoded_produce(topic: str, *, acks: int, size: int) -> bytes:
    batch = build_batch([Record(0, int(time.time() * 1000), None, b"x" * size, ())])
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
    )
    return encode_request(ApiKey.PRODUCE, 9, 1, "bench", request)


def produce_error(answer: bytes) -> int:
    _, response = decode_response(ApiKey.PRODUCE, 9, memoryview(answer)[4:])
    assert isinstance(response, ProduceResponse)
    return int(response.responses[0].partition_responses[0].error_code)


def round_trip(
    bootstrap: str,
    topic: str,
    count: int,
    size: int,
    acks: str,
    pause_s: float = 0,
    awake: bool = False,
) -> dict[str, Any]:
    """Time `count` one-record produce requests, one after the other, with a pause between them.

    With `awake` no core of the machine goes to sleep while it waits for the other side.
    """
    with cores_awake(LIMIT_S) if awake else nullcontext():
        return _timed_exchanges(bootstrap, topic, count, size, acks, pause_s)


def _timed_exchanges(
    bootstrap: str, topic: str, count: int, size: int, acks: str, pause_s: float
) -> dict[str, Any]:
    connection = RawConnection(bootstrap)
    request = encoded_produce(topic, acks=-1 if acks == "all" else int(acks), size=size)
    for _ in range(count // 4):
        answer = connection.exchange(request)
    if produce_error(answer):
        raise RuntimeError(f"the broker answered with error {produce_error(answer)}")
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        connection.exchange(request)
        times.append(time.perf_counter_ns() - begin)
        if pause_s:
            time.sleep(pause_s)
    times.sort()
    return {
        "p50_us": times[count // 2] / 1000,
        "p99_us": times[count * 99 // 100] / 1000,
        "p999_us": times[count * 999 // 1000] / 1000,
    }


def first_ack(bootstrap: str, topic: str) -> dict[str, Any]:
    """Wait until the broker accepts, create the topic by asking for it, get one record acked."""
    deadline = time.monotonic() + LIMIT_S
    ask = encode_request(
        ApiKey.METADATA,
        9,
        1,
        "bench",
        MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True),
    )
    send = encoded_produce(topic, acks=1, size=100)
    while time.monotonic() < deadline:
        try:
            connection = RawConnection(bootstrap)
            connection.exchange(ask)
            if produce_error(connection.exchange(send)) == 0:
                return {"at": time.time()}
        except (OSError, struct.error):
            pass
        time.sleep(0.005)
    raise RuntimeError("no ack in time")


LOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "create": create_topic,
    "delete": delete_topic,
    "ends": end_offsets,
    "produce": produce,
    "fetch": fetch,
    "round-trip": round_trip,
    "first-ack": first_ack,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", choices=sorted(LOADS))
    parser.add_argument("options", help="the load's keyword arguments as JSON")
    arguments = parser.parse_args()
    print(json.dumps(LOADS[arguments.load](**json.loads(arguments.options))))


if __name__ == "__main__":
    main()
