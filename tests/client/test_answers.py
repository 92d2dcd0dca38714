"""Answers come out of the receive buffer whole, whatever pieces they arrive in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client.answers import GROWTH, SCRATCH_BYTES, Answers
from tidemill.errors import WireError

LIMIT_BYTES = 64 << 20


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def receive(answers: Answers, data: bytes, piece_bytes: int) -> list[memoryview]:
    """As a transport does it: as much as there is room for, at most a piece."""
    found: list[memoryview] = []
    rest = memoryview(data)
    while rest:
        room = answers.writable()
        count = min(len(room), piece_bytes, len(rest))
        assert count, "a transport takes an empty buffer for an error"
        room[:count] = rest[:count]
        found += answers.take(count)
        rest = rest[count:]
    return found


def body(size_bytes: int, number: int) -> bytes:
    return bytes([number % 251]) * (size_bytes - 4) + struct.pack(">i", number)


sizes = st.lists(
    st.one_of(
        st.integers(4, 200),
        st.integers(SCRATCH_BYTES - 20, SCRATCH_BYTES + 20),
        st.integers(4, 12 * SCRATCH_BYTES),
    ),
    max_size=8,
)


@given(sizes=sizes, piece_bytes=st.sampled_from([1_000, 4_099, 70_000, 1 << 20]))
def test_answers_come_whole_and_in_order(sizes: list[int], piece_bytes: int) -> None:
    sent = [body(size, number) for number, size in enumerate(sizes)]
    found = receive(Answers(LIMIT_BYTES), b"".join(map(frame, sent)), piece_bytes)
    # What came first is still what it was when everything has come.
    assert [bytes(each) for each in found] == sent


def test_a_size_that_comes_byte_by_byte() -> None:
    found = receive(Answers(LIMIT_BYTES), frame(b"12345678") + frame(b"abcd"), 1)
    assert [bytes(each) for each in found] == [b"12345678", b"abcd"]


def test_a_large_answer_is_handed_over_without_a_copy() -> None:
    """It has a buffer of its own, which nothing that comes later is written to."""
    answers = Answers(LIMIT_BYTES)
    [first] = receive(answers, frame(body(1 << 20, 1)), 1 << 20)
    assert isinstance(first.obj, bytearray)
    assert len(first.obj) == 4 + (1 << 20)
    assert first.readonly
    receive(answers, frame(body(1 << 20, 2)), 1 << 20)
    assert bytes(first) == body(1 << 20, 1)


def test_room_is_made_for_what_has_come_not_for_what_is_declared() -> None:
    """Rule 3.4.1: whoever declares 50 MB and sends 100 bytes gets no 50 MB."""
    answers = Answers(LIMIT_BYTES)
    receive(answers, struct.pack(">i", 50_000_000) + bytes(100), 1_000)
    assert len(answers.writable()) <= GROWTH * SCRATCH_BYTES


def test_room_is_made_at_once_for_as_much_as_came_before() -> None:
    """A buffer that grows is copied; nobody has shown yet that a larger answer will come."""
    answers = Answers(LIMIT_BYTES)
    receive(answers, frame(body(1 << 20, 1)), 1 << 20)
    receive(answers, struct.pack(">i", 50_000_000) + bytes(100), 1_000)
    assert len(answers.writable()) == 4 + (1 << 20) - 104

    answers = Answers(LIMIT_BYTES)
    receive(answers, frame(body(1 << 20, 1)), 1 << 20)
    receive(answers, frame(body(SCRATCH_BYTES * 2, 2)), 1_000)
    receive(answers, struct.pack(">i", 50_000_000) + bytes(100), 1_000)
    assert len(answers.writable()) <= GROWTH * SCRATCH_BYTES


@pytest.mark.parametrize("size", [-1, 0, 3, LIMIT_BYTES + 1])
def test_a_size_that_no_answer_has_is_refused_after_what_came_before(size: int) -> None:
    answers = Answers(LIMIT_BYTES)
    data = frame(b"good") + struct.pack(">i", size)
    answers.writable()[: len(data)] = data
    found = answers.take(len(data))
    assert bytes(next(found)) == b"good"
    with pytest.raises(WireError, match="declares"):
        next(found)
