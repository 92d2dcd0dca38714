"""Records as rows: a value's own columns, those of the record beside them, and a mark on bad ones.

JSON is decoded by the JVM (`from_json`); Avro and Protobuf by the data source itself, which gives a
struct and, of values that it could not decode, the bytes.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from tidemill.spark.pipeline.conditions import only
from tidemill.spark.pipeline.model import HEADERS, METADATA, Decode, Source, Table

FAILED: Final = "_failed"
"""True for a record whose value could not be decoded."""

CORRUPT: Final = "_corrupt"
"""Where both Spark's JSON reader and the data source put what they could not decode."""

_PARSED: Final = "_parsed"
_IN_SOURCE: Final = ("avro", "protobuf")


def value_options(decode: Decode) -> dict[str, str]:
    """What the data source is told about values; nothing where the JVM decodes them."""
    if decode.format not in _IN_SOURCE:
        return {}
    given = {
        "valueFormat": decode.format,
        "valueSchema": decode.schema,
        "valueMessage": decode.message,
        "schema.registry.url": decode.registry,
    }
    return {name: text for name, text in given.items() if text}


def decoded(raw: DataFrame, decode: Decode) -> DataFrame:
    """Rows with the value's columns, the record's, and the mark `_failed`."""
    parsed = _with_parsed(raw, decode)
    return parsed.select(*_own(parsed, decode), *_of_record(parsed), _failure(parsed, decode))


def decodable(source: Source, frame: DataFrame) -> DataFrame:
    """The rows of `decoded` without bad ones, and without the mark."""
    return _good(frame, source.decode, f"source {source.name}").drop(FAILED)


def _good(frame: DataFrame, decode: Decode, whose: str) -> DataFrame:
    words = f"{cause(decode)} in {whose}"
    return only(frame, ~sql.col(FAILED), decode.on_failure, words)


def cause(decode: Decode) -> str:
    """Why a value is bad, in words for dead letters and failures."""
    return f"the value is no {decode.format} of the schema"


def _with_parsed(raw: DataFrame, decode: Decode) -> DataFrame:
    """The raw records with the decoded value, a struct, as one more column."""
    value = sql.col("value")
    if decode.format == "json":
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        if decode.timestamp_format:
            options["timestampFormat"] = decode.timestamp_format
        schema = f"{decode.schema}, {CORRUPT} STRING"
        return raw.withColumn(_PARSED, sql.from_json(value.cast("string"), schema, options))
    if decode.format in _IN_SOURCE:
        return raw.withColumn(_PARSED, value)
    text = value.cast("string") if decode.format == "text" else value
    return raw.withColumn(_PARSED, sql.struct(text.alias("value")))


def _own(parsed: DataFrame, decode: Decode) -> list[Column]:
    names = [name for name in parsed.schema[_PARSED].dataType.names if name != CORRUPT]
    return [sql.col(f"{_PARSED}.`{name}`").alias(name) for name in names]


def _is_tombstone(parsed: DataFrame) -> Column:
    """Whether the record came without a value; a bad one's struct is null, too, and is none."""
    is_null = sql.col("value").isNull()
    return is_null & sql.col(CORRUPT).isNull() if CORRUPT in parsed.columns else is_null


def _failure(parsed: DataFrame, decode: Decode) -> Column:
    if decode.format == "json":
        # Of an empty text Spark makes neither a struct nor a corrupt record.
        is_nothing = sql.col("value").isNotNull() & sql.col(_PARSED).isNull()
        return (is_nothing | sql.col(f"{_PARSED}.{CORRUPT}").isNotNull()).alias(FAILED)
    if decode.format in _IN_SOURCE:
        return sql.col(CORRUPT).isNotNull().alias(FAILED)
    return sql.lit(False).alias(FAILED)


def _of_record(parsed: DataFrame) -> list[Column]:
    """`_key` and the others. Text that is no UTF-8 keeps its bytes on the way back."""
    bytes_in = CORRUPT if CORRUPT in parsed.columns else "value"
    whence = {
        "_key": sql.col("key").cast("string"),
        "_value": sql.col(bytes_in),
        "_tombstone": _is_tombstone(parsed),
    }
    columns = [whence.get(name, sql.col(name.removeprefix("_"))).alias(name) for name in METADATA]
    return [*columns, sql.col("headers").alias(HEADERS)] if "headers" in parsed.columns else columns


def latest_by_key(table: Table, raw: DataFrame) -> DataFrame:
    """A compacted topic as a table: the last value of each key, none where that was a tombstone.

    A key's records are in one partition, unless the topic has been given more: then the latest of
    the partitions' last values counts.
    """
    parsed = _with_parsed(raw, table.decode)
    row = sql.struct(*_own(parsed, table.decode)).alias("row")
    gone = sql.col("value").isNull().alias("gone")
    rows = parsed.where(sql.col("key").isNotNull()).select(
        row, gone, *_of_record(parsed), _failure(parsed, table.decode)
    )
    last = sql.struct("row", "gone", sql.col("_timestamp").alias("at"))
    in_partition = (
        _good(rows, table.decode, f"table {table.name}")
        .groupBy("_key", "_partition")
        .agg(sql.max_by(last, sql.col("_offset")).alias("last"))
    )
    over_all = in_partition.groupBy("_key").agg(
        sql.max_by(sql.col("last"), sql.col("last.at")).alias("last")
    )
    key = sql.col("_key").alias(table.key)
    return over_all.where(~sql.col("last.gone")).select(key, "last.row.*")
