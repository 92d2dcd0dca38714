"""Listening sockets, and the count of the connections that came in through them.

A connection above `max.connections` or `max.connections.per.ip` is closed at once. When the process
runs out of file handles the loop itself stops accepting for a moment and tries again, so the cap,
half of the file limit by default, is what keeps handles for the log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.broker.connection import Connection

log = logging.getLogger(__name__)

BACKLOG = 1024
DRAIN_MS_MAX = 1_000
UNLIMITED = 2**31 - 1


@dataclass(slots=True)
class ConnectionCaps:
    """How many connections there may be; changed in place when the configuration changes."""

    total: int
    per_address: int
    per_address_overrides: dict[str, int]

    def for_address(self, address: str) -> int:
        return self.per_address_overrides.get(address, self.per_address)


class ConnectionCounts:
    """The open connections of all listeners together."""

    def __init__(self) -> None:
        self.total = 0
        self.by_address: Counter[str] = Counter()

    def add(self, address: str) -> None:
        self.total += 1
        self.by_address[address] += 1

    def remove(self, address: str) -> None:
        self.total -= 1
        self.by_address[address] -= 1
        if not self.by_address[address]:
            del self.by_address[address]


class Listener:
    """One named address on which the broker accepts connections."""

    def __init__(
        self, name: str, host: str, port: int, caps: ConnectionCaps, counts: ConnectionCounts
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._caps = caps
        self._counts = counts
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    def bind(self) -> None:
        """Take the address, without accepting yet; port 0 becomes a free one."""
        info = socket.getaddrinfo(
            self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # An empty host means all interfaces: IPv4 first, which every machine has.
        family, kind, protocol, _, address = min(info, key=lambda entry: entry[0])
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        self._socket = bound
        self.port = bound.getsockname()[1]

    async def start(self, make_connection: Callable[[Listener], Connection]) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        assert self._socket is not None
        self._server = await loop.create_server(
            lambda: make_connection(self), sock=self._socket, backlog=BACKLOG
        )

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in; False if there are too many already."""
        address = connection.client_address
        counts = self._counts
        if counts.total >= self._caps.total:
            log.warning("refusing %s: %d connections are open (max.connections)",
                        address, counts.total)  # fmt: skip
            return False
        if counts.by_address[address] >= self._caps.for_address(address):
            log.warning("refusing %s: it has %d connections (max.connections.per.ip)",
                        address, counts.by_address[address])  # fmt: skip
            return False
        counts.add(address)
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._counts.remove(connection.client_address)

    def keep(self, task: asyncio.Task[object]) -> None:
        """Hold on to a handler's task until it is done: the loop itself does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()

    async def drain(self) -> None:
        """Take no more, let handlers that are under way finish for a moment, and close."""
        self.stop_accepting()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=DRAIN_MS_MAX / 1000)
        for connection in list(self._connections):
            connection.close()
