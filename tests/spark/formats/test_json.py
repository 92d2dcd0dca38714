"""JSON values: which are taken, which are bad, and that neighbours do not matter."""

from __future__ import annotations

import base64
import datetime
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.formats.strategies import struct_types, values_of

from tidemill.spark.formats import Decoded, FormatError, FormatOptions, Limits, value_format
from tidemill.spark.formats.arrays import contains
from tidemill.spark.formats.ddl import parse_ddl, to_ddl
from tidemill.spark.formats.json import ArrowReader
from tidemill.spark.formats.model import UnreadableError

UTC = datetime.UTC
BAD = object()
MOMENT = datetime.datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC)
MIDNIGHT = datetime.datetime(2026, 3, 4, tzinfo=UTC)


def decode(ddl: str, *values: bytes | None, limits: Limits | None = None) -> Decoded:
    options = FormatOptions("json", ddl, limits=limits or Limits())
    return value_format(options).decode(pa.array(values, pa.binary()))


def outcomes(decoded: Decoded) -> list[Any]:
    """Each row's struct, None, or BAD."""
    rows = decoded.values.to_pylist(maps_as_pydicts="strict")
    return [BAD if bad else row for bad, row in zip(decoded.bad, rows, strict=True)]


RULES: list[tuple[str, str, Any]] = [
    # Numbers: as JSON writes them, and not as texts.
    ("INT", "1", 1),
    ("INT", "-0", 0),
    ("INT", '"1"', BAD),
    ("INT", "1.0", BAD),
    ("INT", "1e3", BAD),
    ("INT", "true", BAD),
    ("INT", "2147483648", BAD),
    ("BIGINT", "9223372036854775807", 2**63 - 1),
    ("BIGINT", "9223372036854775808", BAD),
    ("TINYINT", "128", BAD),
    ("DOUBLE", "1", 1.0),
    ("DOUBLE", "1e3", 1000.0),
    ("DOUBLE", "12345678901234567890123", 12345678901234567890123.0),
    ("DOUBLE", '"1.5"', BAD),
    ("DOUBLE", "Infinity", math.inf),
    ("DOUBLE", "-Infinity", -math.inf),
    ("DOUBLE", "1e400", BAD),
    ("FLOAT", "1e40", math.inf),
    ("DECIMAL(10,2)", "1.25", Decimal("1.25")),
    ("DECIMAL(10,2)", '"1.25"', Decimal("1.25")),
    ("DECIMAL(10,2)", "3", Decimal("3.00")),
    ("DECIMAL(10,2)", "1.255", BAD),
    ("DECIMAL(4,2)", "100", BAD),
    # Texts.
    ("STRING", '"a"', "a"),
    ("STRING", '""', ""),
    ("STRING", "1", BAD),
    ("STRING", "{}", BAD),
    ("STRING", r'"\u00e9\ud83d\ude00\n"', "é\U0001f600\n"),
    ("STRING", r'"\ud800"', BAD),
    ("STRING", r'"\udc00"', BAD),
    ("STRING", r'"\u0000"', "\0"),
    ("STRING", '"a\tb"', BAD),
    ("BOOLEAN", "true", True),
    ("BOOLEAN", "1", BAD),
    ("BINARY", '"AAE="', b"\0\1"),
    ("BINARY", '"not base64!"', BAD),
    # Instants and days.
    ("TIMESTAMP", '"2026-03-04T05:06:07.890Z"', MOMENT),
    ("TIMESTAMP", '"2026-03-04 05:06:07.890"', MOMENT),
    ("TIMESTAMP", '"2026-03-04T07:06:07.890+02:00"', MOMENT),
    ("TIMESTAMP", '"2026-03-04T05:06:07.890000999Z"', MOMENT),
    ("TIMESTAMP", '"2026-03-04T07:06:07.890+0200"', MOMENT),
    ("TIMESTAMP", '"2026-03-04T07:06:07.890+02"', MOMENT),
    ("TIMESTAMP", '"2026-03-04"', MIDNIGHT),
    ("TIMESTAMP", '"2026-03-04T05:06:07.890z"', BAD),
    ("TIMESTAMP", '""', BAD),
    ("TIMESTAMP", "1772600767", BAD),
    ("TIMESTAMP", '"yesterday"', BAD),
    ("TIMESTAMP_NTZ", '"2026-03-04T05:06:07.890"', MOMENT.replace(tzinfo=None)),
    ("TIMESTAMP_NTZ", '"2026-03-04"', MIDNIGHT.replace(tzinfo=None)),
    ("TIMESTAMP_NTZ", '"2026-03-04T05:06:07.890Z"', BAD),
    ("DATE", '"2026-03-04"', MOMENT.date()),
    ("DATE", '"2026-02-30"', BAD),
    # What nests.
    ("ARRAY<INT>", "[1,null,2]", [1, None, 2]),
    ("ARRAY<INT>", "[]", []),
    ("ARRAY<INT>", "1", BAD),
    ("ARRAY<INT>", '[1,"2"]', BAD),
    ("STRUCT<x: INT, y: STRING>", '{"y":"z"}', {"x": None, "y": "z"}),
    ("STRUCT<x: INT NOT NULL>", "{}", BAD),
    ("STRUCT<x: INT NOT NULL>", "null", None),
    ("ARRAY<STRUCT<x: INT NOT NULL>>", '[{"x":1},{"x":null}]', BAD),
    ("MAP<STRING, INT>", '{"p":1,"q":null}', {"p": 1, "q": None}),
    ("MAP<STRING, INT>", '{"p":"1"}', BAD),
    ("MAP<STRING, TIMESTAMP>", '{"p":"2026-03-04T05:06:07.89Z"}', {"p": MOMENT}),
]


@pytest.mark.parametrize(("kind", "text", "expected"), RULES)
def test_a_field(kind: str, text: str, expected: Any) -> None:
    """The table of docs/spark-formats.md: alone and between good neighbours it is the same."""
    value = f'{{"f":{text}}}'.encode()
    wanted = BAD if expected is BAD else {"f": expected}
    assert outcomes(decode(f"f {kind}", value)) == [wanted]
    between = decode(f"f {kind}", b'{"f":null}', value, b"{}", None)
    assert outcomes(between) == [{"f": None}, wanted, {"f": None}, None]


OTHERWISE_BESIDE_A_MAP: dict[tuple[str, str], Any] = {
    ("DOUBLE", "Infinity"): BAD,
    ("DOUBLE", "-Infinity"): BAD,
}

VALUES: list[tuple[bytes | None, Any]] = [
    (None, None),
    (b"", BAD),
    (b" ", BAD),
    (b"null", BAD),
    (b"1", BAD),
    (b'["a"]', BAD),
    (b"{}", {"a": None}),
    (b' {"a":1}\r\n', {"a": 1}),
    (b'{\n "a": 1\n}', {"a": 1}),
    (b'{"a":1,"b":{"a":[NaN,{}]}}', {"a": 1}),
    (b'{"b":1,"b":2}', {"a": None}),
    (b'{"a":1,"a":2}', BAD),
    (b'{"A":1}', {"a": None}),
    (b'{"a":1}{"a":2}', BAD),
    (b'{"a":1} {"a":2}', BAD),
    (b'{"a":1}null{"a":2}', BAD),
    (b"{}[null]{}", BAD),
    (b'{"a":1}null{"a":2}', BAD),
    (b"{}[null]{}", BAD),
    (b'{"a":1}\n{"a":2}', BAD),
    (b'{"a":1}\0', BAD),
    (b'{"a":1}\0}', BAD),
    (b'{"a":1}{"a":2}\0}', BAD),
    (b'{"a":1,}', BAD),
    (b"{'a':1}", BAD),
    (b'{"a":1 /* one */}', BAD),
    (b'{"a":1', BAD),
    (b'{"a":', BAD),
    (b"1}", BAD),
    (b'\xef\xbb\xbf{"a":1}', BAD),
    (b'{"b":"\xff"}', BAD),
    (b'{"b":"\n"}', BAD),
    (b'{"b":"\\x"}', BAD),
    (b'{"b":' + b"[" * 50_000 + b"]" * 50_000 + b"}", {"a": None}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_a_value(value: bytes | None, expected: Any) -> None:
    assert outcomes(decode("a INT", value)) == [expected]
    assert outcomes(decode("a INT", b'{"a":7}', value, b'{"a":8}')) == [
        {"a": 7},
        expected,
        {"a": 8},
    ]


def test_all_of_them_together() -> None:
    """Nothing of a bad value ends up in another's row, however bad values complete each other."""
    values = [value for value, _ in VALUES] * 3
    assert outcomes(decode("a INT", *values)) == [expected for _, expected in VALUES] * 3


def test_causes_come_in_order_and_name_the_field() -> None:
    decoded = decode("a INT", b'{"a":"x"}', b"{}", b"{", b"[]")
    assert len(decoded.causes) == decoded.bad.sum() == 3
    assert "$.a" in decoded.causes[0]
    assert "truncated" in decoded.causes[1]


def test_limits_on_a_record_and_a_piece() -> None:
    long = b'{"a":"' + b"x" * 100 + b'"}'
    decoded = decode("a STRING", b'{"a":"x"}', long, limits=Limits(record_bytes_max=50))
    assert outcomes(decoded) == [{"a": "x"}, BAD]
    assert "more than the 50 of one record" in decoded.causes[0]
    small = Limits(piece_rows_max=3, piece_bytes_max=20)
    rows = [f'{{"a":"{number}"}}'.encode() for number in range(50)]
    assert outcomes(decode("a STRING", *rows, limits=small)) == [json.loads(row) for row in rows]


def test_no_rows_and_nothing_but_nulls() -> None:
    assert outcomes(decode("a INT")) == []
    assert outcomes(decode("a INT", None, None)) == [None, None]


def test_a_slice_of_a_larger_array() -> None:
    values = pa.array([b"\0\xff", b'{"a":1}', b'{"a":2}', b"x"], pa.binary())[1:3]
    decoded = value_format(FormatOptions("json", "a INT")).decode(values)
    assert outcomes(decoded) == [{"a": 1}, {"a": 2}]


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
ASCII_NAMES = st.text(st.characters(codec="ascii"), min_size=1, max_size=6)
EXTRA = st.dictionaries(
    st.just("no such column"), st.none() | st.integers() | st.text(), max_size=1
)


def as_json(value: Any, kind: pa.DataType) -> Any:
    """The value as a producer would say it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: as_json(value[each.name], each.type) for each in kind}
    if pa.types.is_map(kind):
        return {name: as_json(item, kind.item_type) for name, item in value.items()}
    if pa.types.is_list(kind):
        return [as_json(each, kind.value_type) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value


@st.composite
def typed_rows(draw: st.DrawFn) -> tuple[pa.StructType, list[Any], list[bytes | None]]:
    maps = draw(st.booleans())
    kind = draw(struct_types(maps=maps, names=ASCII_NAMES if maps else NAMES))
    rows = draw(st.lists(values_of(kind), max_size=5))
    escaped = draw(st.booleans())
    texts = [
        None
        if row is None
        else json.dumps(
            {**as_json(row, kind), **draw(EXTRA)},
            ensure_ascii=escaped,
            indent=draw(st.sampled_from([None, 2])),
        ).encode()
        for row in rows
    ]
    return kind, rows, texts


@settings(max_examples=40)
@given(typed_rows())
def test_whatever_json_writes_is_read(
    case: tuple[pa.StructType, list[Any], list[bytes | None]],
) -> None:
    kind, rows, texts = case
    decoded = decode(to_ddl(kind), *texts)
    assert not decoded.bad.any(), decoded.causes
    assert decoded.values.to_pylist(maps_as_pydicts="strict") == rows


NEAR_JSON = st.lists(
    st.sampled_from(
        [b"{", b"}", b'"a":', b"1", b"2.5", b'"x"', b",", b"\n", b" ", b"[", b"]", b"null", b"NaN",
         b'{"a":1}', b"\0", b'"b":', b"\\", b'"', b"\xff", b"\xc3\xa9", b'{"a":1,"b":[{"a":2}]}']
    ),
    max_size=6,
).map(b"".join)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.none() | NEAR_JSON, max_size=8))
def test_neighbours_do_not_matter_and_what_is_taken_is_json(values: list[bytes | None]) -> None:
    together = outcomes(decode("a BIGINT, b STRING", *values))
    assert together == [outcomes(decode("a BIGINT, b STRING", value))[0] for value in values]
    for value, outcome in zip(values, together, strict=True):
        if value is not None and outcome is not BAD:
            assert outcome == {"a": None, "b": None, **json.loads(value)}


@settings(max_examples=40)
@given(typed_rows())
def test_what_is_encoded_is_decoded(
    case: tuple[pa.StructType, list[Any], list[bytes | None]],
) -> None:
    kind, _, texts = case
    it = value_format(FormatOptions("json", to_ddl(kind)))
    structs = it.decode(pa.array(texts, pa.binary())).values
    again = it.decode(it.encode(structs))
    assert not again.bad.any(), again.causes
    assert again.values.equals(structs)


JSON_SCHEMA = {
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "kind": {"enum": ["a", "b"]},
        "scores": {"type": "array", "items": {"type": "number"}},
        "where": {"$ref": "#/$defs/place"},
        "maybe": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
        "tags": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def test_json_schema() -> None:
    it = value_format(FormatOptions("json", json.dumps(JSON_SCHEMA)))
    assert to_ddl(it.schema()) == (
        "id BIGINT, note STRING, at TIMESTAMP, raw BINARY, kind STRING, scores ARRAY<DOUBLE>, "
        "where STRUCT<city: STRING>, maybe STRUCT<city: STRING>, tags MAP<STRING, BOOLEAN>"
    )
    decoded = it.decode(pa.array([b'{"id":1,"note":null}', b'{"note":"x"}'], pa.binary()))
    assert decoded.bad.tolist() == [False, True]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"type":"object","properties":{"a":{"$ref":"#"}}}', "not in itself"),
        ('{"properties":{"a":{"$ref":"#/properties/a"}}}', "contains itself"),
        ('{"properties":{"a":{"type":["string","integer"]}}}', "can be of 2 types"),
        ('{"type":"array","items":{"type":"string"}}', "an object with properties"),
        ('{"type":"object"}', "has no properties"),
        ('{"properties":{"a":true}}', "where a type should be"),
        ('{"properties":{"a":{}}}', "no column's type at a"),
        ("é INT, m MAP<STRING, INT>", "ASCII names only"),
        ("{", "no JSON"),
        ("", "a field's name"),
    ],
)
def test_schemas_that_cannot_be(schema: str, said: str) -> None:
    with pytest.raises(FormatError) as error:
        value_format(FormatOptions("json", schema))
    assert said in str(error.value)


def test_a_schema_as_spark_writes_it() -> None:
    schema = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": "long", "nullable": False, "metadata": {}},
            {"name": "b", "type": {"type": "array", "elementType": "decimal(5,2)"}},
            {"name": "c", "type": {"type": "map", "keyType": "string", "valueType": "date"}},
        ],
    }
    it = value_format(FormatOptions("json", json.dumps(schema)))
    assert it.schema().field("c").type == pa.map_(pa.string(), pa.date32())
    decoded = it.decode(pa.array([b'{"a":1,"b":[1.5]}', b"{}"], pa.binary()))
    assert decoded.bad.tolist() == [False, True]


@given(st.lists(NEAR_JSON, max_size=8))
def test_a_complaint_that_is_certain_is_right(values: list[bytes]) -> None:
    """Such values are not tried alone: the reader would have refused each of them."""
    reader = ArrowReader(parse_ddl("a BIGINT, b STRING NOT NULL"))
    for value in values:
        complaint = reader.complaint(value)
        if complaint is not None and complaint.certain:
            with pytest.raises(UnreadableError):
                reader.read(pa.array([value], pa.binary()))


@pytest.mark.parametrize(("kind", "text", "expected"), RULES)
def test_complaints_about_the_table(kind: str, text: str, expected: Any) -> None:
    declared = parse_ddl(f"f {kind}")
    if contains(declared, pa.types.is_map):
        return
    complaint = ArrowReader(declared).complaint(f'{{"f":{text}}}'.encode())
    assert complaint is None or not complaint.certain or expected is BAD


@pytest.mark.parametrize(("kind", "text", "expected"), RULES)
def test_the_table_beside_a_map(kind: str, text: str, expected: Any) -> None:
    """msgspec's reader keeps to the same rules, but for those that the document names."""
    if (kind, text) in OTHERWISE_BESIDE_A_MAP:
        expected = OTHERWISE_BESIDE_A_MAP[kind, text]
    value = f'{{"f":{text}, "m": {{"k": 1}}}}'.encode()
    wanted = BAD if expected is BAD else {"f": expected, "m": {"k": 1}}
    assert outcomes(decode(f"f {kind}, m MAP<STRING, INT>", value)) == [wanted]


@pytest.mark.parametrize(
    ("value", "said"),
    [(b'{"a":1}\0}', "zero byte"), (b"null", "not a JSON object"), (b"{}{}", "more than one")],
)
def test_what_arrow_is_never_given_or_never_believed(value: bytes, said: str) -> None:
    with pytest.raises(UnreadableError, match=said):
        ArrowReader(parse_ddl("a BIGINT")).read(pa.array([value], pa.binary()))
