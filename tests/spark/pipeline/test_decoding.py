"""Records as rows: what is a tombstone, and what is bad, of values however they are decoded."""

from __future__ import annotations

from typing import Any

from tests.spark.pipeline.files import checked

from tidemill.spark.pipeline.compile import Compiler
from tidemill.spark.pipeline.decoding import FAILED, decoded
from tidemill.spark.pipeline.model import Decode, Source, Table
from tidemill.spark.pipeline.plan import queries

RECORD = "'k' AS key, 't' AS topic, 0 AS partition, 0 AS offset, now() AS timestamp"


def marks(spark: Any, decode: Decode, *values: str) -> list[tuple[Any, bool, bool]]:
    """Column `a`, whether it is a tombstone, whether it is bad; the values are SQL."""
    records = " UNION ALL ".join(
        f"SELECT {number} AS number, {value}, {RECORD}" for number, value in enumerate(values)
    )
    rows = decoded(spark.sql(records).orderBy("number"), decode).collect()
    return [(row["a"], row["_tombstone"], row[FAILED]) for row in rows]


def test_only_a_record_without_a_value_is_a_tombstone_where_the_source_decodes(spark: Any) -> None:
    good = "named_struct('a', 1) AS value, CAST(NULL AS BINARY) AS _corrupt"
    none = "NULL AS value, NULL AS _corrupt"
    bad = "NULL AS value, X'FF' AS _corrupt"
    found = marks(spark, Decode(format="avro"), good, none, bad)
    assert found == [(1, False, False), (None, True, False), (None, False, True)]


def test_a_value_of_which_json_makes_nothing_is_bad(spark: Any) -> None:
    decode = Decode(format="json", schema="a INT")
    values = ["""'{"a": 1}'""", "NULL", "''", "' '", "'null'", "'{'"]
    found = marks(spark, decode, *[f"CAST({value} AS BINARY) AS value" for value in values])
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
    records = spark.sql(
        f"""SELECT CAST(NULL AS BINARY) AS value, {RECORD}
        UNION ALL SELECT CAST('{{"a": 1}}' AS BINARY), {RECORD}"""
    )
    compiler = Compiler(pipeline, OneFrame(records), problems)
    of = {query.name: compiler.frame(query) for query in queries(pipeline)}
    assert {row["value"] for row in of["all"].collect()} == {None, '{"a":1}'}
    (letter,) = of["dead-letters.rows"].collect()
    assert letter["value"] is None
