"""The formats inside Spark: every type arrives as it should; a registry; bad ones aside."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.spark.formats.registry_server import RegistryServer
from tests.spark.formats.test_document import READING, WRITING
from tests.spark.topics import create, fill, source

from tidemill.spark.formats import FormatOptions, value_format
from tidemill.spark.formats.ddl import parse_ddl, to_ddl
from tidemill.spark.formats.descriptors import load_message
from tidemill.spark.formats.framing import Header, prefix_of
from tidemill.testing.process import BrokerProcess

DDL = (
    "b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, text STRING, "
    "raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(10,2), "
    "list ARRAY<STRUCT<x: INT, y: ARRAY<STRING>>>, inner STRUCT<`a b`: STRING>"
)
MOMENT = datetime.datetime(2026, 3, 4, 5, 6, 7, 890_000)
ROW = {
    "b": True, "t": 1, "s": 2, "i": 3, "l": 4, "f": 0.5, "d": 0.25, "text": "é", "raw": "AAE=",
    "day": "2026-03-04", "at": "2026-03-04T05:06:07.890Z", "local": "2026-03-04T05:06:07.890",
    "price": 12.5, "list": [{"x": 1, "y": ["p", None]}, None], "inner": {"a b": "c"},
}  # fmt: skip
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
    ],
}  # fmt: skip
PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Order { uint64 id = 1; google.protobuf.Timestamp at = 2; map<string, Line> lines = 3;
  repeated string tags = 4; message Line { optional int32 count = 1; } }"""


def read(spark: Any, broker: BrokerProcess, name: str, values: list[bytes], **options: str) -> Any:
    create(broker.bootstrap, name)
    fill(broker.bootstrap, name, values)
    frame = source(spark.read, broker.bootstrap, subscribe=name, **options).load()
    return frame.orderBy("offset")


@pytest.mark.parametrize("more", ["", ", tags MAP<STRING, ARRAY<TIMESTAMP>>"], ids=["flat", "map"])
def test_every_type_of_a_schema(spark: Any, broker: BrokerProcess, name: str, more: str) -> None:
    """Both readers: with a map it is msgspec's."""
    row = {**ROW, "tags": {"k": [ROW["at"]]}}
    values = [json.dumps(row).encode(), b"{}", b"?"]
    frame = read(
        spark, broker, name, values,
        valueFormat="json", valueSchema=DDL + more,
    )  # fmt: skip
    good, empty, bad = frame.select("value", "_corrupt").collect()
    value = good.value.asDict(recursive=True)
    tags = value.pop("tags", None)
    assert value == {
        **{key: ROW[key] for key in ("b", "t", "s", "i", "l", "f", "d", "text", "list", "inner")},
        "raw": b"\0\1", "day": MOMENT.date(), "at": value["at"], "local": MOMENT,
        "price": Decimal("12.50"),
    }  # fmt: skip
    assert value["at"].timestamp() == MOMENT.replace(tzinfo=datetime.UTC).timestamp()
    assert tags == ({"k": [value["at"]]} if more else None)
    assert set(empty.value.asDict().values()) == {None}
    assert (bad.value, bytes(bad._corrupt)) == (None, b"?")


def test_our_ddl_is_sparks(spark: Any) -> None:
    """Read by both and written by us, a schema means the same to Spark."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    text = f"{DDL}, m MAP<STRING, ARRAY<DECIMAL(38,3)>>, `q``r` VARCHAR(5) COMMENT 'x'"
    ours = from_arrow_type(parse_ddl(text))
    assert (
        ours.simpleString()
        == StructType.fromDDL(text.replace("VARCHAR(5)", "STRING")).simpleString()
    )
    assert StructType.fromDDL(to_ddl(parse_ddl(text))) == ours


def test_avro_with_a_registry(spark: Any, broker: BrokerProcess, name: str) -> None:
    """Executors ask the registry for what each value was written with."""
    old = {**AVRO, "fields": AVRO["fields"][:1]}
    with RegistryServer().running() as registry:
        first = registry.add(f"{name}-value", json.dumps(AVRO))
        other = registry.add("other", json.dumps(old))
        out = io.BytesIO()
        at = MOMENT.replace(tzinfo=datetime.UTC)
        fastavro.schemaless_writer(
            out, AVRO, {"id": 7, "at": at, "price": Decimal("1.25"), "tags": {"a": None, "b": "c"}}
        )
        values = [
            prefix_of(Header(first), with_indexes=False) + out.getvalue(),
            prefix_of(Header(other), with_indexes=False) + b"\x02",
            prefix_of(Header(77), with_indexes=False) + b"\x02",
        ]
        frame = read(
            spark, broker, name, values,
            **{"valueFormat": "avro", "schema.registry.url": registry.url},
        )  # fmt: skip
        good, unresolved, unknown = frame.collect()
    assert good.value.asDict() == {
        "id": 7, "at": good.value["at"], "price": Decimal("1.25"), "tags": {"a": None, "b": "c"},
    }  # fmt: skip
    assert good.value["at"].timestamp() == at.timestamp()
    assert [bytes(row._corrupt) for row in (unresolved, unknown)] == values[1:]


def test_protobuf(spark: Any, broker: BrokerProcess, name: str) -> None:
    make = load_message(FormatOptions("protobuf", PROTO)).make
    value = make(
        id=2**64 - 1, at={"seconds": 5}, lines={"a": {"count": 0}, "b": {}}, tags=["x"]
    ).SerializeToString()
    frame = read(spark, broker, name, [value, b"\xff"], valueFormat="protobuf", valueSchema=PROTO)
    good, bad = frame.collect()
    assert (good.value.id, good.value.tags) == (Decimal(2**64 - 1), ["x"])
    assert {key: line["count"] for key, line in good.value.lines.items()} == {"a": 0, "b": None}
    assert good.value["at"].timestamp() == 5
    assert bytes(bad._corrupt) == b"\xff"


CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "page", "type": ["null", "string"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}


def test_the_examples_of_the_document(
    spark: Any,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is read from the topic is written again, as Avro."""
    monkeypatch.chdir(tmp_path)
    Path("click.avsc").write_text(json.dumps(CLICK))
    create(broker.bootstrap, "clicks-as-json")
    value = b'{"user": "ann", "page": "/", "at": "1970-01-01T00:00:01Z"}'
    fill(broker.bootstrap, "clicks-as-json", [value, b"{}"])
    names: dict[str, Any] = {"spark": spark, "bootstrap": broker.bootstrap}
    for example in (READING.replace('"clicks"', '"clicks-as-json"'), WRITING):
        exec(compile(example, "docs/spark-formats.md", "exec"), names)
    shown = capsys.readouterr().out
    assert "ann" in shown
    assert "[7B 7D]" in shown
    first, second = (row.value for row in names["records"].collect())
    read_again = fastavro.schemaless_reader(io.BytesIO(bytes(first)), CLICK)
    assert (read_again["user"], read_again["at"].timestamp()) == ("ann", 1)
    assert second is None


def test_the_types_of_formats_are_ones_that_spark_takes_back() -> None:
    """A value that was read can be written: its schema goes through DDL unchanged."""
    for options in (
        FormatOptions("json", DDL),
        FormatOptions("avro", json.dumps(AVRO)),
        FormatOptions("protobuf", PROTO),
    ):
        kind = value_format(options).schema()
        assert parse_ddl(to_ddl(kind)) == kind
