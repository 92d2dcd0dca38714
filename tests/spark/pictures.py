"""The pictures of docs/pipelines, drawn from what the shipped pipelines write in their tests.

Each test compares its page's picture with what it sees. To draw them anew:

    DRAW_PICTURES=1 python -m pytest tests/spark/test_shipped.py tests/copying/test_pictures.py
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from tests.spark.shipped import PAGES, Place

from tidemill.spark.jobs import charts

ROW_HEIGHT = 20
LETTER_WIDTH = 7
GAP = 14
BACKGROUND = "<rect width='100%' height='100%' fill='#fff'/>"
"""The letters are dark; a reader's page may be, too."""


def check(name: str, place: Place) -> None:
    """The picture of a page is that of what has come out just now."""
    compare(name, DRAWN[name](place))


def compare(name: str, drawn: str) -> None:
    """The picture in a file is the one that was drawn just now."""
    file = PAGES / f"{name}.svg"
    if os.environ.get("DRAW_PICTURES"):
        file.write_text(drawn)
    assert file.read_text() == drawn, "DRAW_PICTURES=1 draws it anew"


def stacked(*parts: tuple[str, str]) -> str:
    """Pictures under each other, each with a title."""
    y, inside = 0, [BACKGROUND]
    for title, part in parts:
        height = int(re.findall(r"height='(\d+)'", part.partition(">")[0])[-1])
        inside.append(_text(0, y + 14, title, "font-weight='600'"))
        inside.append(part.replace("<svg ", f"<svg y='{y + ROW_HEIGHT + 4}' ", 1))
        y += ROW_HEIGHT + 4 + height + GAP
    return charts.drawing("".join(inside), y - GAP) + "\n"


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as a picture, in a stable order."""
    cells = [list(names), *sorted([[str(each) for each in row] for row in rows])]
    widths = [max(map(len, column)) * LETTER_WIDTH + GAP for column in zip(*cells, strict=True)]
    inside = [
        _text(sum(widths[:number]), line * ROW_HEIGHT + 14, text, "" if line else "opacity='.6'")
        for line, row in enumerate(cells)
        for number, text in enumerate(row)
    ]
    return charts.drawing("".join(inside), ROW_HEIGHT * len(cells))


def _text(x: int, y: int, text: str, more: str) -> str:
    return f"<text x='{x}' y='{y}' fill='{charts.INK}' {charts.FONT} {more}>{escape(text)}</text>\n"


def letters(place: Place, topic: str) -> tuple[str, str]:
    """The dead letters as a part of a picture."""
    rows = [(each.value, each.stage, each.cause) for each in place.letters(topic)]
    shown = [(_short(value or b""), stage, cause) for value, stage, cause in rows]
    return f"topic {topic}", table(["value", "stage", "cause"], shown)


def _short(value: bytes, longest: int = 40) -> str:
    """The beginning of a value, without the day on which the tests have run."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]", "...", value.decode("utf-8", "backslashreplace"))
    text = "".join(each if each.isprintable() else "." for each in text)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _chosen(rows: list[dict[str, Any]], *names: str) -> str:
    return table(names, [[row[name] for name in names] for row in rows])


def site_activity(place: Place) -> str:
    views: Counter[str] = Counter()
    for row in place.rows("pages"):
        views[row["page"]] += row["views"]
    pages = sorted(views.items(), key=lambda each: (-each[1], each[0]))
    return stacked(
        ("tables/pages: views", charts.bars(pages)),
        ("tables/sessions", _chosen(place.rows("sessions"), "user", "clicks", "entry", "exit")),
        letters(place, "site.dead-letters"),
    )


def log_aggregation(place: Place) -> str:
    rows = [{**row, "line": _short(row["line"].encode(), 60)} for row in place.rows("lines")]
    counts: Counter[str] = Counter()
    for row in place.rows("line_counts"):
        counts[f"{row['host']} {row['level']}"] += row["lines"]
    return stacked(
        ("tables/lines", _chosen(rows, "host", "level", "line")),
        ("tables/line_counts: lines", charts.bars(sorted(counts.items()))),
        ("topic logs.errors", _chosen(place.values("logs.errors"), "key", "line")),
        letters(place, "machines.dead-letters"),
    )


def metrics_rollup(place: Place) -> str:
    means = [
        (f"{row['window_start']:%H:%M} {row['metric']}@{row['host']}", round(row["mean"], 3))
        for row in place.rows("metrics")
        if row["metric"] == "cpu"
    ]
    alerts = place.values("alerts")
    return stacked(
        ("tables/metrics: mean", charts.bars(sorted(means))),
        ("topic alerts", _chosen(alerts, "key", "mean", "severity", "rule")),
        letters(place, "measurements.dead-letters"),
    )


def lakehouse_ingest(place: Place) -> str:
    names = ("id", "customer", "amount", "partition", "offset")
    return stacked(
        ("tables/orders", _chosen(place.rows("orders"), *names)),
        letters(place, "shop.dead-letters"),
    )


def change_log(place: Place) -> str:
    """The changes of each key in their order."""
    numbers: Counter[str] = Counter()
    changes = []
    for each in sorted(place.records("customers"), key=lambda each: each.offset):
        key = (each.key or b"").decode()
        numbers[key] += 1
        changes.append((key, numbers[key], _short(each.value or b"(none)", 62)))
    return stacked(
        ("topic customers", table(["key", "change", "value"], changes)),
        ("tables/customers", _chosen(place.rows("customers"), "customer", "name", "city")),
        letters(place, "people.dead-letters"),
    )


def feed(place: Place) -> str:
    clean, matched = place.values("articles.clean"), place.values("articles.matched")
    topics = ("articles.raw", "articles.clean", "articles.matched")
    counts = [(topic, len(place.records(topic))) for topic in topics]
    return stacked(
        ("records", charts.bars(counts)),
        ("topic articles.clean", _chosen(clean, "title", "body")),
        ("topic articles.matched", _chosen(matched, "key", "readers", "title")),
        letters(place, "news.dead-letters"),
    )


DRAWN: dict[str, Callable[[Place], str]] = {
    "site-activity": site_activity,
    "log-aggregation": log_aggregation,
    "metrics-rollup": metrics_rollup,
    "lakehouse-ingest": lakehouse_ingest,
    "change-log": change_log,
    "feed": feed,
}
