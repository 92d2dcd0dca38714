"""A connection of the simulated network: two ends, and a pipe of bytes in each direction.

`End` is the transport that asyncio code sees; `Pipe` carries what one end sends to the other. The
pieces of a pipe arrive one after the other and only the first has a timer, so a pipe whose path is
blocked simply stops, and goes on in order when `SimNetwork` restarts it.

Arrivals happen in the world, outside every process; what they cause at an end is scheduled in the
end's own domain, so a paused process has full buffers and a crashed one never answers.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tidemill.testing.loop import NS_PER_MS, Domain

if TYPE_CHECKING:
    from tidemill.testing.network import Path, SimHost, SimNetwork, SimServer

WINDOW_BYTES = 256 * 1024
"""What the two kernels hold between a writer and a reader that does not read."""

PIECE_BYTES_MAX = 64 * 1024
HIGH_WATER_BYTES = 64 * 1024
_CUT_CHANCE = 0.05
"""How often a piece ends at a random byte: no reader may count on the pieces of the writer."""


class Kind(IntEnum):
    """What a piece means."""

    OPEN = 0
    DATA = 1
    EOF = 2
    RESET = 3


def connection_reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class Pipe:
    """One direction of a connection."""

    def __init__(
        self, network: SimNetwork, number: int, path: Path, source: End, target: End
    ) -> None:
        self.number = number
        self.path = path
        self.source = source
        self.target = target
        self._network = network
        self._world = network.loop.root
        self._pieces: deque[tuple[int, Kind, bytes]] = deque()
        self._in_flight_bytes = 0
        self._credit_bytes = 0
        self._last_due_ns = 0
        self._is_stalled = False
        self._timer: asyncio.TimerHandle | None = None
        self._give_up: asyncio.TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        return self._in_flight_bytes < WINDOW_BYTES

    def send(self, kind: Kind, data: bytes = b"") -> None:
        """Put a piece on its way, behind those before it."""
        now_ns = self._network.loop.now_ns
        due_ns = now_ns + self._network.delay_ns(self.path, len(data))
        self._last_due_ns = max(self._last_due_ns, due_ns)
        self._pieces.append((self._last_due_ns, kind, data))
        self._in_flight_bytes += len(data)
        self.path.pipes[self.number] = self
        if self._timer is None and not self._is_stalled:
            self._arm(self._last_due_ns)

    def _arm(self, due_ns: int) -> None:
        self._timer = self._world.call_at_ns(due_ns, self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if not self.path.is_open:
            self._stall()
            return
        _, kind, data = self._pieces.popleft()
        if self._pieces:
            self._arm(self._pieces[0][0])
        elif self.source.is_gone:
            self.path.pipes.pop(self.number, None)
        self._network.note_arrival(self.number, kind, data)
        self.target.receive(kind, data)

    def _stall(self) -> None:
        """The path is blocked: wait for `restart`, but not for ever."""
        self._is_stalled = True
        limit_ns = self.path.quality.give_up_ms * NS_PER_MS
        due_ns = self._network.loop.now_ns + limit_ns
        self._give_up = self._world.call_at_ns(due_ns, self._time_out)

    def _time_out(self) -> None:
        self.drop()
        self.source.lose(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def restart(self, delay_ns: int) -> None:
        """The path is open again: go on with the first piece that waits."""
        if not self._is_stalled:
            return
        self._is_stalled = False
        self._cancel_timers()
        self._arm(self._network.loop.now_ns + delay_ns)

    def drop(self) -> None:
        """Forget what is on its way: its sender is no more, or has given up."""
        self._pieces.clear()
        self._is_stalled = False
        self._cancel_timers()
        self.path.pipes.pop(self.number, None)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._give_up):
            if timer is not None:
                timer.cancel()
        self._timer = self._give_up = None

    def consumed(self, count: int) -> None:
        """The reader took bytes: the window opens, once the acknowledgement gets through."""
        self._credit_bytes += count
        if self.target.outgoing.path.is_open:
            self.pay_credit()

    def pay_credit(self) -> None:
        """Acknowledgements pass: open the window by what was read."""
        if self._credit_bytes:
            self._in_flight_bytes -= self._credit_bytes
            self._credit_bytes = 0
            self.source.window_opened()


class End(asyncio.Transport):
    """One end of a connection: the surface of a selector loop's transport, without a socket.

    The far end exists in the kernel before a server has accepted it; until then it has no domain.
    """

    outgoing: Pipe
    incoming: Pipe

    def __init__(
        self,
        network: SimNetwork,
        host: SimHost,
        domain: Domain | None,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.local = local
        self.is_gone = False
        """Whether the kernel of the host knows nothing of this end any more."""
        self._network = network
        self._host = host
        self._domain = domain
        self._protocol: asyncio.BaseProtocol
        self._out: deque[bytes] = deque()
        self._out_at = 0
        self._out_bytes = 0
        self._inbox: deque[tuple[Kind, bytes]] = deque()
        self._is_delivery_due = False
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._eof_wanted = False
        self._eof_sent = False
        self._is_writer_paused = False
        self._high_bytes = HIGH_WATER_BYTES
        self._low_bytes = HIGH_WATER_BYTES // 4

    def __repr__(self) -> str:
        return f"<End of pipe {self.outgoing.number} at {self._host.name}:{self.local[1]}>"

    # The network's side

    def receive(self, kind: Kind, data: bytes) -> None:
        """A piece has arrived at the host."""
        if self.is_gone:
            if kind is not Kind.RESET:
                self.outgoing.send(Kind.RESET)
        elif kind is Kind.RESET:
            self.lose(connection_reset())
        elif kind is Kind.OPEN:
            self._accept()
        else:
            self._inbox.append((kind, data))
            self._deliver_soon()

    def _accept(self) -> None:
        server = self._host.listeners.get(self.local[1])
        if server is None:
            self._leave_kernel(Kind.RESET)
            return
        self._domain = server.domain
        server.domain.call_soon(self._accepted, server)

    def _accepted(self, server: SimServer) -> None:
        self._protocol = server.factory()
        self._protocol.connection_made(self)
        self._deliver_soon()

    def lose(self, error: Exception) -> None:
        """The kernel declares the connection dead."""
        if self.is_gone:
            return
        self._leave_kernel(None)
        self._inbox.clear()
        if self._domain is not None:
            self._domain.call_soon(self._finish, error)

    def break_off(self) -> None:
        """Something between the hosts resets the connection, for both ends."""
        if not self.is_gone:
            self.outgoing.send(Kind.RESET)
            self.lose(connection_reset())

    def process_died(self) -> None:
        """The kernel closes what its process left open."""
        self._out.clear()
        if not self.is_gone:
            self._leave_kernel(self._goodbye())

    def vanish(self) -> None:
        """The machine lost its power: not even what was on its way is sent again."""
        self.is_gone = True
        self.outgoing.drop()
        self._network.forget(self)

    def _goodbye(self) -> Kind | None:
        """What a kernel sends when a socket is closed: a reset if it holds unread bytes."""
        if self._domain is None or self._inbox:
            return Kind.RESET
        return None if self._eof_sent else Kind.EOF

    def _leave_kernel(self, goodbye: Kind | None) -> None:
        self.is_gone = True
        self._out.clear()
        self._out_bytes = 0
        if goodbye is not None:
            self.outgoing.send(goodbye)
        self._network.forget(self)

    def window_opened(self) -> None:
        """The peer's reader made room."""
        if self._domain is not None and self._out:
            self._domain.call_soon(self._send_on)

    # Reading

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._inbox:
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._domain is None or self._is_delivery_due:
            return
        if self._inbox and self._is_reading:
            self._is_delivery_due = True
            self._domain.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Hand one piece to the protocol; the next gets a turn of its own, as a `recv` does."""
        self._is_delivery_due = False
        if self._is_closing or self._is_lost or not self._is_reading or not self._inbox:
            return
        kind, data = self._inbox.popleft()
        try:
            self._hand_over(kind, data)
        except Exception as error:  # noqa: BLE001 - any error of a protocol ends its connection
            self._protocol_failed(error)
        self._deliver_soon()

    def _hand_over(self, kind: Kind, data: bytes) -> None:
        protocol = self._protocol
        if kind is Kind.EOF:
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()
        elif isinstance(protocol, asyncio.BufferedProtocol):
            self._fill_buffers(protocol, data)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            self.incoming.consumed(len(data))
            protocol.data_received(data)

    def _fill_buffers(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        """Copy into the protocol's own buffers; what it does not want now waits."""
        rest = memoryview(data)
        while rest:
            if self._is_closing or not self._is_reading:
                self._inbox.appendleft((Kind.DATA, bytes(rest)))
                return
            buffer = memoryview(protocol.get_buffer(-1))
            count = min(len(buffer), len(rest))
            if not count:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self.incoming.consumed(count)
            protocol.buffer_updated(count)

    def _protocol_failed(self, error: Exception) -> None:
        message = "a protocol failed; its connection is closed"
        context: dict[str, Any] = {"message": message, "exception": error, "transport": self}
        self._network.loop.call_exception_handler(context)
        if not self.is_gone:
            self._leave_kernel(Kind.RESET)
        self._is_closing = True
        self._call_soon_finish(error)

    # Writing

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._takes_nothing or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(self._out[-1])
        self._pump()
        self._pause_writer()

    @property
    def _takes_nothing(self) -> bool:
        is_dead = self._domain is None or not self._domain.is_alive
        return is_dead or self._is_closing or self.is_gone

    def _pump(self) -> None:
        """Give the kernel what it has room for, and the end of it all if that comes next."""
        while self._out and self.outgoing.has_room and not self.is_gone:
            piece = self._next_piece()
            if self._network.breaks(self.outgoing.path):
                self.break_off()
            else:
                self.outgoing.send(Kind.DATA, piece)
        if self._out or self.is_gone:
            return
        if self._is_closing:
            self._close_now()
        elif self._eof_wanted and not self._eof_sent:
            self._eof_sent = True
            self.outgoing.send(Kind.EOF)

    def _next_piece(self) -> bytes:
        first, start = self._out[0], self._out_at
        size = min(len(first) - start, PIECE_BYTES_MAX)
        if size > 1 and self._network.random.random() < _CUT_CHANCE:
            size = self._network.random.randrange(1, size)
        self._out_bytes -= size
        self._out_at = start + size
        if self._out_at == len(first):
            self._out.popleft()
            self._out_at = 0
        return first[start : start + size]

    def _send_on(self) -> None:
        if self.is_gone:
            return
        self._pump()
        if self._is_writer_paused and self._out_bytes <= self._low_bytes and not self._is_lost:
            self._is_writer_paused = False
            self._protocol.resume_writing()

    def _pause_writer(self) -> None:
        if self._out_bytes > self._high_bytes and not self._is_writer_paused:
            self._is_writer_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._takes_nothing and not self._eof_wanted:
            self._eof_wanted = True
            self._pump()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low
        self._pause_writer()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    # Closing

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if self._takes_nothing:
            return
        self._is_closing = True
        if not self._out:
            self._close_now()

    def _close_now(self) -> None:
        self._leave_kernel(self._goodbye())
        self._call_soon_finish(None)

    def abort(self) -> None:
        if self._domain is None or not self._domain.is_alive or self.is_gone:
            return
        self._is_closing = True
        self._leave_kernel(Kind.RESET)
        self._call_soon_finish(None)

    def _call_soon_finish(self, error: Exception | None) -> None:
        assert self._domain is not None
        self._domain.call_soon(self._finish, error)

    def _finish(self, error: Exception | None) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol
