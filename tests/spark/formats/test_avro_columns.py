"""Avro records by the kernels: like fastavro, and stricter where that is lax."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.spark.formats import FormatOptions, avro_columns, avro_kernels, value_format
from tidemill.spark.formats.avro_columns import CompiledAvro
from tidemill.spark.formats.avro_schema import for_fastavro, parse_avro
from tidemill.wire.kernels import Kernel

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Outer",
    "fields": [
        {"name": "ok", "type": "boolean"},
        {"name": "i", "type": ["null", "int"]},
        {"name": "l", "type": ["long", "null"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": ["null", "double"]},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "four", "type": ["null", {"type": "fixed", "name": "Four", "size": 4}]},
        {
            "name": "inner",
            "type": ["null", {"type": "record", "name": "Inner", "fields": [
                {"name": "s", "type": ["null", "string"]},
                {"name": "again", "type": ["null", "Color"]},
                {"name": "deep", "type": {"type": "record", "name": "Deep", "fields": [
                    {"name": "raw", "type": "bytes"}]}},
            ]}],
        },
        {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
        {"name": "points", "type": {"type": "array", "items": {"type": "record", "name": "Point",
            "fields": [{"name": "x", "type": "int"},
                       {"name": "ys", "type": {"type": "array", "items": "long"}}]}}},
        {"name": "attrs", "type": {"type": "map", "values": [
            "null", {"type": "map", "values": "double"}]}},
        {"name": "last", "type": "string"},
    ],
}  # fmt: skip
PARSED = fastavro.parse_schema(SCHEMA)
ROWS = st.fixed_dictionaries({
    "ok": st.booleans(),
    "i": st.none() | st.integers(-(2**31), 2**31 - 1),
    "l": st.none() | st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(width=32),
    "d": st.none() | st.floats(),
    "color": st.sampled_from(["RED", "BLUE"]),
    "four": st.none() | st.binary(min_size=4, max_size=4),
    "inner": st.none() | st.fixed_dictionaries({
        "s": st.none() | st.text(max_size=5),
        "again": st.none() | st.sampled_from(["RED", "BLUE"]),
        "deep": st.fixed_dictionaries({"raw": st.binary(max_size=5)}),
    }),
    "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
    "points": st.lists(st.fixed_dictionaries({
        "x": st.integers(-9, 9), "ys": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
    }), max_size=3),
    "attrs": st.dictionaries(st.text(max_size=2), st.none() | st.dictionaries(
        st.text(max_size=2), st.floats(), max_size=2), max_size=3),
    "last": st.text(max_size=5),
})  # fmt: skip
KERNELS = [each for each in vars(avro_kernels).values() if isinstance(each, Kernel)]


def written(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED, row)
    return out.getvalue()


def text(value: Any) -> str:
    """Like `repr`, whatever order keys have; NaN is like itself."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {text(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    return repr(value)


def compiled_rows(values: list[bytes]) -> list[Any]:
    table = CompiledAvro.of(for_fastavro(parse_avro(json.dumps(SCHEMA))))
    assert table is not None
    kind = value_format(FormatOptions("avro", json.dumps(SCHEMA))).schema()
    rows: list[Any] = table.columns(pa.array(values, pa.binary()), kind).to_pylist(
        maps_as_pydicts="strict"
    )
    return rows


@settings(max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=8))
def test_what_fastavro_wrote(rows: list[dict[str, Any]]) -> None:
    assert text(compiled_rows([written(row) for row in rows])) == text(rows)


@settings(max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_the_kernels_as_plain_python(rows: list[dict[str, Any]]) -> None:
    """The same source without numba gives the same."""
    with pytest.MonkeyPatch.context() as patch:
        for each in KERNELS:
            patch.setattr(each, "compiled", None)
        assert text(compiled_rows([written(row) for row in rows])) == text(rows)


def test_large_pieces_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_columns, "CELLS_MAX", 60)
    row: dict[str, Any] = {
        "ok": True, "i": 1, "l": None, "f": 0.5, "d": None, "color": "BLUE", "four": None,
        "inner": None, "tags": None, "points": [], "attrs": {},
    }  # fmt: skip
    rows = [{**row, "last": str(number)} for number in range(20)]
    assert compiled_rows([written(row) for row in rows]) == rows


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_any_bytes_are_read_within_their_bounds(values: list[bytes]) -> None:
    """What the kernels take, fastavro takes, too, and reads the same."""
    it = value_format(FormatOptions("avro", json.dumps(SCHEMA)))
    decoded = it.decode(pa.array(values, pa.binary()))
    rows = decoded.values.to_pylist(maps_as_pydicts="strict")
    for value, bad, row in zip(values, decoded.bad, rows, strict=True):
        if not bad:
            assert text(row) == text(fastavro.schemaless_reader(io.BytesIO(value), PARSED))


def record_of(kind: Any) -> str:
    fields = [{"name": "a", "type": kind}]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, b"\x01"),  # symbol -1
        ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, b"\x04"),
        (["null", "int"], b"\x01"),  # branch -1
        (["null", "int"], b"\x04\x02"),
        ("boolean", b"\x02"),
        ("int", b"\xfe\xff\xff\xff\x1f"),  # more than 32 bits
        ("long", b"\xff" * 10 + b"\x01"),
        ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
        ("string", b"\x01"),  # length -1
        ("string", b"\x04a"),
        ("string", b"\x02\xff"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),  # the longest length
        ("double", b"1234567"),
        ("float", b""),
        ({"type": "array", "items": "int"}, b"\x02\x02"),  # no end
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02"),
        ({"type": "array", "items": "int"}, b"\x01\x08\x02\x00"),  # a block that is too large
        (
            {"type": "array", "items": "int"},
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02\x02\x00",
        ),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x02\x00"),  # the same key twice
        ({"type": "fixed", "name": "F", "size": 3}, b"ab"),
    ],
)
def test_damage(kind: Any, value: bytes) -> None:
    """Each value is bad, alone and beside others, although fastavro reads some of them."""
    it = value_format(FormatOptions("avro", record_of(kind)))
    assert it.decode(pa.array([value], pa.binary())).bad.tolist() == [True]
    assert it.decode(pa.array([value, None, value], pa.binary())).bad.tolist() == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "kind",
    [
        ["null", "int", "long"],
        ["int"],
        {"type": "bytes", "logicalType": "decimal", "precision": 4},
    ],
)
def test_what_kernels_do_not_read_is_left_to_fastavro(kind: Any) -> None:
    assert CompiledAvro.of(for_fastavro(parse_avro(record_of(kind)))) is None


def test_arrays_in_several_blocks_and_with_their_sizes() -> None:
    it = value_format(FormatOptions("avro", record_of({"type": "array", "items": "int"})))
    values = [b"\x02\x02\x04\x04\x06\x00", b"\x03\x04\x02\x04\x02\x06\x00", b"\x00"]
    decoded = it.decode(pa.array(values, pa.binary()))
    assert decoded.values.to_pylist() == [{"a": [1, 2, 3]}, {"a": [1, 2, 3]}, {"a": []}]
