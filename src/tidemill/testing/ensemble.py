"""The far end of a simulated cluster's store: nodes and sessions on a host of their own.

An `Ensemble` is a `MemoryTree` that never fails by itself, with the sessions that its clients
(`far_store.FarStore`) keep alive. Messages travel as numbers of letters that a `Post` keeps: both
ends live in one process, and the values are immutable. Delay, loss and order are the network's.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.store.base import Event, Node, NoNode, SessionExpired, StoreError
from tidemill.store.memory import MemoryTree
from tidemill.testing.network import SimHost

HOST = "store"
PORT = 2181
EXPIRY_CHECK_S = 0.05

_frame = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Hello:
    """A client connects: to begin a session (0), to go on with one, or without any (None)."""

    session_id: int | None
    timeout_ms: int
    heard_to: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session that the client has now; None if the one that it had is over."""

    session_id: int | None
    heard_to: int


@dataclass(frozen=True, slots=True)
class Ask:
    number: int
    name: str
    about: Any


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    value: Any
    error: StoreError | None


@dataclass(frozen=True, slots=True)
class Heard:
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Ping:
    """Still there; answered by the same."""


@dataclass(frozen=True, slots=True)
class Bye:
    """The client ends its session."""


@dataclass(frozen=True, slots=True)
class Over:
    """The session is over, says the ensemble."""


class Post:
    """Letters by number, for as long as they are on their way."""

    def __init__(self) -> None:
        self._letters: dict[int, Any] = {}
        self._last = 0

    def put(self, letter: Any) -> bytes:
        self._last += 1
        self._letters[self._last] = letter
        return _frame.pack(self._last)

    def take(self, frame: bytes) -> Any:
        return self._letters.pop(_frame.unpack(frame)[0])


class Line(asyncio.Protocol):
    """One connection's letters, whole and in order; `on_end` tells of its end."""

    def __init__(
        self,
        post: Post,
        on_letter: Callable[[Line, Any], None],
        on_end: Callable[[Line], None],
    ) -> None:
        self.is_open = False
        self._post = post
        self._on_letter = on_letter
        self._on_end = on_end
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _frame.size and self.is_open:
            frame, self._received = self._received[: _frame.size], self._received[_frame.size :]
            self._on_letter(self, self._post.take(frame))

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._on_end(self)

    def send(self, letter: Any) -> None:
        if self.is_open:
            self._transport.write(self._post.put(letter))

    def end(self) -> None:
        """Let go of it; the other end finds out."""
        if self.is_open:
            self.is_open = False
            self._transport.abort()
            self._on_end(self)


class Ensemble:
    """The far end: nodes and sessions."""

    def __init__(self, host: SimHost) -> None:
        self.post = Post()
        self.tree = MemoryTree(host.clock)
        self.on_commit: list[Callable[[Sequence[Event]], None]] = []
        self._host = host
        self._sessions: dict[Line, int] = {}
        self._past: list[Sequence[Event]] = []
        self.tree.attach(self)
        host.domain.run(host.listen, self._line, PORT)
        host.run(self._expire())

    def _line(self) -> Line:
        return Line(self.post, self._receive, self._forget)

    def _forget(self, line: Line) -> None:
        self._sessions.pop(line, None)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            for session_id in self.tree.expire_sessions():
                self._tell_of_end(session_id)

    def expire(self, session_id: int) -> None:
        """End one session now, whatever its client does."""
        self._host.domain.run(self.tree.expire, session_id)
        self._tell_of_end(session_id)

    def _tell_of_end(self, session_id: int) -> None:
        for line, owner in list(self._sessions.items()):
            if owner == session_id:
                line.send(Over())

    def hear(self, events: Sequence[Event]) -> None:
        """A commit was made: everybody who is connected is told."""
        self._past.append(events)
        for line in list(self._sessions):
            line.send(Heard(events))
        for tell in self.on_commit:
            tell(events)

    def _receive(self, line: Line, letter: Any) -> None:
        if isinstance(letter, Hello):
            self._greet(line, letter)
            return
        session_id = self._sessions.get(line, 0)
        if session_id:
            self.tree.renew(session_id)
        if isinstance(letter, Ask):
            line.send(self._answer(session_id, letter))
        elif isinstance(letter, Ping):
            line.send(letter)
        elif isinstance(letter, Bye):
            self.tree.expire(session_id)

    def _greet(self, line: Line, hello: Hello) -> None:
        session_id = hello.session_id
        if session_id == 0:
            session_id = self.tree.open_session(hello.timeout_ms)
        elif session_id is not None and not self.tree.renew(session_id):
            line.send(Welcome(None, 0))
            return
        self._sessions[line] = session_id or 0
        # Whoever is new has missed nothing.
        at = hello.heard_to if hello.heard_to >= 0 else len(self._past)
        line.send(Welcome(session_id or 0, at))
        for events in self._past[at:]:
            line.send(Heard(events))

    def _answer(self, session_id: int, ask: Ask) -> Answer:
        try:
            return Answer(ask.number, self._do(session_id, ask.name, ask.about), None)
        except StoreError as error:
            return Answer(ask.number, None, error)

    def _do(self, session_id: int, name: str, about: Any) -> Any:
        if name == "multi":
            if session_id and not self.tree.has_session(session_id):
                raise SessionExpired("the session has expired")
            return self.tree.commit(session_id, about)
        if name == "tree":
            return self._below(about)
        node = self.tree.read(about)
        if name == "read":
            return node
        if node is None:
            raise NoNode(f"no node {about}")
        return self.tree.children(about)

    def _below(self, path: str) -> dict[str, Node]:
        found: dict[str, Node] = {}
        pending = deque([path])
        while pending:
            at = pending.popleft()
            node = self.tree.read(at)
            if node is not None:
                found[at] = node
                pending += (f"{at.rstrip('/')}/{name}" for name in self.tree.children(at))
        return found
