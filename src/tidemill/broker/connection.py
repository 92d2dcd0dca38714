"""One client connection: requests in, answers out in the same order, everything within bounds.

Bytes arrive in `buffer_updated`; `_handle_frames` takes whole frames from the buffer and hands
each request to its handler in arrival order (rule G7). The connection stops taking requests

* while the peer does not read its answers (`pause_writing`),
* while `outbox.IN_FLIGHT_MAX` answers are owed, or what is owed takes `outbox.OWED_BYTES_MAX`,
* while a large frame waits for room in `RequestMemory`;

and after `REQUESTS_PER_TURN_MAX` requests other connections get their turn. Deadlines ask for a
first request within `connection.handshake.timeout.ms`, for progress in every started frame within
`connection.partial.frame.timeout.ms`, and for some activity within `connections.max.idle.ms`. What
cannot be understood closes the connection, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from tidemill.broker import errors as error_answers
from tidemill.broker.busy_poll import BusyPoll
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import REGISTRY, Registration, RequestContext
from tidemill.broker.outbox import OWED_BYTES_MAX, Outbox, Slot
from tidemill.broker.patience import Limits, Patience
from tidemill.broker.receive import SIZE_BYTES, ReceiveBuffer, Scratch
from tidemill.broker.request_memory import SMALL_FRAME_BYTES, RequestMemory
from tidemill.errors import ErrorCode, WireError
from tidemill.wire.apis import ApiKey
from tidemill.wire.codec import ELEMENTS_MAX, RESPONSE_ELEMENTS_MAX, decode
from tidemill.wire.frame import RequestHeader, decode_request_header, encode_response

if TYPE_CHECKING:
    from tidemill.broker.context import Broker
    from tidemill.broker.hello import Greeting
    from tidemill.broker.listener import Listener

log = logging.getLogger(__name__)

REQUESTS_PER_TURN_MAX = 32
BYTES_PER_TURN_MAX = 256 * 1024
"""After this much of one connection the others are read: a transport would go on with the one it
has, and a flood of large requests would keep everybody's heartbeats waiting."""

_DECODED_FACTOR = 8
"""How many times its own bytes a request takes once it is decoded, roughly and at most."""

WRITE_HIGH_WATER_BYTES = 1024 * 1024
WRITE_LOW_WATER_BYTES = 256 * 1024

_API_VERSIONS = int(ApiKey.API_VERSIONS)
_unpack_size = struct.Struct(">i").unpack_from

_FOREIGN_OPENINGS = {
    b"GET ": "an HTTP request",
    b"POST": "an HTTP request",
    b"HEAD": "an HTTP request",
    b"PUT ": "an HTTP request",
    b"OPTI": "an HTTP request",
    b"\x16\x03\x01\x00": "a TLS handshake",
    b"\x16\x03\x01\x02": "a TLS handshake",
    b"\x16\x03\x01\x01": "a TLS handshake",
}


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(
        self,
        broker: Broker,
        listener: Listener,
        memory: RequestMemory,
        scratch: Scratch,
        limits: Limits,
        busy_poll: BusyPoll,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.broker = broker
        self.listener_name = listener.name
        self.client_address = ""
        self.peer_id: int | None = None
        """The broker of this cluster at the other end, once it has proved that it is one."""
        self.greeting: Greeting | None = None
        """What a peer has shown so far, between the two steps of its hello."""
        self._listener = listener
        self._memory = memory
        self._limits = limits
        self._busy_poll = busy_poll
        self._loop = loop
        self._clock = broker.clock
        self._buffer = ReceiveBuffer(scratch)
        self._leased_bytes = 0
        self._retained_bytes = 0
        self._has_unhandled = False
        self._reading_paused = False
        self._closed = False
        self._elements_max = ELEMENTS_MAX
        self._patience = Patience(
            limits, broker.clock, broker.timers, lambda: self.is_busy, self._reading, self.abort
        )
        self._transport: asyncio.Transport
        self._outbox: Outbox

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.client_address = peer[0] if peer else "unknown"
        self._outbox = Outbox(
            self._transport, self._loop, self.broker.executor, self._on_room, self.abort
        )
        if not self._listener.admit(self):
            self._closed = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        delay_ms = self._listener.turn_in_ms()
        if delay_ms:
            # Not right here: the transport begins to read only after this has returned.
            self._loop.call_soon(self._pause_reading)
            self._patience.begin_in(delay_ms, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        """Serve from now on; the time for the first request starts."""
        self._patience.begin()
        self._resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        patience = self._patience
        patience.received_bytes += nbytes
        patience.active_at_ms = self._clock.monotonic_ms()
        self._buffer.end += nbytes
        self._handle_frames()
        if not self._outbox:
            self._busy_poll.served()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._patience.end()
        self._outbox.close()
        self._buffer.drop()
        self._memory.release(self)
        self._listener.forget(self)

    # The pool's side (`request_memory.Holder`).

    @property
    def received_bytes(self) -> int:
        return self._patience.received_bytes

    @property
    def between_frames(self) -> bool:
        return self._buffer.is_empty

    @property
    def waits_for_broker(self) -> bool:
        return self._has_unhandled and not self._outbox.is_paused

    def granted(self) -> None:
        self._patience.holds_up_frame = False
        self._leased_bytes = self._buffer.frame_bytes() or 0
        self._buffer.grow()
        self._patience.frame_goes_on()
        self._resume_reading()

    def give_back(self) -> None:
        self._leased_bytes = self._retained_bytes = 0
        self._buffer.drop()
        self._memory.release(self)

    def evict(self, reason: str) -> None:
        self.abort(reason)

    # The handlers' side.

    def abort(self, reason: str) -> None:
        """Close at once, dropping what is not sent yet, and say why in the log."""
        if not self._closed:
            self._closed = True
            log.info("closing the connection from %s: %s", self.client_address, reason)
        self._transport.abort()

    def keep(self, amount_bytes: int) -> None:
        """What a handler goes on with has been copied: it counts as long as it is there.

        That may be longer than the connection is.
        """
        self._memory.keep(amount_bytes)

    def let_go(self, amount_bytes: int) -> None:
        """The work on such a copy is done."""
        self._memory.let_go(amount_bytes)

    def close(self) -> None:
        """Close after what is ready has gone out."""
        if not self._closed:
            self._closed = True
            self._outbox.hand_over()
            self._transport.close()

    @property
    def is_busy(self) -> bool:
        """Whether answers are still owed to the peer."""
        return len(self._outbox) > 0

    def _reading(self) -> object | None:
        """How far the peer has read of what it holds up; None while it holds up nothing."""
        if not self._outbox.is_paused:
            return None
        return self._outbox.pauses, self._transport.get_write_buffer_size()

    # Frames.

    def _handle_frames(self) -> None:
        """Handle the whole frames of the buffer, as far as the connection's bounds let it."""
        buffer, outbox = self._buffer, self._outbox
        view, end = buffer.view, buffer.end
        left_in_turn, left_bytes = REQUESTS_PER_TURN_MAX, BYTES_PER_TURN_MAX
        self._has_unhandled = False
        while end - buffer.start >= SIZE_BYTES:
            start = buffer.start
            size: int = _unpack_size(view, start)[0]
            if not 0 <= size <= self._limits.request_bytes_max:
                self._refuse_size(size)
                return
            frame_end = start + SIZE_BYTES + size
            if frame_end > end:
                break
            if left_in_turn == 0 or outbox.is_blocked:
                self._has_unhandled = True
                break
            left_in_turn -= 1
            self._handle_request(view[start + SIZE_BYTES : frame_end])
            if self._closed:
                return
            buffer.start = frame_end
            left_bytes -= size
        self._settle_buffer()
        if left_in_turn == 0 and self._has_unhandled:
            self._loop.call_soon(self._on_room)
        elif left_bytes < 0 and not self._reading_paused:
            self._pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """The others have had their turn."""
        if not (self._patience.holds_up_frame or self._has_unhandled):
            self._resume_reading()

    def _on_room(self) -> None:
        """The peer has read, or an answer has gone: go on with what waits in the buffer."""
        if self._has_unhandled and not self._closed and not self._outbox.is_blocked:
            if self._leased_bytes:
                self._memory.goes_on(self)
            self._handle_frames()

    def _settle_buffer(self) -> None:
        """Decide what happens to the bytes that no whole frame used up."""
        buffer = self._buffer
        if buffer.start == buffer.end:
            self._settle_empty_buffer()
            return
        buffer.make_own()
        if self._has_unhandled:
            self._pause_reading()
            return
        buffer.compact()
        self._patience.frame_begins()
        if buffer.is_full:
            self._make_room()
        else:
            self._resume_reading()

    def _settle_empty_buffer(self) -> None:
        buffer = self._buffer
        buffer.rewind()
        self._patience.no_frame()
        own_bytes = buffer.own_bytes
        if own_bytes and (own_bytes != self._retained_bytes or self._memory.is_strained):
            if own_bytes > SMALL_FRAME_BYTES and self._memory.try_retain(self, own_bytes):
                self._leased_bytes = self._retained_bytes = own_bytes
            else:
                self.give_back()
        self._resume_reading()

    def _make_room(self) -> None:
        """Let the buffer grow for the frame under way, as soon as the pool allows it."""
        buffer = self._buffer
        frame_bytes = buffer.frame_bytes() or 0
        if buffer.grown_bytes() <= max(SMALL_FRAME_BYTES, self._leased_bytes):
            buffer.grow()
            self._resume_reading()
        elif self._memory.reserve(self, frame_bytes):
            self.granted()
        else:
            self._leased_bytes = 0
            self._patience.holds_up_frame = True
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._closed:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._closed:
            self._reading_paused = False
            self._transport.resume_reading()

    def _refuse_size(self, size: int) -> None:
        start = self._buffer.start
        opening = bytes(self._buffer.view[start : start + SIZE_BYTES])
        foreign = None if self._patience.saw_request else _FOREIGN_OPENINGS.get(opening)
        if foreign is not None:
            self.abort(f"{foreign} came to a listener that speaks the Kafka protocol")
        else:
            limit = self._limits.request_bytes_max
            self.abort(f"a frame of {size} bytes is outside 0..{limit} (socket.request.max.bytes)")

    # Requests.

    def _handle_request(self, frame: memoryview) -> None:
        try:
            header, body_at = decode_request_header(frame)
        except WireError as error:
            self.abort(f"a request header that does not parse: {error}")
            return
        entry = REGISTRY.get(header.api_key)
        if entry is None or not entry.min_version <= header.api_version <= entry.max_version:
            self._refuse_api(entry, header)
            return
        if (
            self.peer_id is None
            and (entry.peers_only or not self.broker.serves_clients)
            and not self._may_stranger_ask(entry, header)
        ):
            return
        self._patience.saw_request = True
        try:
            request = decode(
                entry.request_type, header.api_version, frame, body_at, self._elements_max
            )
        except WireError as error:
            name = f"{entry.key.name} v{header.api_version}"
            self.abort(f"a {name} request that does not parse: {error}")
            return
        context = RequestContext(
            header.api_key, header.api_version, header.correlation_id, header.client_id, self
        )
        self._dispatch(entry, context, request, len(frame))

    def become_peer(self, broker_id: int) -> None:
        """A broker of this cluster is at the other end; its images may be long."""
        self.peer_id = broker_id
        self._elements_max = RESPONSE_ELEMENTS_MAX

    def _may_stranger_ask(self, entry: Registration, header: RequestHeader) -> bool:
        """Whether to answer a client while the broker has none, or by what is for peers alone."""
        if entry.peers_only:
            refusal = error_answers.refusal(entry, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            if refusal is None:
                self.abort(f"{entry.key.name} is for brokers of this cluster")
            else:
                version, number = header.api_version, header.correlation_id
                self._outbox.send(encode_response(header.api_key, version, number, refusal))
            return False
        if entry.key not in (ApiKey.API_VERSIONS, ApiKey.CLUSTER_HELLO):
            self.abort("the broker is still joining the cluster")
            return False
        return True

    def _dispatch(
        self, entry: Registration, context: RequestContext, request: object, size: int
    ) -> None:
        try:
            response = entry.handler(self.broker, context, request)
        except Exception as error:  # noqa: BLE001 - one request must not take the broker down
            response = error_answers.answer_to(entry, context, request, error)
            if response is None:
                self.abort(f"{entry.key.name} failed: {error!r}")
                return
        if response.__class__ is entry.response_type:
            self._outbox.send(
                encode_response(context.api_key, context.version, context.correlation_id, response)
            )
        elif response is not None:
            self._answer_later(entry, context, request, response, size)

    def _answer_later(
        self,
        entry: Registration,
        context: RequestContext,
        request: object,
        pending: Deferred[Any] | Awaitable[Any],
        size: int,
    ) -> None:
        held_bytes = OWED_BYTES_MAX if entry.is_heavy else _DECODED_FACTOR * size
        if isinstance(pending, Deferred) and pending.held_bytes is not None:
            held_bytes = pending.held_bytes
        slot = self._outbox.owe(held_bytes)
        if isinstance(pending, Deferred):
            slot.waits_for = pending
            pending.listen(
                lambda response: self._deliver(slot, context, response),
                lambda error: self._failed(entry, context, request, slot, error),
            )
            return
        # A disconnect leaves the task alone: what it changes, it changes as a whole (rule 2.L).
        task = self._loop.create_task(_awaited(pending))
        self._listener.keep(task)
        task.add_done_callback(lambda done: self._task_done(entry, context, request, slot, done))

    def _task_done(
        self,
        entry: Registration,
        context: RequestContext,
        request: object,
        slot: Slot,
        done: asyncio.Task[Any],
    ) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._deliver(slot, context, done.result())
        else:
            self._failed(entry, context, request, slot, error)

    def _failed(
        self,
        entry: Registration,
        context: RequestContext,
        request: object,
        slot: Slot,
        error: BaseException,
    ) -> None:
        """A handler gave up half way: say so, or close where no answer can say it."""
        response = error_answers.answer_to(entry, context, request, error)
        if response is None:
            self.abort(f"{entry.key.name} failed: {error!r}")
        else:
            self._deliver(slot, context, response)

    def _deliver(self, slot: Slot, context: RequestContext, response: Any) -> None:
        if self._closed:
            return
        self._patience.active_at_ms = self._clock.monotonic_ms()
        if response is None:
            self._outbox.fill(slot, ())
            return
        try:
            parts = encode_response(
                context.api_key, context.version, context.correlation_id, response
            )
        except (WireError, ValueError, struct.error) as error:
            # Whoever answers may be answering others as well: this is the trouble of this one.
            self.abort(f"an answer cannot be encoded: {error!r}")
            return
        self._outbox.fill(slot, parts)

    def _refuse_api(self, entry: Registration | None, header: RequestHeader) -> None:
        if entry is not None and entry.key == ApiKey.API_VERSIONS:
            # KIP-511: the one unknown version that gets an answer, in the layout all know.
            response = error_answers.unsupported_api_versions()
            self._outbox.send(encode_response(_API_VERSIONS, 0, header.correlation_id, response))
            return
        what = f"api key {header.api_key}" if entry is None else entry.key.name
        self.abort(f"{what} version {header.api_version} is not supported")


async def _awaited(pending: Awaitable[Any]) -> Any:
    return await pending
