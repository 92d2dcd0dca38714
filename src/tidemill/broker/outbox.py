"""The send side of one connection: answers in request order, at the pace of the reader.

An answer that is ready goes straight to the transport when none is owed before it. Otherwise it
waits in its slot. Stored records are not in memory yet when their answer is sent: they are read
piece by piece as the transport takes them, so a reader that stops reading costs one piece and no
more, and a large fetch never holds the loop. What the page cache does not have, the executor reads.

What is owed costs memory: first the request, then the answer that waits for its turn. A peer that
sends on without reading, or behind an answer that takes its time, is not read from beyond
`OWED_BYTES_MAX`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.broker.deferred import Deferred
from tidemill.errors import ApiError
from tidemill.executor import Executor

IN_FLIGHT_MAX = 128
"""How many answers may be owed before the next request has to wait."""

OWED_BYTES_MAX = 2 * 1024 * 1024
"""How much memory the answers that are owed may take before the next request has to wait."""

BYTES_PER_TURN_MAX = 2 * 1024 * 1024
"""After this many stored bytes other connections get their turn."""

PIECE_BYTES_MAX = BYTES_PER_TURN_MAX
"""How much of the stored bytes is in memory at a time."""


class StoredBytes(Protocol):
    """A run of stored bytes that is read only when it is sent; `len()` is known before."""

    def __len__(self) -> int: ...

    def pieces(self, max_bytes: int) -> Sequence[StoredPiece]:
        """The same run, in order, in pieces of so many bytes at most."""
        ...


class StoredPiece(Protocol):
    """What is read of a run at a time."""

    @property
    def size_bytes(self) -> int: ...

    def read_now(self) -> bytes | bytearray | None:
        """The bytes if the page cache has them, else None."""
        ...

    def read_blocking(self) -> bytes:
        """The bytes, from the disk if need be: for the executor."""
        ...


Part = bytes | bytearray | memoryview | StoredBytes
_IN_MEMORY = (bytes, bytearray, memoryview)


class Slot:
    """The place of one answer in the order; `parts` is None until it is known."""

    __slots__ = ("held_bytes", "parts", "waits_for")

    def __init__(self, held_bytes: int) -> None:
        self.held_bytes = held_bytes
        """What it costs: the request until the answer is known, and then the answer."""
        self.parts: Sequence[Part] | None = None
        self.waits_for: Deferred[object] | asyncio.Task[object] | None = None


class Outbox:
    """Answers owed and answers under way. `on_room` is called when it can take more."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        on_room: Callable[[], object],
        on_failure: Callable[[str], object],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._executor = executor
        self._on_room = on_room
        self._on_failure = on_failure
        self._slots: deque[Slot] = deque()
        self._owed_bytes = 0
        self._stream: deque[bytes | bytearray | memoryview | StoredPiece] = deque()
        self._stream_busy = False
        self._paused = False
        self._closed = False
        self.pauses = 0
        """How often the peer was behind with reading."""

    def __len__(self) -> int:
        """How many answers are owed or not fully handed to the transport."""
        return len(self._slots) + (1 if self._stream else 0)

    @property
    def is_blocked(self) -> bool:
        """Whether no request may be taken before the peer has read, or an answer has gone."""
        return (
            self._paused or self._owed_bytes >= OWED_BYTES_MAX or len(self._slots) >= IN_FLIGHT_MAX
        )

    def send(self, parts: Sequence[Part]) -> None:
        """Send an answer that is ready, after those owed before it."""
        if self._slots or self._stream:
            slot = self.owe(_bytes_in_memory(parts))
            slot.parts = parts
        else:
            self._write(parts)

    def owe(self, held_bytes: int) -> Slot:
        """Keep a place for an answer that comes later, to a request that takes so much memory."""
        slot = Slot(held_bytes)
        self._owed_bytes += held_bytes
        self._slots.append(slot)
        return slot

    def fill(self, slot: Slot, parts: Sequence[Part]) -> None:
        """The answer for `slot` is here; no parts at all means that nothing is sent for it."""
        slot.parts = parts
        slot.waits_for = None
        answer_bytes = _bytes_in_memory(parts)
        self._owed_bytes += answer_bytes - slot.held_bytes
        slot.held_bytes = answer_bytes
        self._flush()
        self._on_room()

    @property
    def is_paused(self) -> bool:
        """Whether the peer has to read before anything more is sent."""
        return self._paused

    def pause(self) -> None:
        self._paused = True
        self.pauses += 1

    def resume(self) -> None:
        self._paused = False
        self._stream_on()
        self._on_room()

    def hand_over(self) -> None:
        """The connection is about to end: give the transport what is ready, in its order.

        Only whole answers that are in memory, which is little; there is no time to read others.
        """
        slots = self._slots
        while slots and not (self._stream or self._closed):
            parts = slots[0].parts
            if parts is None or not all(isinstance(part, _IN_MEMORY) for part in parts):
                return
            self._owed_bytes -= slots.popleft().held_bytes
            self._write(parts)

    def close(self) -> None:
        """The connection is gone: abandon what is still being worked on."""
        self._closed = True
        self._stream.clear()
        slots, self._slots = self._slots, deque()
        self._owed_bytes = 0
        for slot in slots:
            if isinstance(slot.waits_for, Deferred):
                slot.waits_for.abandon()

    def _flush(self) -> None:
        slots = self._slots
        while slots and not (self._stream or self._paused) and slots[0].parts is not None:
            slot = slots.popleft()
            self._owed_bytes -= slot.held_bytes
            self._write(slot.parts or ())

    def _write(self, parts: Sequence[Part]) -> None:
        if self._closed:
            return
        if len(parts) == 1 and isinstance(parts[0], _IN_MEMORY):
            self._transport.write(parts[0])
            return
        if all(isinstance(part, _IN_MEMORY) for part in parts):
            if parts:
                self._transport.writelines(parts)  # type: ignore[arg-type]
            return
        for part in parts:
            if isinstance(part, _IN_MEMORY):
                self._stream.append(part)
            else:
                self._stream.extend(part.pieces(PIECE_BYTES_MAX))
        self._stream_on()

    def _stream_on(self) -> None:
        """Send on from the stored records under way, until the peer or the disk is behind."""
        stream = self._stream
        left_bytes = BYTES_PER_TURN_MAX
        while stream and not (self._paused or self._stream_busy or self._closed):
            part = stream[0]
            if isinstance(part, _IN_MEMORY):
                stream.popleft()
                self._transport.write(part)
                continue
            if left_bytes <= 0:
                self._stream_busy = True
                self._loop.call_soon(self._next_turn)
                return
            left_bytes -= part.size_bytes
            self._send_stored(part)
        if not stream and self._slots:
            self._flush()

    def _next_turn(self) -> None:
        self._stream_busy = False
        self._stream_on()
        self._on_room()

    def _send_stored(self, part: StoredPiece) -> None:
        try:
            data = part.read_now()
        except (OSError, ApiError) as error:
            self._fail(error)
            return
        if data is None:
            self._stream_busy = True
            self._executor.submit(part.read_blocking, self._read_from_disk)
        else:
            self._send_read(part, data)

    def _read_from_disk(self, data: bytes | None, error: BaseException | None) -> None:
        self._stream_busy = False
        if self._closed or not self._stream:
            return
        if error is not None or data is None:
            self._fail(error)
            return
        part = self._stream[0]
        assert not isinstance(part, _IN_MEMORY)
        self._send_read(part, data)
        self._stream_on()
        self._on_room()

    def _send_read(self, part: StoredPiece, data: bytes | bytearray) -> None:
        if len(data) != part.size_bytes:
            self._fail(OSError(f"{part.size_bytes} bytes were stored and {len(data)} came back"))
            return
        self._stream.popleft()
        self._transport.write(data)

    def _fail(self, error: BaseException | None) -> None:
        # The size of the answer is already on the wire: it cannot be taken back, only cut off.
        # Nothing may follow, not even where a connection is ending and sends what is left.
        self.close()
        self._on_failure(f"stored records could not be read: {error}")


def _bytes_in_memory(parts: Sequence[Part]) -> int:
    return sum(len(part) for part in parts if isinstance(part, _IN_MEMORY))
