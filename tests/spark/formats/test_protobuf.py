"""Protobuf values: against protobuf's own messages, presence, maps, framing, `.proto` text."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.formats.registry_server import RegistryServer

from tidemill.spark.formats import FormatError, FormatOptions, pinned, value_format
from tidemill.spark.formats.ddl import to_ddl
from tidemill.spark.formats.descriptors import load_message
from tidemill.spark.formats.framing import Header, message_indexes, prefix_of
from tidemill.spark.formats.proto_text import parse_proto

PROTO = """
syntax = "proto3";  // the newer one
package shop;
import "google/protobuf/timestamp.proto";
option java_package = "com.shop";

/* An order, with
   everything. */
message Order {
  reserved 100, 200 to 300;
  option deprecated = false;
  int64 id = 1;
  string who = 2 [deprecated = true, (my.option) = { a: "x;}" }];
  optional int32 amount = 3;
  repeated string tags = 4;
  map<string, Line> lines = 5;
  map<int32, double> prices = 6;
  Color color = 7;
  google.protobuf.Timestamp at = 8;
  Line first = 9;
  repeated Line all = 10;
  oneof paid { string card = 11; Line with = 12; }
  uint64 large = 13;
  uint32 middle = 14;
  bytes raw = 15;
  float ratio = 16;
  bool done = 17;
  sint64 delta = 18;
  repeated Color colors = 19;
  repeated google.protobuf.Timestamp times = 20;

  message Line { string what = 1; sfixed32 count = 2; }
  enum Color { RED = 0; BLUE = 5; reserved 7; }
}
service Shop { rpc Buy (Order) returns (Order) { option x = "y"; } }
message Refund { int64 order = 1; message Reason { string text = 1; } }
"""
MOMENT = datetime.datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=datetime.UTC)
DDL = (
    "id BIGINT, who STRING, amount INT, tags ARRAY<STRING>, "
    "lines MAP<STRING, STRUCT<what: STRING, count: INT>>, prices MAP<INT, DOUBLE>, color STRING, "
    "at TIMESTAMP, first STRUCT<what: STRING, count: INT>, "
    "all ARRAY<STRUCT<what: STRING, count: INT>>, card STRING, "
    "with STRUCT<what: STRING, count: INT>, large DECIMAL(20,0), middle BIGINT, raw BINARY, "
    "ratio FLOAT, done BOOLEAN, delta BIGINT, colors ARRAY<STRING>, times ARRAY<TIMESTAMP>"
)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer().running() as running:
        yield running


def order(**fields: Any) -> bytes:
    make = load_message(FormatOptions("protobuf", PROTO)).make
    return bytes(make(**fields).SerializeToString())


def decode(*values: bytes | None, schema: str = PROTO, message: str | None = None) -> Any:
    it = value_format(FormatOptions("protobuf", schema, message=message))
    return it.decode(pa.array(values, pa.binary()))


def rows_of(decoded: Any) -> list[Any]:
    rows: list[Any] = decoded.values.to_pylist(maps_as_pydicts="strict")
    return rows


def test_the_columns_of_a_message() -> None:
    assert to_ddl(value_format(FormatOptions("protobuf", PROTO)).schema()) == DDL


def test_absent_fields_are_null_where_presence_is_known() -> None:
    (row,) = rows_of(decode(b""))
    assert row == {
        "id": 0, "who": "", "amount": None, "tags": [], "lines": {}, "prices": {},
        "color": "RED", "at": None, "first": None, "all": [], "card": None, "with": None,
        "large": Decimal(0), "middle": 0, "raw": b"", "ratio": 0.0, "done": False, "delta": 0,
        "colors": [], "times": [],
    }  # fmt: skip


def test_every_kind_of_field() -> None:
    line = {"what": "tea", "count": -2}
    value = order(
        id=-1, who="é", amount=0, tags=["a", "b"], lines={"x": line}, prices={3: 0.5}, color=5,
        at={"seconds": int(MOMENT.timestamp()), "nanos": 890_000_999}, first=line,
        all=[line, {}], card="c", large=2**64 - 1, middle=2**32 - 1, raw=b"\xff", ratio=0.5,
        done=True, delta=-(2**63), colors=[0, 5, 9], times=[{"seconds": 1}],
    )  # fmt: skip
    first, second = rows_of(decode(value, order(**{"with": {}})))
    assert first["amount"] == 0
    assert first["lines"] == {"x": line}
    assert first["prices"] == {3: 0.5}
    assert first["color"] == "BLUE"
    assert first["at"] == MOMENT
    assert first["all"] == [line, {"what": "", "count": 0}]
    assert (first["card"], first["with"]) == ("c", None)
    assert (first["large"], first["middle"]) == (Decimal(2**64 - 1), 2**32 - 1)
    assert first["colors"] == ["RED", "BLUE", "9"]
    assert first["times"] == [datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)]
    assert (second["card"], second["with"]) == (None, {"what": "", "count": 0})


def test_bad_values_and_their_neighbours() -> None:
    good = order(id=7)
    decoded = decode(good, b"\xff", None, good[:1], b'{"id":7}', b"\x12\x01\xff", good)
    assert decoded.bad.tolist() == [False, True, False, True, True, True, False]
    assert [row and row["id"] for row in rows_of(decoded)] == [7, None, None, None, None, None, 7]
    assert all("no shop.Order" in cause for cause in decoded.causes)


PROTO2 = """
message Old {
  required int32 id = 1;
  optional string name = 2 [default = "nobody"];
  optional int32 n = 3 [default = -5];
}
"""


def test_proto2_required_defaults_and_texts_that_are_no_utf8() -> None:
    decoded = decode(b"\x08\x01", b"", b"\x08\x01\x12\x01\xff", schema=PROTO2)
    assert rows_of(decoded)[0] == {"id": 1, "name": None, "n": None}
    assert decoded.bad.tolist() == [False, True, True]
    assert "required fields are not there: id" in decoded.causes[0]


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=12) | st.builds(order, id=st.integers(-9, 9), who=st.text())))
def test_like_protobuf_itself(values: list[bytes]) -> None:
    make = load_message(FormatOptions("protobuf", PROTO)).make
    decoded = decode(*values)
    for value, bad, row in zip(values, decoded.bad, rows_of(decoded), strict=True):
        try:
            message = make.FromString(value)
        except DecodeError:
            assert bad
            continue
        if not bad:  # instants beyond what columns hold are bad, too
            assert (row["id"], row["who"]) == (message.id, message.who)
            assert row["tags"] == list(message.tags)
            assert (row["amount"] is not None) == message.HasField("amount")


def test_what_is_encoded_is_decoded() -> None:
    it = value_format(FormatOptions("protobuf", PROTO))
    line = {"what": "tea", "count": 2}
    value = order(
        id=1, amount=0, tags=["a"], lines={"x": line}, prices={3: 0.5}, color=5, first=line,
        all=[line], large=2**64 - 1, colors=[0, 9], times=[{"seconds": 5, "nanos": 1_000}],
    )  # fmt: skip
    structs = it.decode(pa.array([value, None, order(**{"with": {}})])).values
    again = it.decode(it.encode(structs)).values
    assert again.equals(structs)


def test_a_descriptor_set_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "order.desc"
    files = descriptor_pb2.FileDescriptorSet(file=[parse_proto(PROTO, "order.proto")])
    path.write_bytes(files.SerializeToString())
    options = pinned(FormatOptions("protobuf", str(path), message="Refund"))
    path.unlink()
    assert to_ddl(value_format(options).schema()) == "order BIGINT"


def test_a_proto_file(tmp_path: Path) -> None:
    path = tmp_path / "order.proto"
    path.write_text(PROTO)
    for name in ("shop.Refund.Reason", "Refund.Reason"):
        options = pinned(FormatOptions("protobuf", str(path), message=name))
        assert to_ddl(value_format(options).schema()) == "text STRING"
    with pytest.raises(FormatError, match="cannot be read"):
        pinned(FormatOptions("protobuf", str(tmp_path / "no.proto")))


REFUSED = [
    ('syntax = "proto3"; message A { A a = 1; }', "A contains itself"),
    (
        'syntax = "proto3"; message A { repeated B b = 1; } message B { A a = 1; }',
        "contains itself",
    ),
    ('syntax = "proto3"; message A { }', "A has no fields"),
    ('syntax = "proto3";', "has no message"),
    ('import "other.proto"; message A { optional int32 a = 1; }', "imports other.proto"),
    ("message A { optional Nope a = 1; }", "schema is wrong"),
    ("message A { optional int32 a = 1; optional int32 b = 1; }", "schema is wrong"),
    ("message A { optional int32 = 1; }", "line 1: '=' where a name should be"),
    ("message A {\n  optional int32 a = x;\n}", "line 2: 'x' where a number should be"),
    ("message A { optional int32 a = 1;", "where a name should be"),
    ("message A { optional group G = 1 { } }", "groups are not read here"),
    ('edition = "2023";', "editions are not read here"),
    ("massage A { }", "'massage' begins no statement"),
    ("message A { optional int32 a = 1; } ?", "line 1: '?' is not protobuf"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED)
def test_schemas_that_cannot_be(schema: str, said: str) -> None:
    with pytest.raises(FormatError) as error:
        value_format(FormatOptions("protobuf", schema))
    assert said in str(error.value)


def test_a_message_that_is_not_there() -> None:
    with pytest.raises(FormatError, match="'Nope' is not in the schema, which has Order, Refund"):
        value_format(FormatOptions("protobuf", PROTO, message="Nope"))


@pytest.mark.parametrize(
    ("indexes", "data"),
    [((0,), b"\0"), ((1,), b"\2\2"), ((1, 0), b"\4\2\0"), ((2, 100), b"\4\4\xc8\1")],
)
def test_message_indexes(indexes: tuple[int, ...], data: bytes) -> None:
    assert message_indexes(data + b"rest") == (indexes, len(data))
    assert prefix_of(Header(258, indexes), with_indexes=True) == b"\0\0\0\1\2" + data


@pytest.mark.parametrize("data", [b"", b"\4\2", b"\1", b"\xff" * 9, b"\xfe\1", b"\2\1"])
def test_message_indexes_that_cannot_be(data: bytes) -> None:
    with pytest.raises(ValueError, match="message index"):
        message_indexes(data)


def framed(number: int, indexes: tuple[int, ...], value: bytes) -> bytes:
    return prefix_of(Header(number, indexes), with_indexes=True) + value


def test_values_with_a_registry(registry: RegistryServer) -> None:
    number = registry.add("orders-value", PROTO, "PROTOBUF")
    other = registry.add("x-value", '"int"')
    options = pinned(FormatOptions("protobuf", registry_url=registry.url, subject="orders-value"))
    values = [
        framed(number, (0,), order(id=1)),
        b"\0" + number.to_bytes(4, "big") + b"\2\0" + order(id=2),  # [0], spelled out
        framed(number, (1,), b"\x08\x01"),
        framed(number, (9,), b""),
        framed(99, (0,), b""),
        framed(other, (0,), b""),
        b"\0" + number.to_bytes(4, "big"),
        None,
        framed(number, (0,), b"\xff"),
    ]
    decoded = value_format(options).decode(pa.array(values, pa.binary()))
    assert decoded.bad.tolist() == [False, False, *[True] * 5, False, True]
    assert [row and row["id"] for row in rows_of(decoded)][:2] == [1, 2]
    said = " | ".join(decoded.causes)
    for cause in ("the message is shop.Refund, not shop.Order", "no message at [9]", "schema id 99",
                  "it is AVRO", "message indexes are cut off"):  # fmt: skip
        assert cause in said


def test_a_nested_message_is_written_with_its_path(registry: RegistryServer) -> None:
    number = registry.add("r-value", PROTO, "PROTOBUF")
    options = FormatOptions(
        "protobuf", None, registry.url, message="Refund.Reason", subject="r-value"
    )
    it = value_format(pinned(options))
    values = it.encode(pa.array([{"text": "late"}], it.schema()))
    assert values.to_pylist() == [framed(number, (1, 0), b"\x0a\x04late")]
    assert rows_of(it.decode(values)) == [{"text": "late"}]


def test_the_registrys_own_reading_where_ours_does_not_do(registry: RegistryServer) -> None:
    """Editions and groups are not parsed here: the registry gives the descriptor, too."""
    number = registry.add("o-value", 'edition = "2023"; message A {}', "PROTOBUF")
    file = parse_proto('syntax = "proto3"; message A { int32 n = 1; }', "whatever")
    registry.serialized[number] = file.SerializeToString()
    options = pinned(FormatOptions("protobuf", None, registry.url, subject="o-value"))
    decoded = value_format(options).decode(pa.array([framed(number, (0,), b"\x08\x05")]))
    assert rows_of(decoded) == [{"n": 5}]


def test_imports_come_from_the_registry(registry: RegistryServer) -> None:
    registry.add("line", 'syntax = "proto3"; package l; message Line { string w = 1; }', "PROTOBUF")
    text = 'syntax = "proto3"; import "line.proto"; message A { l.Line line = 1; }'
    number = registry.add("a-value", text, "PROTOBUF", [("line.proto", "line", 1)])
    options = pinned(FormatOptions("protobuf", None, registry.url, subject="a-value"))
    decoded = value_format(options).decode(
        pa.array([framed(number, (0,), b"\x0a\x03\x0a\x01x"), framed(number, (0,), b"")])
    )
    assert rows_of(decoded) == [{"line": {"w": "x"}}, {"line": None}]


WORDS = st.sampled_from(
    ["message", "enum", "oneof", "map", "optional", "repeated", "reserved", "option", "extend", "A",
     "b", "int32", "string", "=", "1", "-", "2", ";", "{", "}", "<", ">", ",", "[", "]", '"x"',
     "syntax", "import", "package", "default", "//", "/*"]
)  # fmt: skip


@settings(max_examples=200)
@given(st.lists(WORDS, max_size=20).map(" ".join) | st.text(max_size=20))
def test_any_text_is_a_schema_or_a_clear_mistake(text: str) -> None:
    try:
        it = value_format(FormatOptions("protobuf", text))
    except FormatError:
        return
    assert it.schema().num_fields
