"""Avro schemas as Arrow types, and as what fastavro is to read them with.

Instants and days are read as the numbers they are on the wire and become instants as whole columns,
so the schemas that fastavro sees have no logical types but decimals. What columns cannot hold is
refused by name: a type that contains itself, a union of several types. What would let a short value
cost without limit, an array of nothing, is refused as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa

from tidemill.spark.formats.ddl import DECIMAL_DIGITS_MAX, TIMESTAMP, TIMESTAMP_NTZ, list_of
from tidemill.spark.formats.model import FieldBudget, FormatError, Limits

Schema = Any
"""fastavro's: a name, a mapping, or a list for a union."""

SCALARS: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# The column's type, and the one that its numbers have before.
LOGICAL: Mapping[tuple[str, str], tuple[pa.DataType, pa.DataType]] = {
    ("int", "date"): (pa.date32(), pa.int32()),
    ("long", "timestamp-millis"): (TIMESTAMP, pa.timestamp("ms")),
    ("long", "timestamp-micros"): (TIMESTAMP, pa.timestamp("us")),
    ("long", "timestamp-nanos"): (TIMESTAMP, pa.timestamp("ns")),
    ("long", "local-timestamp-millis"): (TIMESTAMP_NTZ, pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (TIMESTAMP_NTZ, pa.timestamp("us")),
    ("long", "local-timestamp-nanos"): (TIMESTAMP_NTZ, pa.timestamp("ns")),
}
# A union of these is the wider one: fastavro's values of both are the same.
WIDENED: Mapping[frozenset[str], str] = {
    frozenset({"int", "long"}): "long",
    frozenset({"float", "double"}): "double",
}
RECORDS = ("record", "error")


def parse_avro(text: str, named: Sequence[str] = ()) -> dict[str, Any]:
    """A record's schema that fastavro knows to be right; `named` are those it is built on."""
    names: dict[str, Any] = {}
    try:
        for other in named:
            fastavro.parse_schema(json.loads(other), names)
        parsed = fastavro.parse_schema(json.loads(text), names)
    except json.JSONDecodeError as error:
        raise FormatError(f"the Avro schema is no JSON: {error}") from error
    except RecursionError as error:
        raise FormatError("the Avro schema nests too deep") from error
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise FormatError(f"the Avro schema is wrong: {error!r}") from error
    if not isinstance(parsed, dict) or parsed.get("type") not in RECORDS:
        raise FormatError("the Avro schema has to be a record at its top")
    return parsed


def for_fastavro(schema: dict[str, Any]) -> Schema:
    """The schema without logical types but decimals, and with what it is built on inside it."""
    try:
        return fastavro.parse_schema(_bare(schema, schema["__named_schemas"], set()))
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise FormatError(f"the Avro schema is wrong: {error!r}") from error


def _bare(schema: Schema, names: Mapping[str, Schema], defined: set[str]) -> Schema:
    if isinstance(schema, list):
        return [_bare(each, names, defined) for each in schema]
    if isinstance(schema, str):
        # A name's first use has to define it.
        return _bare(names[schema], names, defined) if schema in names.keys() - defined else schema
    if "name" in schema:
        defined.add(schema["name"])
    kept = {
        key: value
        for key, value in schema.items()
        if not key.startswith("__") and (key != "logicalType" or value == "decimal")
    }
    for key in ("items", "values"):
        if key in kept:
            kept[key] = _bare(kept[key], names, defined)
    if "fields" in kept:
        kept["fields"] = [
            {**each, "type": _bare(each["type"], names, defined)} for each in kept["fields"]
        ]
    return kept


class AvroTypes:
    """Walks over one parsed schema."""

    def __init__(self, schema: dict[str, Any], limits: Limits) -> None:
        self._schema = schema
        self._names: Mapping[str, Schema] = schema["__named_schemas"]
        self._limits = limits
        self._sizes: dict[str, bool] = {}

    def arrow_type(self) -> pa.StructType:
        """The column's type."""
        return _Columns(self._names, self._limits, carried=False).type_of(self._schema, ())

    def carried_type(self) -> pa.StructType:
        """The same with instants and days in the units and as the numbers they were written in."""
        return _Columns(self._names, self._limits, carried=True).type_of(self._schema, ())

    def check_written(self) -> None:
        """Refuses what would let a small value cost much to read, whatever columns are wanted."""
        self._takes_bytes(self._schema, ())

    def _takes_bytes(self, schema: Schema, inside: tuple[str, ...]) -> bool:
        """Whether each value of the schema takes a byte at least."""
        if isinstance(schema, list):
            for each in schema:
                self._takes_bytes(each, inside)
            return True
        if isinstance(schema, str):
            if schema in SCALARS or schema == "null":
                return schema != "null"
            if schema not in self._sizes:
                self._sizes[schema] = self._takes_bytes(self._names[schema], inside)
            return self._sizes[schema]
        match schema["type"]:
            case "record" | "error":
                inside = _entered(schema, inside)
                sizes = [self._takes_bytes(each["type"], inside) for each in schema["fields"]]
                self._sizes[schema["name"]] = any(sizes)
                return any(sizes)
            case "array":
                if not self._takes_bytes(schema["items"], inside):
                    raise FormatError(f"an array in Avro {inside[-1]} has items that take no bytes")
            case "map":
                self._takes_bytes(schema["values"], inside)
            case "fixed":
                return bool(schema["size"] > 0)
        return bool(schema["type"] != "null")


def _entered(record: Schema, inside: tuple[str, ...]) -> tuple[str, ...]:
    name = f"record {record['name']}"
    if name in inside:
        raise FormatError(f"Avro {name} contains itself; columns cannot")
    return (*inside, name)


class _Columns:
    """A schema's columns, as they are in the end or as fastavro's numbers."""

    def __init__(self, names: Mapping[str, Schema], limits: Limits, *, carried: bool) -> None:
        self._names = names
        self._carried = carried
        self._budget = FieldBudget(limits)

    def type_of(self, schema: Schema, inside: tuple[str, ...]) -> pa.DataType:
        if isinstance(schema, list):
            return self._union(schema, inside)
        if isinstance(schema, str):
            return self._named(schema, inside)
        kind = schema["type"]
        match kind:
            case "record" | "error":
                return self._record(schema, _entered(schema, inside))
            case "array":
                return list_of(self._element(schema["items"], inside))
            case "map":
                return pa.map_(pa.string(), self._element(schema["values"], inside))
            case "enum":
                return pa.string()
            case "bytes" | "fixed" if schema.get("logicalType") == "decimal":
                return _decimal(schema)
            case "fixed":
                return pa.binary()
        logical = LOGICAL.get((kind, schema.get("logicalType")))
        return logical[self._carried] if logical else self._named(kind, inside)

    def _element(self, schema: Schema, inside: tuple[str, ...]) -> pa.DataType:
        self._budget.spend(len(inside))
        return self.type_of(schema, (*inside, "collection"))

    def _named(self, name: str, inside: tuple[str, ...]) -> pa.DataType:
        if name in SCALARS:
            return SCALARS[name]
        if name == "null":
            raise FormatError(f"a field of Avro {inside[-1]} is always null; a column has a type")
        return self.type_of(self._names[name], inside)

    def _record(self, schema: Schema, inside: tuple[str, ...]) -> pa.StructType:
        if not schema["fields"]:
            raise FormatError(f"Avro {inside[-1]} has no fields")
        for _ in schema["fields"]:
            self._budget.spend(len(inside))
        return pa.struct(
            pa.field(each["name"], self.type_of(each["type"], inside)) for each in schema["fields"]
        )

    def _union(self, schema: list[Schema], inside: tuple[str, ...]) -> pa.DataType:
        others = [each for each in schema if each != "null"]
        if len(others) == 2 and all(isinstance(each, str) for each in others):
            wider = WIDENED.get(frozenset(others))
            others = others if wider is None else [wider]
        if len(others) != 1:
            raise FormatError(
                f"a field of Avro {inside[-1]} is a union of {len(others)} types; a column has "
                "one, and may be null"
            )
        return self.type_of(others[0], inside)


def _decimal(schema: Schema) -> pa.DataType:
    precision, scale = schema.get("precision") or 0, schema.get("scale") or 0
    if not 1 <= precision <= DECIMAL_DIGITS_MAX:
        raise FormatError(
            f"an Avro decimal has {precision} digits; Spark's have 1 to {DECIMAL_DIGITS_MAX}"
        )
    return pa.decimal128(precision, scale)
