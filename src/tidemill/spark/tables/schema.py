"""Column types as tables keep them, and which changes of columns a table goes along with.

Spark labels timestamps with the session's time zone and may use the large string types; a table
knows one form of each. New columns are added to a table; anything else about its columns that
differs is an error that names the column and the way out.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tidemill.spark.tables.target import TableError

Narrowing = Callable[[pa.DataType], pa.DataType]


def as_is(kind: pa.DataType) -> pa.DataType:
    return kind


def small_integers_wide(kind: pa.DataType) -> pa.DataType:
    """For formats whose smallest integer has 32 bits."""
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind


def plain_schema(schema: pa.Schema, leaf: Narrowing = as_is) -> pa.Schema:
    """The schema in the one form that is compared and written; every column may be null."""
    for name in schema.names:
        twins = [other for other in schema.names if other.lower() == name.lower()]
        if len(twins) > 1:
            raise TableError(
                f"columns {' and '.join(twins)} have the same name; rename one of them"
            )
    return pa.schema([pa.field(each.name, _plain_column(each, leaf)) for each in schema])


def _plain_column(column: pa.Field, leaf: Narrowing) -> pa.DataType:
    if pa.types.is_null(column.type):
        raise TableError(
            f"column {column.name} has no type; cast it, as in CAST({column.name} AS string)"
        )
    return _plain(column.type, leaf)


def _plain(kind: pa.DataType, leaf: Narrowing) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz is not None else None)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type, leaf)))
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type, leaf)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type, leaf), _plain(kind.item_type, leaf))
    return leaf(kind)


def additions(table: pa.Schema, incoming: pa.Schema) -> list[pa.Field]:
    """The columns that a table lacks, both being plain; TableError for other differences."""
    known = {name.lower(): name for name in table.names}
    found = []
    for column in incoming:
        name = known.get(column.name.lower())
        if name is None:
            found.append(column)
        elif name != column.name:
            raise TableError(
                f"column {column.name} is called {name} in the table; rename it in the query"
            )
        elif table.field(name).type != column.type:
            raise TableError(
                f"column {name} is {table.field(name).type} in the table and {column.type} in the "
                "query; cast it in the query, or write to another table"
            )
    return found


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of a schema that has its columns in the same order."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == wanted.type else column.cast(wanted.type)
        for column, wanted in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fill(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with exactly these columns: what it lacks is null, as for rows from before them."""
    columns = [
        table.column(each.name).cast(each.type)
        if each.name in table.column_names
        else pa.nulls(table.num_rows, each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)
