"""What a leader learns from one follower's fetches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.helpers import batch, new_log

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.progress import FetchPosition, FollowerProgress, countable_end
from tidemill.storage.log_config import LogConfig
from tidemill.types import BrokerEpoch, BrokerId

LAG_MAX_MS = 30_000


def member() -> FollowerProgress:
    return FollowerProgress(BrokerId(1), in_sync_since_ms=0)


def stranger() -> FollowerProgress:
    return FollowerProgress(BrokerId(1), in_sync_since_ms=None)


def at(offset: int, broker_epoch: int = 5) -> FetchPosition:
    return FetchPosition(offset, 0, BrokerEpoch(broker_epoch))


def test_a_fetch_at_the_leaders_end_is_caught_up_now() -> None:
    """Rule C1."""
    follower = stranger()
    follower.record_fetch(at(10), leader_end=10, now_ms=100)
    assert follower.last_caught_up_ms == 100
    assert (follower.log_end_offset, follower.last_fetch_ms, follower.broker_epoch) == (10, 100, 5)


def test_a_fetch_at_the_end_of_last_time_was_caught_up_then() -> None:
    """Rule C1: under steady load a follower is never at the end, and yet it keeps up."""
    follower = stranger()
    caught_up_ms = []
    for offset, leader_end, now_ms in [(10, 20, 100), (20, 30, 200), (25, 40, 300)]:
        follower.record_fetch(at(offset), leader_end, now_ms)
        caught_up_ms.append(follower.last_caught_up_ms)
    assert caught_up_ms == [None, 100, 100]


def test_the_first_fetch_has_no_last_time() -> None:
    """Rule C1: nothing was known at the moment zero of the clock, either."""
    follower = stranger()
    follower.record_fetch(at(0), leader_end=1, now_ms=0)
    assert follower.last_caught_up_ms is None


def test_caught_up_time_never_goes_back() -> None:
    follower = member()
    follower.record_fetch(at(5), leader_end=5, now_ms=500)
    follower.record_fetch(at(5), leader_end=9, now_ms=600)
    follower.record_fetch(at(8), leader_end=9, now_ms=700)
    assert follower.last_caught_up_ms == 500


def test_an_equal_end_is_in_sync_whatever_the_time() -> None:
    """Rule C2: a quiet partition loses nobody."""
    follower = stranger()
    follower.record_fetch(at(7), leader_end=7, now_ms=0)
    assert follower.is_in_sync(7, 10**9, LAG_MAX_MS)


def test_a_lag_is_forgiven_for_a_while() -> None:
    """Rule C2."""
    follower = member()
    follower.record_fetch(at(7), leader_end=7, now_ms=1_000)
    assert follower.is_in_sync(8, 1_000 + LAG_MAX_MS, LAG_MAX_MS)
    assert not follower.is_in_sync(8, 1_001 + LAG_MAX_MS, LAG_MAX_MS)


def test_a_new_leader_gives_members_time_and_others_none() -> None:
    """Rule A7: also on a clock that has only just started to count."""
    assert member().is_in_sync(8, 10, LAG_MAX_MS)
    assert not stranger().is_in_sync(8, 10, LAG_MAX_MS)


def test_a_fetch_from_before_a_restart_is_refused() -> None:
    """Rule A3: the old incarnation's log may have had a tail that the new one has lost."""
    follower = member()
    follower.record_fetch(at(5, broker_epoch=6), leader_end=9, now_ms=10)
    with pytest.raises(ApiError) as refused:
        follower.record_fetch(at(9, broker_epoch=5), leader_end=9, now_ms=20)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (follower.log_end_offset, follower.last_fetch_ms) == (5, 10)


def test_only_flushed_records_count_under_ack() -> None:
    """Rules E6 and E7."""
    log = new_log(LogConfig(flush_policy="ack"))
    log.append_as_leader(batch(b"a", b"b"), leader_epoch=0)
    assert countable_end(log) == 0
    log.flush()
    assert countable_end(log) == 2
    log.append_as_leader(batch(b"c"), leader_epoch=0)
    log.reconfigure(LogConfig(flush_policy="async"))
    assert countable_end(log) == 3


Fetches = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=20
)


@settings(max_examples=50)
@given(Fetches)
def test_caught_up_means_it_had_all_there_was_then(fetches: list[tuple[int, int, int]]) -> None:
    """Rule C1: whenever it comes to count as caught up, it had the leader's end of that moment."""
    follower, leader_end, now_ms = stranger(), 0, 0
    ends: dict[int, int] = {}
    for passed_ms, gain, lag in fetches:
        now_ms += passed_ms
        leader_end += gain
        ends[now_ms] = leader_end
        before = follower.last_caught_up_ms
        offset = max(0, leader_end - lag)
        follower.record_fetch(at(offset), leader_end, now_ms)
        caught_up_ms = follower.last_caught_up_ms
        if caught_up_ms is not None and caught_up_ms != before:
            assert offset >= ends[caught_up_ms]
            assert before is None or caught_up_ms > before
