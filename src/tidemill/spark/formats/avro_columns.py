"""Columns from the bytes of Avro records by compiled kernels, many times faster than row by row.

For values that were written with the reader's own schema, unless it has decimals or unions of more
than null and a type: those, and resolution from other schemas, are left to fastavro.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.spark.formats import avro_kernels as kernels
from tidemill.spark.formats.arrays import byte_ends, bytes_of
from tidemill.spark.formats.avro_schema import Schema
from tidemill.wire.kernels import use_numba

KINDS: Mapping[str, int] = {
    "boolean": kernels.BOOLEAN,
    "int": kernels.INT,
    "long": kernels.LONG,
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "bytes": kernels.BYTES,
    "string": kernels.BYTES,
    "record": kernels.RECORD,
    "error": kernels.RECORD,
    "fixed": kernels.FIXED,
    "enum": kernels.ENUM,
    "array": kernels.ARRAY,
    "map": kernels.MAP,
}
Numbers = np.ndarray[Any, Any]
CELLS_MAX = 1 << 22
"""Fields times rows that are noted at a time: 17 bytes each."""


@cache
def compiled() -> bool:
    """Whether the kernels run compiled: numba is installed."""
    try:
        use_numba()
    except ImportError:
        return False
    return True


class CompiledAvro:
    """A schema that the kernels can read; `None` from `of` where they cannot."""

    def __init__(self, table: _Table) -> None:
        self._steps = np.array(table.steps, np.int64)
        self._levels = table.levels
        self._symbols = table.symbols

    @classmethod
    def of(cls, schema: Schema) -> CompiledAvro | None:
        table = _Table(schema.get("__named_schemas", {}))
        return cls(table) if table.add(schema, level=0) else None

    def columns(self, values: pa.BinaryArray, kind: pa.StructType) -> pa.StructArray:
        """The records as columns; ValueError where one is damaged or its texts are no UTF-8."""
        counts = self._counts(values)
        rows = counts[self._steps[:, kernels.LEVEL]]
        if rows.sum() > CELLS_MAX and len(values) > 1:
            middle = len(values) // 2
            halves = (values[:middle], values[middle:])
            return pa.concat_arrays([self.columns(half, kind) for half in halves])
        steps = self._steps.copy()
        steps[:, kernels.BASE] = np.cumsum(rows) - rows
        # One place more than needed: a single one would mean that nothing is noted.
        noted = _Noted.of(int(rows.sum()) + 1)
        self._read(values, steps, noted)
        return _Assembly(bytes_of(values), steps, rows, noted, self._symbols).column(kind)

    def _counts(self, values: pa.BinaryArray) -> Numbers:
        """How many rows each level has."""
        if self._levels == 1:
            return np.array([len(values)])
        return self._read(values, self._steps, _Noted.of(1))

    def _read(self, values: pa.BinaryArray, steps: Numbers, noted: _Noted) -> Numbers:
        counts = np.zeros(self._levels, np.int64)
        stack = np.zeros((self._levels, 2), np.int64)
        bad = kernels.read_rows(bytes_of(values), byte_ends(values), steps, stack, counts, *noted)
        if bad >= 0:
            raise ValueError("the bytes are no record of the schema")
        return counts


class _Noted(NamedTuple):
    """What the kernels write down: a place for each row of each column."""

    numbers: Numbers
    lengths: Numbers
    valid: Numbers

    @classmethod
    def of(cls, places: int) -> _Noted:
        return cls(np.zeros(places, np.int64), np.zeros(places, np.int64), np.zeros(places, bool))


class _Table:
    """The steps of a schema."""

    def __init__(self, names: Mapping[str, Schema]) -> None:
        self.steps: list[list[int]] = []
        self.levels = 1
        self.symbols: dict[int, pa.StringArray] = {}
        self._names = names

    def add(self, schema: Schema, *, level: int, null_at: int = -1) -> bool:
        """The steps of a schema and what is in it; False where kernels cannot read it."""
        if isinstance(schema, list):
            if null_at >= 0 or len(schema) != 2 or "null" not in schema:
                return False
            at = schema.index("null")
            return self.add(schema[1 - at], level=level, null_at=at)
        if isinstance(schema, str) and schema in self._names:
            return self.add(self._names[schema], level=level, null_at=null_at)
        name = schema if isinstance(schema, str) else schema["type"]
        if name not in KINDS or (isinstance(schema, dict) and "logicalType" in schema):
            return False
        number = len(self.steps)
        step = [KINDS[name], null_at, 0, 0, level, 0]
        self.steps.append(step)
        readable = self._add_inside(schema, name, step, number, level)
        step[kernels.NEXT] = len(self.steps)
        return readable

    def _add_inside(
        self, schema: Schema, name: str, step: list[int], number: int, level: int
    ) -> bool:
        match name:
            case "record" | "error":
                return all(self.add(each["type"], level=level) for each in schema["fields"])
            case "array" | "map":
                inner = step[kernels.SIZE] = self.levels
                self.levels += 1
                has_key = name == "array" or self.add("string", level=inner)
                return has_key and self.add(
                    schema["items" if name == "array" else "values"], level=inner
                )
            case "fixed":
                step[kernels.SIZE] = schema["size"]
            case "enum":
                self.symbols[number] = pa.array(schema["symbols"], pa.string())
                step[kernels.SIZE] = len(schema["symbols"])
        return True


class _Assembly:
    """Arrow arrays from what the kernels noted, step by step."""

    def __init__(
        self,
        data: Numbers,
        steps: Numbers,
        rows: Numbers,
        noted: _Noted,
        symbols: Mapping[int, pa.StringArray],
    ) -> None:
        self._data = data
        self._steps = steps
        self._rows = rows
        self._noted = noted
        self._symbols = symbols
        self._next = 0

    def column(self, kind: pa.DataType) -> pa.Array:
        """The column of the next step, and of those inside it."""
        step = self._next
        self._next += 1
        base = int(self._steps[step, kernels.BASE])
        numbers, lengths, valid = (
            each[base : base + int(self._rows[step])] for each in self._noted
        )
        mask = None if valid.all() else ~valid
        match int(self._steps[step, kernels.KIND]):
            case kernels.RECORD:
                children = [self.column(each.type) for each in kind]
                return pa.StructArray.from_arrays(children, fields=list(kind), mask=_array(mask))
            case kernels.ARRAY:
                items = self.column(kind.value_type)
                offsets = pa.array(_ends(lengths), pa.int32())
                return pa.ListArray.from_arrays(offsets, items, type=kind, mask=_array(mask))
            case kernels.MAP:
                return self._map(kind, lengths, mask)
            case kernels.BYTES | kernels.FIXED:
                return self._bytes(numbers, lengths, mask).cast(kind)
            case kernels.ENUM:
                return self._symbols[step].take(pa.array(numbers, mask=mask))
            case kernels.FLOAT:
                numbers = numbers.astype(np.uint32).view(np.float32)
            case kernels.DOUBLE:
                numbers = numbers.view(np.float64)
            case kernels.BOOLEAN:
                numbers = numbers.astype(bool)
        return pa.array(numbers, kind, mask=mask, from_pandas=False)

    def _map(self, kind: pa.DataType, lengths: Numbers, mask: Numbers | None) -> pa.MapArray:
        keys, items = self.column(kind.key_type), self.column(kind.item_type)
        _refuse_twins(keys, lengths)
        entries = pa.MapArray.from_arrays(pa.array(_ends(lengths), pa.int32()), keys, items)
        if mask is not None:
            entries = entries.take(pa.array(np.arange(len(mask)), mask=mask))
        return entries.cast(kind)

    def _bytes(self, starts: Numbers, lengths: Numbers, mask: Numbers | None) -> pa.BinaryArray:
        ends = _ends(lengths)
        out = np.empty(int(ends[-1]), np.uint8)
        kernels.copy_parts(self._data, starts, ends, out)
        validity = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
        buffers = [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _ends(lengths: Numbers) -> Numbers:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _refuse_twins(keys: pa.StringArray, lengths: Numbers) -> None:
    """Which of two values a map has for one key would be left to whoever looks for it."""
    if not len(lengths) or lengths.max() < 2:
        return
    known = keys.dictionary_encode()
    owners = np.repeat(np.arange(len(lengths)), lengths)
    pairs = owners * len(known.dictionary) + known.indices.to_numpy()
    if len(np.unique(pairs)) < len(pairs):
        raise ValueError("a map has the same key twice")


def _array(mask: Numbers | None) -> pa.Array | None:
    return None if mask is None else pa.array(mask)
