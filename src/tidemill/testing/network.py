"""A network in memory for simulated clusters: delays, partitions and crashes from one seed.

It runs on a `SimLoop` and behaves as TCP does where that matters to a distributed system:

* the bytes of one connection arrive in order, in pieces of any size, after seeded delays; different
  connections overtake each other;
* `block` stops one direction between two hosts. Nothing fails: bytes wait and arrive after
  `unblock`, late, unless the sender has given up by then. Connecting hangs;
* a reader that does not read fills the window, then the writer's buffer, which pauses the writer;
* `SimHost.kill` ends a process: its peers are told. `SimHost.power_off` ends a machine: its peers
  hear nothing until it is back, and then that their connections are gone.

    loop = SimLoop()
    network = SimNetwork(loop, Random(seed))
    one, two = network.host("one"), network.host("two")
    two.run(serve())                    # asyncio code; loop.create_server works in there
    one.run(ask("two", 9092))           # and loop.create_connection
    network.partition({"one"}, {"two"}, both_ways=False)

`SimNetwork.fingerprint` changes with every byte that arrives and its time: two runs of one seed end
with the same, or something is not deterministic.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from tidemill.testing.loop import NS_PER_MS, Domain, SimLoop, VirtualClock
from tidemill.testing.pipe import End, Kind, Pipe

T = TypeVar("T")

HOSTS_MAX = 250
RECENT_MAX = 1_000
SYN_WAITS_S = (1, 2, 4, 8, 16, 32, 64)
"""How long a kernel waits for an answer before it sends its opening packet again."""

RETRANSMIT_MS = 200
CATCH_UP_MS_MAX = 3_000
"""After a block the sender's kernel tries again at some moment, not at once."""

_FIRST_OWN_PORT = 32_768
_mark = struct.Struct("<QIBI").pack


@dataclass(frozen=True, slots=True)
class Quality:
    """How one direction between two hosts behaves."""

    delay_ms_min: float = 0.1
    delay_ms_max: float = 2.0
    loss: float = 0.0
    """The chance of a piece to get lost once: it comes `RETRANSMIT_MS` later."""
    reset: float = 0.0
    """The chance of a piece to be the last: the connection breaks."""
    bytes_per_s: int | None = None
    give_up_ms: int = 900_000
    """How long a sender's kernel goes on trying before it says that the connection is dead."""


@dataclass(slots=True)
class Path:
    """One direction between two hosts."""

    source: SimHost
    target: SimHost
    quality: Quality
    is_blocked: bool = False
    blocked_at_ns: int = 0
    free_at_ns: int = 0
    pipes: dict[int, Pipe] = field(default_factory=dict)
    """Those with something on its way."""

    @property
    def is_open(self) -> bool:
        return not self.is_blocked and self.target.is_powered and self.source.is_powered


class SimHost:
    """A machine with one process on it. Made by `SimNetwork.host`."""

    def __init__(self, network: SimNetwork, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.clock = VirtualClock(network.loop)
        self.is_powered = True
        self.ends: dict[int, End] = {}
        self.listeners: dict[int, SimServer] = {}
        self._network = network
        self._incarnation = 0
        self._next_port = _FIRST_OWN_PORT
        self.domain = self._new_domain()

    def _new_domain(self) -> Domain:
        self._incarnation += 1
        return self._network.new_domain(self, f"{self.name}.{self._incarnation}")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in the host's process."""
        return self.domain.create_task(coroutine)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """A connection from this host: what `client.connection.Connector` asks for."""
        return await self._network.connect(self.domain, factory, host, port)

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], port: int = 0) -> SimServer:
        """Accept connections on a port; 0 takes a free one."""
        return self._network.listen(self.domain, factory, port)

    def own_port(self) -> int:
        self._next_port += 1
        return self._next_port

    # Faults

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts and buffers, the process does nothing."""
        self.domain.pause()

    def resume(self) -> None:
        self.domain.resume()

    def kill(self) -> None:
        """SIGKILL: the process is gone, and the kernel says so to every peer."""
        self.domain.crash()
        self.listeners.clear()
        for end in list(self.ends.values()):
            end.process_died()

    def power_off(self) -> None:
        """The machine is gone: nobody is told anything."""
        self.domain.crash()
        self.listeners.clear()
        self.is_powered = False
        for end in list(self.ends.values()):
            end.vanish()

    def boot(self) -> None:
        """A new process after `kill` or `power_off`, with nothing of the old one but its name."""
        if self.domain.is_alive:
            raise RuntimeError(f"{self.name} is running; kill it first")
        self.is_powered = True
        self.domain = self._new_domain()
        self._network.host_is_back(self)


class SimServer(asyncio.AbstractServer):
    """A listening port."""

    def __init__(
        self,
        host: SimHost,
        domain: Domain,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        loop: SimLoop,
    ) -> None:
        self.host = host
        self.domain = domain
        self.port = port
        self.factory = factory
        self.sockets: tuple[()] = ()
        self._loop = loop

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self.host.listeners.get(self.port) is self

    async def start_serving(self) -> None:
        """It does so from the beginning."""

    async def serve_forever(self) -> None:
        await self._loop.create_future()

    def close(self) -> None:
        """Accept no more; connections that exist go on."""
        if self.is_serving():
            del self.host.listeners[self.port]

    def close_clients(self) -> None:
        for end in self._clients():
            end.close()

    def abort_clients(self) -> None:
        for end in self._clients():
            end.abort()

    def _clients(self) -> list[End]:
        return [end for end in self.host.ends.values() if end.local[1] == self.port]

    async def wait_closed(self) -> None:
        """Nothing to wait for: the port is free once `close` returns."""


class SimNetwork:
    """See the module's docstring. All its randomness is the one it is given."""

    def __init__(self, loop: SimLoop, random: Random, quality: Quality | None = None) -> None:
        self.loop = loop
        self.random = random
        self.quality = quality or Quality()
        self.fingerprint = 0
        self.arrivals = 0
        self.recent: deque[tuple[int, int, Kind, int]] = deque(maxlen=RECENT_MAX)
        """The last arrivals (time, pipe, kind, bytes): where two runs of a seed came apart."""
        self._hosts: dict[str, SimHost] = {}
        self._of_domain: dict[Domain, SimHost] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._pipes = 0
        loop.network = self

    # Hosts

    def host(self, name: str) -> SimHost:
        """The host of that name; made when asked for the first time."""
        if name not in self._hosts:
            if len(self._hosts) >= HOSTS_MAX:
                raise ValueError(f"a network has at most {HOSTS_MAX} hosts")
            self._hosts[name] = SimHost(self, name, f"10.0.0.{len(self._hosts) + 1}")
        return self._hosts[name]

    @property
    def names(self) -> list[str]:
        """All hosts that there are, in the order of their making."""
        return list(self._hosts)

    def new_domain(self, host: SimHost, name: str) -> Domain:
        domain = self.loop.domain(name)
        self._of_domain[domain] = host
        return domain

    def host_of(self, domain: Domain) -> SimHost:
        host = self._of_domain.get(domain)
        if host is None:
            raise RuntimeError(f"{domain.name} is on no host; start the code with SimHost.run")
        return host

    def resolve(self, name: str, asked_by: SimHost) -> SimHost:
        """Find a host by its name or its address; loopback names mean the one who asks."""
        if name in ("localhost", "127.0.0.1"):
            return asked_by
        if name in self._hosts:
            return self._hosts[name]
        for host in self._hosts.values():
            if host.address == name:
                return host
        raise socket.gaierror(socket.EAI_NONAME, f"no host {name!r} in the simulated network")

    # Faults

    def path(self, source: str, target: str) -> Path:
        """One direction between two hosts, with its quality and its state."""
        key = (source, target)
        if key not in self._paths:
            self._paths[key] = Path(self.host(source), self.host(target), self.quality)
        return self._paths[key]

    def set_quality(self, source: str, target: str, **changes: Any) -> None:
        """Change the quality of one direction, from the next piece on."""
        path = self.path(source, target)
        path.quality = replace(path.quality, **changes)

    def block(self, source: str, target: str) -> None:
        """Let nothing through in one direction."""
        path = self.path(source, target)
        if not path.is_blocked and source != target:
            path.is_blocked = True
            path.blocked_at_ns = self.loop.now_ns

    def unblock(self, source: str, target: str) -> None:
        path = self.path(source, target)
        if path.is_blocked:
            path.is_blocked = False
            self._catch_up(path)
            self._pay_credits(path)

    def partition(
        self, some: Iterable[str], others: Iterable[str], *, both_ways: bool = True
    ) -> None:
        """Nothing gets from `some` to `others`, nor back unless `both_ways` is off."""
        for one, other in _pairs(some, others):
            self.block(one, other)
            if both_ways:
                self.block(other, one)

    def isolate(self, name: str) -> None:
        """Cut one host off from all others that exist."""
        self.partition([name], [other for other in self._hosts if other != name])

    def heal(self) -> None:
        """Open every direction again; what waits arrives."""
        for source, target in list(self._paths):
            self.unblock(source, target)

    def reset_connections(self, one: str, other: str) -> None:
        """Break every connection between two hosts, as a firewall that forgets them does."""
        for end in list(self.host(one).ends.values()):
            if end.outgoing.path.target.name == other:
                end.break_off()

    def _catch_up(self, path: Path) -> None:
        """The way is free: what waits goes out when the sender's kernel tries the next time."""
        waited_ns = self.loop.now_ns - path.blocked_at_ns
        limit_ns = min(waited_ns, CATCH_UP_MS_MAX * NS_PER_MS)
        for pipe in list(path.pipes.values()):
            pipe.restart(round(self.random.random() * limit_ns))

    def _pay_credits(self, path: Path) -> None:
        """Acknowledgements pass again: those who send the other way get their windows back."""
        for end in list(path.target.ends.values()):
            if end.outgoing.path.target is path.source:
                end.outgoing.pay_credit()

    def host_is_back(self, host: SimHost) -> None:
        for path in self._paths.values():
            if path.target is host and path.is_open:
                self._catch_up(path)

    # Connections

    async def connect(
        self, domain: Domain, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection, with the waiting and the errors that a kernel gives."""
        source = self.host_of(domain)
        target = self.resolve(host, source)
        there, back = self.path(source.name, target.name), self.path(target.name, source.name)
        await self._shake_hands(there, back, port)
        protocol = factory()
        near = self._connected_end(domain, there, back, port)
        near.set_protocol(protocol)
        near.outgoing.send(Kind.OPEN)
        protocol.connection_made(near)
        return near, protocol

    async def _shake_hands(self, there: Path, back: Path, port: int) -> None:
        """The opening packet and its answer; both are sent again while they get no answer."""
        for wait_s in SYN_WAITS_S:
            if there.is_open:
                await asyncio.sleep(self.delay_ns(there, 0) / 1e9)
                if there.is_open and back.is_open:
                    await asyncio.sleep(self.delay_ns(back, 0) / 1e9)
                    if port in there.target.listeners:
                        return
                    name = there.target.name
                    raise ConnectionRefusedError(errno.ECONNREFUSED, f"{name}:{port} refused")
            await asyncio.sleep(wait_s)
        raise TimeoutError(errno.ETIMEDOUT, f"{there.target.name}:{port} did not answer")

    def _connected_end(self, domain: Domain, there: Path, back: Path, port: int) -> End:
        """The near one of two ends that are joined by two pipes."""
        source, target = there.source, there.target
        own = (source.address, source.own_port())
        near = End(self, source, domain, own, (target.address, port))
        far = End(self, target, None, (target.address, port), own)
        near.outgoing = far.incoming = self._new_pipe(there, near, far)
        far.outgoing = near.incoming = self._new_pipe(back, far, near)
        return near

    def _new_pipe(self, path: Path, source: End, target: End) -> Pipe:
        self._pipes += 1
        path.source.ends[self._pipes] = source
        return Pipe(self, self._pipes, path, source, target)

    def forget(self, end: End) -> None:
        """An end is closed for good; what it sent may still be on its way."""
        end.outgoing.path.source.ends.pop(end.outgoing.number, None)

    def listen(
        self, domain: Domain, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> SimServer:
        """Accept connections on a port of the domain's host."""
        host = self.host_of(domain)
        port = port or host.own_port()
        if port in host.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {host.name} is taken")
        server = SimServer(host, domain, port, factory, self.loop)
        host.listeners[port] = server
        return server

    # What pipes ask

    def delay_ns(self, path: Path, size_bytes: int) -> int:
        """How long a piece that is sent now takes, drawn from the seed."""
        quality, chance = path.quality, self.random.random
        spread_ms = quality.delay_ms_max - quality.delay_ms_min
        delay_ms = quality.delay_ms_min + chance() * spread_ms
        if quality.loss and chance() < quality.loss:
            delay_ms += RETRANSMIT_MS
        delay_ns = round(delay_ms * NS_PER_MS)
        if quality.bytes_per_s is not None:
            start_ns = max(path.free_at_ns, self.loop.now_ns)
            path.free_at_ns = start_ns + size_bytes * 1_000_000_000 // quality.bytes_per_s
            delay_ns += path.free_at_ns - self.loop.now_ns
        return delay_ns

    def breaks(self, path: Path) -> bool:
        return path.quality.reset > 0 and self.random.random() < path.quality.reset

    def note_arrival(self, number: int, kind: Kind, data: bytes) -> None:
        """Count an arrival into the fingerprint."""
        self.arrivals += 1
        self.recent.append((self.loop.now_ns, number, kind, len(data)))
        mark = _mark(self.loop.now_ns, number, kind, len(data))
        self.fingerprint = zlib.crc32(data, zlib.crc32(mark, self.fingerprint))


def _pairs(some: Iterable[str], others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Every pair, in an order that does not depend on the hash of a string."""
    far = sorted(others)
    for one in sorted(some):
        for other in far:
            if one != other:
                yield one, other
