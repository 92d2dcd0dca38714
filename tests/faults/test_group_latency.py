"""Members of groups are served in time while the data path takes all that the machine has."""

from __future__ import annotations

import pytest
from bench.groups import KINDS_UNDER_LOAD, under_data_load
from bench.systems import Tidemill

SHORT = (0.2, 30_000)
LONG = (3.0, 10_000)
"""The share of the benchmark's 20 seconds, and the session timeout in ms.

The short form runs beside other tests, on a machine that is not its own.
"""


@pytest.mark.parametrize(
    ("scale", "session_timeout_ms"),
    [SHORT, pytest.param(*LONG, marks=[pytest.mark.soak, pytest.mark.timeout(300)])],
)
def test_members_are_answered_under_a_flood_of_data(scale: float, session_timeout_ms: int) -> None:
    """A p99 below a tenth of the session timeout, and nobody is expelled."""
    broker = Tidemill({"log.flush.policy": "async", "group.initial.rebalance.delay.ms": "500"})
    broker.start()
    try:
        load = under_data_load(broker, scale=scale, session_timeout_ms=session_timeout_ms)
        figures = dict(load)
    finally:
        broker.stop()
    print(figures)
    assert figures["flood: refused requests"] == 0
    for kind in KINDS_UNDER_LOAD:
        assert 0 < figures[f"flood: {kind} p99 of its limit"] < 1, figures
