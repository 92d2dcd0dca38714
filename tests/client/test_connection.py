"""One connection: negotiation, pipelining, timeouts, and answers that are no answers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from tests.client.scripted import HOST, Fault, ScriptedBroker

from tidemill.client.connection import Address, Connection, open_connection
from tidemill.client.errors import RequestTimeoutError, UnreachableError, UnsupportedError
from tidemill.client.settings import AdminSettings, parse
from tidemill.clock import SystemClock
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import ListOffsetsRequest
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidemill.wire.messages.topics import CreateTopicsRequest

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 1}) as running:
        yield running


async def connect(port: int, **settings: int) -> Connection:
    return await open_connection(Address(HOST, port), parse(AdminSettings, settings), SystemClock())


async def connect_to(handler: Handler, **settings: int) -> Connection:
    """A connection to a server that does what `handler` does."""
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.ensure_future(handler(reader, writer)))

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        return await connect(server.sockets[0].getsockname()[1], **settings)
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*serving)


def answering(data: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1000)
            writer.write(data)
            await writer.drain()
            await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()

    return handler


async def test_versions_are_agreed_on(broker: ScriptedBroker) -> None:
    broker.max_versions[ApiKey.METADATA] = 5
    connection = await connect(broker.port)
    assert connection.version_of(ApiKey.METADATA) == 5
    assert connection.version_of(ApiKey.CREATE_TOPICS) is None
    with pytest.raises(UnsupportedError, match="CREATE_TOPICS"):
        await connection.request(CreateTopicsRequest())
    connection.close()


@pytest.mark.parametrize("newest", [0, 1, 2, 3])
async def test_a_broker_that_knows_older_versions_only(broker: ScriptedBroker, newest: int) -> None:
    """Our first question may be too new: the refusal comes in version 0 and says what is known."""
    broker.max_versions[ApiKey.API_VERSIONS] = newest
    connection = await connect(broker.port)
    assert connection.version_of(ApiKey.METADATA) is not None
    connection.close()


async def test_requests_are_pipelined_and_answered_in_order(broker: ScriptedBroker) -> None:
    connection = await connect(broker.port)
    sent = [connection.send(MetadataRequest(topics=[])) for _ in range(50)]
    assert connection.in_flight == 50
    answers = await asyncio.gather(*sent)
    assert all(isinstance(answer, MetadataResponse) for answer in answers)
    assert connection.in_flight == 0
    connection.close()


async def test_no_answer_in_time_ends_the_connection(broker: ScriptedBroker) -> None:
    connection = await connect(broker.port)
    broker.fault = lambda *_: Fault(silent=True)
    late = connection.send(MetadataRequest(topics=[]), timeout_ms=10_000)
    with pytest.raises(RequestTimeoutError, match="no answer to METADATA"):
        await connection.request(MetadataRequest(topics=[]), timeout_ms=30)
    with pytest.raises(RequestTimeoutError):
        await late
    assert not connection.is_open


async def test_what_was_given_up_is_not_sent_any_more(broker: ScriptedBroker) -> None:
    """A commit of long ago would undo those that came after it."""
    goes_on = asyncio.Event()
    arrived: list[int] = []

    async def read_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand the first question to the broker and its answer back; then be deaf for a while."""
        to_broker, from_broker = await asyncio.open_connection(HOST, broker.port)
        from_broker.write(await reader.read(1000))
        writer.write(await to_broker.read(10_000))
        await goes_on.wait()
        with suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                arrived.append(len(data))
        for each in (from_broker, writer):
            each.close()
            with suppress(ConnectionError):
                await each.wait_closed()

    serving: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(
        lambda *streams: serving.append(asyncio.ensure_future(read_late(*streams))), HOST, 0
    )
    async with server:
        connection = await connect(server.sockets[0].getsockname()[1])
        names = [f"{number:0200}" for number in range(100_000)]
        wide = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
        with pytest.raises(RequestTimeoutError):
            await connection.request(wide, timeout_ms=200)
        goes_on.set()
        await asyncio.gather(*serving)
    assert 0 < sum(arrived) < 100_000 * 200


async def test_an_answer_to_another_question_ends_the_connection(broker: ScriptedBroker) -> None:
    """Whatever it says would be taken for something else."""
    skipped = iter([Fault(silent=True)])
    broker.fault = lambda key, _: next(skipped, None) if key is ApiKey.METADATA else None
    connection = await connect(broker.port)
    answers = [connection.send(MetadataRequest(topics=[])) for _ in range(2)]
    for answer in answers:
        with pytest.raises(UnreachableError, match="came where"):
            await answer
    assert not connection.is_open


async def test_a_closed_connection_fails_what_was_under_way(broker: ScriptedBroker) -> None:
    connection = await connect(broker.port)
    broker.fault = lambda *_: Fault(drop=True)
    with pytest.raises(UnreachableError, match="closed the connection"):
        await connection.request(MetadataRequest(topics=[]))
    with pytest.raises(UnreachableError):
        connection.send(MetadataRequest(topics=[]))


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", 2**31 - 1) + b"x" * 100,
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        struct.pack(">ii", 4, 77),
        struct.pack(">iih", 6, 0, 0),
        b"\x15\x03\x03\x00\x02\x02\x46",
    ],
    ids=["2 GiB", "negative", "empty", "http", "wrong id", "cut short", "tls alert"],
)
async def test_what_is_no_answer_is_refused_without_allocating(garbage: bytes) -> None:
    """Rule 3.4.1: a declared size is checked before anything is allocated for it."""
    with pytest.raises(UnreachableError) as caught:
        await connect_to(answering(garbage), socket_connection_setup_timeout_ms=2_000)
    assert "127.0.0.1" in str(caught.value)


async def test_an_answer_above_the_limit_is_refused(broker: ScriptedBroker) -> None:
    connection = await connect(broker.port, max_response_bytes=1024)
    for number in range(200):
        broker.create(f"topic-with-a-long-name-{number}")
    with pytest.raises(UnreachableError):
        await connection.request(MetadataRequest(topics=None))


async def test_a_server_that_says_nothing(broker: ScriptedBroker) -> None:
    broker.fault = lambda *_: Fault(silent=True)
    with pytest.raises(UnreachableError, match=r"no answer in 0\.05 s"):
        await connect(broker.port, socket_connection_setup_timeout_ms=50)


async def test_large_answers_in_many_pieces(broker: ScriptedBroker) -> None:
    for number in range(600):
        broker.create(f"topic-{number:05}", 2)
    connection = await connect(broker.port)
    first, second = await asyncio.gather(
        connection.request(MetadataRequest(topics=None)),
        connection.request(MetadataRequest(topics=None)),
    )
    assert len(first.topics) == len(second.topics) == 601
    connection.close()


async def test_no_such_host() -> None:
    address = Address("no-such-host.invalid", 1)
    with pytest.raises(UnreachableError, match=r"cannot reach no-such-host\.invalid:1"):
        await open_connection(address, AdminSettings(), SystemClock())


async def test_a_request_that_cannot_be_encoded_leaves_the_connection_usable(
    broker: ScriptedBroker,
) -> None:
    broker.max_versions[ApiKey.LIST_OFFSETS] = 1
    connection = await connect(broker.port)
    with pytest.raises(Exception, match="isolation_level"):
        await connection.request(ListOffsetsRequest(isolation_level=1))
    assert isinstance(await connection.request(MetadataRequest(topics=[])), MetadataResponse)
    connection.close()
