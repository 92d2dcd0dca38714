"""Rounds of lines from files to a topic.

A round is read, sent, acknowledged and written to the journal before the next one begins. So:

* nothing is lost by a crash of the shipper: what the journal does not say is read again;
* at most one round, `ROUND_BYTES` of lines with their overhead, arrives a second time after it, and
  a second arrival has the same `position` header, which no other line ever has;
* a broker that is away stops the reading, and costs one round of memory;
* retries duplicate nothing: the producer is idempotent and does not give up by itself.

A file's id is in the journal before its first line is sent: the header stays the same over a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tidemill.client.errors import BufferFullError, ClientError
from tidemill.client.producer import Producer
from tidemill.errors import ErrorCode
from tidemill.ship.follow import Follower, Piece, Round
from tidemill.ship.journal import Journal
from tidemill.ship.lines import Line

ROUND_BYTES = 4 * 1024 * 1024
POLL_S = 0.25
RECONNECT_S = 1.0
FINISH_S = 5.0
"""How long a shipper that is told to end waits for the round under way."""

HOST_HEADER = "host"
FILE_HEADER = "file"
POSITION_HEADER = "position"
PART_HEADER = "part"

Patiently = Callable[[Producer, Coroutine[Any, Any, None]], Awaitable[None]]
"""Awaits something of a producer, and tells the user what for when it takes long."""


@dataclass(slots=True)
class Shipped:
    """What was delivered so far."""

    lines: int = 0
    bytes: int = 0
    rounds: int = 0


class Shipper:
    """Takes rounds from a follower to a topic, and notes in the journal what arrived."""

    def __init__(
        self,
        follower: Follower,
        journal: Journal,
        *,
        topic: str,
        host: str,
        keyed: bool,
        patiently: Patiently,
    ) -> None:
        self._follower = follower
        self._journal = journal
        self._topic = topic
        self._host = host
        self._keyed = keyed
        self._patiently = patiently
        self.shipped = Shipped()

    async def run(
        self,
        connect: Callable[[], Awaitable[Producer]],
        *,
        once: bool,
        on_trouble: Callable[[ClientError], None],
    ) -> None:
        """Deliver until nothing is left (`once`) or until cancelled.

        `connect` gives a producer that has started, and is asked again after a failure that may
        pass; others are raised.
        """
        while True:
            try:
                producer = await connect()
                try:
                    await self._rounds(producer, once=once)
                    return
                finally:
                    await producer.close(FINISH_S * 1000)
            except ClientError as error:
                if once or not _may_pass(error):
                    raise
                on_trouble(error)
            await asyncio.sleep(RECONNECT_S)

    async def _rounds(self, producer: Producer, *, once: bool) -> None:
        while True:
            found = await asyncio.to_thread(self._follower.collect, ROUND_BYTES)
            if found.reached or found.over:
                await self._in_one_piece(self._deliver(producer, found))
            elif once:
                return
            if found.cost_bytes < ROUND_BYTES and not once:
                await asyncio.sleep(POLL_S)

    async def _in_one_piece(self, round_: Coroutine[Any, Any, None]) -> None:
        """Whoever is told to end finishes the round first, so that nothing is sent twice."""
        task = asyncio.ensure_future(round_)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=FINISH_S)
            task.cancel()
            raise

    async def _deliver(self, producer: Producer, found: Round) -> None:
        await self._remember()
        for piece in found.pieces:
            await self._send(producer, piece)
            await asyncio.sleep(0)  # The sender's turn: a round is tens of thousands of records.
        await self._patiently(producer, producer.flush())
        self._follower.apply(found)
        await self._remember()
        self.shipped.rounds += 1
        for piece in found.pieces:
            self.shipped.lines += len(piece.lines)
            self.shipped.bytes += sum(len(line.value) for line in piece.lines)

    async def _remember(self) -> None:
        await asyncio.to_thread(self._journal.save, self._follower.bookmarks)

    async def _send(self, producer: Producer, piece: Piece) -> None:
        path = piece.file.path.encode(errors="surrogateescape")
        host = self._host.encode()
        key = host + b":" + path if self._keyed else None
        common = ((HOST_HEADER, host), (FILE_HEADER, path))
        for line in piece.lines:
            headers = (*common, *_line_headers(piece.file.id, line))
            try:
                producer.send_soon(self._topic, line.value, key=key, headers=headers)
            except BufferFullError:
                await self._patiently(producer, producer.wait_for_room())
                producer.send_soon(self._topic, line.value, key=key, headers=headers)


def _line_headers(file_id: str, line: Line) -> tuple[tuple[str, bytes], ...]:
    position = (POSITION_HEADER, b"%s:%d" % (file_id.encode(), line.position))
    if line.part is None:
        return (position,)
    return (position, (PART_HEADER, b"%d" % line.part))


def _may_pass(error: ClientError) -> bool:
    """A topic that is not there stays away; a broker may come back."""
    return error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
