"""The one renderer: tables for people, JSON for programs, errors with a status."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, make_dataclass

import pytest

from tidemill.cli import render
from tidemill.cli.exits import MEANINGS, Exit, exit_for_code
from tidemill.cli.latency import Latencies, Tally, total_line
from tidemill.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    size_bytes: int | None
    tags: tuple[str, ...] = ()
    fine: bool = True


@dataclass(frozen=True, slots=True)
class Whole:
    title: str
    rows: tuple[Row, ...]


def test_a_table_has_headings_and_leaves_empty_columns_out() -> None:
    text = render.to_text([Row("a", 1), Row("longer", None)])
    assert text.splitlines() == [
        "NAME    SIZE BYTES  FINE",
        "a       1           yes",
        "longer  -           yes",
    ]


def test_a_record_shows_its_lists_as_tables() -> None:
    text = render.to_text(Whole("t", (Row("a", 1, ("x", "y")),)))
    assert text.splitlines() == [
        "TITLE  t",
        "",
        "ROWS",
        "NAME  SIZE BYTES  TAGS  FINE",
        "a     1           x,y   yes",
    ]


def test_a_record_of_nothing_but_lists_is_only_tables() -> None:
    only = make_dataclass("Only", [("rows", tuple[Row, ...])], frozen=True)
    assert render.to_text(only((Row("a", 1),))).splitlines()[0] == "ROWS"
    assert render.to_text(only(())) == "ROWS  -"


def test_objects_inside_a_row_are_counted_and_follow_as_a_table() -> None:
    text = render.to_text([Whole("t", (Row("a", 1), Row("b", 2))), Whole("empty", ())])
    assert text.splitlines() == [
        "TITLE  ROWS",
        "t      2",
        "empty  -",
        "",
        "ROWS OF t",
        "NAME  SIZE BYTES  FINE",
        "a     1           yes",
        "b     2           yes",
    ]


def test_json_says_the_same_as_the_table() -> None:
    out = io.StringIO()
    render.show([Row("a", None, ("x",))], "json", out)
    assert json.loads(out.getvalue()) == [
        {"name": "a", "size_bytes": None, "tags": ["x"], "fine": True}
    ]


def test_what_is_for_programs_is_in_json_only() -> None:
    kind = make_dataclass(
        "Sized",
        [("size", str), ("size_bytes", int, field(metadata=render.FOR_PROGRAMS))],
    )
    row = kind("1.0 KiB", 1024)
    assert render.to_text([row]) == "SIZE\n1.0 KiB"
    assert render.to_text(row) == "SIZE  1.0 KiB"
    assert json.loads(render.to_json(row)) == {"size": "1.0 KiB", "size_bytes": 1024}


def test_an_empty_list_is_an_empty_table_and_an_empty_json_list() -> None:
    out = io.StringIO()
    render.show([], "table", out)
    assert out.getvalue() == ""
    render.show([], "json", out)
    assert json.loads(out.getvalue()) == []


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB")]
)
def test_human_bytes(count: int, text: str) -> None:
    assert render.human_bytes(count) == text


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Exit)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Exit.NOT_FOUND),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Exit.DENIED),
        (ErrorCode.SASL_AUTHENTICATION_FAILED, Exit.DENIED),
        (ErrorCode.REQUEST_TIMED_OUT, Exit.UNREACHABLE),
        (ErrorCode.INVALID_CONFIG, Exit.USAGE),
        (ErrorCode.TOPIC_ALREADY_EXISTS, Exit.FAILED),
    ],
)
def test_protocol_errors_have_a_status(code: ErrorCode, status: Exit) -> None:
    assert exit_for_code(code) is status


def test_latencies_are_counted_as_kafkas_tool_prints_them() -> None:
    seen = Latencies()
    for latency_ms in range(1, 1001):
        seen.add(float(latency_ms), 1024)
    summary = seen.summary(2.0)
    assert (summary.p50_ms, summary.p95_ms, summary.p99_ms, summary.p999_ms) == (
        501,
        951,
        991,
        1000,
    )
    assert total_line(summary) == (
        "1000 records sent, 500.000000 records/sec (0.49 MB/sec), 500.50 ms avg latency, "
        "1000.00 ms max latency, 501 ms 50th, 951 ms 95th, 991 ms 99th, 1000 ms 99.9th."
    )
    window = Tally()
    window.add(8.0, 1024)
    window.add(16.0, 1024)
    assert window.line(2.0) == (
        "2 records sent, 1.0 records/sec (0.00 MB/sec), 12.0 ms avg latency, 16.0 ms max latency."
    )
