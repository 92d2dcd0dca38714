"""The columns of a topic: Spark's schema of them, and the check of a schema that a user gave.

The schema is that of Spark's own Kafka source, so that a query needs no change. With
`valueFormat` the value is a struct, and unless there is a dead-letter topic a last column has the
bytes of those values that could not be decoded. A user's schema may leave columns out: what nobody
wants is not made.
"""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemill.config.suggest import nearest
from tidemill.spark.decoding import CORRUPT
from tidemill.spark.formats import value_format
from tidemill.spark.options import ColumnOptions, OptionError
from tidemill.spark.reading import HEADERS

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMNS = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}


def spark_schema(options: ColumnOptions) -> StructType:
    """All columns that a query with these options may have."""
    columns = dict(_COLUMNS)
    if options.include_headers:
        columns[HEADERS] = ArrayType(_HEADER)
    if options.value is not None:
        columns["value"] = from_arrow_type(value_format(options.value).schema())
        if options.dead_letter_topic is None:
            columns[CORRUPT] = BinaryType()
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(given: StructType, options: ColumnOptions) -> None:
    """A user's own schema names some of the columns, with the types that they have."""
    known = {field.name: field.dataType for field in spark_schema(options).fields}
    for field in given.fields:
        kind = known.get(field.name)
        if kind is None:
            raise OptionError("schema", field.name, _no_such_column(field.name, known))
        if kind != field.dataType:
            advice = f"column `{field.name}` is {kind.simpleString()}; cast it in the query"
            raise OptionError("schema", field.dataType.simpleString(), advice)


def _no_such_column(name: str, known: dict[str, object]) -> str:
    if name == HEADERS:
        return "there are headers with the option `includeHeaders` = true"
    found = nearest(name, known)
    advice = f"; did you mean `{found}`?" if found else ""
    return f"the columns of a topic are {', '.join(known)}{advice}"
