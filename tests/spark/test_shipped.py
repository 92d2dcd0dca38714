"""Each shipped pipeline on a real broker and Spark: input, expected output, bad records.

The commands are those of its page in docs/pipelines, word for word; `tidemill pipeline check` and
`run` use the session of the test run, everything else is as a user has it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shipping import Ship
from tests.spark import pictures, shipped
from tests.spark.shipped import PAGES, YESTERDAY, Message, Place
from tests.waiting import eventually

from tidemill.client.admin_types import AlterOp, ConfigResource
from tidemill.client.blocking import Admin
from tidemill.spark.pipeline import templates
from tidemill.testing.process import KEEPS_ALL, BrokerProcess

patient = pytest.mark.timeout(1_200)
"""Each of them is several queries, and each of those several processes."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose topics have the names that the pages give them."""
    with BrokerProcess(tmp_path_factory.mktemp("shipped") / "data", KEEPS_ALL) as process:
        yield process


@pytest.fixture
def place(spark: Any, alone: BrokerProcess, tmp_path: Path) -> Place:
    return Place(spark, alone.bootstrap, tmp_path)


def causes(place: Place, topic: str) -> Counter[str]:
    """Why records are among the dead letters: `stage: expectation`."""
    return Counter(f"{each.stage}: {each.cause}" for each in place.letters(topic))


def project(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def check_originals(place: Place, topic: str, dead_letters: str) -> None:
    """Each dead letter has the key and value of the record that it says it was."""
    originals = {(each.partition, each.offset): each for each in place.records(topic)}
    for letter in place.letters(dead_letters):
        name, *at = letter.whence
        assert name == topic
        original = originals[at[0], at[1]]
        assert (letter.key, letter.value) == (original.key, original.value)


@patient
def test_site_activity(place: Place) -> None:
    place.follow("site-activity", {"clicks": shipped.CLICKS})
    visits = [row for row in place.rows("visits") if row["user"] != "zoe"]
    assert project(visits, "id", "page", "ms") == [
        ("c1", "/", 100),
        ("c2", "/cart", 900),
        ("c3", "/checkout", 100),
        ("c4", "/", 100),
        ("c5", "/", 100),
    ]
    assert project(place.rows("sessions"), "user", "clicks", "entry", "exit") == [
        ("ada", 1, "/", "/"),
        ("ada", 3, "/", "/checkout"),
        ("bob", 1, "/", "/"),
    ]
    first = [row for row in place.rows("pages") if row["window_start"] == YESTERDAY]
    assert project(first, "page", "views", "visitors", "slowest_ms") == [
        ("/", 2, 2, 100),
        ("/cart", 1, 1, 900),
        ("/checkout", 1, 1, 100),
    ]
    assert causes(place, "site.dead-letters") == {
        "source.clicks: the value is no json of the schema": 1,
        "stage.visits: complete": 2,
        "stage.visits: not-from-the-future": 1,
    }
    check_originals(place, "clicks", "site.dead-letters")
    report = (place.folder / "report.html").read_text()
    assert f"Site activity on {YESTERDAY.date()}" in report
    assert "<b>6</b>clicks" in report
    assert "<b>3</b>finished sessions" in report
    pictures.check("site-activity", place)


@patient
def test_log_aggregation(place: Place) -> None:
    """Lines come from `tidemill ship`, which is killed and sees its file rotated."""
    follow_logs(place)
    rows = place.rows("lines")
    assert project(rows, "host", "level", "line") == [
        ("web-1", "INFO", shipped.FIRST_LINES[0].decode()),
        ("web-1", "INFO", "INFO a new day, a new file"),
        ("web-1", "WARN", shipped.FIRST_LINES[1].decode()),
        ("web-2", "ERROR", "ERROR cannot reach the database"),
        ("web-2", "OTHER", "  at line 7 of nothing"),
        ("web-9", "INFO", "INFO the last"),
    ]
    times = {row["line"]: row["at"] for row in rows}
    assert times[shipped.FIRST_LINES[0].decode()] == YESTERDAY
    assert times[shipped.FIRST_LINES[1].decode()] == YESTERDAY + timedelta(seconds=1.5)
    (error,) = place.values("logs.errors")
    assert (error["key"], error["line"]) == ("web-2", "ERROR cannot reach the database")
    lines: Counter[tuple[str, str]] = Counter()
    for row in place.rows("line_counts"):
        lines[row["host"], row["level"]] += row["lines"]
    assert lines == {
        ("web-1", "INFO"): 2,
        ("web-1", "WARN"): 1,
        ("web-2", "ERROR"): 1,
        ("web-2", "OTHER"): 1,
    }
    assert causes(place, "machines.dead-letters") == {
        "stage.lines: shipped": 1,
        "stage.lines: text": 1,
    }
    check_originals(place, "logs", "machines.dead-letters")
    pictures.check("log-aggregation", place)


def follow_logs(place: Place) -> None:
    """One machine's lines come from a `ship` in the background, the other's from the page's."""
    first, *rest = shipped.commands_of("log-aggregation")
    place.do(first)
    ship_through_a_rotation(place, place.folder / "web-1")
    (place.folder / "web-2.log").write_bytes(b"\n".join([*shipped.OTHER_LINES, b""]))
    again = next(each for each in place.records("logs") if each.value == shipped.FIRST_LINES[1])
    for command in rest:
        if command.startswith("tidemill pipeline run"):
            an_hour_later(place.folder / "machines.toml")
            place.send(
                "logs",
                [
                    Message(b"INFO of a stranger", "x"),
                    # As a shipper that was killed sends a line a second time.
                    Message(again.value, "y", again.headers),
                    shipped.last_line(int(time.time() * 1000) + 30 * 60_000),
                ],
            )
        place.do(command)


def an_hour_later(file: Path) -> None:
    """By Spark's clock, as the pipeline sees it: so that the last line may end all windows."""
    text = file.read_text()
    assert text.count("current_timestamp()") == 1
    file.write_text(text.replace("current_timestamp()", "current_timestamp() + INTERVAL 1 HOUR"))


def ship_through_a_rotation(place: Place, folder: Path) -> None:
    folder.mkdir()
    log = folder / "app.log"
    log.write_bytes(b"\n".join([*shipped.FIRST_LINES, b""]))
    with Ship(place.bootstrap, "logs", folder / "app.log*", folder / "state.json") as ship:
        eventually(lambda: len(place.records("logs")) >= 2)
        ship.kill()
        log.rename(folder / "app.log.1")
        log.write_bytes(b"\n".join([*shipped.ROTATED_LINES, b""]))
        ship.start()
        eventually(lambda: len(place.records("logs")) >= 4)


@patient
def test_metrics_rollup(place: Place) -> None:
    place.follow("metrics-rollup", {"alert-rules": shipped.RULES, "metrics": shipped.METRICS})
    names = ("metric", "host", "measurements", "lowest", "highest")
    assert project(place.rows("metrics"), *names) == [
        ("cpu", "web-1", 1, 0.1, 0.1),
        ("cpu", "web-1", 3, 0.95, 0.99),
        ("cpu", "web-2", 3, 0.6, 0.8),
        ("free_gb", "web-1", 1, 4.0, 4.0),
        ("load", "web-1", 1, 99.0, 99.0),
    ]
    assert project(place.values("alerts"), "key", "mean", "severity", "rule") == [
        ("cpu@web-1", 0.97, "page", "above 0.9"),
        ("free_gb@web-1", 4.0, "warn", "below 10.0"),
    ]
    assert causes(place, "measurements.dead-letters") == {
        "source.metrics: the value is no json of the schema": 1,
        "stage.measured: a-number": 1,
        "stage.measured: complete": 1,
        "stage.measured: not-from-the-future": 1,
    }
    check_originals(place, "metrics", "measurements.dead-letters")
    pictures.check("metrics-rollup", place)


@patient
def test_lakehouse_ingest(place: Place) -> None:
    place.follow("lakehouse-ingest", {"orders": shipped.ORDERS})
    rows = place.rows("orders")
    assert [(row[0], str(row[1])) for row in project(rows, "id", "amount")] == [
        ("o1", "12.50"),
        ("o2", "0.00"),
    ]
    assert {row["day"] for row in rows} == {YESTERDAY.date()}
    there = {(each.partition, each.offset): each.value for each in place.records("orders")}
    for row in rows:
        assert row["id"].encode() in there[row["partition"], row["offset"]]
    assert causes(place, "shop.dead-letters") == {
        "source.orders: the value is no json of the schema": 1,
        "stage.rows: complete": 1,
        "stage.rows: not-negative": 1,
    }
    check_originals(place, "orders", "shop.dead-letters")
    pictures.check("lakehouse-ingest", place)


@patient
def test_change_log(place: Place) -> None:
    """The last change of a key is its row; deletes delete, and a key may come back in a later run,
    which goes on where the first one stopped."""
    place.follow("change-log", {"customers": shipped.CHANGES})
    assert project(place.rows("customers"), "customer", "city") == [("1", "Paris")]
    send_without_a_key(place, "customers", Message({"name": "Nobody"}))
    place.send("customers", shipped.LATER_CHANGES)
    place.do(shipped.commands_of("change-log")[-1])
    assert project(place.rows("customers"), "customer", "city") == [("1", "Rome"), ("2", "Bergen")]
    assert causes(place, "people.dead-letters") == {
        "source.changes: the value is no json of the schema": 1,
        "stage.rows: has-key": 1,
        "stage.rows: address": 1,
    }
    check_originals(place, "customers", "people.dead-letters")
    pictures.check("change-log", place)


def send_without_a_key(place: Place, topic: str, message: Message) -> None:
    """Brokers refuse it in a compacted topic; one that was not always compacted may have it."""
    resource = ConfigResource.topic(topic)
    with Admin(place.bootstrap) as admin:
        for policy in ("delete", "compact"):
            change = {resource: [AlterOp.set("cleanup.policy", policy)]}
            admin.alter_configs(change).raise_first()
            if policy == "delete":
                place.send(topic, [message])


@patient
def test_feed(place: Place) -> None:
    place.follow("feed", {"interests": shipped.INTERESTS, "articles.raw": shipped.ARTICLES})
    clean = place.values("articles.clean")
    assert sorted(each["title"] for each in clean) == ["About cats", "Spark and the tide"]
    assert all(each["key"] == each["fingerprint"] for each in clean)
    assert project(place.values("articles.matched"), "key", "readers", "title") == [
        ("spark", ["ada", "alan"], "Spark and the tide"),
        ("tide", ["bob"], "Spark and the tide"),
    ]
    assert causes(place, "news.dead-letters") == {
        "source.raw: the value is no json of the schema": 1,
        "stage.clean: has-text": 1,
        "stage.clean: has-title": 1,
    }
    check_originals(place, "articles.raw", "news.dead-letters")
    pictures.check("feed", place)


def test_every_shipped_pipeline_is_tested_and_described() -> None:
    tested = Path(__file__).read_text()
    index = (PAGES / "README.md").read_text()
    for name in templates.names():
        if name != templates.EXAMPLE:
            assert f'pictures.check("{name}", place)' in tested
            assert f"]({name}.md)" in index
            assert f"({name}.svg)" in (PAGES / f"{name}.md").read_text(), "a picture of its output"
            assert any(f"--from {name}" in each for each in shipped.commands_of(name))
