"""The receive side: frames of any size in pieces of any size, and memory only for what arrived."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from tidemill.broker.receive import ReceiveBuffer, Scratch
from tidemill.broker.request_memory import SMALL_FRAME_BYTES


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def feed(buffer: ReceiveBuffer, data: bytes, pieces: list[int]) -> list[bytes]:
    """Receive `data` in pieces as a connection does, taking whole frames as they come."""
    frames = []
    at = 0
    turn = 0
    while at < len(data):
        room = buffer.writable()
        assert len(room) > 0
        count = min(len(room), max(1, pieces[turn % len(pieces)]), len(data) - at)
        turn += 1
        room[:count] = data[at : at + count]
        buffer.end += count
        at += count
        while (size := buffer.frame_bytes()) is not None and buffer.end - buffer.start >= size:
            frames.append(bytes(buffer.view[buffer.start + 4 : buffer.start + size]))
            buffer.start += size
        if buffer.is_empty:
            buffer.rewind()
            continue
        buffer.make_own()
        buffer.compact()
        if buffer.is_full:
            buffer.grow()
    return frames


@given(
    sizes=st.lists(st.integers(0, 5_000), max_size=20),
    pieces=st.lists(st.integers(1, 3_000), min_size=1, max_size=10),
)
def test_frames_come_out_as_they_went_in(sizes: list[int], pieces: list[int]) -> None:
    bodies = [bytes([place % 256]) * size for place, size in enumerate(sizes)]
    buffer = ReceiveBuffer(Scratch())
    assert feed(buffer, b"".join(map(frame, bodies)), pieces) == bodies


def test_a_large_frame_grows_with_its_bytes_only() -> None:
    """Rule 3.4.1: a declared size allocates nothing."""
    buffer = ReceiveBuffer(Scratch())
    head = struct.pack(">i", 100_000_000) + b"x" * 996
    buffer.writable()[: len(head)] = head
    buffer.end += len(head)
    buffer.make_own()
    assert buffer.own_bytes <= 4096
    for _ in range(4):
        buffer.end = len(buffer.view)
        held = buffer.end
        buffer.grow()
        assert buffer.own_bytes <= 2 * held


def test_an_idle_connection_holds_no_buffer() -> None:
    scratch = Scratch()
    buffers = [ReceiveBuffer(scratch) for _ in range(1000)]
    assert sum(buffer.own_bytes for buffer in buffers) == 0
    assert len(scratch.view) == SMALL_FRAME_BYTES


def test_two_connections_share_the_scratch_buffer_without_mixing() -> None:
    scratch = Scratch()
    first, second = ReceiveBuffer(scratch), ReceiveBuffer(scratch)
    first.writable()[:6] = struct.pack(">i", 4) + b"ab"
    first.end += 6
    first.make_own()
    second.writable()[:8] = struct.pack(">i", 4) + b"WXYZ"
    second.end += 8
    first.writable()[:2] = b"cd"
    first.end += 2
    assert bytes(first.view[4:8]) == b"abcd"
    assert bytes(second.view[4:8]) == b"WXYZ"


def test_nothing_behind_a_large_frame_is_read_with_it() -> None:
    buffer = ReceiveBuffer(Scratch())
    size = 300_000
    buffer.writable()[:4] = struct.pack(">i", size - 4)
    buffer.end += 4
    buffer.make_own()
    while len(buffer.view) < size:
        buffer.end = len(buffer.view)
        buffer.grow()
    buffer.end = size - 10
    assert len(buffer.writable()) == 10
