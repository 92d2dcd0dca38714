"""Quarantined records: as they came, with why and whence in their headers."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from tidemill.spark.formats import dead_letters
from tidemill.spark.pipeline.conditions import is_true, unless_tombstone
from tidemill.spark.pipeline.decoding import FAILED, cause
from tidemill.spark.pipeline.model import HEADERS, METADATA, Pipeline, Source, Stage


def letters_of_decoding(pipeline: Pipeline, source: Source, decoded: DataFrame) -> DataFrame:
    """The records of a source whose values could not be decoded."""
    topic = source.decode.dead_letters or pipeline.dead_letter_topic
    said = {
        dead_letters.STAGE: sql.lit(f"source.{source.name}"),
        dead_letters.ERROR: sql.lit(cause(source.decode)),
    }
    return _records(pipeline, decoded.where(sql.col(FAILED)), sql.lit(topic), said)


def letters_of_expectations(pipeline: Pipeline, stage: Stage, before: DataFrame) -> DataFrame:
    """The rows whose first expectation that is not met quarantines them."""
    first: Column | None = None
    for number, expectation in enumerate(stage.expect):
        unmet = ~is_true(sql.expr(expectation.that))
        first = sql.when(unmet, number) if first is None else first.when(unmet, number)
    assert first is not None
    marked = before.withColumn(FAILED, first)
    chosen = [
        number
        for number, expectation in enumerate(stage.expect)
        if expectation.on_failure == "quarantine"
    ]
    topics = {
        number: stage.expect[number].dead_letters or pipeline.dead_letter_topic for number in chosen
    }
    errors = {
        number: f"{stage.expect[number].name}: {stage.expect[number].that}" for number in chosen
    }
    said = {
        dead_letters.STAGE: sql.lit(f"stage.{stage.name}"),
        dead_letters.ERROR: _by_number(errors),
    }
    failed = marked.where(sql.col(FAILED).isin(chosen))
    return _records(pipeline, failed, _by_number(topics), said)


def _by_number(texts: Mapping[int, str]) -> Column:
    column: Column | None = None
    for number, text in texts.items():
        holds = sql.col(FAILED) == number
        column = sql.when(holds, text) if column is None else column.when(holds, text)
    assert column is not None
    return column


def _records(
    pipeline: Pipeline, frame: DataFrame, topic: Column, said: Mapping[str, Column]
) -> DataFrame:
    """Dead letters as records: the original key and value, its headers, and ours after them."""
    own = [name for name in frame.columns if name not in (*METADATA, HEADERS, FAILED)]
    as_json = sql.to_json(sql.struct(*[f"`{name}`" for name in own])).cast("binary")
    as_json = unless_tombstone(as_json, frame)
    # After an aggregate there is no record any more, and of Avro and Protobuf no bytes: the row
    # itself is kept then.
    has_bytes = "_value" in frame.columns
    value = sql.coalesce(sql.col("_value"), as_json) if has_bytes else as_json
    columns = [topic.alias("topic"), value.alias("value")]
    if "_key" in frame.columns:
        columns.append(sql.col("_key").cast("binary").alias("key"))
    headers = _headers(frame, {dead_letters.PIPELINE: sql.lit(pipeline.name), **said})
    return frame.select(*columns, headers.alias("headers"))


def _headers(frame: DataFrame, said: Mapping[str, Column]) -> Column:
    whence = {
        dead_letters.TOPIC: "_topic",
        dead_letters.PARTITION: "_partition",
        dead_letters.OFFSET: "_offset",
    }
    known = {name: sql.col(column) for name, column in whence.items() if column in frame.columns}
    if "_timestamp" in frame.columns:
        known[dead_letters.TIMESTAMP] = sql.unix_millis(sql.col("_timestamp"))
    ours = sql.array(*[_header(name, text) for name, text in {**known, **said}.items()])
    if HEADERS not in frame.columns:
        return ours
    return sql.concat(sql.coalesce(sql.col(HEADERS), sql.slice(ours, 1, 0)), ours)


def _header(name: str, text: Column) -> Column:
    value = text.cast("string").cast("binary")
    return sql.struct(sql.lit(name).alias("key"), value.alias("value"))
