"""Columns from protobuf messages and back: one walk over a message's fields, none over rows.

Which type a field becomes is in `_field_type`; the rules are those of docs/spark-formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from tidemill.spark.formats.ddl import TIMESTAMP, list_of
from tidemill.spark.formats.descriptors import MessageType
from tidemill.spark.formats.model import FieldBudget, FormatError, Limits, UnreadableError
from tidemill.spark.formats.sift import Complaint

INSTANT = "google.protobuf.Timestamp"
UINT64 = pa.decimal128(20, 0)
SCALARS: Mapping[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: UINT64,
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


def message_type(descriptor: Any, limits: Limits) -> pa.StructType:
    """The struct of a message's fields."""
    return _struct_type(descriptor, (), FieldBudget(limits))


def _struct_type(descriptor: Any, inside: tuple[str, ...], budget: FieldBudget) -> pa.StructType:
    if descriptor.full_name in inside:
        raise FormatError(f"message {descriptor.full_name} contains itself; columns cannot")
    if not descriptor.fields:
        raise FormatError(f"message {descriptor.full_name} has no fields")
    inside = (*inside, descriptor.full_name)
    fields = []
    for each in descriptor.fields:
        budget.spend(len(inside))
        fields.append(pa.field(each.name, _field_type(each, inside, budget)))
    return pa.struct(fields)


def _field_type(field: Any, inside: tuple[str, ...], budget: FieldBudget) -> pa.DataType:
    if is_map(field):
        key, value = _entry(field)
        return pa.map_(_single_type(key, inside, budget), _single_type(value, inside, budget))
    single = _single_type(field, inside, budget)
    return list_of(single) if field.is_repeated else single


def _single_type(field: Any, inside: tuple[str, ...], budget: FieldBudget) -> pa.DataType:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == INSTANT:
            return TIMESTAMP
        return _struct_type(field.message_type, inside, budget)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    return SCALARS[field.cpp_type]


def is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _entry(field: Any) -> tuple[Any, Any]:
    names = field.message_type.fields_by_name
    return names["key"], names["value"]


class MessageReader:
    """Values of one message as columns."""

    def __init__(self, message: MessageType, kind: pa.StructType) -> None:
        self._message = message
        self._type = kind

    def read(self, values: pa.BinaryArray) -> pa.StructArray:
        try:
            messages = list(map(self._message.make.FromString, values.to_pylist()))
            for each in messages:
                if not each.IsInitialized():
                    raise ValueError(_lacks(each))
            return struct_column(messages, self._message.descriptor, self._type)
        except (DecodeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise UnreadableError(self._cause(error)) from error

    def complaint(self, value: bytes) -> Complaint | None:
        try:
            message = self._message.make.FromString(value)
        except (DecodeError, ValueError) as error:
            return Complaint(self._cause(error))
        if message.IsInitialized():
            return None
        return Complaint(self._cause(ValueError(_lacks(message))))

    def _cause(self, error: BaseException) -> str:
        return f"no {self._message.descriptor.full_name}: {error}"


def _lacks(message: Any) -> str:
    return f"required fields are not there: {', '.join(message.FindInitializationErrors())}"


def struct_column(
    messages: Sequence[Any],
    descriptor: Any,
    kind: pa.StructType,
    absent: Sequence[bool] | None = None,
) -> pa.StructArray:
    """Messages as structs; `absent` says which are only there to fill a place."""
    columns = [_column(messages, each, kind.field(each.name).type) for each in descriptor.fields]
    mask = pa.array(absent, pa.bool_()) if absent is not None and any(absent) else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _column(messages: Sequence[Any], field: Any, kind: pa.DataType) -> pa.Array:
    taken = list(map(attrgetter(field.name), messages))
    if is_map(field):
        key, value = _entry(field)
        keys = _leaves(list(chain.from_iterable(taken)), key, kind.key_type)
        items = list(chain.from_iterable(each.values() for each in taken))
        return pa.MapArray.from_arrays(_ends(taken), keys, _values(items, value, kind.item_type))
    if field.is_repeated:
        elements = _values(list(chain.from_iterable(taken)), field, kind.value_type)
        return pa.ListArray.from_arrays(_ends(taken), elements, type=kind)
    absent = None
    if field.has_presence:
        name = field.name
        absent = [not each.HasField(name) for each in messages]
    return _values(taken, field, kind, absent)


def _ends(lists: Sequence[Any]) -> pa.Array:
    return pa.array([0, *accumulate(map(len, lists))], pa.int32())


def _values(
    values: list[Any], field: Any, kind: pa.DataType, absent: Sequence[bool] | None = None
) -> pa.Array:
    if pa.types.is_struct(kind):
        return struct_column(values, field.message_type, kind, absent)
    return _leaves(values, field, kind, absent)


def _leaves(
    values: list[Any], field: Any, kind: pa.DataType, absent: Sequence[bool] | None = None
) -> pa.Array:
    mask = np.array(absent, dtype=bool) if absent is not None else None
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        micros = [each.seconds * 1_000_000 + each.nanos // 1_000 for each in values]
        return pa.array(micros, pa.int64(), mask=mask).view(pa.timestamp("us")).cast(kind)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        # An open enum may have numbers that this schema has no name for.
        return pa.array([names.get(each) or str(each) for each in values], kind, mask=mask)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return pa.array(values, pa.uint64(), mask=mask).cast(kind)
    return pa.array(values, kind, mask=mask)


def fill_message(message: Any, row: Mapping[str, Any]) -> None:
    """Sets a message's fields from a struct's; null leaves a field out."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in row.items():
        field = fields.get(name)
        if field is None:
            raise ValueError(f"there is no field {name} in {message.DESCRIPTOR.full_name}")
        if value is None:
            continue
        if is_map(field):
            _fill_map(getattr(message, name), field, value)
        elif field.is_repeated:
            _fill_list(getattr(message, name), field, value)
        elif field.message_type is not None:
            _fill_single(getattr(message, name), field, value)
        else:
            setattr(message, name, _plain(value, field))


def _fill_single(message: Any, field: Any, value: Any) -> None:
    message.SetInParent()
    if field.message_type.full_name == INSTANT:
        message.FromDatetime(value)
    else:
        fill_message(message, value)


def _fill_list(listed: Any, field: Any, values: Sequence[Any]) -> None:
    if field.message_type is None:
        listed.extend(_plain(each, field) for each in values)
        return
    for each in values:
        _fill_single(listed.add(), field, each)


def _fill_map(mapping: Any, field: Any, values: Mapping[Any, Any]) -> None:
    key, value = _entry(field)
    for name, each in values.items():
        if value.message_type is None:
            mapping[_plain(name, key)] = _plain(each, value)
        else:
            _fill_single(mapping[_plain(name, key)], value, each)


def _plain(value: Any, field: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return int(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_name.get(value)
        return known.number if known is not None else int(value)
    return value
