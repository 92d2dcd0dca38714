"""The Spark benchmark in small, how it pairs its figures, and which bars they have to meet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.load import LOADS
from bench.report import Report
from bench.spark import CONNECTORS, PARTS, Bench, Case, Rounds, compared, in_turn
from tests.reference.spark_kafka import connector_jars, connector_missing

from tidemill.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_ours_is_compared_with_each_way_of_using_theirs() -> None:
    what = f"read {Case(100, 'none', 1).label} noop"
    rates = {"tidemill": [6e6, 5e6, 5.5e6], "defaults": [1e6, 1e6, 1e6], "best": [2e6, 2e6, 4e6]}
    rows = Report(compared({what: rates})).rows
    assert [(each.part, each.ratio, each.bar, each.met) for each in rows] == [
        ("defaults", 5.5, "≥ 5.00", "yes"),
        ("best", 2.5, "≥ 2.50", "yes"),
    ]


def test_every_figure_that_has_a_bar_gets_it() -> None:
    """Design: reading 100 B from one partition, reading 1 KB, and writing; the rest is shown."""
    cases = (Case(100, "lz4", 1), Case(100, "none", 6), Case(1000, "none", 6))
    names = [
        f"{what} {case.label}{sink}"
        for case in cases
        for what, sink in (("read", " noop"), ("read", " parquet"), ("write", ""))
    ]
    same = {connector.name: [1.0] for connector in CONNECTORS}
    figures = compared(dict.fromkeys(names, same))
    bars = dict(zip(names, (row.bar for row in Report(figures).rows), strict=False))
    assert {name for name, bar in bars.items() if not bar} == {
        "read 100 B lz4 1p parquet",
        "read 100 B none 6p noop",
        "read 100 B none 6p parquet",
        "read 1000 B none 6p parquet",
    }


def test_everyone_goes_first_once() -> None:
    turns = [[each.name for each in in_turn(number)] for number in range(3)]
    names = {each.name for each in CONNECTORS}
    assert {turn[0] for turn in turns} == names
    assert all(set(turn) == names for turn in turns)


def test_rounds_end_when_the_time_is_up_but_there_is_one_always() -> None:
    assert list(Rounds(3, seconds=3600)) == [0, 1, 2]
    assert list(Rounds(3, seconds=-1)) == [0]


@pytest.mark.timeout(600)
def test_all_of_it_in_small(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connector reads and writes what it is measured with; the benchmark counts the rows."""
    if connector_jars() is None:
        pytest.skip(f"NO REFERENCE: no Kafka connector for Spark: {connector_missing()}")
    # Without a process for each load: nothing is measured here.
    monkeypatch.setattr("bench.spark.run_load", lambda load, **options: LOADS[load](**options))
    case = Case(100, "lz4", 1)
    with BrokerProcess(tmp_path / "data") as broker:
        bench = Bench(spark, broker, scale=1e-4)
        try:
            seen = [
                (what, connector)
                for part in PARTS.values()
                for what, connector, rate in part(bench, case, Rounds(1, seconds=0))
                if rate > 0
            ]
        finally:
            bench.close()
    assert sorted(seen) == [
        ("read 100 B lz4 1p noop", "best"),
        ("read 100 B lz4 1p noop", "defaults"),
        ("read 100 B lz4 1p noop", "tidemill"),
        ("read 100 B lz4 1p parquet", "defaults"),
        ("read 100 B lz4 1p parquet", "tidemill"),
        ("write 100 B lz4 1p", "best"),
        ("write 100 B lz4 1p", "defaults"),
        ("write 100 B lz4 1p", "tidemill"),
    ]
