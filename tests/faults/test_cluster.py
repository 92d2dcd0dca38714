"""Real processes, real clients, real faults: the short form of `make faults`.

The faults of each run are few and follow each other quickly; which ones is decided by the seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemill.testing.faults.plan import Kind, Store
from tidemill.testing.faults.report import RunReport
from tidemill.testing.faults.runner import Run, RunSettings
from tidemill.testing.zookeeper import unavailable_reason

LIBRDKAFKA = f"{sys.executable} -m tests.faults.librdkafka_load"

ON_SQLITE = (
    Kind.KILL_LEADER,
    Kind.PAUSE_SHORT,
    Kind.ISOLATE,
    Kind.DISK_FULL,
    Kind.DAMAGE_HEADER,
    Kind.REASSIGN,
)
ON_ZOOKEEPER = (
    Kind.ZOOKEEPER_KILL_LEADER,
    Kind.KILL_CONTROLLER,
    Kind.CUT_CLIENTS,
    Kind.CUT_PEERS,
)


async def survive(folder: Path, store: Store, kinds: tuple[Kind, ...]) -> RunReport:
    """One fault of each kind."""
    settings = RunSettings(
        folder,
        store,
        seed=5,
        seconds=120,
        kinds=kinds,
        strikes_max=len(kinds),
        interval_s=(1.5, 3.0),
        hold_share=0.4,
        loads=(LIBRDKAFKA,),
    )
    report = await Run(settings).run()
    assert report.is_good, str(report)
    assert report.faults == len(kinds)
    assert set(report.kinds) == set(kinds)
    assert min(report.acked.values()) > 500, "all went on writing"
    return report


@pytest.mark.timeout(480)
async def test_a_cluster_on_sqlite_loses_nothing(tmp_path: Path) -> None:
    """Rules A3, A9, B5, B9, C8, E2, E8, G2: nothing lost, twice or out of order; equal replicas."""
    report = await survive(tmp_path, Store.SQLITE, ON_SQLITE)
    assert report.offsets_answered > 100


@pytest.mark.timeout(480)
async def test_a_cluster_on_zookeeper_loses_nothing(tmp_path: Path) -> None:
    """Rules A2, A3, C2, G2, K5: the same while the ensemble loses its leader."""
    if reason := unavailable_reason():
        pytest.skip(f"NO ZOOKEEPER: it cannot run here: {reason}")
    await survive(tmp_path, Store.ZOOKEEPER, ON_ZOOKEEPER)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flush_policy", ["ack", "async"])
@pytest.mark.parametrize("store", list(Store))
async def test_a_cluster_loses_nothing_for_long(
    tmp_path: Path, store: Store, flush_policy: str
) -> None:
    settings = RunSettings(
        tmp_path, store, seed=1, seconds=900, flush_policy=flush_policy, loads=(LIBRDKAFKA,)
    )
    report = await Run(settings).run()
    assert report.is_good, str(report)
