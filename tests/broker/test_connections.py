"""Connections: order, bounds, deadlines, and what is refused (rules 3.3, 3.4 and 2.L)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import (
    Client,
    batch,
    connect,
    create_topic,
    fetch_request,
    metadata_of,
    produce,
    produce_request,
    running_broker,
)
from tests.waiting import LONG_S

from tidemill.broker.connection import BYTES_PER_TURN_MAX, Connection
from tidemill.broker.listener import TcpAddress
from tidemill.broker.outbox import IN_FLIGHT_MAX
from tidemill.broker.server import BrokerServer
from tidemill.storage.slice import LogSlice
from tidemill.testing.in_process import until
from tidemill.wire.apis import ApiKey
from tidemill.wire.compression import Codec
from tidemill.wire.frame import encode_request, encode_response
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.fetch import FetchRequest
from tidemill.wire.messages.metadata import MetadataRequest
from tidemill.wire.messages.produce import ProduceRequest
from tidemill.wire.records import Record, build_batch

SOFTWARE = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")


async def raw(port: int, data: bytes) -> bool:
    """Whether the broker closes a connection that begins with these bytes."""
    async with connect(port) as client:
        client.writer.write(data)
        return await client.is_closed()


async def test_answers_come_in_request_order(server: BrokerServer, client: Client) -> None:
    """A long poll first, then quick requests: the quick answers wait for the slow one."""
    await create_topic(server, "t")
    first = client.send(fetch_request("t", 0, max_wait_ms=300), 12)
    second = client.send(SOFTWARE, 3)
    third = client.send(metadata_of("t"), 12)
    received = [
        (await client.receive(FetchRequest, 12))[0],
        (await client.receive(ApiVersionsRequest, 3))[0],
        (await client.receive(MetadataRequest, 12))[0],
    ]
    assert received == [first, second, third]


async def test_many_pipelined_requests(client: Client) -> None:
    sent = [client.send(SOFTWARE, 3) for _ in range(1000)]
    received = [(await client.receive(ApiVersionsRequest, 3))[0] for _ in sent]
    assert received == sent


async def test_a_request_in_single_bytes(client: Client) -> None:
    for byte in encode_request(ApiKey.API_VERSIONS, 3, 7, "test", SOFTWARE):
        client.writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert (await client.receive(ApiVersionsRequest, 3))[0] == 7


@pytest.mark.parametrize(
    "size", [-1, -(2**31), 2**31 - 1, 104_857_601], ids=["minus one", "min", "max", "over limit"]
)
async def test_impossible_frame_sizes_close_the_connection(server: BrokerServer, size: int) -> None:
    """Rule 3.4.1: refused before anything is allocated."""
    assert await raw(server.port, struct.pack(">i", size))


@pytest.mark.parametrize(
    ("opening", "name"),
    [(b"GET / HTTP/1.1\r\n\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00\x01", "TLS")],
)
async def test_other_protocols_are_refused_with_one_log_line(
    server: BrokerServer, opening: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tidemill.broker"):
        assert await raw(server.port, opening)
    lines = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert len(lines) == 1


@pytest.mark.parametrize(("key", "version"), [(999, 0), (0, 2), (0, 14), (1, 3), (3, 99), (4, 7)])
async def test_what_is_not_supported_closes_the_connection(
    server: BrokerServer, key: int, version: int
) -> None:
    body = struct.pack(">hhih", key, version, 1, -1) + b"\0" * 40
    assert await raw(server.port, struct.pack(">i", len(body)) + body)


async def test_a_body_that_does_not_parse_closes_the_connection(server: BrokerServer) -> None:
    """Rule 3.4.2: an array of 2³¹ entries is no reason to allocate."""
    body = struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff"
    assert await raw(server.port, struct.pack(">i", len(body)) + body)


async def test_an_unknown_version_of_api_versions_is_answered(client: Client) -> None:
    """KIP-511: error 35 in the v0 layout, listing ApiVersions itself."""
    body = struct.pack(">hhih", 18, 99, 5, -1) + b"\0junk"
    client.writer.write(struct.pack(">i", len(body)) + body)
    frame = await client.receive_frame()
    assert frame == struct.pack(">ihihhh", 5, 35, 1, 18, 0, 4)


async def test_acks_zero_is_not_answered(server: BrokerServer, client: Client) -> None:
    await create_topic(server, "t")
    client.send(produce_request("t", batch([b"v"]), acks=0), 9)
    sent = client.send(SOFTWARE, 3)
    assert (await client.receive(ApiVersionsRequest, 3))[0] == sent


async def test_an_error_with_acks_zero_closes_the_connection(client: Client) -> None:
    """Rule B10: there is no other way to tell."""
    client.send(produce_request("missing", batch([b"v"]), acks=0), 9)
    assert await client.is_closed()


async def test_a_late_error_with_acks_zero_closes_the_connection(
    server: BrokerServer, client: Client
) -> None:
    """Rule B10: a compressed batch for a compacted topic is looked at in a thread, and refused."""
    await create_topic(server, "t", configs={"cleanup.policy": "compact"})
    keyless = build_batch([Record(0, 1_000, None, b"v" * 200_000, ())], codec=Codec.GZIP)
    client.send(produce_request("t", keyless, acks=0), 9)
    assert await client.is_closed()


async def test_late_successes_with_acks_zero_are_not_answered(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "t", configs={"compression.type": "lz4"})
    for _ in range(3):
        client.send(produce_request("t", batch([b"v" * 200_000], codec=Codec.GZIP), acks=0), 9)
    sent = client.send(SOFTWARE, 3)
    assert (await client.receive(ApiVersionsRequest, 3))[0] == sent
    assert (await produce(client, "t", batch([b"v"]))).base_offset == 3


async def test_a_peer_that_does_not_read_is_closed_and_a_slow_one_is_not(tmp_path: Path) -> None:
    settings = {"connections.max.idle.ms": "1000"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        await create_topic(server, "t")
        for _ in range(8):
            await produce(client, "t", batch([b"v" * 900_000]))
        deaf, slow = socket.socket(), socket.socket()
        with deaf, slow:
            for peer in (deaf, slow):
                peer.connect(("127.0.0.1", server.port))
                for number in range(60):
                    asked = fetch_request("t", number % 8)
                    peer.sendall(encode_request(ApiKey.FETCH, 12, number, "test", asked))
            for _ in range(40):
                await asyncio.sleep(0.1)
                with contextlib.suppress(BlockingIOError):
                    slow.recv(1_000_000, socket.MSG_DONTWAIT)
            # The client that filled the topic has gone by now, too: it was idle.
            (left,) = server.listeners[0]._connections
            assert left._transport.get_extra_info("peername") == slow.getsockname()


async def test_half_sent_giants_do_not_stop_good_clients(
    server: BrokerServer, client: Client
) -> None:
    """Hundreds of half-sent 100 MB frames held open: a good client is served as before."""
    await create_topic(server, "t")
    async with AsyncExitStack() as stack:
        for _ in range(200):
            bad = await stack.enter_async_context(connect(server.port))
            bad.writer.write(struct.pack(">i", 100_000_000) + bytes(200_000))
        for _ in range(3):
            result = await asyncio.wait_for(produce(client, "t", batch([b"x" * 900_000])), 5)
            assert result.error_code == 0


async def test_a_producer_whose_request_waits_for_answers_is_not_closed_for_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frame is whole: more than that it cannot send, however long others wait for room."""
    monkeypatch.setattr("tidemill.broker.outbox.OWED_BYTES_MAX", 1)
    monkeypatch.setattr("tidemill.broker.request_memory.PROGRESS_MS", 100)
    async with running_broker(tmp_path, {"queued.max.request.bytes": "1000000"}) as server:
        await create_topic(server, "slow")
        await create_topic(server, "t")
        async with connect(server.port) as busy, connect(server.port) as other:
            busy.send(fetch_request("slow", 0, max_wait_ms=1_500), 12)
            busy.send(produce_request("t", batch([b"x" * 900_000])), 9)
            await until_waiting(server, 1)
            await asyncio.sleep(0.2)
            other.send(produce_request("t", batch([b"y" * 900_000])), 9)
            assert (await busy.receive(FetchRequest, 12))[1].error_code == 0
            for client in (busy, other):
                _, response = await asyncio.wait_for(client.receive(ProduceRequest, 9), 10)
                assert response.responses[0].partition_responses[0].error_code == 0


async def test_a_slow_reader_costs_no_one_else_anything(server: BrokerServer) -> None:
    """A connection that does not read is not read for, and others are served."""
    await create_topic(server, "t")
    async with connect(server.port) as writer:
        for _ in range(8):
            await produce(writer, "t", batch([b"x" * 1_000_000]))
        async with connect(server.port) as slow, connect(server.port) as good:
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(300):
                slow.send(fetch_request("t", 0, max_bytes=50_000_000), 12)
            await asyncio.sleep(0.3)
            result = await asyncio.wait_for(produce(good, "t", batch([b"v"])), 5)
            assert result.error_code == 0


async def test_a_slow_reader_gets_what_is_ready_when_the_broker_stops(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server:
        await create_topic(server, "t")
        async with connect(server.port) as client:
            first = client.send(fetch_request("t", 0, max_wait_ms=200), 12)
            second = client.send(SOFTWARE, 3)
            await until_waiting(server, 1)
            (connection,) = server.listeners[0]._connections
            connection.pause_writing()
            await until(lambda: connection._outbox._slots[0].parts is not None)
            await server.stop()
            assert (await client.receive(FetchRequest, 12))[0] == first
            assert (await client.receive(ApiVersionsRequest, 3))[0] == second
            assert await client.is_closed()


async def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    settings = {"connection.handshake.timeout.ms": "200"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        assert await client.is_closed()


async def test_an_unfinished_frame_is_closed(tmp_path: Path) -> None:
    settings = {"connection.partial.frame.timeout.ms": "300"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        await client.ask(SOFTWARE, 3)
        client.writer.write(struct.pack(">i", 1000) + b"half")
        assert await client.is_closed()


async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(tmp_path: Path) -> None:
    settings = {"connections.max.idle.ms": "300"}
    async with running_broker(tmp_path, settings) as server:
        await create_topic(server, "t")
        async with connect(server.port) as idle, connect(server.port) as waiting:
            await idle.ask(SOFTWARE, 3)
            waiting.send(fetch_request("t", 0, max_wait_ms=1200), 12)
            assert await idle.is_closed()
            assert (await waiting.receive(FetchRequest, 12))[0] == 1


async def test_connections_above_the_cap_are_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path, {"max.connections": "2"}) as server:
        async with connect(server.port) as first, connect(server.port) as second:
            await first.ask(SOFTWARE, 3)
            await second.ask(SOFTWARE, 3)
            for _ in range(5):
                async with connect(server.port) as third:
                    assert await third.is_closed()
        refusals = [each for each in caplog.records if "refusing" in each.getMessage()]
        assert len(refusals) == 1, "whoever is refused again and again does not fill the log"
        (listener,) = server.listeners
        await until(lambda: not listener._connections)
        async with connect(server.port) as again:
            await again.ask(SOFTWARE, 3)


async def test_connections_of_one_address_can_be_capped(tmp_path: Path) -> None:
    settings = {"max.connections.per.ip": "1"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as first:
        await first.ask(SOFTWARE, 3)
        async with connect(server.port) as second:
            assert await second.is_closed()


async def test_new_connections_above_the_rate_wait_for_their_turn(tmp_path: Path) -> None:
    """A second's worth begins at once, here one and the next; the fortieth would wait for 38 s."""
    settings = {"max.connection.creation.rate": "1"}
    async with running_broker(tmp_path, settings) as server, AsyncExitStack() as stack:
        began = time.monotonic()
        clients = [await stack.enter_async_context(connect(server.port)) for _ in range(40)]
        await clients[0].ask(SOFTWARE, 3)
        assert time.monotonic() - began < 19
        await clients[2].ask(SOFTWARE, 3)
        assert time.monotonic() - began > 0.9
        server.config.apply_dynamic({"max.connection.creation.rate": "0"}, {})
        async with connect(server.port) as refused:
            assert await refused.is_closed()


async def test_socket_options_reach_the_kernel(tmp_path: Path) -> None:
    settings = {
        "socket.send.buffer.bytes": "70000",
        "socket.receive.buffer.bytes": "50000",
        "socket.listen.backlog.size": "7",
    }
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        await client.ask(SOFTWARE, 3)
        (listener,) = server.listeners
        (connection,) = listener._connections
        accepted = connection._transport.get_extra_info("socket")
        # Linux doubles what it is asked for, to have room for its own notes.
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 140_000
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100_000
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert isinstance(listener._bound, TcpAddress)
        listening = listener._bound._socket
        told = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        assert struct.unpack_from("I", told, 28) == (7,)  # of a listening socket: its backlog


async def until_waiting(server: BrokerServer, count: int) -> None:
    async with asyncio.timeout(20):
        while len(server.broker.purgatory) < count:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def test_only_so_many_answers_are_owed_to_one_connection(
    server: BrokerServer, client: Client
) -> None:
    """Rule 2.L: a client that only asks has its requests wait in its own socket."""
    await create_topic(server, "t")
    asked = [client.send(fetch_request("t", 0, max_wait_ms=60_000), 12) for _ in range(200)]
    purgatory = server.broker.purgatory
    await until_waiting(server, IN_FLIGHT_MAX)
    async with connect(server.port) as producer:
        await producer.ask(SOFTWARE, 3)
        assert len(purgatory) == IN_FLIGHT_MAX
        await produce(producer, "t", batch([b"v"]))
    received = [(await client.receive(FetchRequest, 12))[0] for _ in asked]
    assert received == asked


async def test_an_answer_that_cannot_be_encoded_is_the_trouble_of_one(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients wait for the same records; the first one's answer turns out to be impossible."""
    await create_topic(server, "t")
    failed: list[int] = []

    def encode_but_one(api_key: int, *rest: Any) -> Any:
        if api_key == ApiKey.FETCH and not failed:
            failed.append(api_key)
            raise ValueError("out of range")
        return encode_response(api_key, *rest)

    async with connect(server.port) as first, connect(server.port) as second:
        for count, client in enumerate((first, second), 1):
            client.send(fetch_request("t", 0, max_wait_ms=60_000), 12)
            await until_waiting(server, count)
        monkeypatch.setattr("tidemill.broker.connection.encode_response", encode_but_one)
        async with connect(server.port) as producer:
            await produce(producer, "t", batch([b"v"]))
        assert await first.is_closed()
        assert (await second.receive(FetchRequest, 12))[1].responses


async def test_a_disconnect_does_not_undo_an_append(server: BrokerServer, client: Client) -> None:
    """Rule 2.L: the client's going does not cancel an append half way."""
    await create_topic(server, "t")
    async with connect(server.port) as gone:
        gone.send(produce_request("t", batch([b"v"])), 9)
        await gone.writer.drain()
        await asyncio.sleep(0.05)
    result = await produce(client, "t", batch([b"w"]))
    assert result.base_offset == 1


async def test_produce_requests_of_one_connection_keep_their_order(
    server: BrokerServer, client: Client
) -> None:
    """Rule G7: pipelined batches are appended as they came, conversions in between or not."""
    await create_topic(server, "t", configs={"compression.type": "zstd"})
    sizes = [100_000, 10, 200_000, 20, 30]
    for size in sizes:
        client.send(produce_request("t", batch([b"x" * size])), 9)
    offsets = []
    for _ in sizes:
        _, response = await client.receive(ProduceRequest, 9)
        offsets.append(response.responses[0].partition_responses[0].base_offset)
    assert offsets == [0, 1, 2, 3, 4]


async def test_after_a_large_request_the_other_connections_are_read(
    server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that reads one socket on and on would keep everybody's heartbeats waiting."""
    await create_topic(server, "large")
    pauses = []
    pause_reading = Connection._pause_reading

    def noting(connection: Connection) -> None:
        pauses.append(connection)
        pause_reading(connection)

    monkeypatch.setattr(Connection, "_pause_reading", noting)
    for count in (1, 2):
        answer = await produce(client, "large", batch([b"x" * BYTES_PER_TURN_MAX]))
        assert answer.error_code == 0
        assert len(pauses) == count
    assert (await produce(client, "large", batch([b"small"]))).error_code == 0
    assert len(pauses) == 2


async def test_an_answer_that_cannot_be_read_to_its_end_is_followed_by_nothing(
    server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on a connection that is ending, either: its peer would take it for the rest."""
    await create_topic(server, "t")
    for _ in range(9):
        await produce(client, "t", batch([b"x" * 900_000]))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
    slow = Client(reader, writer)
    slow.send(fetch_request("t", 0, max_bytes=1 << 26, partition_max_bytes=1 << 26), 12)
    slow.send(SOFTWARE, 3)
    slow.send(SOFTWARE, 3)
    connections = server.listeners[0]._connections
    await until(lambda: any(len(each._outbox) == 3 for each in connections))
    (connection,) = [each for each in connections if each.is_busy]

    def fails(stored: LogSlice) -> bytes:
        raise OSError("broken")

    monkeypatch.setattr(LogSlice, "read_now", fails)
    connection.close()
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := await asyncio.wait_for(reader.read(1 << 20), LONG_S):
            received += data
    writer.close()
    assert 0 < len(received) < 8_000_000
    assert received.endswith(b"x" * 1_000)
