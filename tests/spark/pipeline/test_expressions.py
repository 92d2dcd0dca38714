"""What can be said about SQL without Spark."""

from __future__ import annotations

import pytest

from tidemill.spark.pipeline.durations import interval, parse_ms, shown
from tidemill.spark.pipeline.expressions import (
    fault_of,
    plain_name,
    result_name,
    schema_columns,
)
from tidemill.spark.pipeline.start import parse_start


@pytest.mark.parametrize(
    "text",
    [
        "a", "*", "count(*)", "x.*", "'it''s' = b", "a = '(' AND b = \"]\"", "a[0]['b']", "not a",
        r"page = 'a\'b'", "`odd ( name`", "transform(xs, x -> x + 1)", "a || b", "is_in", "band",
        "CASE WHEN a THEN 1 ELSE 2 END", "a IS NOT NULL", "INTERVAL 1 DAY", "'a && b'",
    ],
)  # fmt: skip
def test_right_expressions_have_no_fault(text: str) -> None:
    assert fault_of(text) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("(a", "`(` is never closed"),
        ("a)", "`)` closes nothing"),
        ("f(a]", "`]` closes nothing"),
        ("'a", "quote ' is never closed"),
        ("`a", "quote ` is never closed"),
        ("a =", "nothing follows `=`"),
        ("a AND ", "nothing follows `AND`"),
        ("a && b", "`&&` is no SQL"),
        ("x" * 10_001, "longer than"),
    ],
)
def test_faults_on_the_face_of_it(text: str, fault: str) -> None:
    found = fault_of(text)
    assert found is not None
    assert fault in found[0]
    assert found[1]


def test_names_of_results() -> None:
    assert plain_name(" page ") == "page"
    assert plain_name("`odd name`") == "odd name"
    assert plain_name("a.b") is None
    assert result_name("date(at) AS day") == "day"
    assert result_name("date(at) as `the day`") == "the day"
    assert result_name("page") == "page"
    assert result_name("count(*)") is None


def test_top_level_names_of_a_schema() -> None:
    ddl = "a INT, `b c` STRING NOT NULL, c STRUCT<d: INT, e: ARRAY<STRING>>, f: DECIMAL(10, 2)"
    assert schema_columns(ddl) == ("a", "b c", "c", "f")
    assert schema_columns("a, b") is None
    assert schema_columns("") is None


def test_durations() -> None:
    assert [parse_ms(text) for text in ("5 ms", "5s", "2 minutes", "1 HOUR", "3d", "1 week")] == [
        5,
        5_000,
        120_000,
        3_600_000,
        259_200_000,
        604_800_000,
    ]
    for text in ("", "5", "minutes", "-1 second", "5 fortnights", "1.5 hours", "5 ss"):
        assert parse_ms(text) is None, text
    assert [shown(ms) for ms in (0, 1, 90_000, 60_000, 7_200_000)] == [
        "0 seconds", "1 millisecond", "90 seconds", "1 minute", "2 hours",
    ]  # fmt: skip
    assert interval(1_500) == "1500 milliseconds"


def test_places_to_start_as_options() -> None:
    assert parse_start("latest") == {"startingOffsets": "latest"}
    assert parse_start('{"t": {"0": 1}}') == {"startingOffsets": '{"t": {"0": 1}}'}
    assert parse_start("1970-01-01T00:00:01Z") == {
        "startingTimestamp": "1000",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    for text in ("soon", "{", "[]", '{"t": 1}', '{"t": {"a": 1}}'):
        assert parse_start(text) is None
