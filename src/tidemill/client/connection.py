"""One socket to one broker: requests go out in order, answers come back in the same order.

`open_connection` connects and agrees on versions; `Connection.send` writes a request at once and
returns a future, `Connection.request` awaits it. A request that gets no answer in time ends the
connection, since every later answer would be stuck behind it.

Nothing that came or went over the wire is logged: it may hold what nobody else should read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tidemill import __version__
from tidemill.client.answers import Answers
from tidemill.client.errors import RequestTimeoutError, UnreachableError, UnsupportedError
from tidemill.client.settings import CommonSettings
from tidemill.clock import Clock
from tidemill.errors import ErrorCode, WireError
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.codec import decode
from tidemill.wire.declare import Message, Records
from tidemill.wire.frame import decode_response, encode_request_parts
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

SOFTWARE_NAME = "tidemill"
IN_FLIGHT_MAX = 1_000
"""More unanswered requests than this on one connection is a bug of ours, not load."""

STUCK_MS = 1_000
"""A broker that leaves a request unanswered for longer is asked nothing that others can answer."""

WRITE_APART_BYTES_MIN = 64 * 1024
"""Records of this size and more are handed to the socket without being copied into a frame."""

_SIZE = struct.Struct(">i")
_CORRELATION_AND_ERROR = struct.Struct(">ih")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connector(Protocol):
    """Makes a connected transport; a simulation brings its own network."""

    def __call__(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]: ...


async def connect_tcp(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """A TCP connection of the running loop, without Nagle's delay."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(factory, host, port)
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return transport, protocol


class _Pending:
    """A request on its way."""

    __slots__ = ("api_key", "correlation_id", "future", "sent_ms", "timer", "version")

    def __init__(
        self,
        api_key: ApiKey,
        version: int,
        correlation_id: int,
        future: asyncio.Future[Any],
        timer: asyncio.TimerHandle,
        sent_ms: int,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.future = future
        self.timer = timer
        self.sent_ms = sent_ms


class Connection(asyncio.BufferedProtocol):
    """Pipelined requests over one transport; made by `open_connection`."""

    def __init__(self, address: Address, settings: CommonSettings, clock: Clock) -> None:
        self.address = address
        self.versions: Mapping[ApiKey, tuple[int, int]] = {}
        self.broker_versions: ApiVersionsResponse | None = None
        self.last_used_ms = clock.monotonic_ms()
        self.answered_ms = self.last_used_ms
        """When the broker gave its latest answer."""
        self._clock = clock
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._closed: Exception | None = None
        self._in_flight: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._answers = Answers(settings.max_response_bytes)
        self._writable = True
        self._when_writable: list[Callable[[], None]] = []

    # --- what a user calls -----------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._closed is None and self._transport is not None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def waiting_ms(self) -> int:
        """For how long the oldest request under way has gone unanswered."""
        if not self._in_flight:
            return 0
        return self._clock.monotonic_ms() - self._in_flight[0].sent_ms

    @property
    def is_stuck(self) -> bool:
        """Whether an answer is so late that it may never come."""
        return self.waiting_ms >= STUCK_MS

    @property
    def is_writable(self) -> bool:
        """Whether the socket keeps up; who sends without waiting for answers must look."""
        return self._writable

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the socket has caught up, or is gone."""
        self._when_writable.append(callback)

    def version_of(self, api_key: ApiKey) -> int | None:
        """The newest version that both sides speak, or None."""
        offered = self.versions.get(api_key)
        if offered is None:
            return None
        ours = APIS[api_key]
        version = min(ours.max_version, offered[1])
        return version if version >= max(ours.min_version, offered[0]) else None

    async def request(
        self, message: Message, *, timeout_ms: float | None = None, max_version: int | None = None
    ) -> Any:
        """Send a request and wait for its answer."""
        return await self.send(message, timeout_ms=timeout_ms, max_version=max_version)

    def send(
        self, message: Message, *, timeout_ms: float | None = None, max_version: int | None = None
    ) -> asyncio.Future[Any]:
        """Write a request now; the future has its answer, or the error that ended the connection.

        `timeout_ms` is added to for requests that make the broker wait; default is
        `request.timeout.ms`.
        """
        api_key, version = self._choose(message, max_version)
        return self._write(message, api_key, version, timeout_ms)

    def send_blind(self, message: Message, *, max_version: int | None = None) -> None:
        """Write a request that is never answered: Produce with acks=0."""
        api_key, version = self._choose(message, max_version)
        self._write_frame(message, api_key, version)

    def close(self, reason: Exception | None = None) -> None:
        """Close now; requests under way fail with `reason`."""
        closed = UnreachableError(f"the connection to {self.address} was closed", hint="")
        self._end(reason or closed)

    # --- sending ---------------------------------------------------------------------------------

    def _choose(self, message: Message, max_version: int | None) -> tuple[ApiKey, int]:
        api_key = _key_of(type(message))
        version = self.version_of(api_key)
        if version is None:
            raise UnsupportedError(
                f"the broker at {self.address} offers no usable version of {api_key.name}"
            )
        return api_key, version if max_version is None else min(version, max_version)

    def _write(
        self, message: Message, api_key: ApiKey, version: int, timeout_ms: float | None
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        correlation_id = self._write_frame(message, api_key, version)
        wait_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        timer = self._loop.call_later(wait_ms / 1000, self._time_out, api_key, wait_ms)
        self._in_flight.append(
            _Pending(api_key, version, correlation_id, future, timer, self.last_used_ms)
        )
        return future

    def _write_frame(self, message: Message, api_key: ApiKey, version: int) -> int:
        if self._closed is not None:
            raise self._closed
        if self._transport is None or len(self._in_flight) >= IN_FLIGHT_MAX:
            raise UnreachableError(f"the connection to {self.address} takes no more requests")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        parts = encode_request_parts(
            api_key, version, correlation_id, self._settings.client_id, message
        )
        for piece in _in_few(parts):
            self._transport.write(piece)
        self.last_used_ms = self._clock.monotonic_ms()
        return correlation_id

    def _time_out(self, api_key: ApiKey, waited_ms: float) -> None:
        if self._transport is not None:
            # Closing it would still send what waits. Whoever asked is told that it failed and may
            # ask again: a commit that comes after its successors would undo them.
            self._transport.abort()
        self._end(
            RequestTimeoutError(
                f"no answer to {api_key.name} from {self.address} in {waited_ms:.0f} ms"
            )
        )

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._tell_writers()

    def _tell_writers(self) -> None:
        callbacks, self._when_writable = self._when_writable, []
        for callback in callbacks:
            callback()

    # --- receiving -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods without the base class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc is not None else ""
        text = f"the broker at {self.address} closed the connection{why}"
        self._end(UnreachableError(text, hint=""))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._answers.writable()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed is not None:
            return
        try:
            for frame in self._answers.take(nbytes):
                self._answer(frame)
        except WireError as error:
            self._end(
                UnreachableError(
                    f"the answer of {self.address} does not parse: {error}",
                    hint="does a Kafka broker listen there, and without TLS?",
                )
            )

    def _answer(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise WireError("nothing was asked")
        pending = self._in_flight.popleft()
        pending.timer.cancel()
        self.answered_ms = self._clock.monotonic_ms()
        try:
            message = self._decode(pending, frame)
        except Exception as error:
            _fail(pending.future, UnreachableError(f"{self.address}: {error}"))
            raise
        if not pending.future.done():
            pending.future.set_result(message)

    def _decode(self, pending: _Pending, frame: memoryview) -> Any:
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != pending.correlation_id:
            raise WireError(f"answer {correlation_id} came where {pending.correlation_id} was due")
        if pending.api_key is ApiKey.API_VERSIONS and _is_unsupported(frame):
            return decode(ApiVersionsResponse, 0, frame, _SIZE.size)
        return decode_response(pending.api_key, pending.version, frame)[1]

    def _end(self, reason: Exception) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        if self._transport is not None:
            self._transport.close()
        while self._in_flight:
            pending = self._in_flight.popleft()
            pending.timer.cancel()
            _fail(pending.future, reason)
        self._tell_writers()

    # --- agreeing on versions --------------------------------------------------------------------

    async def negotiate(self) -> None:
        """Ask what the broker offers, with an older question if ours is too new for it."""
        version = APIS[ApiKey.API_VERSIONS].max_version
        answer = await self._ask_versions(version)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = {entry.api_key: entry for entry in answer.api_keys}
            entry = offered.get(ApiKey.API_VERSIONS)
            answer = await self._ask_versions(min(entry.max_version, version) if entry else 0)
        if answer.error_code:
            raise UnsupportedError(
                f"the broker at {self.address} refused to say what it speaks"
                f" (error {answer.error_code})"
            )
        self.broker_versions = answer
        self.versions = {
            ApiKey(entry.api_key): (entry.min_version, entry.max_version)
            for entry in answer.api_keys
            if entry.api_key in APIS
        }

    async def _ask_versions(self, version: int) -> ApiVersionsResponse:
        request = ApiVersionsRequest()
        if version >= 3:
            request.client_software_name = SOFTWARE_NAME
            request.client_software_version = __version__
        answer = await self._write(request, ApiKey.API_VERSIONS, version, None)
        assert isinstance(answer, ApiVersionsResponse)
        return answer


def _in_few(parts: list[Records]) -> Iterator[Records]:
    """Large parts as they are; what is between them joined, for a write costs more than a copy."""
    small: list[Records] = []
    for part in parts:
        if len(part) < WRITE_APART_BYTES_MIN:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


def _is_unsupported(frame: memoryview) -> bool:
    """A broker that does not know our version answers in version 0, whose error comes first."""
    if len(frame) < _CORRELATION_AND_ERROR.size:
        return False
    error: int = _CORRELATION_AND_ERROR.unpack_from(frame)[1]
    return error == ErrorCode.UNSUPPORTED_VERSION


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Whoever waits still gets it; nobody waiting is no scandal.


async def open_connection(
    address: Address,
    settings: CommonSettings,
    clock: Clock,
    connector: Connector = connect_tcp,
) -> Connection:
    """Connect and agree on versions; `UnreachableError` says in plain words why it failed."""
    connection = Connection(address, settings, clock)
    limit_s = settings.socket_connection_setup_timeout_ms / 1000
    try:
        async with asyncio.timeout(limit_s):
            await connector(lambda: connection, address.host, address.port)
            await connection.negotiate()
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise UnreachableError(f"cannot reach {address}: no answer in {limit_s:g} s") from error
        if isinstance(error, OSError):
            raise UnreachableError(f"cannot reach {address}: {_in_words(error)}") from error
        raise
    return connection


def _in_words(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "no such host"
    return (error.strerror or str(error)).lower()


_KEYS = {f"{api.name}Request": key for key, api in APIS.items()}


def _key_of(kind: type[Message]) -> ApiKey:
    """Which API a request class belongs to."""
    return _KEYS[kind.__name__]
