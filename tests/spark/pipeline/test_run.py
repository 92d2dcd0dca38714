"""Pipelines on a real Spark with a real broker: what goes in, what comes out, where it goes on."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.spark.pipeline.cases import Case, committed, create, records_of, rows_of, send, until
from tests.spark.shipped import Message, Place

from tidemill.spark.pipeline import templates
from tidemill.spark.pipeline.plan import fingerprint, queries
from tidemill.spark.pipeline.run import CannotContinueError, Running
from tidemill.spark.pipeline.spark_errors import SparkFailedError
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition

pytestmark = pytest.mark.timeout(300)


def click(number: int, minute: int = 0, **more: Any) -> dict[str, Any]:
    at = f"2026-11-15T10:{minute:02}:{number % 60:02}.000Z"
    return {"id": f"c{number}", "user": "ann", "page": "/A", "ms": 10, "at": at, **more}


LATE = """\
name = "{name}"

[source.in]
topics = ["{name}.in"]
decode = {{ format = "json", schema = "id STRING, at TIMESTAMP" }}
records_per_trigger = 1

[stage.once]
from = "in"
watermark = {{ column = "at", delay = "10 minutes" }}
dedupe = {{ keys = ["id"] }}

[sink.out]
from = "once"
topic = "{name}.out"
partitions = 1
"""


def test_rows_that_come_too_late_are_counted_and_told(
    spark: Any, broker: BrokerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A record from the future moves the watermark; with the batch after the next, those of now
    are late."""
    name = f"late-{tmp_path.name}"
    create(broker.bootstrap, f"{name}.in")
    sent = [{**click(1), "at": "2026-11-15T11:00:00Z"}, *map(click, range(2, 5)), click(5, 55)]
    send(broker.bootstrap, f"{name}.in", [(None, each) for each in sent])
    note = Case(LATE.format(name=name), spark, broker.bootstrap, tmp_path / "state").run()
    assert note.state == "finished", note.error
    assert [row["id"] for row in rows_of(broker.bootstrap, f"{name}.out")] == ["c1", "c2", "c5"]
    assert note.queries[0].late == 2
    assert "query out left out 2 rows" in caplog.text or "query out left out 1 row" in caplog.text
    assert "later than the watermark's delay allows" in caplog.text


def a_line(host: str, position: str, line: bytes, timestamp_ms: int) -> Message:
    headers = (("host", host.encode()), ("file", b"x"), ("position", position.encode()))
    return Message(line, None, headers, timestamp_ms)


def test_the_fast_clock_of_one_machine_makes_no_other_late(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The shipped pipeline, with what ship sends from a machine whose clock is far ahead."""
    name = f"clocks-{tmp_path.name}"
    create(broker.bootstrap, f"{name}.in")
    text = templates.text_of("log-aggregation", name).partition("[sink.errors]")[0]
    text = text.replace('["logs"]', f'["{name}.in"]').replace("./tables", str(tmp_path))
    place = Place(spark, broker.bootstrap, tmp_path)
    case = Case(text, spark, broker.bootstrap, tmp_path / "state")
    now_ms = int(time.time() * 1000)
    for number, ahead_ms in enumerate((50 * 60_000, 0)):
        sent = a_line(f"web-{number}", f"f:{number}", b"INFO up", now_ms + ahead_ms)
        place.send(f"{name}.in", [sent])
        note = case.run()
        assert note.state == "finished", note.error
        assert [each.late for each in note.queries] == [0, 0]
    assert {row["host"] for row in table_rows(tmp_path / "lines")} == {"web-0", "web-1"}


def table_rows(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


SITE = """\
name = "{name}"

[source.clicks]
topics = ["{name}.in"]

[source.clicks.decode]
format = "json"
schema = "id STRING, user STRING, page STRING, ms INT, at TIMESTAMP"
on_failure = "drop"

[table.users]
topic = "{name}.users"
key = "user_id"
decode = {{ format = "json", schema = "country STRING", on_failure = "drop" }}

[stage.clean]
from = "clicks"
columns = {{ page = "lower(page)" }}
expect = [{{ name = "plausible", that = "ms BETWEEN 0 AND 60000", on_failure = "drop" }}]
watermark = {{ column = "at", delay = "10 seconds" }}
dedupe = {{ keys = ["id"] }}
join = [{{ table = "users", on = "user" }}]
routes = {{ slow = "ms > 5000", usual = "true" }}

[stage.views]
from = "clean"

[stage.views.aggregate]
by = ["page"]
window = {{ column = "at", size = "1 minute" }}
columns = {{ views = "count(*)", slowest_ms = "max(ms)" }}

[sink.usual]
from = "clean.usual"
topic = "{name}.usual"
partitions = 2
key = "user"
headers = {{ country = "country" }}
timestamp = "at"

[sink.views]
from = "views"
table = "delta:{folder}/views"
"""


def test_from_topics_through_every_kind_of_stage_to_topics_and_tables(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    name = f"site-{tmp_path.name}"
    create(broker.bootstrap, f"{name}.in", f"{name}.users", partitions=2)
    users = [("ann", {"country": "old"}), ("ann", {"country": "NO"}), ("bob", {"country": "X"})]
    send(broker.bootstrap, f"{name}.users", [*users, ("bob", None), ("eve", b"no json")])
    clicks: list[Any] = [
        click(1),
        click(1),
        click(2, user="bob", page="/B"),
        click(3, ms=9_000),
        click(5, ms=-1),
        b"{no json",
        click(6, ms="many"),
        click(7, minute=5),
    ]
    send(broker.bootstrap, f"{name}.in", [("k", each) for each in clicks])
    text = SITE.format(name=name, folder=tmp_path)
    note = Case(text, spark, broker.bootstrap, tmp_path / "state").run()
    assert note.state == "finished", note.error

    usual = records_of(broker.bootstrap, f"{name}.usual")
    rows = {row["id"]: row for row in rows_of(broker.bootstrap, f"{name}.usual")}
    assert (sorted(rows), len(usual)) == (["c1", "c2", "c7"], 3)
    assert rows["c1"] == {
        "id": "c1", "user": "ann", "page": "/a", "ms": 10, "at": "2026-11-15T10:00:01.000Z",
        "country": "NO",
    }  # fmt: skip
    assert "country" not in rows["c2"], "a tombstone takes the key out of the table"
    first = next(record for record in usual if b'"c1"' in record.value)
    assert (first.key, dict(first.headers)) == (b"ann", {"country": b"NO"})
    assert first.timestamp_ms == 1_794_736_801_000
    views = {
        (row["page"], row["views"], row["slowest_ms"], row["window_start"].minute)
        for row in table_rows(tmp_path / "views")
    }
    assert views == {("/a", 2, 9_000, 0), ("/b", 1, 10, 0)}, "the last window has not ended"


QUARANTINE = """\
name = "{name}"

[source.clicks]
topics = ["{name}.in"]
decode = {{ format = "json", schema = "id STRING, user STRING", on_failure = "quarantine" }}

[stage.clean]
from = "clicks"

[[stage.clean.expect]]
name = "has-id"
that = "id IS NOT NULL"
on_failure = "drop"

[[stage.clean.expect]]
name = "has-user"
that = "user != ''"
on_failure = "quarantine"
dead_letters = "{name}.nobody"

[sink.out]
from = "clean"
topic = "{name}.out"
partitions = 1
"""


def test_bad_records_are_quarantined_as_they_came_with_their_cause(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    name = f"bad-{tmp_path.name}"
    create(broker.bootstrap, f"{name}.in")
    nobody = {"id": "1", "user": None}
    records = [
        ("a", b"{no json"),
        ("b", nobody),
        ("c", {"user": ""}),
        ("d", {"id": "2", "user": "x"}),
    ]
    send(broker.bootstrap, f"{name}.in", records)
    case = Case(QUARANTINE.format(name=name), spark, broker.bootstrap, tmp_path / "state")
    note = case.run()
    assert note.state == "finished", note.error
    assert [each.key for each in records_of(broker.bootstrap, f"{name}.out")] == [b"d"]

    (undecodable,) = records_of(broker.bootstrap, f"{name}.dead-letters")
    assert (undecodable.key, undecodable.value) == (b"a", b"{no json")
    headers = dict(undecodable.headers)
    assert headers.pop("tidemill.dlq.timestamp") == str(undecodable_ms(broker, name)).encode()
    assert headers == {
        "tidemill.dlq.pipeline": name.encode(),
        "tidemill.dlq.stage": b"source.clicks",
        "tidemill.dlq.topic": f"{name}.in".encode(),
        "tidemill.dlq.partition": b"0",
        "tidemill.dlq.offset": b"0",
        "tidemill.dlq.error": b"the value is no json of the schema",
    }
    (unmet,) = records_of(broker.bootstrap, f"{name}.nobody")
    assert (unmet.key, unmet.value) == (b"b", b'{"id": "1", "user": null}')
    headers = dict(unmet.headers)
    assert headers["tidemill.dlq.stage"] == b"stage.clean"
    assert headers["tidemill.dlq.error"] == b"has-user: user != ''"


def undecodable_ms(broker: BrokerProcess, name: str) -> int:
    return records_of(broker.bootstrap, f"{name}.in")[0].timestamp_ms


PLAIN = """\
name = "{name}"

[source.in]
topics = ["{name}.in"]
decode = {{ format = "text" }}

[stage.checked]
from = "in"
{stage}

[sink.out]
from = "checked"
topic = "{name}.out"
partitions = 1
"""


WORDS = """
[table.words]
topic = "{name}.words"
key = "word"
refresh = "2 seconds"
decode = {{ format = "json", schema = "meaning STRING" }}
"""


def plain(spark: Any, broker: BrokerProcess, folder: Path, stage: str, more: str = "") -> Case:
    name = f"plain-{folder.name}"
    create(broker.bootstrap, f"{name}.in")
    text = (PLAIN + more).format(name=name, stage=stage)
    return Case(text, spark, broker.bootstrap, folder / "state")


def test_the_next_run_continues_where_the_last_one_stopped_or_failed(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The query's group shows how far it is, and a failure names the record that it is about."""
    expect = 'expect = [{ name = "short", that = "length(value) < 3", on_failure = "fail" }]'
    case = plain(spark, broker, tmp_path, expect)
    name = case.pipeline.name
    read = TopicPartition(f"{name}.in", 0)
    send(broker.bootstrap, read.topic, [(None, b"a"), (None, b"b")])
    assert case.run().state == "finished"
    assert committed(broker.bootstrap, f"{name}.out") == {read: 2}

    send(broker.bootstrap, read.topic, [(None, b"too long"), (None, b"c")])
    note = case.run()
    assert note.state == "failed"
    assert note.error == (
        "query out: expectation short of stage checked is not met (length(value) < 3) "
        f"by {name}.in-0@2"
    )
    assert case.state.read() == note
    assert committed(broker.bootstrap, f"{name}.out") == {read: 2}

    case.text = case.text.replace('"fail"', '"drop"')
    note = case.run()
    assert (note.state, note.queries[0].rows) == ("finished", 2)
    rows = rows_of(broker.bootstrap, f"{name}.out")
    assert rows == [{"value": "a"}, {"value": "b"}, {"value": "c"}]
    assert committed(broker.bootstrap, f"{name}.out") == {read: 4}


def test_a_pipeline_goes_on_and_its_tables_are_read_again(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    case = plain(spark, broker, tmp_path, 'join = [{ table = "words", on = "value" }]', WORDS)
    name = case.pipeline.name
    create(broker.bootstrap, f"{name}.words", f"{name}.out")
    send(broker.bootstrap, f"{name}.words", [("a", {"meaning": "first"})])
    send(broker.bootstrap, f"{name}.in", [(None, b"a")])

    def meanings() -> list[Any]:
        return [row.get("meaning") for row in rows_of(broker.bootstrap, f"{name}.out")]

    def asked_again() -> bool:
        send(broker.bootstrap, f"{name}.in", [(None, b"a")])
        return "second" in meanings()

    with case.running():
        until(lambda: meanings() == ["first"], "the first join")
        send(broker.bootstrap, f"{name}.words", [("a", {"meaning": "second"})])
        until(asked_again, "the table's new value")
        note = case.state.read()
        assert note is not None
        assert note.state == "running"
    note = case.state.read()
    assert note is not None
    assert note.state == "stopped"
    assert note.queries[0].rows >= 2


SESSIONS = """\
name = "{name}"

[source.in]
topics = ["{name}.in"]
decode = {{ format = "json", schema = "user STRING, at TIMESTAMP" }}

[stage.left]
from = "in"
where = "user = 'ann'"

[stage.right]
from = "in"
where = "user != 'ann'"
select = ["user", "at", "1 AS other"]

[stage.sessions]
from = ["left", "right"]
watermark = {{ column = "at", delay = "1 second" }}

[stage.sessions.aggregate]
by = ["user"]
session = {{ column = "at", gap = "30 seconds" }}
columns = {{ clicks = "count(*)", others = "sum(other)" }}

[stage.totals]
from = "in"
aggregate = {{ by = ["user"], columns = {{ clicks = "count(*)" }} }}

[sink.sessions]
from = "sessions"
topic = "{name}.sessions"
partitions = 1
key = "user"

[sink.totals]
from = "totals"
output = "update"
table = "parquet:{folder}/totals"
mode = "upsert"
keys = ["user"]
"""


def test_several_inputs_sessions_that_end_and_counts_that_are_updated(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    name = f"sessions-{tmp_path.name}"
    create(broker.bootstrap, f"{name}.in")
    text = SESSIONS.format(name=name, folder=tmp_path)
    case = Case(text, spark, broker.bootstrap, tmp_path / "state")
    at = "2026-11-15T10:{:02}:{:02}Z".format
    seen = [("ann", 0, 0), ("ann", 0, 20), ("bob", 0, 10), ("ann", 2, 0), ("zoe", 9, 0)]
    rows = [{"user": user, "at": at(minute, second)} for user, minute, second in seen]
    send(broker.bootstrap, f"{name}.in", [(None, row) for row in rows])
    note = case.run()
    assert note.state == "finished", note.error
    sessions = rows_of(broker.bootstrap, f"{name}.sessions")
    found = {(row["user"], row["clicks"], row.get("others")) for row in sessions}
    assert found == {("ann", 2, None), ("bob", 1, 1), ("ann", 1, None)}
    totals = spark.read.parquet(str(tmp_path / "totals")).collect()
    assert {row["user"]: row["clicks"] for row in totals} == {"ann": 3, "bob": 1, "zoe": 1}


def test_a_changed_aggregate_is_refused_before_anything_starts(tmp_path: Path) -> None:
    case = Case(SESSIONS.format(name="changed", folder=tmp_path), None, "127.0.0.1:9", tmp_path)
    for query in queries(case.pipeline):
        case.state.folder.mkdir(exist_ok=True)
        case.state.remember({query.name: fingerprint(case.pipeline, query)})
    case.text = case.text.replace('gap = "30 seconds"', 'gap = "1 minute"')
    with pytest.raises(CannotContinueError, match=r"query sessions .*30 seconds.*--reset"):
        case.run()
    assert case.state.read() is None, "nothing was started"


AVRO = """\
name = "{name}"

[source.in]
topics = ["{name}.in"]

[source.in.decode]
format = "avro"
schema = '''{schema}'''
on_failure = "quarantine"

[stage.cheap]
from = "in"
where = "price < 10"
select = ["item", "price", "_offset AS at"]

[sink.out]
from = "cheap"
topic = "{name}.out"
partitions = 1
"""


def test_avro_values_are_columns_and_bad_ones_are_quarantined(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    name = f"avro-{tmp_path.name}"
    create(broker.bootstrap, f"{name}.in")
    fields = [{"name": "item", "type": "string"}, {"name": "price", "type": "double"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    orders = [{"item": "tea", "price": 2.5}, {"item": "pot", "price": 12.0}]
    values = [avro_of(schema, order) for order in orders]
    send(broker.bootstrap, f"{name}.in", [("k", each) for each in (*values, b"\xff")])
    text = AVRO.format(name=name, schema=json.dumps(schema))
    note = Case(text, spark, broker.bootstrap, tmp_path / "state").run()
    assert note.state == "finished", note.error
    assert rows_of(broker.bootstrap, f"{name}.out") == [{"item": "tea", "price": 2.5, "at": 0}]
    (bad,) = records_of(broker.bootstrap, f"{name}.dead-letters")
    assert (bad.value, dict(bad.headers)["tidemill.dlq.offset"]) == (b"\xff", b"2")


def avro_of(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_a_run_whose_spark_does_not_start_has_no_query_that_starts(tmp_path: Path) -> None:
    class NoSparkError(Exception):
        pass

    def refuse() -> None:
        raise NoSparkError("no JVM here")

    case = Case(PLAIN.format(name="never", stage=""), refuse, "127.0.0.1:9", tmp_path)
    with pytest.raises(NoSparkError):
        case.run()
    note = case.state.read()
    assert note is not None
    assert (note.state, note.error) == ("failed", "no JVM here")
    assert [each.state for each in note.queries] == ["stopped"]


def test_what_spark_throws_is_told_in_a_sentence(tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    def refuse() -> None:
        raise AnalysisException("[TABLE_GONE] The table is gone. SQLSTATE: 42P01\n+- Plan")

    case = Case(PLAIN.format(name="gone", stage=""), refuse, "127.0.0.1:9", tmp_path)
    with pytest.raises(SparkFailedError, match=r"^pipeline gone has failed: The table is gone\.$"):
        case.run()


def test_patience_with_a_query_begins_anew_after_each_batch() -> None:
    """A pipeline that runs for months meets a slow start of a Python process more than once."""

    class Report:
        def timestamp(self) -> str:
            return "2026-11-15T00:00:01.000Z"

        def json(self) -> str:
            return json.dumps({"timestamp": self.timestamp(), "batchId": 7, "numInputRows": 1})

    class Handle:
        isActive = True  # noqa: N815 - Spark's own name
        _jsq: Any = None

        def recentProgress(self) -> list[Report]:
            return [Report()]

    handle: Any = Handle()
    handle._jsq = handle
    running = Running(query=None, frame=None, handle=handle, restarts=4)  # type: ignore[arg-type]
    running.look()
    assert (running.restarts, running.progress.batch) == (0, 7)
