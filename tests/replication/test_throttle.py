"""Throttled replication: which replicas, and how fast."""

from __future__ import annotations

from tidemill.replication.throttle import (
    NONE_THROTTLED,
    UNLIMITED,
    Throttle,
    throttled_replicas,
)
from tidemill.testing.clock import ManualClock


def test_pairs_of_partition_and_broker() -> None:
    chosen = throttled_replicas(["0:101", " 1:102 "])
    assert chosen.has(0, 101)
    assert chosen.has(1, 102)
    assert not chosen.has(0, 102)
    assert not chosen.has(2, 101)


def test_all_and_none() -> None:
    assert throttled_replicas(["*"]).has(7, 8)
    assert throttled_replicas([]) is NONE_THROTTLED
    assert throttled_replicas(["nonsense", "1:", "1:x"]) is NONE_THROTTLED
    assert not NONE_THROTTLED.has(0, 0)


def test_what_is_taken_is_worked_off_at_the_rate() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, lambda: 1_000)
    assert throttle.wait_ms() == 0
    throttle.take(500)
    assert throttle.wait_ms() == 500
    clock.advance(200)
    assert throttle.wait_ms() == 300
    throttle.take(100)
    assert throttle.wait_ms() == 400
    clock.advance(1_000)
    assert throttle.wait_ms() == 0
    throttle.take(100)
    assert throttle.wait_ms() == 100, "time that nobody used is not saved up"


def test_the_rate_may_change_and_be_nothing() -> None:
    clock, rate = ManualClock(), [UNLIMITED]
    throttle = Throttle(clock, lambda: rate[0])
    throttle.take(1 << 40)
    assert throttle.wait_ms() == 0
    rate[0] = 0
    assert throttle.wait_ms() > 0
    throttle.take(10)
    rate[0] = UNLIMITED
    assert throttle.wait_ms() == 0
