"""Records as rows: what is a tombstone, and what is bad, of values however they are decoded."""

from __future__ import annotations

from typing import Any

from tests.spark.pipeline.files import checked

from tidemill.spark.pipeline.compile import Compiler
from tidemill.spark.pipeline.decoding import FAILED, decoded
from tidemill.spark.pipeline.model import Decode, Source, Table
from tidemill.spark.pipeline.plan import queries

RECORD = "'k' AS key, 't' AS topic, 0 AS partition, 0 AS offset, now() AS timestamp"


def records(spark: Any, columns: str, *rows: str) -> Any:
    """A frame of records, rows and the columns that they have being SQL. It takes no task."""
    values = ", ".join(f"({row})" for row in rows)
    return spark.sql(f"SELECT *, {RECORD} FROM VALUES {values} AS records({columns})")


def marks(frame: Any, decode: Decode) -> list[tuple[Any, bool, bool]]:
    """Column `a`, whether it is a tombstone, whether it is bad."""
    return [(row["a"], row["_tombstone"], row[FAILED]) for row in decoded(frame, decode).collect()]


def test_only_a_record_without_a_value_is_a_tombstone_where_the_source_decodes(spark: Any) -> None:
    good, none, bad = "named_struct('a', 1), CAST(NULL AS BINARY)", "NULL, NULL", "NULL, X'FF'"
    frame = records(spark, "value, _corrupt", good, none, bad)
    assert marks(frame, Decode(format="avro")) == [
        (1, False, False),
        (None, True, False),
        (None, False, True),
    ]


def test_a_value_of_which_json_makes_nothing_is_bad(spark: Any) -> None:
    values = ["""'{"a": 1}'""", "NULL", "''", "' '", "'null'", "'{'"]
    frame = records(spark, "value", *[f"CAST({value} AS BINARY)" for value in values])
    found = marks(frame, Decode(format="json", schema="a INT"))
    assert found[:2] == [(1, False, False), (None, True, False)]
    assert found[2:] == [(None, False, True)] * 4


TO_TOPIC = """\
name = "copy"

[source.changes]
topics = ["changes"]
decode = { format = "json", schema = "a INT" }

[stage.rows]
from = "changes"
columns = { kind = "'row'" }

[[stage.rows.expect]]
name = "positive"
that = "a > 0"
on_failure = "quarantine"

[sink.all]
from = "changes"
topic = "copies"

[sink.some]
from = "rows"
topic = "copies"
"""


class OneFrame:
    """The same records, whatever the source."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def stream(self, source: Source, group: str) -> Any:
        return self._frame

    def table(self, table: Table) -> Any:
        return self._frame


def test_a_tombstone_stays_one_on_its_way_to_a_topic(spark: Any) -> None:
    pipeline, problems = checked(TO_TOPIC)
    assert pipeline is not None
    values = "CAST(NULL AS BINARY)", """CAST('{"a": 1}' AS BINARY)"""
    frame = records(spark, "value", *values)
    compiler = Compiler(pipeline, OneFrame(frame), problems)
    of = {query.name: compiler.frame(query) for query in queries(pipeline)}
    assert {row["value"] for row in of["all"].collect()} == {None, '{"a":1}'}
    (letter,) = of["dead-letters.rows"].collect()
    assert letter["value"] is None
