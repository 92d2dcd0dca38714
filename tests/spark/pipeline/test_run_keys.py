"""Keys of a pipeline file that few pipelines have, on a real Spark with a real broker.

Many of them in one file, as each run takes its time: what each does is seen in what comes out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from tests.cli.helpers import quick
from tests.spark.formats.registry_server import RegistryServer
from tests.spark.pipeline.cases import Case, committed, create, records_of, rows_of
from tests.spark.shipped import Message, Place

from tidemill.spark.formats import FormatOptions
from tidemill.spark.formats.descriptors import load_message
from tidemill.spark.formats.framing import Header, prefix_of
from tidemill.spark.pipeline import jvm
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition

pytestmark = pytest.mark.timeout(600)


def table_rows(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


EVERYTHING = """\
name = "{name}"
group = "{name}-readers"
checkpoints = "{folder}/elsewhere"

[client]
"client.id" = "a-pipeline"
"request.timeout.ms" = 25_000
"client.dns.lookup" = "use_all_dns_ips"

[spark]
"spark.sql.shuffle.partitions" = 3

[source.old]
pattern = "{name}\\\\.in-.*"
start = "2026-11-15T08:00:00Z"

[source.old.decode]
format = "json"
schema = "id INT, kind STRING, at TIMESTAMP"
timestamp_format = "dd.MM.yyyy HH:mm"

[source.old.options]
minPartitions = 3
"kafka.fetch.max.bytes" = "100000"

[source.exact]
topics = ["{name}.exact"]
start = '{{"{name}.exact": {{"0": 2}}}}'
decode = {{ format = "text" }}

[table.names]
topic = "{name}.names"
key = "kind"
decode = {{ format = "json", schema = "name STRING" }}
options = {{ maxRecordsPerPartition = "1" }}

[stage.sorted]
from = "old"
watermark = {{ column = "at", delay = "1 minute" }}
join = [{{ table = "names", on = "kind" }}]
routes = {{ first = "kind = 'a'", second = "kind IN ('a', 'b')" }}

[stage.counts]
from = "sorted.first"
aggregate.by = ["kind"]
aggregate.window = {{ column = "at", size = "10 minutes", slide = "5 minutes" }}
aggregate.columns = {{ rows = "count(*)" }}

[sink.by-kind]
from = ["sorted.first", "sorted.second"]
topic_from = "concat('{name}.out-', kind)"
key = "kind"
value = "upper(concat(name, id))"
partition = "id % 2"
options = {{ "kafka.compression.type" = "lz4" }}

[sink.latest]
from = "sorted.second"
table = "delta:{folder}/latest"
mode = "upsert"
keys = ["kind"]
order_by = ["at"]

[sink.counts]
from = "counts"
table = "iceberg:lake.db.counts"

[sink.counts.options]
"catalog.type" = "sql"
"catalog.uri" = "sqlite:///{folder}/catalog.db"
"catalog.warehouse" = "file://{folder}/warehouse"
"table.historyDays" = 7

[sink.texts]
from = "exact"
table = "parquet:{folder}/texts"
options = {{ "table.compression" = "snappy" }}
"""

BEFORE_MS = int(datetime(2026, 11, 15, 7, tzinfo=UTC).timestamp() * 1000)
AFTER_MS = BEFORE_MS + 2 * 3_600_000


def row(number: int, kind: str, minute: int, timestamp_ms: int = AFTER_MS) -> Message:
    value = {"id": number, "kind": kind, "at": f"15.11.2026 10:{minute:02}"}
    return Message(value, timestamp_ms=timestamp_ms)


def test_several_sinks_of_three_kinds_and_keys_that_are_rare(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    name = f"keys-{tmp_path.name}"
    topics = ("in-1", "in-2", "out-a", "out-b", "names", "other")
    create(broker.bootstrap, *(f"{name}.{each}" for each in topics), partitions=2)
    create(broker.bootstrap, f"{name}.exact")
    fill(Place(spark, broker.bootstrap, tmp_path), name)
    file = tmp_path / "keys.toml"
    file.write_text(EVERYTHING.format(name=name, folder=tmp_path))
    options = ("-b", broker.bootstrap, "--state-dir", str(tmp_path / "state"))
    with (
        mock.patch.object(jvm, "own_session", return_value=spark) as asked,
        mock.patch.object(spark, "stop"),
    ):
        ran = quick("pipeline", "run", str(file), "--once", *options)
    assert ran.status == 0, ran.err
    assert asked.call_args.kwargs["conf"]["spark.sql.shuffle.partitions"] == "3"

    assert_topics(broker.bootstrap, name)
    latest = {row["kind"]: row["id"] for row in table_rows(tmp_path / "latest")}
    assert latest == {"b": 5}, "the first route takes its rows from the second"
    assert_counts(tmp_path)
    (part,) = (tmp_path / "texts").glob("*.parquet")
    assert pq.read_table(part)["value"].to_pylist() == ["third"]
    assert pq.read_metadata(part).row_group(0).column(0).compression == "SNAPPY"
    group = committed(broker.bootstrap, f"{name}-readers.texts")
    assert group == {TopicPartition(f"{name}.exact", 0): 3}
    elsewhere = tmp_path / "elsewhere" / name
    assert {each.name for each in elsewhere.iterdir()} == {"by-kind", "latest", "counts", "texts"}


def fill(place: Place, name: str) -> None:
    place.send(f"{name}.names", [Message({"name": f"{kind}-"}, kind) for kind in "ab"])
    place.send(f"{name}.exact", [Message(each) for each in (b"first", b"second", b"third")])
    place.send(f"{name}.other", [row(9, "a", 0)])
    place.send(f"{name}.in-1", [row(0, "a", 0, BEFORE_MS), row(1, "a", 1), row(2, "b", 3)])
    later = [row(4, "b", 2), row(5, "b", 7), row(6, "c", 7), row(7, "a", 59)]
    place.send(f"{name}.in-2", [row(3, "a", 6), *later])


def assert_topics(bootstrap: str, name: str) -> None:
    """Rows that no route takes go nowhere, and each record to the partition that it was told."""
    found = {
        kind: {(each.value, each.key, each.partition) for each in records_of(bootstrap, topic)}
        for kind in "ab"
        for topic in [f"{name}.out-{kind}"]
    }
    assert found == {
        kind: {(f"{kind}-{n}".upper().encode(), kind.encode(), n % 2) for n in numbers}
        for kind, numbers in {"a": (1, 3, 7), "b": (2, 4, 5)}.items()
    }


def assert_counts(folder: Path) -> None:
    """Windows that slide: a row is in two of them."""
    catalog = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
    )
    rows = catalog.load_table("db.counts").scan().to_arrow().to_pylist()
    found = {(each["window_start"].strftime("%H:%M"), each["rows"]) for each in rows}
    assert found == {("09:55", 1), ("10:00", 2), ("10:05", 1)}


PROTO = """syntax = "proto3"; package shop;
message Line { string item = 1; }
message Order { int64 id = 1; string item = 2; }"""

BINARY = """\
name = "{name}"

[source.plain]
topics = ["{name}.plain"]

[source.plain.decode]
format = "protobuf"
schema = '''{proto}'''
message = "shop.Order"
on_failure = "quarantine"

[source.framed]
topics = ["{name}.framed"]

[source.framed.decode]
format = "protobuf"
registry = "{registry}"
message = "shop.Order"
on_failure = "quarantine"

[source.framed.options]
valueSubject = "orders"

[stage.orders]
from = ["plain", "framed"]
select = ["id", "item"]

[sink.orders]
from = "orders"
topic = "{name}.out"
partitions = 1
"""


def test_protobuf_of_one_message_among_several_and_of_a_registry(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    name = f"proto-{tmp_path.name}"
    create(broker.bootstrap, f"{name}.plain", f"{name}.framed")
    made = load_message(FormatOptions("protobuf", PROTO, message="shop.Order")).make
    values = [made(id=number, item=f"tea {number}").SerializeToString() for number in (1, 2)]
    with RegistryServer().running() as registry:
        number = registry.add("orders", PROTO, "PROTOBUF")
        framed = prefix_of(Header(number, (1,)), with_indexes=True) + values[1]
        place = Place(spark, broker.bootstrap, tmp_path)
        place.send(f"{name}.plain", [Message(values[0]), Message(b"\xff")])
        place.send(f"{name}.framed", [Message(framed), Message(b"no frame")])
        text = BINARY.format(name=name, proto=PROTO, registry=registry.url)
        note = Case(text, spark, broker.bootstrap, tmp_path / "state").run()
    assert note.state == "finished", note.error
    rows = rows_of(broker.bootstrap, f"{name}.out")
    assert sorted((each["id"], each["item"]) for each in rows) == [(1, "tea 1"), (2, "tea 2")]
    letters = records_of(broker.bootstrap, f"{name}.dead-letters")
    assert {each.value for each in letters} == {b"\xff", b"no frame"}
