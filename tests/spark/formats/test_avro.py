"""Avro values: against fastavro's own row loop, resolution, and what is refused."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.formats.registry_server import RegistryServer

from tidemill.spark.formats import FormatError, FormatOptions, Limits, pinned, value_format
from tidemill.spark.formats.ddl import to_ddl
from tidemill.spark.formats.framing import Header, prefix_of
from tidemill.spark.formats.registry import RegistryError

UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer().running() as running:
        yield running


def record(*fields: tuple[str, Any], name: str = "Click", **more: Any) -> dict[str, Any]:
    listed = [{"name": field, "type": kind, **more.get(field, {})} for field, kind in fields]
    return {"type": "record", "name": name, "fields": listed}


def written(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def decoded_rows(schema: dict[str, Any], *values: bytes | None) -> tuple[list[Any], list[bool]]:
    it = value_format(FormatOptions("avro", json.dumps(schema)))
    decoded = it.decode(pa.array(values, pa.binary()))
    assert len(decoded.causes) == decoded.bad.sum()
    return decoded.values.to_pylist(maps_as_pydicts="strict"), decoded.bad.tolist()


LOGICAL = record(
    ("id", "long"),
    ("day", {"type": "int", "logicalType": "date"}),
    ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("us", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("fixed", {"type": "fixed", "name": "D", "size": 5, "logicalType": "decimal",
               "precision": 8, "scale": 1}),
    ("who", {"type": "string", "logicalType": "uuid"}),
    ("color", {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}),
    ("hash", {"type": "fixed", "name": "H", "size": 2}),
    ("tags", {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}),
    ("more", {"type": "array", "items": record(("x", ["int", "null"]), name="More")}),
)  # fmt: skip
WHO = uuid.UUID(int=7)
ROW = {
    "id": 1,
    "day": MOMENT.date(),
    "ms": MOMENT,
    "us": MOMENT,
    "local": MOMENT.replace(tzinfo=None),
    "price": Decimal("12.50"),
    "fixed": Decimal("-3.5"),
    "who": WHO,
    "color": "BLUE",
    "hash": b"ab",
    "tags": {"a": MOMENT},
    "more": [{"x": 1}, {"x": None}],
}


def test_logical_types() -> None:
    rows, bad = decoded_rows(LOGICAL, written(LOGICAL, ROW), None)
    assert bad == [False, False]
    assert rows == [{**ROW, "who": str(WHO)}, None]
    assert to_ddl(value_format(FormatOptions("avro", json.dumps(LOGICAL))).schema()) == (
        "id BIGINT, day DATE, ms TIMESTAMP, us TIMESTAMP, local TIMESTAMP_NTZ, "
        "price DECIMAL(10,2), fixed DECIMAL(8,1), who STRING, color STRING, hash BINARY, "
        "tags MAP<STRING, TIMESTAMP>, more ARRAY<STRUCT<x: INT>>"
    )


def test_what_is_encoded_is_decoded_and_read_by_fastavro() -> None:
    it = value_format(FormatOptions("avro", json.dumps(LOGICAL)))
    value = written(LOGICAL, ROW)
    structs = it.decode(pa.array([value, None], pa.binary())).values
    assert it.encode(structs).to_pylist() == [value, None]
    missing = pa.array([{**structs[0].as_py(), "id": None}], it.schema())
    with pytest.raises(FormatError, match="cannot be written with the Avro schema"):
        it.encode(missing)


def test_the_wider_type_of_a_union() -> None:
    schema = record(("n", ["null", "int", "long"]), ("f", ["float", "double"]))
    rows, bad = decoded_rows(schema, written(schema, {"n": 2**40, "f": 0.5}))
    assert (rows, bad) == ([{"n": 2**40, "f": 0.5}], [False])


NAMES = st.sampled_from(["a", "b", "c", "d"])
LEAVES = st.sampled_from(["boolean", "int", "long", "float", "double", "string", "bytes"])


def avro_types() -> st.SearchStrategy[Any]:
    return st.recursive(
        LEAVES,
        lambda inner: (
            inner.map(lambda each: {"type": "array", "items": each})
            | inner.map(lambda each: {"type": "map", "values": each})
            | inner.filter(lambda each: not isinstance(each, list)).map(lambda each: ["null", each])
        ),
        max_leaves=4,
    )


def avro_values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.none() | avro_values(kind[1])
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return st.lists(avro_values(kind["items"]), max_size=3)
        return st.dictionaries(st.text(max_size=3), avro_values(kind["values"]), max_size=3)
    return {
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=5),
        "bytes": st.binary(max_size=5),
    }[kind]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    fields = draw(st.dictionaries(NAMES, avro_types(), min_size=1))
    schema = record(*fields.items())
    rows = st.fixed_dictionaries({name: avro_values(kind) for name, kind in fields.items()})
    values = [written(schema, row) for row in draw(st.lists(rows, max_size=5))]
    # Some are damaged: cut off, with more at the end, or with other bytes inside.
    for at, value in enumerate(values):
        match draw(st.sampled_from(["whole", "whole", "cut", "more", "other"])):
            case "cut":
                values[at] = value[: len(value) // 2]
            case "more":
                values[at] = value + b"\0"
            case "other":
                values[at] = draw(st.binary(max_size=8))
    return schema, values


def plainly(schema: dict[str, Any], value: bytes) -> Any:
    """fastavro's row, or None where it has none for all of these bytes."""
    data = io.BytesIO(value)
    try:
        row = fastavro.schemaless_reader(data, fastavro.parse_schema(schema))
    except Exception:  # noqa: BLE001 - whatever it raises, it read nothing
        return None
    return row if data.tell() == len(value) else None


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # NaN is like itself


@settings(max_examples=50)
@given(cases())
def test_like_fastavro_row_by_row(case: tuple[dict[str, Any], list[bytes]]) -> None:
    """What is read is what fastavro reads. What it reads and we do not, it would write otherwise:
    numbers larger than their type, the same key twice."""
    schema, values = case
    rows, bad = decoded_rows(schema, *values)
    for value, row, is_bad in zip(values, rows, bad, strict=True):
        expected = plainly(schema, value)
        if not is_bad:
            assert same(row, expected)
        elif expected is not None:
            assert not can_be_written_as(schema, expected, value)


def can_be_written_as(schema: dict[str, Any], row: Any, value: bytes) -> bool:
    try:
        return written(schema, row) == value
    except (ValueError, TypeError, OverflowError):
        return False


REFUSED: list[tuple[Any, str]] = [
    (record(("a", ["null", "Click"])), "record Click contains itself"),
    (record(("a", {"type": "array", "items": "Click"})), "record Click contains itself"),
    (record(("a", ["int", "string"])), "a union of 2 types"),
    (record(("a", "null")), "always null"),
    (record(("a", {"type": "array", "items": record(name="Empty")})), "items that take no bytes"),
    (record(("a", {"type": "array", "items": "null"})), "items that take no bytes"),
    (record(), "has no fields"),
    (record(("a", "no.Such")), "wrong"),
    ({"type": "array", "items": "int"}, "a record at its top"),
    ("int", "a record at its top"),
    (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 50})), "50 digits"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED)
def test_schemas_that_cannot_be(schema: Any, said: str) -> None:
    with pytest.raises(FormatError) as error:
        value_format(FormatOptions("avro", json.dumps(schema)))
    assert said in str(error.value)


def test_a_schema_that_grows_when_it_is_read() -> None:
    """Each record holds the one before four times: small as text, a million columns."""
    kind: Any = record(("x", "int"), name="R0")
    for level in range(1, 11):
        inner: list[tuple[str, Any]] = [("a", kind), *((n, f"R{level - 1}") for n in "bcd")]
        kind = record(*inner, name=f"R{level}")
    with pytest.raises(FormatError, match="more than 2000 fields"):
        value_format(FormatOptions("avro", json.dumps(kind)))


def framed(number: int, value: bytes) -> bytes:
    return prefix_of(Header(number), with_indexes=False) + value


OLD = record(("id", "int"), ("gone", "string"))
NEW = record(("id", "long"), ("note", ["null", "string"]), note={"default": None})


def test_values_of_several_writers(registry: RegistryServer) -> None:
    """Each value is resolved from the schema it was written with to the subject's newest."""
    old = registry.add("clicks-value", json.dumps(OLD))
    new = registry.add("clicks-value", json.dumps(NEW))
    other = registry.add(
        "x", '{"type":"record","name":"Other","fields":[{"name":"id","type":"string"}]}'
    )
    options = pinned(FormatOptions("avro", registry_url=registry.url, subject="clicks-value"))
    values = [
        framed(new, written(NEW, {"id": 2**40, "note": "n"})),
        framed(old, written(OLD, {"id": 1, "gone": "x"})),
        None,
        framed(999, b"\0"),
        framed(other, b"\x02a"),
        b"{}",
        b"",
        framed(new, b"\xff"),
        b"\1\0\0\0\1\0",
    ]
    decoded = value_format(options).decode(pa.array(values, pa.binary()))
    assert decoded.values.to_pylist()[:2] == [{"id": 2**40, "note": "n"}, {"id": 1, "note": None}]
    assert decoded.bad.tolist() == [False, False, False, *[True] * 6]
    assert "schema id 999" in decoded.causes[0]
    assert "too few" in decoded.causes[2]
    assert "0x01" in decoded.causes[5]


def test_a_given_schema_reads_what_others_wrote(registry: RegistryServer) -> None:
    number = registry.add("clicks-value", json.dumps(OLD))
    wanted = json.dumps(record(("id", "double")))
    it = value_format(FormatOptions("avro", wanted, registry_url=registry.url))
    decoded = it.decode(pa.array([framed(number, written(OLD, {"id": 3, "gone": ""}))]))
    assert decoded.values.to_pylist() == [{"id": 3.0}]


def test_schemas_that_refer_to_others(registry: RegistryServer) -> None:
    place = record(("city", "string"), name="Place")
    registry.add("place", json.dumps(place))
    click = record(("where", "Place"), ("maybe", ["null", "Place"]))
    number = registry.add("clicks-value", json.dumps(click), references=[("Place", "place", 1)])
    options = pinned(FormatOptions("avro", registry_url=registry.url, subject="clicks-value"))
    value = written(record(("where", place), ("maybe", ["null", "Place"])),
                    {"where": {"city": "Rome"}, "maybe": None})  # fmt: skip
    decoded = value_format(options).decode(pa.array([framed(number, value)]))
    assert decoded.values.to_pylist() == [{"where": {"city": "Rome"}, "maybe": None}]


def test_a_hostile_writer_schema_is_its_records_fault(registry: RegistryServer) -> None:
    registry.add("clicks-value", json.dumps(NEW))
    endless = record(("id", "long"), ("a", {"type": "array", "items": "null"}))
    number = registry.add("x", json.dumps(endless))
    options = pinned(FormatOptions("avro", registry_url=registry.url, subject="clicks-value"))
    decoded = value_format(options).decode(pa.array([framed(number, b"\2" + b"\xfe" * 9 + b"\1")]))
    assert decoded.bad.tolist() == [True]
    assert "take no bytes" in decoded.causes[0]


def test_a_registry_that_is_gone_is_nobodys_record(registry: RegistryServer) -> None:
    number = registry.add("clicks-value", json.dumps(NEW))
    registry.failing = 10_000
    it = value_format(FormatOptions("avro", json.dumps(NEW), registry_url=registry.url))
    with pytest.raises(RegistryError, match="HTTP 503"):
        it.decode(pa.array([framed(number, b"\0")]))


def test_encoding_puts_the_schemas_id_before_it(registry: RegistryServer) -> None:
    registry.add("other", '"int"')
    number = registry.add("clicks-value", json.dumps(NEW))
    options = FormatOptions(
        "avro", json.dumps(NEW), registry_url=registry.url, subject="clicks-value"
    )
    for each in (
        options,
        pinned(FormatOptions("avro", None, registry.url, subject="clicks-value")),
    ):
        it = value_format(each)
        values = it.encode(pa.array([{"id": 5, "note": None}, None], it.schema()))
        assert values.to_pylist() == [framed(number, written(NEW, {"id": 5, "note": None})), None]


def test_a_registry_with_another_kind_of_schema(registry: RegistryServer) -> None:
    registry.add("clicks-value", "{}", "JSON")
    with pytest.raises(FormatError, match="is JSON, but valueFormat is avro"):
        pinned(FormatOptions("avro", registry_url=registry.url, subject="clicks-value"))


def test_depth_is_limited() -> None:
    kind: Any = "int"
    for _ in range(10):
        kind = {"type": "array", "items": kind}
    limits = Limits(depth_max=5)
    with pytest.raises(FormatError, match="deeper than 5"):
        value_format(FormatOptions("avro", json.dumps(record(("a", kind))), limits=limits))


def test_bytes_left_over_are_bad_where_fastavro_reads() -> None:
    schema = record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}))
    value = written(schema, {"a": Decimal("1.5")})
    rows, bad = decoded_rows(schema, value, value + b"\0", value[:1])
    assert rows == [{"a": Decimal("1.5")}, None, None]
    assert bad == [False, True, True]
