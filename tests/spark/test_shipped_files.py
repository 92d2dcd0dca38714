"""The shipped pipelines by themselves: files without a mistake, and a report made of rows."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidemill.spark import jobs
from tidemill.spark.jobs import charts
from tidemill.spark.jobs.site_report import Session, Visit, report, summarise
from tidemill.spark.pipeline.check import check
from tidemill.spark.pipeline.durations import parse_ms

FILES = sorted(Path(jobs.__file__).parent.glob("*.toml"))
EXAMPLE = Path(jobs.__file__).parents[1] / "pipeline" / "example.toml"
BROKERS_TAKE_MS = 3_600_000
"""How far ahead a record may be by default, message.timestamp.after.max.ms."""
DAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_pipeline_has_no_mistake(file: Path) -> None:
    pipeline, problems = check(str(file))
    assert problems.found == []
    assert pipeline is not None
    assert pipeline.name == file.stem
    assert pipeline.description


AHEAD = re.compile(r"_timestamp \+ INTERVAL (\d+) (\w+)")


@pytest.mark.parametrize("file", [*FILES, EXAMPLE], ids=lambda file: file.stem)
def test_no_clock_that_is_ahead_can_make_others_late(file: Path) -> None:
    """What a watermark is taken from is bounded: by the brokers' time and much less than the delay,
    by Spark's own time, or by what brokers take at all where the delay is longer than that."""
    pipeline, _ = check(str(file))
    assert pipeline is not None
    for stage in pipeline.stage.values():
        if stage.watermark is None or stage.watermark.delay_ms > BROKERS_TAKE_MS:
            continue
        ahead = [found for each in stage.expect if (found := AHEAD.search(each.that))]
        by_spark = "current_timestamp()" in stage.columns.get(stage.watermark.column, "")
        assert by_spark or ahead, f"nothing bounds the watermark of {stage.name}"
        for found in ahead:
            ahead_ms = parse_ms(f"{found[1]} {found[2].lower()}s")
            assert ahead_ms is not None
            assert ahead_ms * 2 <= stage.watermark.delay_ms


def visit(user: str, page: str, hour: float, ms: int | None = 100) -> Visit:
    return Visit(user, page, ms, DAY + timedelta(hours=hour))


def session(user: str, hour: float, minutes: float, clicks: int) -> Session:
    start = DAY + timedelta(hours=hour)
    end = start + timedelta(minutes=minutes + 30)
    return Session(user, start, end, clicks, "/", "/cart")


def test_the_figures_of_a_day() -> None:
    visits = [visit("ada", "/", 9), visit("ada", "/cart", 9.1, 300), visit("bob", "/", 20, None)]
    sessions = [session("ada", 9, 6, 2), session("bob", 20, 0, 1)]
    found = summarise(visits, sessions)
    assert (found.clicks, found.visitors, found.sessions) == (3, 2, 2)
    assert (found.clicks_per_session, found.bounce_share, found.median_ms) == (1.5, 0.5, 200.0)


def test_the_report_is_about_one_day_and_needs_nothing_else() -> None:
    visits = [visit("ada", "/<b>", 9), visit("ada", "/tomorrow", 30)]
    page = report(DAY.date(), visits, [session("ada", 9, 2, 1)])
    assert "Site activity on 2026-03-02" in page
    assert "/&lt;b&gt;" in page
    assert "/tomorrow" not in page
    assert page.count("<svg") == 4
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)


def test_a_day_without_visits_has_a_report_too() -> None:
    assert "<b>0</b>clicks" in report(DAY.date(), [], [])


def test_bars_are_as_long_as_their_values() -> None:
    svg = charts.bars([("a", 10), ("b", 5), ("c", 0)])
    widths = [int(each) for each in re.findall(r"<rect x='190' y='\d+' width='(\d+)'", svg)]
    assert widths[0] == 2 * widths[1]
    assert widths[2] == 1, "nothing is still something to see"
