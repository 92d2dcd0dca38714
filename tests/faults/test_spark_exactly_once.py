"""Exactly once into tables: driver and executors die at any moment, and the tables are the input.

One driver streams the same topic into a table of each kind on a standalone cluster, while records
flow in. Now and then the driver is killed and started again on its checkpoints, or an executor is
killed, or the Python that works for one. In the end each table holds every record once, and the one
that is changed by key the last record of each.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from tests.spark.driver import Driver
from tests.spark.processes import executors, pythons
from tests.spark.table_kinds import KINDS, UPSERT
from tests.spark.traffic import Traffic

from tidemill.spark.cluster import StandaloneCluster
from tidemill.testing.process import BrokerProcess

TOPIC = "exactly-once"
PARTITIONS = 4
RATE = 200
BATCH_RECORDS = 500
EVERYTHING = 1_000_000
RUN_S_MAX = 3.0
# A task may be struck again and again before it ends.
PATIENT = {"spark.task.maxFailures": "100"}

pytestmark = pytest.mark.xdist_group("spark")


class Strikes:
    """The cluster, the driver on it, and how they are struck."""

    def __init__(
        self,
        cluster: StandaloneCluster,
        bootstrap: str,
        folder: Path,
        kinds: Sequence[str],
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._chance = chance
        self._bootstrap = bootstrap
        self._folder = folder
        self.kinds = {name: KINDS[name](folder / name) for name in kinds}
        self.batches: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.driver = self._start(BATCH_RECORDS)

    def _start(self, batch_records: int, *, until_caught_up: bool = False) -> Driver:
        environment: dict[str, str] = {}
        for kind in self.kinds.values():
            environment |= kind.environment
        return Driver(
            self._cluster.url,
            self._bootstrap,
            TOPIC,
            {name: kind.table for name, kind in self.kinds.items()},
            self._folder,
            batch_records=batch_records,
            until_caught_up=until_caught_up,
            conf=PATIENT,
            environment=environment,
        ).start()

    def let_it_run(self) -> None:
        """As often until it has finished a batch as not, so that some are struck many times."""
        if self._chance.random() < 0.5:
            fewest = min(self.driver.batches[name] for name in self.kinds)
            self.driver.wait_for_batches(fewest + 1)
        self.driver.hear_for(self._chance.uniform(0, RUN_S_MAX))

    def strike(self, what: str) -> None:
        """Kill the driver, which starts again on its checkpoints, or somebody who works for it."""
        if what == "driver":
            self._kill_driver()
            self.driver = self._start(BATCH_RECORDS)
            return
        while not self._kill_one(what):
            self.driver.hear_for(0.1)  # After a strike executors need a while to come back.
        self.done[what] += 1

    def _kill_one(self, what: str) -> bool:
        of_worker = pythons if what == "python" else executors
        found = [each for worker in self._cluster.workers for each in of_worker(worker.pid)]
        try:
            self._chance.choice(found).kill()
        except (IndexError, psutil.NoSuchProcess):
            return False
        return True

    def _kill_driver(self) -> None:
        self.done["driver"] += 1
        self.batches += self.driver.batches
        self.driver.kill()

    def finish(self) -> None:
        """A last strike, and then whatever is left, without further trouble."""
        self._kill_driver()
        self.driver = self._start(EVERYTHING, until_caught_up=True)
        self.driver.wait_until_done()


def run(folder: Path, kinds: Sequence[str], plan: Sequence[str], seed: int) -> None:
    """One run: the strikes of the plan, one more at the driver, and the tables are compared."""
    chance = random.Random(seed)
    began_s = time.monotonic()
    with (
        BrokerProcess(folder / "broker") as broker,
        StandaloneCluster(folder / "spark", workers=2, memory_mb=512) as cluster,
        Traffic(broker.bootstrap, TOPIC, partitions=PARTITIONS, rate=RATE).create_topic() as sent,
    ):
        strikes = Strikes(cluster, broker.bootstrap, folder, kinds, chance)
        try:
            for what in plan:
                strikes.let_it_run()
                strikes.strike(what)
                print(f"{time.monotonic() - began_s:.0f} s: {what}, {sent.sent:,} sent", flush=True)
            strikes.let_it_run()
            values = sent.all_acked()
            strikes.finish()
        finally:
            strikes.driver.kill()
    assert strikes.done.total() == len(plan) + 1
    for name, kind in strikes.kinds.items():
        found = kind.values()
        print(f"{name}: {len(values):,} sent, {len(found):,} in the table", flush=True)
        assert_equal(name, Counter(found), kind.expected(values))
    killed = ", ".join(f"{what} {count}" for what, count in strikes.done.items())
    print(f"killed: {killed}; batches between: {dict(strikes.batches)}; seed {seed}", flush=True)


def assert_equal(name: str, found: Counter[str], values: list[str]) -> None:
    twice = [value for value, count in found.items() if count > 1]
    missing = set(values) - set(found)
    assert not twice, f"{name}: {len(twice)} records came more than once, {twice[:5]}"
    assert not missing, f"{name}: {len(missing)} records are missing, {sorted(missing)[:5]}"
    assert len(found) == len(values), f"{name}: records that nobody sent"


@pytest.mark.timeout(900)
def test_a_table_equals_the_input_after_an_executor_and_the_driver_were_killed(
    tmp_path: Path,
) -> None:
    """The one that has most to do for a batch; the long form has all kinds."""
    run(tmp_path, [UPSERT], ["executor"], seed=1)


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("kinds", [("delta", "parquet"), ("iceberg", UPSERT)], ids=", ".join)
def test_tables_equal_the_input_after_thirty_kills(kinds: Sequence[str], tmp_path: Path) -> None:
    """Two streams at most: the cluster has two cores, and three would mostly wait."""
    seed = random.SystemRandom().randrange(1 << 30)
    plan = ["driver"] * 5 + ["executor"] * 16 + ["python"] * 8
    random.Random(seed).shuffle(plan)
    run(tmp_path, kinds, plan, seed)
