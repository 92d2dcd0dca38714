"""The demo: what it sends, how it counts, and that it says what is missing."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import quick, run

from tidemill.cli import demo, demo_clicks, docs
from tidemill.cli.demo_clicks import CLOSING_CLICKS, PARTITIONS, Ledger, Site
from tidemill.cli.demo_outlets import Check, ConsumerOutlet
from tidemill.cli.exits import Exit
from tidemill.spark import needs

EXAMPLE = "tidemill demo --seconds 5 --report today.html"
NOW_MS = 1_800_000_000_000


class Delivered:
    def exception(self) -> None:
        return None

    def add_done_callback(self, callback: Any) -> None:
        callback(self)


class Listener:
    """Takes what a producer is given, and acks it at once."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.partitions: list[int | None] = []

    def send_soon(
        self, topic: str, value: bytes, *, key: Any, partition: int | None, timestamp_ms: int | None
    ) -> Delivered:
        self.values.append(value)
        self.partitions.append(partition)
        return Delivered()

    async def flush(self) -> None:
        await asyncio.sleep(0)


def site() -> tuple[Site, Listener]:
    listener: Any = Listener()
    return Site(listener, lambda: NOW_MS), listener


def times_of(values: list[bytes]) -> list[datetime]:
    return [datetime.fromisoformat(json.loads(value)["at"]) for value in values]


async def test_the_day_so_far_comes_in_order_and_is_over() -> None:
    """Whoever reads it in one go finds nothing late in it."""
    made, listener = site()
    await made.send_the_day_so_far()
    times = times_of(listener.values)
    assert times == sorted(times)
    assert times[-1].timestamp() * 1000 <= NOW_MS
    assert len(made.ledger.ids) == len(times) > demo_clicks.DAY_SESSIONS


async def test_the_ledger_knows_clicks_and_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_clicks, "BAD_ONE_IN", 3)
    made, listener = site()
    await made.send_now(seconds=0.3, rate=1_000)
    ledger = made.ledger
    assert len(listener.values) == len(set(listener.values)) == ledger.sent == ledger.acked == 300
    assert ledger.bad <= set(listener.values)
    assert 0 < len(ledger.bad) < 300


async def test_the_end_closes_every_session_and_is_not_the_future() -> None:
    """Ahead of the last click by more than gap and delay, and by less than what is refused."""
    made, listener = site()
    await made.send_now(seconds=0.01, rate=1_000)
    await made.send_the_end()
    *before, end = times_of(listener.values)
    assert timedelta(minutes=30 + 10) < end - before[0] < timedelta(hours=1)
    assert listener.partitions[-CLOSING_CLICKS:] == list(range(PARTITIONS))
    assert made.ledger.over == len(made.ledger.ids) - CLOSING_CLICKS


@pytest.mark.parametrize(
    ("came", "agrees"),
    [([b"a", b"b"], True), ([b"a", b"b", b"b"], False), ([b"a", b"a"], False)],
)
async def test_a_record_that_comes_twice_is_noticed(came: list[bytes], agrees: bool) -> None:
    outlet = ConsumerOutlet("127.0.0.1:1")
    outlet._values = came
    [check] = await outlet.settle(Ledger(ids={"1", "2"}), deadline=0.0)
    assert check.equal is agrees


def test_the_status_says_whether_both_sides_agree() -> None:
    wrong = Check("records", 2, 1, False)
    assert demo.Summary(2, 1.0, "broker 1", False, [wrong]).exit_code is Exit.FAILED
    assert demo.Summary(2, 1.0, "broker 1", True, []).exit_code is Exit.OK


def test_without_spark_a_consumer_reads_and_a_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = needs.Missing("Spark is not installed here", "`pip install` brings it")
    monkeypatch.setattr(needs, "missing", lambda: lacking)
    ran = quick("demo", "--seconds", "1", "--rate", "200", "--format", "json")
    assert ran.status == 0, ran.err
    assert "Spark is not installed here, so a consumer reads the clicks instead" in ran.err
    assert "for Spark, `pip install` brings it" in ran.err
    summary = json.loads(ran.out)
    assert summary["agrees"]
    [count] = summary["counts"]
    assert count["went_in"] == count["came_out"] == summary["clicks_sent"]


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(1_600)
def test_the_pipeline_makes_tables_and_a_report_of_all_that_went_in(tmp_path: Path) -> None:
    """As a user runs it: its own process, its own Spark, a broker killed on the way.

    Beside other tests on a slow machine a JVM may take minutes to come up, hence the limit."""
    if (lacking := needs.missing()) is not None:
        pytest.skip(f"NO SPARK: {lacking.what}")
    assert EXAMPLE in [line for leaf in docs.leaves() for line in leaf.examples]
    words = [*shlex.split(EXAMPLE)[1:], "--limit", "1500", "--format", "json"]
    ran = run([sys.executable, "-m", "tidemill.cli", *words], cwd=tmp_path, timeout_s=1_550)
    assert ran.status == 0, f"{ran.out}\n{ran.err}"
    summary = json.loads(ran.out)
    assert summary["agrees"]
    assert len(summary["counts"]) == 4
    for count in summary["counts"]:
        assert count["went_in"] == count["came_out"] > 0, count
    page = (tmp_path / "today.html").read_text()
    assert page.count("<svg") == 4
    assert "/checkout" in page
    assert not list(tmp_path.glob("spark-*")), "it takes everything away but the report"


@pytest.mark.soak
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_the_demo_as_it_is_ends_well_in_under_three_minutes(tmp_path: Path) -> None:
    """Without any option, on a machine that has nothing else to do."""
    if (lacking := needs.missing()) is not None:
        pytest.skip(f"NO SPARK: {lacking.what}")
    begin_s = time.monotonic()
    ran = run([sys.executable, "-m", "tidemill.cli", "demo"], cwd=tmp_path, timeout_s=590)
    took_s = time.monotonic() - begin_s
    assert ran.status == 0, f"{ran.out}\n{ran.err}"
    assert took_s < 180
    assert [each.name for each in tmp_path.iterdir()] == ["tidemill-demo.html"]


@pytest.mark.parametrize("arguments", [("--seconds", "0"), ("--seconds", "61"), ("--rate", "0")])
def test_what_cannot_be_is_refused(arguments: tuple[str, ...]) -> None:
    assert quick("demo", *arguments).status == 2
