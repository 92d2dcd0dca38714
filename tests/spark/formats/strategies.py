"""Random types of columns and values of them, for the formats' property tests."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tidemill.spark.formats.ddl import TIMESTAMP, TIMESTAMP_NTZ, list_of

SCALARS = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    TIMESTAMP,
    TIMESTAMP_NTZ,
    pa.decimal128(10, 2),
    pa.decimal128(38, 0),
]
NAMES = st.text(min_size=1, max_size=6).filter(lambda name: "`" not in name or len(name) > 1)


def column_types(*, maps: bool, names: st.SearchStrategy[str]) -> st.SearchStrategy[pa.DataType]:
    def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        choices = [inner.map(list_of), _structs(inner, names)]
        if maps:
            choices.append(inner.map(lambda item: pa.map_(pa.string(), item)))
        return st.one_of(choices)

    return st.recursive(st.sampled_from(SCALARS), nested, max_leaves=5)


def _structs(
    inner: st.SearchStrategy[pa.DataType], names: st.SearchStrategy[str]
) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(names, inner, min_size=1, max_size=4)
    return fields.map(lambda each: pa.struct(list(each.items())))


def struct_types(
    *, maps: bool, names: st.SearchStrategy[str] = NAMES
) -> st.SearchStrategy[pa.DataType]:
    """Structs of up to four columns, which may nest."""
    return _structs(column_types(maps=maps, names=names), names)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Python values, None among them, that a column of the type gives back as they are."""
    return st.none() | present_values_of(kind)


def present_values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({each.name: values_of(each.type) for each in kind})
    if pa.types.is_map(kind):
        return st.dictionaries(st.text(max_size=4), values_of(kind.item_type), max_size=3)
    if pa.types.is_list(kind):
        return st.lists(values_of(kind.value_type), max_size=3)
    return _scalars(kind)


def _scalars(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        half = 1 << (kind.bit_width - 1)
        return st.integers(-half, half - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False, allow_infinity=False)
    if pa.types.is_string(kind):
        return st.text(max_size=8)
    if pa.types.is_binary(kind):
        return st.binary(max_size=8)
    if pa.types.is_date(kind):
        return st.dates()
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda digits: Decimal(digits).scaleb(-kind.scale))
    zone = datetime.UTC if kind.tz else None
    return st.datetimes().map(lambda moment: moment.replace(tzinfo=zone))
