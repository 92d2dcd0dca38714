"""One session with a ZooKeeper ensemble: kazoo's threads on one side, the event loop on the other.

kazoo connects, pings, finds another server, and frames. This module hands it requests and brings
back replies, events and changes of the connection **in the order in which the server sent them**:
kazoo's own callbacks go through several threads and lose that order, so it is taken at the source,
in the connection's thread, and put into one queue that the loop drains.

Two more things that kazoo would decide differently:

* an expired session is over. kazoo would silently start another one;
* a loop that hangs loses its session (rule A9), though kazoo's thread could go on pinging.

Start at `ZooKeeperSession.call`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, ConnectionLoss, KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import Connect, ReplyHeader, Watch
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from tidemill.clock import Clock
from tidemill.store.base import Event, EventKind, SessionExpired, StoreError, StoreUnavailable
from tidemill.store.missed import UNKNOWN_COMMIT
from tidemill.store.watchdog import Watchdog

IN_FLIGHT_MAX = 64
"""kazoo wakes its thread by a byte in a small pipe; were it ever full, the loop would block."""
WAITING_MAX = 10_000
RETRY_PAUSE_S = 0.05
RETRY_PAUSE_S_MAX = 1.0
_RECEIVE_BYTES = 65_536
_WORK_PER_TURN = 1_000

_KINDS = {1: EventKind.CREATED, 2: EventKind.DELETED, 3: EventKind.CHANGED}

logger = logging.getLogger(__name__)
# What matters of kazoo's chatter is logged here, once per change and not once per attempt.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)


class Listener(Protocol):
    """Who is told what happens to a session, on the loop."""

    def on_connected(self) -> None:
        """A connection is there, the first or another one; watches have to be set again."""
        ...

    def on_disconnected(self) -> None:
        """The connection is gone. kazoo looks for another server."""
        ...

    def on_session_over(self) -> None:
        """The session has expired, or was closed because the loop hung. Not called by `finish`."""
        ...

    def on_event(self, event: Event) -> None:
        """A watched node changed; the event's path is the full one."""
        ...


class _Call:
    """One request on its way; kazoo's thread reports what became of it."""

    __slots__ = ("_report", "future", "in_flight", "repeat", "request")

    def __init__(
        self,
        request: Any,
        repeat: bool,
        report: Callable[[_Call, Any, BaseException | None], None],
    ) -> None:
        self.request = request
        self.repeat = repeat
        self.in_flight = False
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._report = report

    def set(self, value: Any) -> None:
        self._report(self, value, None)

    def set_exception(self, error: BaseException) -> None:
        self._report(self, None, error)


class ZooKeeperSession:
    """A session from `start` to `finish`, or until it is over.

    With `renews`, a session that expired is replaced by the next: for clients which own no nodes.
    """

    def __init__(
        self, hosts: str, timeout_ms: int, clock: Clock, listener: Listener, *, renews: bool
    ) -> None:
        self._hosts = hosts
        self._timeout_ms = timeout_ms
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Callable[[], None]] = deque()
        self._inbox_scheduled = False
        self._waiting: deque[_Call] = deque()
        self._in_flight = 0
        self._connected = False
        self._over = False
        self._left = False
        self._finished = False
        self._finishing = threading.Lock()
        self.zxid = 0
        self._client = _Client(hosts, timeout_ms, renews, self._on_event)
        self._client.add_listener(self._on_state)
        self._watchdog = None if renews else Watchdog(clock, timeout_ms // 2, self._on_stuck)
        self._tick_timer: asyncio.TimerHandle | None = None

    # Life

    def start(self) -> None:
        """Begin to connect; `on_connected` tells when."""
        self._client.start_async()
        if self._watchdog is not None:
            self._watchdog.start()
            self._tick()

    def leave(self) -> None:
        """Ask for no more and be told no more; `finish` does the rest."""
        self._over = self._left = True
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._fail_all(StoreUnavailable("the store was closed"))

    def finish(self) -> None:
        """End the session at the server, if it can be reached, and all threads.

        It blocks, on any thread but the loop's; calling it again waits for the first to be done.
        """
        with self._finishing:
            if self._finished:
                return
            self._finished = True
            if self._watchdog is not None:
                self._watchdog.stop()
            self._client.finish()
        if self._watchdog is not None:
            self._watchdog.join()

    @property
    def session_id(self) -> int:
        """As the server gave it, 0 before the first connection."""
        return int(self._client._session_id or 0)

    @property
    def timeout_ms(self) -> int:
        """What the server made of the timeout that was asked for."""
        return self._client.negotiated_ms or self._timeout_ms

    @property
    def connected(self) -> bool:
        return self._connected and not self._over and bool(self._client.connected)

    @property
    def over(self) -> bool:
        return self._over

    # Requests

    async def call(self, request: Any, *, repeat: bool) -> Any:
        """Send a request and wait for its reply; kazoo's errors come as they are.

        When the connection breaks, a request that changes nothing may `repeat`; of another one
        nobody knows whether it took effect, and it fails with kazoo's ConnectionLoss.
        """
        if self._over:
            raise SessionExpired("the session has expired")
        if len(self._waiting) >= WAITING_MAX:
            raise StoreUnavailable(f"{WAITING_MAX} requests already wait for ZooKeeper")
        call = _Call(request, repeat, self._on_reply)
        self._waiting.append(call)
        self._pump()
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await call.future
        except TimeoutError:
            raise StoreUnavailable(
                f"no answer from ZooKeeper at {self._hosts} within {self._timeout_ms} ms"
            ) from None

    def _pump(self) -> None:
        """Give kazoo as much as it may hold at a time.

        Nothing is given to it while there is no connection: what a caller has given up waiting for
        must not take effect later.
        """
        while self._waiting and self._in_flight < IN_FLIGHT_MAX and self.connected:
            call = self._waiting.popleft()
            if not call.future.done():
                self._in_flight += 1
                call.in_flight = True
                self._client._call(call.request, call)

    def _answered(self, call: _Call, value: Any, error: BaseException | None, zxid: int) -> None:
        self.zxid = max(self.zxid, zxid)
        if not call.in_flight:
            # kazoo reports some failures twice.
            return
        call.in_flight = False
        self._in_flight -= 1
        if not call.future.done():
            if error is None:
                call.future.set_result(value)
            elif isinstance(error, ConnectionLoss) and call.repeat and not self._over:
                self._waiting.appendleft(call)
            else:
                call.future.set_exception(error)
        self._pump()

    def _fail_all(self, error: StoreError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            if not call.future.done():
                call.future.set_exception(error)

    # On kazoo's thread, and the watchdog's

    def _post(self, work: Callable[[], None]) -> None:
        self._inbox.append(work)
        if not self._inbox_scheduled:
            self._inbox_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop is closed: nobody is left to be told.
                return

    def _on_reply(self, call: _Call, value: Any, error: BaseException | None) -> None:
        self._post(partial(self._answered, call, value, error, self._client.last_zxid))

    def _on_event(self, event: Event) -> None:
        self._post(partial(self._heard, event))

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._post(self._came)
        elif self._client.ended:
            self._over = True
            self._post(self._ended)
        else:
            self._post(self._went)

    def _on_stuck(self) -> None:
        """Rule A9: whoever does not work holds no office."""
        self._over = True
        logger.error(
            "the event loop hangs: closing the ZooKeeper session",
            extra={"fields": {"session_id": self.session_id, "limit_ms": self._timeout_ms // 2}},
        )
        self.finish()

    # On the loop

    def _drain(self) -> None:
        self._inbox_scheduled = False
        for _ in range(_WORK_PER_TURN):
            if not self._inbox:
                return
            self._inbox.popleft()()
        self._inbox_scheduled = True
        self._loop.call_soon(self._drain)

    def _heard(self, event: Event) -> None:
        self.zxid = max(self.zxid, event.commit)
        if not self._over:
            self._listener.on_event(event)

    def _came(self) -> None:
        if self._over:
            return
        logger.info("connected to ZooKeeper", extra={"fields": {"session_id": self.session_id}})
        self._connected = True
        self._listener.on_connected()
        self._pump()

    def _went(self) -> None:
        if self._connected and not self._over:
            logger.warning("lost the connection to ZooKeeper", extra={"fields": self._fields})
            self._connected = False
            self._listener.on_disconnected()

    def _ended(self) -> None:
        self._connected = False
        self._fail_all(SessionExpired("the session has expired"))
        if not self._left:
            self._left = True
            self._listener.on_session_over()

    @property
    def _fields(self) -> dict[str, object]:
        return {"hosts": self._hosts, "session_id": self.session_id}

    def _tick(self) -> None:
        assert self._watchdog is not None
        self._watchdog.tick()
        if not self._over:
            delay_s = self._watchdog.tick_interval_ms / 1000
            self._tick_timer = self._loop.call_later(delay_s, self._tick)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with less patience for a server that does not answer at all."""

    connect_timeout_s = 1.0

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = self.connect_timeout_s
        return super().create_connection(*args, **kwargs)


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, except that the end of a session is the end."""

    def __init__(
        self, hosts: str, timeout_ms: int, renews: bool, on_event: Callable[[Event], None]
    ) -> None:
        handler = _Handler()
        retry = KazooRetry(
            max_tries=-1,
            delay=RETRY_PAUSE_S,
            max_delay=RETRY_PAUSE_S_MAX,
            sleep_func=handler.sleep_func,
        )
        super().__init__(
            hosts=hosts,
            timeout=timeout_ms / 1000,
            handler=handler,
            connection_retry=retry,
            logger=_kazoo_logger,
        )
        handler.connect_timeout_s = timeout_ms / 1000 / len(self.hosts)
        self.negotiated_ms = 0
        self._renews = renews
        self._connection = _Connection(self, self._conn_retry.copy(), _kazoo_logger)
        self._connection.on_event = on_event

    @property
    def ended(self) -> bool:
        """Whether there is no way back from the state that was just entered."""
        return self._state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED) or (
            self._state == KeeperState.EXPIRED_SESSION and not self._renews
        )

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.EXPIRED_SESSION and not self._renews:
            self._stopped.set()
        super()._session_callback(state)

    def finish(self) -> None:
        """Stop, wherever it stands; kazoo's own `stop` leaves an expired client half way."""
        try:
            self.stop()
            self._safe_close()
            self.close()
        except (KazooException, OSError) as error:
            logger.warning(
                "could not close the ZooKeeper session", extra={"fields": {"error": str(error)}}
            )


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, except that events carry their commit and go straight to us.

    It also reads what has come at once, not message by message with a `select` before each: a new
    topic of 10,000 partitions is 20,000 events to every broker.
    """

    on_event: Callable[[Event], None]

    def _connect(self, *args: Any) -> Any:
        self._received = bytearray()
        return super()._connect(*args)

    def _read_socket(self, read_timeout: float) -> Any:
        response = super()._read_socket(read_timeout)
        while response != CLOSE_RESPONSE and self._has_message():
            response = super()._read_socket(read_timeout)
        return response

    def _has_message(self) -> bool:
        received = self._received
        return len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4])

    def _read(self, length: int, timeout: float) -> bytes:
        with self._socket_error_handling():
            while len(self._received) < length:
                if not self.handler.select([self._socket], [], [], timeout)[0]:
                    raise self.handler.timeout_exception("socket time-out during read")
                chunk = self._socket.recv(_RECEIVE_BYTES)
                if not chunk:
                    raise ConnectionDropped("socket connection broken")
                self._received += chunk
        data = bytes(self._received[:length])
        del self._received[:length]
        return data

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        result = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.client.negotiated_ms = result[0].time_out
        return result

    def _read_watch_event(self, data: bytes, offset: int) -> None:
        watch, _ = Watch.deserialize(data, offset)
        header, _ = ReplyHeader.deserialize(data, 0)
        kind = _KINDS.get(watch.type)
        if kind is None:
            return
        # Servers before 3.9 do not say which commit it was.
        commit = header.zxid if header.zxid > 0 else UNKNOWN_COMMIT
        self.client.last_zxid = max(self.client.last_zxid, commit)
        self.on_event(Event(kind, watch.path, commit))
