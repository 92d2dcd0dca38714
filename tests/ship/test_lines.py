"""Cutting bytes into records: nothing lost, nothing twice, nothing beyond the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.ship.lines import LINE_OVERHEAD_BYTES, Cut, Line, cut

PLENTY = 1 << 30


def cut_all(data: bytes, line_bytes_max: int, *, final: bool = False) -> Cut:
    return cut(
        data, position=0, line_bytes_max=line_bytes_max, cost_bytes_max=PLENTY, final=final
    )  # fmt: skip


def test_lines_have_their_positions_and_lose_their_ends() -> None:
    found = cut_all(b"one\ntwo\r\n\nrest", 100)
    assert found.lines == [Line(b"one", 0), Line(b"two", 4), Line(b"", 9)]
    assert (found.position, found.part) == (10, 0)


def test_a_last_line_without_its_end_waits_for_it() -> None:
    assert cut_all(b"half a li", 100).lines == []
    assert cut_all(b"half a li", 100, final=True).lines == [Line(b"half a li", 0)]


def test_a_line_too_long_for_one_record_becomes_several_that_say_so() -> None:
    found = cut_all(b"abcdefgh\nij\n", 3)
    assert found.lines == [
        Line(b"abc", 0, 0), Line(b"def", 3, 1), Line(b"gh", 6, 2), Line(b"ij", 9),
    ]  # fmt: skip


def test_a_line_of_exactly_the_limit_is_whole() -> None:
    assert cut_all(b"abc\n", 3).lines == [Line(b"abc", 0)]


def test_the_hole_that_a_truncation_leaves_is_skipped() -> None:
    assert cut_all(b"\0\0\0\0new\nwith\0zero\n", 100).lines == [
        Line(b"new", 4),
        Line(b"with\0zero", 8),
    ]


def test_a_round_is_bounded_by_what_records_cost() -> None:
    found = cut(b"\n" * 100, position=0, line_bytes_max=10, cost_bytes_max=3 * LINE_OVERHEAD_BYTES)
    assert len(found.lines) == 3
    assert found.position == 3


@given(
    data=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\0", b"x"))).map(b"\n".join),
    limit=st.integers(1, 8),
    steps=st.lists(st.integers(1, 9), min_size=1),
)
def test_however_the_bytes_arrive_the_lines_are_the_same(
    data: bytes, limit: int, steps: list[int]
) -> None:
    """What is cut in one go equals what is cut while the file grows, wherever it is resumed."""
    whole = cut_all(data, limit, final=True)
    lines: list[Line] = []
    position = part = grown = at = 0
    while grown < len(data):
        grown = min(len(data), grown + steps[at % len(steps)])
        at += 1
        found = cut(
            data[position:grown],
            position=position,
            part=part,
            line_bytes_max=limit,
            cost_bytes_max=PLENTY,
            final=grown == len(data),
        )
        lines += found.lines
        position, part = found.position, found.part
    assert lines == whole.lines
    assert position == len(data)
    assert all(len(line.value) <= limit for line in lines)
