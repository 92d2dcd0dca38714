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

FILES = sorted(Path(jobs.__file__).parent.glob("*.toml"))
DAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_pipeline_has_no_mistake(file: Path) -> None:
    pipeline, problems = check(str(file))
    assert problems.found == []
    assert pipeline is not None
    assert pipeline.name == file.stem
    assert pipeline.description


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
