"""Spark's DDL, read and written without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.formats.strategies import struct_types

from tidemill.spark.formats import FormatError, Limits
from tidemill.spark.formats.ddl import list_of, parse_ddl, to_ddl

UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a INT", {"a": pa.int32()}),
        ("a: int, b string", {"a": pa.int32(), "b": pa.string()}),
        ("struct<a:bigint>", {"a": pa.int64()}),
        ("`a b` DOUBLE, `c``d` FLOAT", {"a b": pa.float64(), "c`d": pa.float32()}),
        ("d DECIMAL, e DECIMAL(5), f DEC(7, 2)",
         {"d": pa.decimal128(10, 0), "e": pa.decimal128(5, 0), "f": pa.decimal128(7, 2)}),
        ("t TIMESTAMP, n TIMESTAMP_NTZ, d DATE",
         {"t": UTC, "n": pa.timestamp("us"), "d": pa.date32()}),
        ("v VARCHAR(10) COMMENT 'it''s', c CHAR(3)", None),
        ("v VARCHAR(10) COMMENT 'its', c CHAR(3)", {"v": pa.string(), "c": pa.string()}),
        ("a ARRAY<STRUCT<x: INT, y: MAP<STRING, ARRAY<DATE>>>>",
         {"a": list_of(pa.struct([
             ("x", pa.int32()), ("y", pa.map_(pa.string(), list_of(pa.date32())))]))}),
        ("timestamp TIMESTAMP, date DATE", {"timestamp": UTC, "date": pa.date32()}),
    ],
)  # fmt: skip
def test_types(text: str, expected: dict[str, pa.DataType] | None) -> None:
    if expected is None:
        with pytest.raises(FormatError):
            parse_ddl(text)
    else:
        assert parse_ddl(text) == pa.struct(list(expected.items()))


def test_not_null_is_kept() -> None:
    parsed = parse_ddl("a INT NOT NULL, s STRUCT<b: INT NOT NULL COMMENT 'x', c: INT>")
    assert not parsed.field("a").nullable
    assert parsed.field("s").nullable
    assert not parsed.field("s").type.field("b").nullable


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the end at position 0, where a field's name should be"),
        ("a", "where a type should be"),
        ("a FOO", "unknown type 'FOO' at position 2"),
        ("a INT b INT", "'b' at position 6, where a comma or the end should be"),
        ("a INT,", "where a field's name should be"),
        ("a INT, a STRING", "two fields 'a'"),
        ("a ARRAY<INT", "where '>' should be"),
        ("a DECIMAL(39,0)", "at most 38 digits"),
        ("a DECIMAL(5,6)", "at most 38 digits"),
        ("a INT NOT", "NULL after NOT"),
        ("a INT COMMENT x", "a quoted text after COMMENT"),
        ("a VARIANT", "unknown type 'VARIANT'"),
        ("a ; b", "is not DDL"),
        ("a VARCHAR(x)", "where a number should be"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(FormatError) as error:
        parse_ddl(text)
    assert said in str(error.value)


def test_limits() -> None:
    with pytest.raises(FormatError, match="more than 3 fields"):
        parse_ddl("a INT, b INT, c INT, d INT", Limits(fields_max=3))
    with pytest.raises(FormatError, match="deeper than 4"):
        parse_ddl("a " + "ARRAY<" * 5 + "INT" + ">" * 5, Limits(depth_max=4))
    with pytest.raises(FormatError, match="longer than 10"):
        parse_ddl("a INT, b INT", Limits(schema_bytes_max=10))


@given(struct_types(maps=True))
def test_what_is_written_is_read_again(kind: pa.StructType) -> None:
    assert parse_ddl(to_ddl(kind)) == kind


WORDS = st.sampled_from(
    ["a", "INT", "STRUCT", "ARRAY", "MAP", "DECIMAL", "NOT", "NULL", "COMMENT", "'x'", "<", ">",
     "(", ")", ",", ":", "5", "`b`", "`", "é", ";"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=20))
def test_any_text_is_a_schema_or_a_clear_mistake(text: str) -> None:
    try:
        parsed = parse_ddl(text)
    except FormatError:
        return

    assert parsed.num_fields
