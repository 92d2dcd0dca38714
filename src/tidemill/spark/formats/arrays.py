"""Rows to columns and columns to other columns: what the formats do with Arrow, in one place.

Everything here walks over a type, not over rows: a nested list is flattened once and handled as one
long column, so the work in Python is per column and Arrow's own loops do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.spark.formats.model import FormatError, Limits

Leaf = Callable[[pa.Array, pa.DataType], pa.Array]
"""Turns a column without children into one of another type."""


def column_of(rows: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column from plain values: mappings for structs, sequences for lists, mappings for maps."""
    if pa.types.is_struct(kind):
        return _struct_column(rows, kind)
    if pa.types.is_map(kind):
        offsets, filled = _offsets(rows)
        keys = column_of(list(chain.from_iterable(filled)), kind.key_type)
        items = column_of(
            list(chain.from_iterable(each.values() for each in filled)), kind.item_type
        )
        entries = pa.MapArray.from_arrays(offsets, keys, items)
        return _with_nulls(entries, rows).cast(kind)
    if pa.types.is_list(kind):
        offsets, filled = _offsets(rows)
        elements = column_of(list(chain.from_iterable(filled)), kind.value_type)
        return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=_null_mask(rows))
    return pa.array(rows, kind)


def _struct_column(rows: Sequence[Mapping[str, Any] | None], kind: pa.StructType) -> pa.StructArray:
    nothing: Mapping[str, Any] = {}
    filled = [nothing if row is None else row for row in rows]
    columns = [column_of([row.get(each.name) for row in filled], each.type) for each in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=_null_mask(rows))


def _offsets(rows: Sequence[Any]) -> tuple[pa.Array, list[Any]]:
    filled = [() if row is None else row for row in rows]
    return pa.array([0, *accumulate(map(len, filled))], pa.int32()), [row for row in filled if row]


def _null_mask(rows: Sequence[Any]) -> pa.Array | None:
    mask = [row is None for row in rows]
    return pa.array(mask, pa.bool_()) if any(mask) else None


def _with_nulls(array: pa.Array, rows: Sequence[Any]) -> pa.Array:
    """`MapArray.from_arrays` takes no mask: a null row is one that is taken from nowhere."""
    if not any(row is None for row in rows):
        return array
    places = [None if row is None else at for at, row in enumerate(rows)]
    return array.take(pa.array(places, pa.int64()))


def reshape(array: pa.Array, kind: pa.DataType, leaf: Leaf) -> pa.Array:
    """The same data as another type of the same shape, leaves converted by `leaf`."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        children = [
            reshape(child, each.type, leaf)
            for child, each in zip(array.flatten(), kind, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        keys = reshape(array.keys, kind.key_type, leaf)
        items = reshape(array.items, kind.item_type, leaf)
        return _rebuilt_map(array, keys, items).cast(kind)
    if pa.types.is_list(kind):
        elements = reshape(array.values, kind.value_type, leaf)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(_bare_offsets(array), elements, type=kind, mask=mask)
    return leaf(array, kind)


def _rebuilt_map(array: pa.MapArray, keys: pa.Array, items: pa.Array) -> pa.MapArray:
    """A map with other keys and items; `MapArray.from_arrays` takes no mask."""
    entries = pa.MapArray.from_arrays(_bare_offsets(array), keys, items)
    if not array.null_count:
        return entries
    return entries.take(pa.array(np.arange(len(array)), mask=_numpy(array.is_null())))


def _bare_offsets(array: pa.Array) -> pa.Array:
    """A list's offsets as a column of their own: only with such can a mask be given."""
    return pa.array(array.offsets.to_numpy(zero_copy_only=False), pa.int32())


def _numpy(mask: pa.BooleanArray) -> np.ndarray[Any, Any]:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)


def _same(leaf: pa.DataType) -> pa.DataType:
    return leaf


def mapped(
    kind: pa.DataType,
    leaf: Callable[[pa.DataType], pa.DataType] = _same,
    *,
    keep_required: bool = False,
) -> pa.DataType:
    """The same shape with other leaves; all of it nullable, as Spark's own sources have it, unless
    NOT NULL is to be kept."""
    if pa.types.is_struct(kind):
        return pa.struct(
            pa.field(
                each.name,
                mapped(each.type, leaf, keep_required=keep_required),
                each.nullable or not keep_required,
            )
            for each in kind
        )
    if pa.types.is_map(kind):
        return pa.map_(mapped(kind.key_type, leaf), mapped(kind.item_type, leaf))
    if pa.types.is_list(kind):
        element = mapped(kind.value_type, leaf, keep_required=keep_required)
        return pa.list_(pa.field("element", element))
    return leaf(kind)


def contains(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type or one inside it is wanted."""
    if wanted(kind):
        return True
    return any(contains(kind.field(at).type, wanted) for at in range(kind.num_fields))


def check_type(kind: pa.StructType, limits: Limits) -> pa.StructType:
    """The type itself, where it keeps to the limits."""
    if kind.num_fields == 0:
        raise FormatError("the schema has no fields")
    fields = 0
    level = [kind]
    for depth in range(limits.depth_max + 2):
        if not level:
            return kind
        if depth > limits.depth_max:
            break
        level = [each.field(at).type for each in level for at in range(each.num_fields)]
        fields += len(level)
        if fields > limits.fields_max:
            raise FormatError(f"the schema has more than {limits.fields_max} fields")
    raise FormatError(f"the schema nests deeper than {limits.depth_max}")


def missing(array: pa.Array, kind: pa.DataType, path: str = "") -> Iterator[tuple[str, pa.Array]]:
    """For each NOT NULL field of `kind` that is null somewhere: its name, and in which rows."""
    if pa.types.is_list(kind):
        found = list(missing(array.values, kind.value_type, f"{path}[]"))
        parents = pc.list_parent_indices(array) if found else None
        for name, inside in found:
            yield name, _rows_with(pc.filter(parents, inside), len(array))
    elif pa.types.is_struct(kind):
        here = array.is_valid()
        for child, each in zip(array.flatten(), kind, strict=True):
            name = f"{path}.{each.name}" if path else each.name
            if not each.nullable and child.null_count:
                absent = pc.and_(here, child.is_null())
                if absent.true_count:
                    yield name, absent
            yield from missing(child, each.type, name)


def _rows_with(rows: pa.Array, length: int) -> pa.BooleanArray:
    mask = np.zeros(length, dtype=bool)
    mask[rows.to_numpy(zero_copy_only=False)] = True
    return pa.array(mask)


def byte_ends(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where each text or byte string begins in its buffer, and after them where the last ends."""
    if not len(array):
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def bytes_of(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The buffer that `byte_ends` is about."""
    data = array.buffers()[2]
    return np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


def conform(array: pa.Array, kind: pa.DataType, path: str = "value") -> pa.Array:
    """A column to be written as the type that a schema wants: fields are found by name, those that
    are not there are null, numbers may be widened. Everything else is a FormatError."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _conforming_struct(array, kind, path)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        keys = conform(array.keys, kind.key_type, f"{path}.key")
        items = conform(array.items, kind.item_type, f"{path}.value")
        return _rebuilt_map(array, keys, items)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        elements = conform(array.values, kind.value_type, f"{path}[]")
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(_bare_offsets(array), elements, type=kind, mask=mask)
    if array.type.num_fields or kind.num_fields or _is_text(array.type) != _is_text(kind):
        raise FormatError(f"{path} is {array.type}, and the schema wants {kind}")
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise FormatError(
            f"{path} is {array.type}, and the schema wants {kind}: {error}"
        ) from error


def _conforming_struct(array: pa.StructArray, kind: pa.StructType, path: str) -> pa.StructArray:
    given = dict(zip([each.name for each in array.type], array.flatten(), strict=True))
    unknown = given.keys() - {each.name for each in kind}
    if unknown:
        raise FormatError(f"{path} has {sorted(unknown)}, which the schema does not have")
    children = [
        conform(given[each.name], each.type, f"{path}.{each.name}")
        if each.name in given
        else pa.nulls(len(array), each.type)
        for each in kind
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
