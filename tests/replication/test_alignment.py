"""Where a follower cuts its log so that it agrees with its leader's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.helpers import batch, new_log, read_all

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.alignment import (
    Alignment,
    Ask,
    Fetch,
    StartOver,
    TruncateTo,
    after_divergence,
    after_range,
    begin,
    diverging,
    next_fetch,
)
from tidemill.storage.log import Log
from tidemill.types import LeaderEpoch

EPOCH = LeaderEpoch(99)


def log_of(*epochs: tuple[int, int]) -> Log:
    """A log with so many records of each epoch; no record at all where a leader wrote none."""
    log = new_log()
    for epoch, count in epochs:
        log.begin_epoch(epoch)
        for _ in range(count):
            log.append_as_leader(batch(b"%d" % epoch), leader_epoch=epoch)
    return log


def history(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in read_all(log)]


# The first step.


def test_a_log_with_epochs_is_never_cut_at_its_high_watermark() -> None:
    """Rule D3: the high watermark lags behind what is committed."""
    assert begin(log_of((0, 5)), high_watermark=2) == Fetch(5, 0)


def test_a_log_without_epochs_keeps_what_is_committed() -> None:
    """Rule D3."""
    log = log_of((0, 5))
    log.leader_epochs.clear()
    assert begin(log, high_watermark=2) == TruncateTo(2)
    assert begin(log, high_watermark=5) == Fetch(5, -1)


def test_an_empty_log_just_fetches() -> None:
    assert begin(log_of(), high_watermark=0) == Fetch(0, -1)


# Truncate on fetch.


@pytest.mark.parametrize(
    ("leader", "offset", "epoch", "expected"),
    [
        ([(0, 5)], 3, 0, None),
        ([(0, 5)], 5, 0, None),
        ([(0, 5)], 7, 0, (0, 5)),
        ([(0, 5), (2, 3)], 7, 0, (0, 5)),
        ([(0, 5), (2, 3)], 7, 1, (0, 5)),
        ([(0, 5), (2, 0)], 5, 1, (0, 5)),
        ([(0, 5)], 9, -1, None),
    ],
)
def test_the_leader_says_where_its_log_left_the_followers(
    leader: list[tuple[int, int]], offset: int, epoch: int, expected: tuple[int, int] | None
) -> None:
    """Rules D2 and D5."""
    assert diverging(log_of(*leader), offset, epoch) == expected


def test_an_epoch_that_the_leader_cannot_place_is_out_of_range() -> None:
    """Rule D5."""
    with pytest.raises(ApiError) as refused:
        diverging(log_of((0, 5)), 5, 3)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("own", "epoch", "end", "expected"),
    [
        # Both know the epoch: the shorter of the two ends.
        ([(0, 8)], 0, 5, TruncateTo(5)),
        ([(0, 4), (1, 4)], 0, 6, TruncateTo(4)),
        ([(0, 4), (1, 4)], 0, 3, TruncateTo(3)),
        # We do not know it: the end of our largest smaller one, and the next answer is about that.
        ([(0, 4), (3, 4)], 2, 6, TruncateTo(4)),
        # The leader has nothing of any of our epochs.
        ([(3, 4)], 1, 2, TruncateTo(0)),
        # We led in an epoch without a record: nothing to cut, and yet there is.
        ([(0, 4), (1, 0)], 0, 9, TruncateTo(4)),
        # Asking again would bring the same answer.
        ([(0, 4)], 0, 9, None),
    ],
)
def test_where_a_diverging_log_is_cut(
    own: list[tuple[int, int]], epoch: int, end: int, expected: TruncateTo | None
) -> None:
    """Rules D3 and D5."""
    assert after_divergence(log_of(*own), epoch, end) == expected


# Out of range.


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 3, TruncateTo(3)),
        (7, 9, StartOver(7)),
        (5, 9, Fetch(5, 0)),
        (0, 5, Fetch(5, 0)),
    ],
)
def test_out_of_range_is_judged_by_the_leaders_range(
    start: int, end: int, expected: TruncateTo | StartOver | Fetch
) -> None:
    """Rule D7."""
    assert after_range(log_of((0, 5)), start, end) == expected


# The dialogue.


def align(follower: Log, leader: Log) -> list[int]:
    """Let the follower ask until it may fetch; the epochs that it asked about."""
    alignment = Alignment(follower, 0, EPOCH)
    asked: list[int] = []
    while not isinstance(step := alignment.step, Fetch):
        if isinstance(step, TruncateTo):
            follower.truncate_to(step.offset)
            alignment.truncated()
        else:
            asked.append(step.epoch)
            assert alignment.answered(step.epoch, EPOCH, *leader.end_offset_for_epoch(step.epoch))
    return asked


def test_two_fast_elections_leave_no_divergence() -> None:
    """Rule D3: the case in which a single question is not enough."""
    leader = log_of((0, 3), (2, 4), (5, 0))
    follower = log_of((0, 3), (1, 2), (4, 3))
    assert align(follower, leader) == [4, 1]
    assert history(follower) == history(leader)[:3]
    assert follower.leader_epochs.entries == [(0, 0)]


def test_an_answer_from_another_term_proves_nothing() -> None:
    """Rule D4."""
    alignment = Alignment(log_of((0, 5)), 0, EPOCH)
    assert alignment.step == Ask(0)
    assert not alignment.answered(0, LeaderEpoch(EPOCH - 1), 0, 2)
    assert not alignment.answered(7, EPOCH, 0, 2)
    steps: list[object] = [alignment.step]
    assert alignment.answered(0, EPOCH, 0, 2)
    assert not alignment.answered(0, EPOCH, 0, 1)
    steps.append(alignment.step)
    assert steps == [Ask(0), TruncateTo(2)]


def test_a_leader_that_knows_nothing_cuts_nothing() -> None:
    """Rules D3 and D7."""
    alignment = Alignment(log_of((0, 5)), 2, EPOCH)
    assert alignment.answered(0, EPOCH, -1, -1)
    assert alignment.step == Fetch(5, 0)


def align_by_fetching(follower: Log, leader: Log) -> int:
    """Let the follower fetch until the leader agrees; how often it did not."""
    rounds = 0
    while True:
        fetch = next_fetch(follower)
        apart = diverging(leader, fetch.offset, fetch.last_fetched_epoch)
        if apart is None:
            return rounds
        decision = after_divergence(follower, *apart)
        assert decision is not None
        follower.truncate_to(decision.offset)
        rounds += 1


@st.composite
def two_histories(draw: st.DrawFn) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
    """Two logs that grew from a common one, each under leaders of its own; the second leads now."""
    common = draw(st.integers(0, 3))
    counts = st.integers(0, 3)
    shared = [(epoch, draw(counts)) for epoch in range(common)]
    owners = draw(st.lists(st.booleans(), max_size=5))
    follower, leader = list(shared), list(shared)
    for place, is_leaders in enumerate(owners):
        (leader if is_leaders else follower).append((common + place, draw(counts)))
    leader.append((common + len(owners), 0))
    return follower, leader


def merged(*epochs: tuple[int, int]) -> list[int]:
    return [epoch for epoch, count in epochs for _ in range(count)]


@settings(max_examples=60)
@given(two_histories(), st.booleans())
def test_aligned_logs_agree_and_lose_nothing_in_common(
    histories: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]], asks: bool
) -> None:
    """Rules D2, D3 and D5: what is left is the longest common beginning, by either way."""
    own, leaders = histories
    follower, leader = log_of(*own), log_of(*leaders)
    common = 0
    for one, other in zip(merged(*own), merged(*leaders), strict=False):
        if one != other:
            break
        common += 1
    rounds = len(align(follower, leader)) if asks else align_by_fetching(follower, leader)
    assert follower.log_end_offset == common
    assert history(follower) == history(leader)[:common]
    assert rounds <= len(own) + 1
