"""Listening sockets, and the count of the connections that came in through them.

A connection above `max.connections` or `max.connections.per.ip` is closed at once; one above
`max.connection.creation.rate` is served later, when its turn comes. When the process
runs out of file handles the loop itself stops accepting for a moment and tries again, so the cap,
half of the file limit by default, is what keeps handles for the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidemill.broker.connection import Connection
from tidemill.clock import Clock
from tidemill.logs import Sparingly

log = logging.getLogger(__name__)

BURST_MS = 1_000
DRAIN_MS_MAX = 1_000
UNLIMITED = 2**31 - 1


@dataclass(slots=True)
class ConnectionCaps:
    """How many connections there may be; changed in place when the configuration changes."""

    total: int
    per_address: int
    per_address_overrides: dict[str, int]
    new_per_second: int = UNLIMITED

    def for_address(self, address: str) -> int:
        return self.per_address_overrides.get(address, self.per_address)


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """What the kernel is told about a listener's sockets; -1 bytes leaves a size to it."""

    backlog: int = 1024
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1

    def apply(self, bound: socket.socket) -> None:
        """Sizes are set on the listening socket, before it listens: those it accepts inherit."""
        if self.send_buffer_bytes > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        if self.receive_buffer_bytes > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)


class Bound(Protocol):
    """An address that is ours, and does not accept yet."""

    port: int

    async def serve(self, make_protocol: Callable[[], Connection]) -> asyncio.AbstractServer:
        """Begin to accept."""
        ...

    def close(self) -> None:
        """Give the address back, if nothing is served on it."""
        ...


class Binder(Protocol):
    """Takes addresses; a simulation brings its own network."""

    def __call__(self, host: str, port: int, options: SocketOptions) -> Bound: ...


class TcpAddress:
    """A bound socket of this machine; port 0 becomes a free one."""

    def __init__(self, host: str, port: int, options: SocketOptions) -> None:
        info = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # An empty host means all interfaces: IPv4 first, which every machine has.
        family, kind, protocol, _, address = min(info, key=lambda entry: entry[0])
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            options.apply(bound)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        self.port: int = bound.getsockname()[1]
        self._socket = bound
        self._backlog = options.backlog

    async def serve(self, make_protocol: Callable[[], Connection]) -> asyncio.AbstractServer:
        loop = asyncio.get_running_loop()
        return await loop.create_server(make_protocol, sock=self._socket, backlog=self._backlog)

    def close(self) -> None:
        self._socket.close()


class ConnectionCounts:
    """The open connections of all listeners together."""

    def __init__(self, clock: Clock) -> None:
        self.refusals = Sparingly(clock)
        self.total = 0
        self.by_address: Counter[str] = Counter()
        self._clock = clock
        self._next_turn_ms = 0.0

    def add(self, address: str) -> None:
        self.total += 1
        self.by_address[address] += 1

    def turn_in_ms(self, new_per_second: int) -> int:
        """How long a new connection waits so that not too many begin; a second's worth may burst.

        Each takes the next free turn, `1000 / new_per_second` after the one before.
        """
        now_ms = self._clock.monotonic_ms()
        turn_ms = max(self._next_turn_ms, now_ms - BURST_MS)
        self._next_turn_ms = turn_ms + 1000 / new_per_second
        return max(0, math.ceil(turn_ms - now_ms))

    def remove(self, address: str) -> None:
        self.total -= 1
        self.by_address[address] -= 1
        if not self.by_address[address]:
            del self.by_address[address]


class Listener:
    """One named address on which the broker accepts connections."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        caps: ConnectionCaps,
        counts: ConnectionCounts,
        options: SocketOptions = SocketOptions(),  # noqa: B008 - frozen
        binder: Binder = TcpAddress,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._caps = caps
        self._counts = counts
        self._options = options
        self._binder = binder
        self._bound: Bound | None = None
        self._server: asyncio.AbstractServer | None = None
        self._connections: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_drained = False

    def bind(self) -> None:
        """Take the address, without accepting yet; port 0 becomes a free one."""
        self._bound = self._binder(self.host, self.port, self._options)
        self.port = self._bound.port

    async def start(self, make_connection: Callable[[Listener], Connection]) -> None:
        """Begin to accept."""
        assert self._bound is not None
        self._server = await self._bound.serve(lambda: make_connection(self))

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in; False if there are too many already, or none is taken."""
        if self._is_drained:
            return False  # It was accepted in the very moment in which we stopped to accept.
        address = connection.client_address
        counts = self._counts
        if counts.total >= self._caps.total:
            self._refuse(address, f"{counts.total} connections are open (max.connections)")
            return False
        if counts.by_address[address] >= self._caps.for_address(address):
            has = counts.by_address[address]
            self._refuse(address, f"it has {has} connections (max.connections.per.ip)")
            return False
        if self._caps.new_per_second == 0:
            self._refuse(address, "no new connections are taken (max.connection.creation.rate=0)")
            return False
        counts.add(address)
        self._connections[connection] = None
        return True

    def turn_in_ms(self) -> int:
        """How long the connection that was just admitted waits before it is served."""
        new_per_second = self._caps.new_per_second
        return 0 if new_per_second >= UNLIMITED else self._counts.turn_in_ms(new_per_second)

    def _refuse(self, address: str, why: str) -> None:
        """Say so, but now and then only: a client that is refused comes back at once."""
        held_back = self._counts.refusals.ask()
        if held_back is not None:
            log.warning("refusing %s: %s%s", address, why, held_back)

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._counts.remove(connection.client_address)

    def keep(self, task: asyncio.Task[object]) -> None:
        """Hold on to a handler's task until it is done: the loop itself does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        elif self._bound is not None:
            self._bound.close()

    async def drain(self) -> None:
        """Take no more, let handlers that are under way finish for a moment, and close."""
        self.stop_accepting()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=DRAIN_MS_MAX / 1000)
        self._is_drained = True
        for connection in list(self._connections):
            connection.close()
