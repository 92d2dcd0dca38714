"""Positions as text, how much a batch takes, and its pieces: nothing lost, nothing starved."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.spark.offsets import (
    PIECES_MAX,
    Limits,
    OffsetRange,
    Offsets,
    Position,
    backlog,
    plan_batch,
    split_ranges,
)

MB = 1024 * 1024

topic_names = st.sampled_from(["clicks", "a.b", "x_1", "B-2"])
offsets = st.dictionaries(
    topic_names,
    st.dictionaries(st.integers(0, 12), st.integers(0, 2**62), min_size=1),
    max_size=4,
)


def later(start: Offsets, added: list[int]) -> Offsets:
    """Each partition a little or a lot further."""
    steps = iter(added * 60)
    return {
        topic: {index: offset + next(steps) for index, offset in partitions.items()}
        for topic, partitions in start.items()
    }


@given(offsets, st.none() | offsets, st.dictionaries(topic_names, st.uuids().map(str)))
def test_a_position_survives_its_text(
    at: Offsets, began: Offsets | None, ids: dict[str, str]
) -> None:
    position = Position(at, ids, began)
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


@given(offsets, st.randoms(use_true_random=False))
def test_equal_positions_have_equal_texts(at: Offsets, random: object) -> None:
    """Spark compares positions as text: another order would be an endless supply of batches."""
    shuffled = {topic: dict(reversed(at[topic].items())) for topic in reversed(at)}
    one, other = Position(at, {"x": "1", "a": "2"}), Position(shuffled, {"a": "2", "x": "1"})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_partitions_are_in_the_order_of_numbers() -> None:
    text = json.dumps(Position({"t": {10: 1, 2: 1}}).to_json())
    assert text == '{"t": {"2": 1, "10": 1}}'


def test_a_topic_made_anew_is_another_one() -> None:
    old, new = Position({"t": {0: 5}}, {"t": "a"}), Position({"t": {0: 9}}, {"t": "b"})
    assert old.is_recreated("t", new)
    assert not old.is_recreated("t", old)
    assert not Position({"t": {0: 5}}).is_recreated("t", new), "an old broker names no ids"


@given(offsets, st.lists(st.integers(0, 10**6), min_size=1), st.integers(1, 10**6))
def test_a_limit_is_kept_and_starves_nobody(start: Offsets, added: list[int], most: int) -> None:
    available = later(start, added)
    ends = plan_batch(start, available, Limits(most))
    waiting = backlog(start, available)
    busy = sum(
        available[topic][index] > offset
        for topic in start
        for index, offset in start[topic].items()
    )
    taken = backlog(start, ends)
    assert taken == min(waiting, max(most, busy))
    for topic, partitions in start.items():
        for index, offset in partitions.items():
            end, last = ends[topic][index], available[topic][index]
            assert offset <= end <= last
            assert end > offset or last == offset, "a partition with records gets one at least"


def test_shares_are_in_proportion() -> None:
    start = {"t": {0: 0, 1: 0, 2: 0}}
    ends = plan_batch(start, {"t": {0: 1_000, 1: 3_000, 2: 6_000}}, Limits(1_000))
    for index, share in {0: 100, 1: 300, 2: 600}.items():
        assert ends["t"][index] == pytest.approx(share, abs=3)


@given(offsets, st.lists(st.integers(0, 10**6), min_size=1), st.integers(1, 10**5))
def test_batch_after_batch_everything_is_read(start: Offsets, added: list[int], most: int) -> None:
    available = later(start, added)
    batches = backlog(start, available) // most + 2
    for _ in range(min(batches, 20)):
        before = backlog(start, available)
        start = plan_batch(start, available, Limits(most))
        assert backlog(start, available) < before or before == 0
    if batches <= 20:
        assert start == available


def test_few_records_wait_for_more_but_not_for_ever() -> None:
    start, available = {"t": {0: 0}}, {"t": {0: 10}}
    limits = Limits(least=100, delay_max_ms=1_000)
    assert plan_batch(start, available, limits, waited_ms=999) == start
    assert plan_batch(start, available, limits, waited_ms=1_000) == available
    assert plan_batch(start, available, limits) == available, "nobody waits for the first batch"
    assert plan_batch(start, {"t": {0: 100}}, limits, waited_ms=0) == {"t": {0: 100}}


def test_a_partition_that_went_back_ends_where_it_is() -> None:
    start, available = {"t": {0: 50, 1: 0}}, {"t": {0: 20, 1: 1_000}}
    assert plan_batch(start, available, Limits(100))["t"] == {0: 20, 1: 100}


ranges = st.lists(
    st.tuples(topic_names, st.integers(0, 5), st.integers(0, 10**6), st.integers(0, 10**6)).map(
        lambda each: OffsetRange(each[0], each[1], each[2], each[2] + each[3])
    ),
    max_size=8,
)


@given(
    ranges,
    st.floats(0, 10_000),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 10**6),
)
def test_pieces_are_the_ranges(
    wholes: list[OffsetRange], record_bytes: float, least: int | None, most: int | None
) -> None:
    """Every offset is in exactly one piece, and no piece is empty or too large."""
    sizes = {(each.topic, each.partition): record_bytes for each in wholes}
    pieces = split_ranges(wholes, record_bytes=sizes, min_partitions=least, max_records=most)
    left = iter(pieces)
    for whole in wholes:
        at = whole.start
        while at < whole.end:
            piece = next(left)
            assert (piece.topic, piece.partition, piece.start) == (*whole[:2], at)
            assert piece.size > 0
            at = piece.end
        assert at == whole.end
    assert next(left, None) is None
    if len(pieces) < PIECES_MAX // 2:
        assert all(piece.size * record_bytes <= 64 * MB + record_bytes for piece in pieces)
        assert most is None or all(piece.size <= most for piece in pieces)
        assert least is None or len(pieces) >= min(least, sum(each.size for each in wholes))


def test_one_large_partition_becomes_several_tasks() -> None:
    whole = OffsetRange("t", 0, 0, 1_000_000)
    pieces = split_ranges([whole], record_bytes={("t", 0): 200.0})
    assert [piece.size for piece in pieces] == [250_000] * 4, "three would leave a core idle"
    assert split_ranges([whole], record_bytes={}) == [whole], "not known is not split"


def test_tasks_are_bounded() -> None:
    whole = OffsetRange("t", 0, 0, 10**12)
    assert len(split_ranges([whole], record_bytes={}, max_records=1)) <= PIECES_MAX
