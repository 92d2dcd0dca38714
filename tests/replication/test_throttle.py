"""Throttled replication: which replicas, and how fast."""

from __future__ import annotations

from tidemill.replication.throttle import (
    DEBT_MS_MAX,
    NONE_THROTTLED,
    UNLIMITED,
    WAIT_MS_MAX,
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


def test_a_rate_that_is_raised_counts_for_what_is_owed() -> None:
    """A move that was told to take hours goes faster as soon as somebody allows it."""
    clock, rate = ManualClock(), [1_000]
    throttle = Throttle(clock, lambda: rate[0])
    throttle.take(1_000_000)
    throttle.take(0)
    assert throttle.wait_ms() == WAIT_MS_MAX, "nobody waits longer without looking again"
    rate[0] = 10_000_000
    assert throttle.wait_ms() == 100
    clock.advance(50)
    rate[0] = UNLIMITED
    assert throttle.wait_ms() == 0
    rate[0] = 1_000
    assert throttle.wait_ms() == 0, "what was owed is forgiven with the throttle"


def test_traffic_that_cannot_be_held_back_does_not_pile_up() -> None:
    """Replicas in sync take what they need; those catching up go on soon after that has ended."""
    clock = ManualClock()
    throttle = Throttle(clock, lambda: 1_000)
    for _ in range(1_000):
        throttle.take(1_000_000)
        throttle.take(1)
    clock.advance(1_000_000)
    throttle.take(1)
    assert throttle.wait_ms() == 1
    for _ in range(1_000):
        throttle.take(1_000)
    clock.advance(DEBT_MS_MAX)
    assert throttle.wait_ms() == 0
