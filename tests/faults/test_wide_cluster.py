"""Many partitions on brokers that die: all is led and acked again soon, also under load."""

from __future__ import annotations

import pytest
from bench.clusters import TidemillCluster
from bench.measure import Figure
from bench.scale import Wide, deaths, flood, measure

SETTLED_LIMIT_S = 30.0
"""Generous: seconds are wanted and seen, but this runs beside other tests."""


def check(figures: list[Figure], count: int) -> None:
    print(figures)
    ends = ("led everywhere, s", "acked everywhere, s", "is known, s", "is created, s")
    settled = [seconds for name, seconds in figures if " dies, " in name and name.endswith(ends)]
    assert len(settled) == count
    assert max(settled) < SETTLED_LIMIT_S, figures


def test_deaths_settle_soon_under_load() -> None:
    """A broker dies, then the controller, with the data plane saturated."""
    wide = Wide(TidemillCluster(3, {"log.flush.policy": "async"}), partitions=200)
    wide.cluster.start()
    try:
        wide.create()
        with flood(wide.cluster):
            check(list(deaths(wide, "saturated")), 6)
    finally:
        wide.cluster.stop()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_deaths_settle_soon_with_2000_partitions() -> None:
    """The same on an idle cluster, too, with five brokers."""
    cluster = TidemillCluster(5, {"log.flush.policy": "async"})
    check(list(measure(cluster, partitions=2_000, idle_s=5)), 12)
