"""The daily report of `site-activity`: its tables as one HTML file that needs nothing else.

    python -m tidemill.spark.jobs.site_report ./tables report.html --day 2026-11-16

`report` is pure: rows in, a page out. Reading the tables takes `deltalake`, and no Spark.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tidemill.spark.jobs import charts
from tidemill.spark.tables.rows import local_rows

TOP_PAGES = 10
LENGTHS_MIN = (1, 5, 15, 30, 60)


class Visit(NamedTuple):
    """A row of the table `visits`."""

    user: str
    page: str
    ms: int | None
    at: datetime


class Session(NamedTuple):
    """A row of the table `sessions`."""

    user: str
    start: datetime
    end: datetime
    clicks: int
    entry: str
    exit: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one day."""

    clicks: int
    visitors: int
    sessions: int
    clicks_per_session: float
    bounce_share: float
    median_ms: float


def summarise(visits: Sequence[Visit], sessions: Sequence[Session]) -> Summary:
    """Sessions count on the day they began; one with a single click is a bounce."""
    times = [visit.ms for visit in visits if visit.ms is not None]
    count = len(sessions)
    return Summary(
        clicks=len(visits),
        visitors=len({visit.user for visit in visits}),
        sessions=count,
        clicks_per_session=sum(each.clicks for each in sessions) / count if count else 0.0,
        bounce_share=sum(each.clicks == 1 for each in sessions) / count if count else 0.0,
        median_ms=float(median(times)) if times else 0.0,
    )


def report(day: date, visits: Iterable[Visit], sessions: Iterable[Session]) -> str:
    """The page about one day."""
    seen = [visit for visit in visits if visit.at.date() == day]
    begun = [session for session in sessions if session.start.date() == day]
    found = summarise(seen, begun)
    pages = Counter(visit.page for visit in seen).most_common(TOP_PAGES)
    entries = Counter(session.entry for session in begun).most_common(TOP_PAGES)
    hours = Counter(visit.at.hour for visit in seen)
    figures = [
        (f"{found.clicks:,}", "clicks"),
        (f"{found.visitors:,}", "visitors"),
        (f"{found.sessions:,}", "finished sessions"),
        (f"{found.clicks_per_session:.1f}", "clicks per session"),
        (f"{found.bounce_share:.0%}", "left after one click"),
        (f"{found.median_ms:,.0f} ms", "median time of a page"),
    ]
    sections = [
        ("Clicks by hour", charts.columns([(f"{h:02d}", hours[h]) for h in range(24)])),
        ("Top pages", charts.bars(pages)),
        ("Where sessions begin", charts.bars(entries)),
        ("How long sessions are", charts.bars(_lengths(begun))),
    ]
    return _page(f"Site activity on {day.isoformat()}", figures, sections)


def _lengths(sessions: Iterable[Session]) -> list[tuple[str, float]]:
    """Sessions by length; the half hour of quiet that ended one is not part of it."""
    counts = [0] * (len(LENGTHS_MIN) + 1)
    for session in sessions:
        minutes = max(0.0, (session.end - session.start).total_seconds() / 60 - 30)
        counts[sum(minutes >= limit for limit in LENGTHS_MIN)] += 1
    names = [f"under {LENGTHS_MIN[0]} min"]
    names += [f"{a} to {b} min" for a, b in pairwise(LENGTHS_MIN)]
    names.append(f"{LENGTHS_MIN[-1]} min and more")
    return list(zip(names, map(float, counts), strict=True))


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #2d3748; max-width: 700px; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin: 1.8em 0 .4em; }
ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 1em 2em; }
li b { display: block; font-size: 1.6em; } svg { max-width: 100%; height: auto; }
"""


def _page(title: str, figures: list[tuple[str, str]], sections: list[tuple[str, str]]) -> str:
    shown = "".join(f"<li><b>{escape(value)}</b>{escape(name)}</li>" for value, name in figures)
    body = "".join(f"<h2>{escape(name)}</h2>{chart}" for name, chart in sections)
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><ul>{shown}</ul>{body}"
        "</body></html>\n"
    )


def read_visits(tables: Path) -> list[Visit]:
    return [
        Visit(row["user"], row["page"], row["ms"], _utc(row["at"]))
        for row in local_rows(tables / "visits", ["user", "page", "ms", "at"])
    ]


def read_sessions(tables: Path) -> list[Session]:
    columns = ["user", "window_start", "window_end", "clicks", "entry", "exit"]
    return [
        Session(
            row["user"], _utc(row["window_start"]), _utc(row["window_end"]), row["clicks"],
            row["entry"], row["exit"],
        )
        for row in local_rows(tables / "sessions", columns)
    ]  # fmt: skip


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def write(tables: Path, output: Path, day: date | None = None) -> Summary:
    """Make the report of a day, by default of the last one that has visits."""
    visits, sessions = read_visits(tables), read_sessions(tables)
    if day is None:
        day = max((visit.at.date() for visit in visits), default=date.min)
    output.write_text(report(day, visits, sessions), encoding="utf-8")
    return summarise(
        [visit for visit in visits if visit.at.date() == day],
        [session for session in sessions if session.start.date() == day],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="site_report", description="The daily report.")
    parser.add_argument("tables", type=Path, help="the folder with visits and sessions")
    parser.add_argument("output", type=Path, help="the HTML file to write")
    parser.add_argument("--day", type=date.fromisoformat, help="YYYY-MM-DD; the last one if none")
    given = parser.parse_args(arguments)
    write(given.tables, given.output, given.day)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
