"""From the model to Spark's frames: JVM operators only, each expression judged where it stands.

`Compiler` makes the frame of every node that a query reads, in order; where the records come from
is injected (`Inputs`). When Spark refuses something, the mistake is told with the line of the key
whose turn it was. Frames are plans: nothing is read before `run` starts their queries.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Protocol

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from tidemill.spark.pipeline import graph, spark_errors
from tidemill.spark.pipeline.conditions import is_true, meeting, unless_tombstone
from tidemill.spark.pipeline.decoding import decodable, decoded, latest_by_key
from tidemill.spark.pipeline.durations import interval
from tidemill.spark.pipeline.keys import Path, PipelineError, written
from tidemill.spark.pipeline.letters import letters_of_decoding, letters_of_expectations
from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.model import (
    HEADERS,
    METADATA,
    WINDOW_COLUMNS,
    Aggregate,
    Join,
    Pipeline,
    Sink,
    Source,
    Stage,
    Table,
)
from tidemill.spark.pipeline.plan import Query, nodes_of, queries


class Inputs(Protocol):
    """Where a compiler gets the records of topics from, in the data source's own columns."""

    def stream(self, source: Source, group: str) -> DataFrame: ...

    def table(self, table: Table) -> DataFrame: ...


class Compiler:
    """Frames of one pipeline. Tables are made once and shared by all queries."""

    def __init__(self, pipeline: Pipeline, inputs: Inputs, problems: Problems) -> None:
        self._pipeline = pipeline
        self._inputs = inputs
        self._problems = problems
        self.tables: dict[str, DataFrame] = {}

    def frame(self, query: Query) -> DataFrame:
        """What a query writes: the columns of a table, or key, value and headers of records."""
        target = query.target
        sources, stages = nodes_of(self._pipeline, query)
        raw = {source.name: self.source(source, query.group) for source in sources}
        if isinstance(target, Source):
            return letters_of_decoding(self._pipeline, target, raw[target.name])
        frames = {
            name: decodable(self._pipeline.source[name], frame) for name, frame in raw.items()
        }
        for stage in stages:
            frames[stage.name] = self.stage(stage, frames)
        if isinstance(target, Stage):
            before = self.before_expectations(target, frames)
            for expectation in target.expect:
                with self._blaming((*expectation.at, "that")):
                    before.where(is_true(sql.expr(expectation.that)))
            return letters_of_expectations(self._pipeline, target, before)
        return self.sink(target, frames)

    def source(self, source: Source, group: str) -> DataFrame:
        """Decoded records, bad ones still among them."""
        with self._blaming((*source.decode.at, "schema")):
            return decoded(self._inputs.stream(source, group), source.decode)

    def stage(self, stage: Stage, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The rows that a stage gives, in the order that its keys are documented in."""
        frame = self.before_expectations(stage, frames)
        for expectation in stage.expect:
            with self._blaming((*expectation.at, "that")):
                frame = meeting(stage, expectation, frame)
        if stage.watermark:
            with self._blaming((*stage.watermark.at, "column")):
                delay = interval(stage.watermark.delay_ms)
                frame = frame.withWatermark(stage.watermark.column, delay)
        if stage.dedupe:
            with self._blaming((*stage.dedupe.at, "keys")):
                frame = frame.dropDuplicatesWithinWatermark(list(stage.dedupe.keys))
        for join in stage.join:
            frame = self._join(join, frame)
        if stage.aggregate:
            frame = self._aggregate(stage.aggregate, frame)
        if stage.select:
            frame = self._select(stage, frame)
        if stage.function:
            frame = self._apply(stage, frame)
        return frame

    def before_expectations(self, stage: Stage, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The rows as a stage's expectations see them."""
        frame = self._together(stage, frames)
        for name, text in stage.columns.items():
            with self._blaming((*stage.at, "columns", name)):
                frame = frame.withColumn(name, sql.expr(text))
        if stage.where:
            with self._blaming((*stage.at, "where")):
                frame = frame.where(sql.expr(stage.where))
        return frame

    def sink(self, sink: Sink, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The rows in the columns that the sink's writer takes."""
        frame = self._together(sink, frames)
        if sink.where:
            with self._blaming((*sink.at, "where")):
                frame = frame.where(sql.expr(sink.where))
        return frame.select(*own_columns(frame)) if sink.table else self._records(sink, frame)

    def _together(self, reader: Stage | Sink, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The rows of all inputs, by name; a column that one lacks is null there."""
        first, *rest = [self._input(reference, frames) for reference in reader.inputs]
        with self._blaming((*reader.at, "from")):
            for other in rest:
                first = first.unionByName(other, allowMissingColumns=True)
        return first

    def _input(self, reference: str, frames: Mapping[str, DataFrame]) -> DataFrame:
        name, route = graph.node_of(reference), graph.route_of(reference)
        frame = frames[name]
        if route is None:
            return frame
        stage = self._pipeline.stage[name]
        for other, condition in stage.routes.items():
            with self._blaming((*stage.at, "routes", other)):
                holds = is_true(sql.expr(condition))
                if other == route:
                    return frame.where(holds)
                frame = frame.where(~holds)
        raise AssertionError("unreachable: references were checked")

    def _join(self, join: Join, frame: DataFrame) -> DataFrame:
        """Stream-static: a row is joined with the table as it was read last."""
        table = self._pipeline.table[join.table]
        lookup = self._table(table)
        names = [name for name in lookup.columns if name != table.key]
        chosen = dict(join.columns) or {name: f"`{name}`" for name in names}
        key = "_tidemill_join_key"
        columns = [sql.col(f"`{table.key}`").alias(key)]
        for name, text in chosen.items():
            with self._blaming((*join.at, "columns", name)):
                columns.append(sql.expr(text).alias(name))
                lookup.select(columns[-1])
        added = lookup.select(*columns)
        with self._blaming((*join.at, "on")):
            marked = frame.withColumn(key + "_", sql.expr(join.on).cast("string"))
            kept = marked.drop(*chosen)  # a joined column takes the place of one of its name
            joined = kept.join(added, sql.col(key + "_") == sql.col(key), join.kind)
        return joined.drop(key, key + "_")

    def _table(self, table: Table) -> DataFrame:
        if table.name not in self.tables:
            with self._blaming((*table.decode.at, "schema")):
                self.tables[table.name] = latest_by_key(table, self._inputs.table(table))
        return self.tables[table.name]

    def _aggregate(self, aggregate: Aggregate, frame: DataFrame) -> DataFrame:
        by: list[Column] = []
        for number, text in enumerate(aggregate.by):
            with self._blaming((*aggregate.at, "by", number)):
                by.append(sql.expr(text))
                frame.select(by[-1])
        window = self._window(aggregate, frame)
        named: list[Column] = []
        grouped = frame.groupBy(*window, *by)
        for name, text in aggregate.columns.items():
            with self._blaming((*aggregate.at, "columns", name)):
                named.append(sql.expr(text).alias(name))
                grouped.agg(named[-1])
        result = grouped.agg(*named)
        if not window:
            return result
        start, end = WINDOW_COLUMNS
        spread = [sql.col("_window.start").alias(start), sql.col("_window.end").alias(end)]
        return result.select(*spread, *[name for name in result.columns if name != "_window"])

    def _window(self, aggregate: Aggregate, frame: DataFrame) -> list[Column]:
        if window := aggregate.window:
            with self._blaming((*window.at, "column")):
                size, slide = interval(window.size_ms), interval(window.slide_ms or window.size_ms)
                column = sql.window(sql.col(window.column), size, slide).alias("_window")
                frame.select(column)
                return [column]
        if session := aggregate.session:
            with self._blaming((*session.at, "column")):
                gap = interval(session.gap_ms)
                column = sql.session_window(sql.col(session.column), gap).alias("_window")
                frame.select(sql.col(session.column).cast("timestamp"))
                return [column]
        return []

    def _select(self, stage: Stage, frame: DataFrame) -> DataFrame:
        chosen: list[Column] = []
        for number, text in enumerate(stage.select):
            with self._blaming((*stage.at, "select", number)):
                chosen.append(sql.expr(text))
                frame.select(chosen[-1])
        result = frame.select(*chosen)
        kept = [
            name
            for name in frame.columns
            if name in (*METADATA, HEADERS) and name not in result.columns
        ]
        return frame.select(*chosen, *kept)

    def _apply(self, stage: Stage, frame: DataFrame) -> DataFrame:
        """The way out: a user's function from frame to frame, called once, while compiling."""
        at = (*stage.at, "function")
        try:
            function = resolve_name(stage.function)
        except (ImportError, AttributeError) as error:
            raise self._error(at, f"`{stage.function}` cannot be imported: {error}") from error
        with self._blaming(at):
            result: DataFrame = function(frame)
        return result

    def _records(self, sink: Sink, frame: DataFrame) -> DataFrame:
        """Rows as records of a topic."""
        columns: list[Column] = []
        if sink.topic_from:
            columns.append(self._cell(sink, "topic_from", frame).cast("string").alias("topic"))
        if sink.key:
            columns.append(self._cell(sink, "key", frame).alias("key"))
        elif "_key" in frame.columns:
            columns.append(sql.col("_key").alias("key"))
        if sink.value:
            columns.append(self._cell(sink, "value", frame).alias("value"))
        else:
            as_json = sql.to_json(sql.struct(*own_columns(frame)))
            columns.append(unless_tombstone(as_json, frame).alias("value"))
        for name, kind in (("timestamp", "timestamp"), ("partition", "int")):
            if getattr(sink, name):
                with self._blaming((*sink.at, name)):
                    columns.append(sql.expr(getattr(sink, name)).cast(kind).alias(name))
                    frame.select(columns[-1])
        if sink.headers:
            columns.append(self._headers(sink, frame).alias("headers"))
        return frame.select(*columns)

    def _cell(self, sink: Sink, key: str, frame: DataFrame) -> Column:
        with self._blaming((*sink.at, key)):
            return as_text(sql.expr(getattr(sink, key)), frame)

    def _headers(self, sink: Sink, frame: DataFrame) -> Column:
        headers: list[Column] = []
        for name, text in sink.headers.items():
            with self._blaming((*sink.at, "headers", name)):
                value = as_text(sql.expr(text), frame).cast("binary")
                headers.append(sql.struct(sql.lit(name).alias("key"), value.alias("value")))
        return sql.array(*headers)

    @contextlib.contextmanager
    def _blaming(self, at: Path) -> Iterator[None]:
        """What Spark refuses in here is the fault of the key at `at`."""
        try:
            yield
        except (AnalysisException, ParseException) as refused:
            message, suggestion = spark_errors.explain(refused)
            raise self._error(at, message, suggestion) from refused

    def _error(self, at: Path, message: str, suggestion: str = "") -> PipelineError:
        line = self._problems.line_of(at)
        return PipelineError(self._problems.path, line, written(at), message, suggestion)


def own_columns(frame: DataFrame) -> list[str]:
    """A row's columns without those of the record that it came as."""
    hidden = {*METADATA, HEADERS}
    return [f"`{name}`" for name in frame.columns if name not in hidden]


def as_text(column: Column, frame: DataFrame) -> Column:
    """A value that a record can hold: bytes and texts as they are, the rest as JSON or text."""
    kind = frame.select(column.alias("x")).schema["x"].dataType
    if isinstance(kind, (StringType, BinaryType)):
        return column
    if isinstance(kind, (StructType, ArrayType, MapType)):
        return sql.to_json(column)
    return column.cast("string")


# --- all queries ----------------------------------------------------------------------------------


def compile_all(
    pipeline: Pipeline, inputs: Inputs, problems: Problems
) -> tuple[list[tuple[Query, DataFrame]], dict[str, DataFrame]]:
    """The frame of every query, and the tables they join with.

    Nothing is read, so it takes no broker to find out what Spark refuses: `problems` gets every
    mistake once, and of a node with a mistake nothing that is behind it.
    """
    # What Spark refuses is told by us; its own log of the same is a page of JSON.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    compiler = Compiler(pipeline, inputs, problems)
    frames: list[tuple[Query, DataFrame]] = []
    errors: dict[str, PipelineError] = {}
    for query in queries(pipeline):
        try:
            frames.append((query, compiler.frame(query)))
        except PipelineError as error:
            errors.setdefault(str(error), error)
    problems.found.extend(errors.values())
    return frames, compiler.tables
