"""The send side of a connection: order, pace, and what happens when the disk is slow or broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemill.broker.deferred import Deferred
from tidemill.broker.outbox import BYTES_PER_TURN_MAX, OWED_BYTES_MAX, PIECE_BYTES_MAX, Outbox
from tidemill.executor import InlineExecutor


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += bytes(data)

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.write(part)


class Turns:
    """The loop's `call_soon`, run by hand."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.waiting.append(callback)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Stored:
    """Records on a disk: `cold` ones are not in the page cache."""

    def __init__(self, data: bytes, *, cold: bool = False, error: OSError | None = None) -> None:
        self.data = data
        self.cold = cold
        self.error = error
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.data)

    def pieces(self, max_bytes: int) -> list[Piece]:
        starts = range(0, len(self.data), max_bytes)
        return [Piece(self, self.data[start : start + max_bytes]) for start in starts]


class Piece:
    """Some of them: what is read at a time."""

    def __init__(self, stored: Stored, data: bytes) -> None:
        self.stored = stored
        self.data = data

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read_now(self) -> bytes | None:
        self.stored.reads.append(self.size_bytes)
        return None if self.stored.cold else self._read()

    def read_blocking(self) -> bytes:
        return self._read()

    def _read(self) -> bytes:
        if self.stored.error is not None:
            raise self.stored.error
        return self.data


class Peer:
    def __init__(self) -> None:
        self.wire = Wire()
        self.turns = Turns()
        self.room = 0
        self.failures: list[str] = []
        transport: Any = self.wire
        loop: Any = self.turns
        self.outbox = Outbox(transport, loop, InlineExecutor(), self._room, self.failures.append)

    def _room(self) -> None:
        self.room += 1


def test_answers_leave_in_request_order() -> None:
    peer = Peer()
    first = peer.outbox.owe(0)
    second = peer.outbox.owe(0)
    peer.outbox.send([b"three"])
    peer.outbox.fill(second, [b"two "])
    assert peer.wire.data == b""
    peer.outbox.fill(first, [b"one ", b"and "])
    assert peer.wire.data == b"one and two three"
    assert len(peer.outbox) == 0


def test_an_answer_that_is_nothing_does_not_block_the_others() -> None:
    peer = Peer()
    slot = peer.outbox.owe(0)
    peer.outbox.send([b"next"])
    peer.outbox.fill(slot, ())
    assert peer.wire.data == b"next"


def test_stored_records_are_not_read_while_the_peer_does_not_read() -> None:
    """A slow reader costs no one else anything: no data is read for it."""
    peer = Peer()
    peer.outbox.pause()
    stored = Stored(b"records")
    peer.outbox.send([b"head ", stored, b" tail"])
    assert not stored.reads
    assert len(peer.outbox) == 1
    peer.outbox.resume()
    assert peer.wire.data == b"head records tail"
    assert peer.room == 1


def test_an_answer_waits_for_the_stored_records_before_it() -> None:
    peer = Peer()
    peer.outbox.pause()
    peer.outbox.send([b"head ", Stored(b"records")])
    peer.outbox.send([b" next"])
    assert peer.wire.data == b""
    peer.outbox.resume()
    assert peer.wire.data == b"head records next"


def test_nothing_is_sent_while_the_peer_does_not_read() -> None:
    """What is ready waits in its place: the transport would take it all."""
    peer = Peer()
    slots = [peer.outbox.owe(0) for _ in range(3)]
    peer.outbox.pause()
    for slot in slots:
        peer.outbox.fill(slot, [b"answer "])
    assert peer.wire.data == b""
    peer.outbox.resume()
    assert peer.wire.data == b"answer " * 3


def test_what_waits_takes_a_bounded_amount_of_memory() -> None:
    """First the requests, then the answers that wait behind another one."""
    peer = Peer()
    slow = peer.outbox.owe(0)
    second = peer.outbox.owe(OWED_BYTES_MAX - 1)
    blocked = [peer.outbox.is_blocked]
    third = peer.outbox.owe(1)
    blocked.append(peer.outbox.is_blocked)
    peer.outbox.fill(second, [b"short", Stored(bytes(OWED_BYTES_MAX))])
    blocked.append(peer.outbox.is_blocked)
    peer.outbox.fill(third, [bytes(OWED_BYTES_MAX)])
    blocked.append(peer.outbox.is_blocked)
    peer.outbox.send([b"last"])
    peer.outbox.fill(slow, [b"first"])
    peer.turns.run()
    blocked.append(peer.outbox.is_blocked)
    assert blocked == [False, True, False, True, False]
    assert len(peer.wire.data) == len(b"firstshortlast") + 2 * OWED_BYTES_MAX
    assert len(peer.outbox) == 0


def test_cold_records_come_from_the_executor() -> None:
    peer = Peer()
    peer.outbox.send([b"head ", Stored(b"cold", cold=True), b" tail"])
    peer.outbox.send([b" next"])
    assert peer.wire.data == b"head cold tail next"


def test_a_large_answer_gives_others_their_turn() -> None:
    peer = Peer()
    piece = b"x" * BYTES_PER_TURN_MAX
    peer.outbox.send([Stored(piece), Stored(piece), Stored(piece)])
    assert len(peer.wire.data) == len(piece)
    peer.turns.run()
    assert len(peer.wire.data) == 2 * len(piece)
    peer.turns.run()
    assert len(peer.wire.data) == 3 * len(piece)
    assert len(peer.outbox) == 0


def test_of_a_large_answer_one_piece_is_in_memory_at_a_time() -> None:
    """A reader that stops in the middle costs what it has not taken of one piece."""
    peer = Peer()
    stored = Stored(bytes(range(256)) * (3 * PIECE_BYTES_MAX // 256) + b"end")
    peer.outbox.send([b"head ", stored, b" tail"])
    peer.outbox.pause()
    peer.turns.run()
    assert stored.reads == [PIECE_BYTES_MAX]
    peer.outbox.resume()
    while peer.turns.waiting:
        peer.turns.run()
    assert stored.reads == [PIECE_BYTES_MAX] * 3 + [3]
    assert peer.wire.data == b"head " + stored.data + b" tail"


def test_a_disk_error_in_the_middle_of_an_answer_ends_the_connection() -> None:
    peer = Peer()
    peer.outbox.send([b"head ", Stored(b"lost", error=OSError("broken"))])
    assert len(peer.failures) == 1
    assert "broken" in peer.failures[0]


def test_nothing_follows_an_answer_that_was_cut_off() -> None:
    """The connection may be ending already: the next answer would pass for the rest of this one."""
    peer = Peer()
    slow = peer.outbox.owe(0)
    peer.outbox.send([b"next answer"])
    abandoned: list[str] = []
    waiting = peer.outbox.owe(0)
    waiting.waits_for = Deferred(on_abandoned=lambda: abandoned.append("fetch"))
    peer.outbox.fill(slow, [b"head ", Stored(b"lost", error=OSError("broken"))])
    peer.outbox.resume()
    peer.outbox.fill(waiting, [b"and another"])
    assert peer.wire.data == b"head "
    assert abandoned == ["fetch"]


def test_a_cold_read_that_fails_ends_the_connection() -> None:
    peer = Peer()
    peer.outbox.send([Stored(b"lost", cold=True, error=OSError("broken"))])
    assert len(peer.failures) == 1


def test_what_is_ready_is_handed_over_at_the_end() -> None:
    """The broker stops: a slow reader still gets the answers that are there, in their order."""
    peer = Peer()
    slots = [peer.outbox.owe(0) for _ in range(4)]
    peer.outbox.pause()
    peer.outbox.fill(slots[0], [b"one ", b"and "])
    peer.outbox.fill(slots[1], [b"two"])
    peer.outbox.fill(slots[3], [b"four"])
    peer.outbox.hand_over()
    assert peer.wire.data == b"one and two"
    peer.outbox.fill(slots[2], [b"head ", Stored(b"records")])
    peer.outbox.hand_over()
    assert peer.wire.data == b"one and two", "an answer goes out whole, or not at all"


def test_nothing_is_handed_over_in_the_middle_of_stored_records() -> None:
    peer = Peer()
    peer.outbox.send([b"head ", Stored(b"c" * BYTES_PER_TURN_MAX), Stored(b"next turn")])
    peer.outbox.send([b"next"])
    sent = len(peer.wire.data)
    peer.outbox.hand_over()
    assert len(peer.wire.data) == sent


def test_closing_abandons_what_is_still_being_worked_on() -> None:
    peer = Peer()
    abandoned: list[str] = []
    deferred: Deferred[object] = Deferred(on_abandoned=lambda: abandoned.append("fetch"))
    peer.outbox.owe(0).waits_for = deferred
    peer.outbox.close()
    assert abandoned == ["fetch"]
    deferred.complete("too late")


async def test_a_deferred_delivers_once_in_the_same_turn() -> None:
    got: list[int] = []
    deferred: Deferred[int] = Deferred()
    deferred.listen(got.append)
    deferred.complete(1)
    deferred.complete(2)
    assert got == [1]
    failed: Deferred[int] = Deferred()
    errors: list[Exception] = []
    failed.listen(got.append, errors.append)
    failed.fail(ValueError("broken"))
    assert len(errors) == 1
    early: Deferred[int] = Deferred()
    early.complete(3)
    early.listen(got.append)
    assert got == [1, 3]
    await asyncio.sleep(0)


def test_a_deferred_may_be_completed_with_nothing() -> None:
    """For acks=0 that is the answer; whoever listens later is told, too, unless nobody waits."""
    got: list[object] = []
    early: Deferred[None] = Deferred()
    early.complete(None)
    early.listen(got.append)
    assert got == [None]
    abandoned: Deferred[None] = Deferred()
    abandoned.abandon()
    abandoned.complete(None)
    abandoned.listen(got.append)
    assert got == [None]
