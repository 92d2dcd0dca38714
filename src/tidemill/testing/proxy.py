"""A TCP proxy in front of a real process, to break its network per link, client and direction.

A `Link` listens on a port of 127.0.0.1 and passes bytes on to a target; clients are given its port
instead of the target's. It can delay, slow down, partition in one direction or both, reset, and
refuse. During a partition connections stay half-open: bytes and even the end of a stream wait until
it heals, as they do in the kernels of two machines that lost each other. With `drop` they are lost,
and the connections that lost something are reset when the partition heals.

Conditions hold for all clients of a link, or for one (`who`): the beginning of the client id that
Kafka's requests carry, or a source address. A link can so separate one broker from another while
clients reach both.

This module is the asyncio side. Tests use it through `proxy_control`:

    with ProxyThread() as proxy:
        link = proxy.link(broker.port)
        connect_to(link.port)
        link.partition(Way.TO_CLIENT)       # requests arrive, answers do not
        link.heal()
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

CHUNK_BYTES = 64 * 1024
QUEUE_CHUNKS_MAX = 64
"""What a direction holds back at most, in chunks; then its sender has to wait."""

SESSIONS_MAX = 4_096
HOST = "127.0.0.1"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CLIENT_ID_AT = 12
_ANYBODY = ""


class Way(StrEnum):
    """A direction of a link."""

    TO_SERVER = "to-server"
    TO_CLIENT = "to-client"
    BOTH = "both"

    def ways(self) -> tuple[Way, ...]:
        return (Way.TO_SERVER, Way.TO_CLIENT) if self is Way.BOTH else (self,)

    def back(self) -> Way:
        return Way.TO_CLIENT if self is Way.TO_SERVER else Way.TO_SERVER


@dataclass(frozen=True, slots=True)
class Conditions:
    """How one direction behaves; the default passes everything at once."""

    is_blocked: bool = False
    drops: bool = False
    delay_ms: float = 0
    jitter_ms: float = 0
    bytes_per_s: int | None = None


def _none_yet() -> dict[Way, int]:
    return {Way.TO_SERVER: 0, Way.TO_CLIENT: 0}


@dataclass(slots=True)
class Stats:
    """What a link has done so far."""

    sessions: int = 0
    open_sessions: int = 0
    passed_bytes: dict[Way, int] = field(default_factory=_none_yet)
    dropped_bytes: dict[Way, int] = field(default_factory=_none_yet)


class Link:
    """One proxied address. Its methods are called on the loop that runs it."""

    def __init__(self, target_host: str, target_port: int, port: int) -> None:
        self.target_host = target_host
        self.target_port = target_port
        self.port = port
        self.stats = Stats()
        self._server: asyncio.Server | None = None
        self._sessions: set[_Session] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._rules: dict[tuple[str, Way], Conditions] = {}
        self._changed = asyncio.Event()

    # Control

    async def accept(self) -> None:
        """Listen, at the beginning or again after `refuse`."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Close the port: connecting fails. Connections that exist go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def delay(
        self, delay_ms: float, jitter_ms: float = 0, *, way: Way = Way.BOTH, who: str = _ANYBODY
    ) -> None:
        """Hold every chunk for so long, plus up to `jitter_ms`; the order stays."""
        self._change(way, who, lambda old: replace(old, delay_ms=delay_ms, jitter_ms=jitter_ms))

    def limit(self, bytes_per_s: int | None, *, way: Way = Way.BOTH, who: str = _ANYBODY) -> None:
        """Pass at most so many bytes per second and connection."""
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ValueError("a limit is above 0 bytes per second; use partition for none at all")
        self._change(way, who, lambda old: replace(old, bytes_per_s=bytes_per_s))

    def partition(self, way: Way = Way.BOTH, *, drop: bool = False, who: str = _ANYBODY) -> None:
        """Let nothing through; connections stay as they are."""
        self._change(way, who, lambda old: replace(old, is_blocked=True, drops=drop))

    def heal(self) -> None:
        """Pass everything at once again, for everybody."""
        self._rules.clear()
        self._tell()
        for session in list(self._sessions):
            if session.is_torn:
                session.reset()

    def reset(self, *, who: str = _ANYBODY) -> None:
        """Break the connections that exist, with a reset for both sides."""
        for session in list(self._sessions):
            if who == _ANYBODY or session.is_of(who):
                session.reset()

    async def close(self) -> None:
        self.refuse()
        self.reset()
        await asyncio.gather(*self._serving)

    def _change(self, way: Way, who: str, how: Callable[[Conditions], Conditions]) -> None:
        for one in way.ways():
            self._rules[who, one] = how(self._rules.get((who, one), Conditions()))
        self._tell()

    def _tell(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    # What sessions ask

    def conditions(self, session: _Session, way: Way) -> Conditions:
        """Those of the client if there are any, else those of all."""
        for who, ruled in self._rules:
            if who != _ANYBODY and ruled is way and session.is_of(who):
                return self._rules[who, ruled]
        return self._rules.get((_ANYBODY, way), Conditions())

    async def passable(self, session: _Session, way: Way) -> None:
        """Wait until nothing blocks this direction."""
        while self.conditions(session, way).is_blocked:
            await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._sessions) >= SESSIONS_MAX:
            writer.transport.abort()
            return
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        session = _Session(self, reader, writer)
        self._sessions.add(session)
        self.stats.sessions += 1
        self.stats.open_sessions += 1
        # A task of its own, because a reset cancels it: asyncio's server must not notice.
        session.task = asyncio.create_task(session.run())
        await asyncio.wait([session.task])
        self.forget(session)
        session.abandon()

    def forget(self, session: _Session) -> None:
        """A session is over, or about to be."""
        if session in self._sessions:
            self._sessions.discard(session)
            self.stats.open_sessions -= 1


class _Session:
    """One connection of a client, and the one to the target that belongs to it."""

    def __init__(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.is_torn = False
        """Whether bytes of it were lost, so that it must not go on."""
        self._link = link
        self._client = (reader, writer)
        self._writers = [writer]
        self._address: str = writer.get_extra_info("peername")[0]
        self._client_id: str | None = None

    def is_of(self, who: str) -> bool:
        return self._address == who or (self._client_id or "").startswith(who)

    async def run(self) -> None:
        await self._link.passable(self, Way.TO_SERVER)
        target = self._link.target_host, self._link.target_port
        try:
            server = await asyncio.open_connection(*target)
        except OSError:
            self.reset()
            return
        self._writers.append(server[1])
        client_in, client_out = self._client
        await asyncio.gather(
            self._pump(Way.TO_SERVER, client_in, server[1]),
            self._pump(Way.TO_CLIENT, server[0], client_out),
        )

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass one direction on; reading and writing are apart, so that delays do not add up."""
        queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(QUEUE_CHUNKS_MAX)
        await asyncio.gather(self._read(way, reader, queue), self._write(way, queue, writer))

    async def _read(
        self,
        way: Way,
        reader: asyncio.StreamReader,
        queue: asyncio.Queue[tuple[float, bytes | None]],
    ) -> None:
        """Fill the queue; an empty chunk is the end of the stream, None a reset."""
        loop = asyncio.get_running_loop()
        data: bytes | None = b"-"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = None
            if self._client_id is None and data and way is Way.TO_SERVER:
                self._client_id = client_id_of(data)
            conditions = self._link.conditions(self, way)
            wait_ms = conditions.delay_ms + conditions.jitter_ms * random.random()
            await queue.put((loop.time() + wait_ms / 1000, data))

    async def _write(
        self,
        way: Way,
        queue: asyncio.Queue[tuple[float, bytes | None]],
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0, due - loop.time()))
            conditions = self._link.conditions(self, way)
            if data and conditions.is_blocked and conditions.drops:
                self.is_torn = True
                self._link.stats.dropped_bytes[way] += len(data)
                continue
            await self._link.passable(self, way)
            if data is None:
                self.reset()
                return
            if not await self._pass_on(way, data, writer):
                return

    async def _pass_on(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Write a chunk at the pace that is set; False if it was the last."""
        try:
            if not data:
                writer.write_eof()
                return False
            rate = self._link.conditions(self, way).bytes_per_s
            if rate is not None:
                await asyncio.sleep(len(data) / rate)
                await self._link.passable(self, way)
            writer.write(data)
            await writer.drain()
        except OSError:
            # The receiver is gone; its sender hears of it if anything gets back to it.
            await self._link.passable(self, way.back())
            self.reset()
            return False
        self._link.stats.passed_bytes[way] += len(data)
        return True

    def reset(self) -> None:
        """Break both connections, so that both sides are told at once."""
        for writer in self._writers:
            raw: socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and not writer.transport.is_closing():
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.abandon()
        self._link.forget(self)
        if self.task is not None:
            self.task.cancel()

    def abandon(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


def client_id_of(data: bytes) -> str:
    """The client id in the first request of a connection; empty if that is not Kafka's protocol."""
    if len(data) < _CLIENT_ID_AT + 2:
        return ""
    (length,) = struct.unpack_from(">h", data, _CLIENT_ID_AT)
    start = _CLIENT_ID_AT + 2
    return data[start : start + max(0, length)].decode("utf-8", "replace")
