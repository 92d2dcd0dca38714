"""What may be written with a schema: columns by name, and nothing that would change on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidemill.spark.formats import FormatError, FormatOptions, ValueFormat, value_format

AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": ["null", "long"]},
        {"name": "b", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
        {"name": "m", "type": ["null", {"type": "map", "values": "long"}]},
    ],
}
PROTO = """syntax = "proto3";
message R { optional int64 a = 1; repeated string b = 2; map<string, int64> m = 3; }"""
FORMATS: dict[str, Callable[[], ValueFormat]] = {
    "json": lambda: value_format(
        FormatOptions("json", "a BIGINT, b ARRAY<STRING>, m MAP<STRING, BIGINT>")
    ),
    "avro": lambda: value_format(FormatOptions("avro", json.dumps(AVRO))),
    "protobuf": lambda: value_format(FormatOptions("protobuf", PROTO)),
}
each_format = pytest.mark.parametrize("name", FORMATS)


@each_format
def test_fields_are_found_by_name_and_numbers_widened(name: str) -> None:
    it = FORMATS[name]()
    kind = pa.struct([
        ("m", pa.map_(pa.string(), pa.int32())), ("b", pa.list_(pa.string())), ("a", pa.int16()),
    ])  # fmt: skip
    rows: list[Any] = [
        {"m": [("k", 5)], "b": ["x", "y"], "a": 7},
        None,
        {"m": [], "b": [], "a": None},
    ]
    column = pa.array([None, *rows], kind)[1:]  # a slice, as Spark may hand it over
    decoded = it.decode(it.encode(column))
    assert not decoded.bad.any(), decoded.causes
    assert decoded.values.to_pylist(maps_as_pydicts="strict") == [
        {"a": 7, "b": ["x", "y"], "m": {"k": 5}},
        None,
        {"a": None, "b": [], "m": {}},
    ]


@each_format
def test_a_field_that_is_not_there_is_null(name: str) -> None:
    it = FORMATS[name]()
    decoded = it.decode(it.encode(pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))))
    (row,) = decoded.values.to_pylist(maps_as_pydicts="strict")
    assert row["a"] == 1
    assert not row["b"]


@each_format
@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([{"a": 1, "z": 2}], r"value has \['z'\], which the schema does not have"),
        ([{"a": "1"}], r"value\.a is string, and the schema wants int64"),
        ([{"a": 1.5}], r"value\.a is double, and the schema wants int64"),
        ([{"b": [1]}], r"value\.b\[\] is int64, and the schema wants string"),
        ([{"b": 1}], r"value\.b is int64, and the schema wants list"),
        ([{"m": [{"key": "k"}]}], r"value\.m is list<.*, and the schema wants map"),
    ],
)
def test_what_the_schema_does_not_want(name: str, column: list[object], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        FORMATS[name]().encode(pa.array(column))
