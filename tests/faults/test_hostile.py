"""Hostile peers against a real broker process: nobody else may notice them.

By name: frames that declare 2 GiB or -1 bytes, arrays of 2^31 entries, hundreds of half-sent 100 MB
frames held open, an HTTP request, a reader that never reads. Bombs: `test_bombs.py`.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.testing.process import BrokerProcess
from tidemill.wire.apis import ApiKey
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

MB = 1_000_000
MEMORY_LIMIT_BYTES = 300 * MB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("hostile") / "data"
    with BrokerProcess(data_dir) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        topics = [NewTopic("plain", 1, 1)]
        for future in admin.create_topics(topics).values():
            future.result()
        yield process


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=10)


def closed_by_peer(connection: socket.socket, *, within_s: float = 5) -> bool:
    connection.settimeout(within_s)
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def memory_bytes(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def assert_good_client_works(
    broker: BrokerProcess, *, topic: str = "plain", within_s: float = 5
) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 10_000})
    begin = time.monotonic()
    producer.produce(topic, b"still here", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(within_s) == 0, "a good client was disturbed"
    assert failures == [None]
    assert time.monotonic() - begin < within_s
    assert broker.running


def exchange(connection: socket.socket, request: bytes) -> memoryview:
    connection.sendall(request)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
        piece = connection.recv(1 << 20)
        assert piece, "the broker closed the connection"
        answer += piece
    return memoryview(answer)[4:]


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 104_857_601])
def test_a_frame_of_impossible_size_closes_the_connection(broker: BrokerProcess, size: int) -> None:
    with connect(broker) as connection:
        connection.sendall(struct.pack(">i", size) + b"\0" * 16)
        assert closed_by_peer(connection)
    assert_good_client_works(broker)
    assert memory_bytes(broker) < MEMORY_LIMIT_BYTES


def test_an_http_request_closes_the_connection(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert closed_by_peer(connection)
    assert_good_client_works(broker)


@pytest.mark.parametrize("api_version", [1, 8, 9, 12])
def test_an_array_of_two_billion_entries(broker: BrokerProcess, api_version: int) -> None:
    """A metadata request that declares 2^31 - 1 topics in a few bytes."""
    header = struct.pack(">hhih", ApiKey.METADATA, api_version, 7, -1)
    if api_version >= 9:
        body = header + b"\0" + b"\xff\xff\xff\xff\x0f"
    else:
        body = header + struct.pack(">i", 2**31 - 1)
    with connect(broker) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        assert closed_by_peer(connection)
    assert_good_client_works(broker)
    assert memory_bytes(broker) < MEMORY_LIMIT_BYTES


def test_hundreds_of_half_sent_frames_stop_nobody(broker: BrokerProcess) -> None:
    """300 peers declare 100 MB each, send some of it, and hold the connection open."""
    with ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(connect(broker))
            connection.setblocking(False)
            try:
                connection.send(struct.pack(">i", 100 * MB) + b"\0" * 200_000)
            except BlockingIOError:
                continue
        for _ in range(3):
            assert_good_client_works(broker)
        big = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 60_000})
        errors: list[object] = []
        big.produce("plain", b"x" * 900_000, on_delivery=lambda error, _: errors.append(error))
        assert big.flush(60) == 0
        assert errors == [None], "a large but honest request was starved"
        assert memory_bytes(broker) < MEMORY_LIMIT_BYTES
    assert_good_client_works(broker)


def test_a_half_sent_frame_is_cut_off(tmp_path: Path) -> None:
    settings = {"connection.partial.frame.timeout.ms": "1000"}
    with BrokerProcess(tmp_path / "data", settings) as broker, connect(broker) as connection:
        connection.sendall(struct.pack(">i", 1000) + b"\0" * 10)
        assert closed_by_peer(connection, within_s=5)


def test_a_reader_that_never_reads_costs_no_one(broker: BrokerProcess) -> None:
    """A peer pipelines thousands of fetches and reads nothing of what comes back."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(50):
        producer.produce("plain", b"y" * 500_000)
    producer.flush(30)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50 * MB,
        topics=[
            FetchTopic(
                topic="plain",
                partitions=[
                    FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10 * MB)
                ],
            )
        ],
    )
    request = encode_request(ApiKey.FETCH, 11, 1, "slow", fetch)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connect(broker))
            connection.setblocking(False)
            for _ in range(200):
                try:
                    connection.send(request)
                except BlockingIOError:
                    break
        time.sleep(0.5)
        for _ in range(3):
            assert_good_client_works(broker)
        assert memory_bytes(broker) < MEMORY_LIMIT_BYTES + 20 * 12 * MB
    assert_good_client_works(broker)


def test_two_thousand_idle_and_two_hundred_busy_connections(broker: BrokerProcess) -> None:
    request = encode_request(
        ApiKey.PRODUCE,
        9,
        1,
        "busy",
        ProduceRequest(
            acks=1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name="plain",
                    partition_data=[
                        PartitionProduceData(
                            index=0, records=build_batch([Record(0, 0, None, b"busy", ())])
                        )
                    ],
                )
            ],
        ),
    )
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(broker)) for _ in range(2000)]
        busy = [stack.enter_context(connect(broker)) for _ in range(200)]
        for _ in range(5):
            for connection in busy:
                connection.sendall(request)
            for connection in busy:
                _, answer = decode_response(ApiKey.PRODUCE, 9, exchange(connection, b""))
                assert isinstance(answer, ProduceResponse)
                assert answer.responses[0].partition_responses[0].error_code == 0
        assert_good_client_works(broker)
        assert memory_bytes(broker) < MEMORY_LIMIT_BYTES
        assert len(idle) == 2000
