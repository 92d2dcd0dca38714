"""Whole lives of a replicated partition: nothing committed is lost, and it always becomes whole.

The cluster is in `model.py`. The runs with a mistake built in show that it would notice.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.replication.model import BrokenPromiseError, Flaw, Plan
from tests.replication.model_lives import run, tape_of

TAPE_LENGTH = 600
SEEDS = 60
SEEDS_TO_FIND_A_FLAW = 300
SOAK_SEEDS = 5_000

Plans = st.builds(
    Plan,
    flush_policy=st.sampled_from(["ack", "async"]),
    min_insync_replicas=st.sampled_from([1, 2]),
    asks_first=st.booleans(),
)
ALL_PLANS = [
    Plan(flush_policy, min_insync_replicas, asks_first)
    for flush_policy in ("ack", "async")
    for min_insync_replicas in (1, 2)
    for asks_first in (False, True)
]


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(Plans, st.lists(st.integers(0, 2**24 - 1), max_size=200))
def test_no_life_breaks_a_promise(plan: Plan, tape: list[int]) -> None:
    """Rules A1-A8, B1-B6, C1-C7, D1-D7, E7; a tape that breaks one is shrunk by hypothesis."""
    run(plan, tape)


def test_long_lives_break_no_promise() -> None:
    """Rules A1-A8, B1-B6, C1-C7, D1-D7, E7."""
    lives = [
        run(ALL_PLANS[seed % len(ALL_PLANS)], tape_of(seed, TAPE_LENGTH), seed)
        for seed in range(SEEDS)
    ]
    # They were lives worth the name.
    assert sum(life.elections for life in lives) > 3 * SEEDS
    assert sum(life.cuts for life in lives) > SEEDS
    assert sum(life.ranges for life in lives) > 5
    assert sum(len(life.committed) for life in lives) > 10 * SEEDS


@pytest.mark.soak
def test_very_many_lives_break_no_promise() -> None:
    """The same, for as long as a soak may take; a failure names its seed."""
    for seed in range(SEEDS, SEEDS + SOAK_SEEDS):
        plan = ALL_PLANS[seed % len(ALL_PLANS)]
        try:
            run(plan, tape_of(seed, TAPE_LENGTH), seed)
        except BrokenPromiseError as broken:
            raise AssertionError(f"seed {seed}, {plan}: {broken}") from broken


@pytest.mark.parametrize(
    "plan",
    [
        Plan("async", 2, flaw=Flaw.TRUNCATE_TO_HIGH_WATERMARK),
        Plan("ack", 2, flaw=Flaw.NO_EPOCH_CHECK),
        Plan("ack", 1, flaw=Flaw.SHRINK_UNCONFIRMED),
        Plan("ack", 1, flaw=Flaw.REPORT_UNFLUSHED),
    ],
    ids=lambda plan: plan.flaw.name.lower(),
)
def test_a_known_mistake_is_noticed(plan: Plan) -> None:
    """Cutting at the high watermark (D3), no epochs compared (A4, D5), a shrink that counts before
    it is confirmed (C4), reporting what is not on disk (E7): each breaks a promise soon."""
    for seed in range(SEEDS_TO_FIND_A_FLAW):
        try:
            run(plan, tape_of(seed, TAPE_LENGTH), seed)
        except BrokenPromiseError:
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_FLAW} lives with {plan.flaw.name} broke no promise")
