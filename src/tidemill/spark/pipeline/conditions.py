"""Conditions on rows: what holds, and what becomes of rows for which it does not."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from tidemill.spark.pipeline.model import Expectation, OnFailure, Stage


def is_true(condition: Column) -> Column:
    """SQL's unknown counts as false, so that a row is on exactly one side of a condition."""
    return sql.coalesce(condition.cast("boolean"), sql.lit(False))


def unless_tombstone(value: Column, frame: DataFrame) -> Column:
    """The value of a record made from a row; null for a row that came as a tombstone, and so is
    one for whoever reads it next."""
    if "_tombstone" not in frame.columns:
        return value
    return sql.when(~is_true(sql.col("_tombstone")), value)


def meeting(stage: Stage, expectation: Expectation, frame: DataFrame) -> DataFrame:
    """The rows that meet an expectation; one that does not may fail the query."""
    holds = is_true(sql.expr(expectation.that))
    words = f"expectation {expectation.name} of stage {stage.name} is not met ({expectation.that})"
    return only(frame, holds, expectation.on_failure, words)


def only(frame: DataFrame, holds: Column, on_failure: OnFailure, words: str) -> DataFrame:
    """The rows for which it holds; with `fail`, any other ends the query with these words."""
    if on_failure != "fail":
        return frame.where(holds)
    refusal = sql.raise_error(sql.concat(sql.lit(words), _whereabouts(frame))).cast("boolean")
    return frame.where(sql.when(holds, sql.lit(True)).otherwise(refusal))


def _whereabouts(frame: DataFrame) -> Column:
    """Which record a row is from, if it still knows."""
    if "_offset" not in frame.columns:
        return sql.lit("")
    place = sql.format_string(
        " by %s-%d@%d", sql.col("_topic"), sql.col("_partition"), sql.col("_offset")
    )
    return sql.coalesce(place, sql.lit(""))
