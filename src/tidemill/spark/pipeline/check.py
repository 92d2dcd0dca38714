"""What is wrong with a pipeline when its parts are taken together.

`check` goes through phases, and stops after one that found mistakes on which the next would only
build more: keys (`load`), references (`graph`), then the rules and the names of columns that are
here. Topics are looked up by whoever has a connection (`check_topics`), expressions judged by
Spark (`compile.check_expressions`); both add to the same list.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path as FilePath

from tidemill.spark.pipeline import columns, graph
from tidemill.spark.pipeline.feedback import check_feedback
from tidemill.spark.pipeline.keys import Path
from tidemill.spark.pipeline.load import Problems, read_pipeline
from tidemill.spark.pipeline.model import (
    Aggregate,
    Decode,
    Pipeline,
    Sink,
    Source,
    Stage,
    Table,
)
from tidemill.spark.pipeline.options import check_options
from tidemill.spark.pipeline.plan import same_cluster
from tidemill.spark.pipeline.start import parse_start

TABLE_KINDS = ("delta", "iceberg", "parquet")


def check(path: str | FilePath) -> tuple[Pipeline | None, Problems]:
    """The pipeline, if it can be run as far as the file alone can tell, and what is wrong."""
    pipeline, problems = read_pipeline(path)
    if pipeline is None:
        return None, problems
    check_parts(pipeline, problems)
    return (None if problems.are_fatal else pipeline), problems


def check_parts(pipeline: Pipeline, problems: Problems) -> None:
    graph.check_references(pipeline, problems)
    if problems.are_fatal:
        return
    for source in pipeline.source.values():
        _check_source(source, problems)
    for table in pipeline.table.values():
        _check_table(table, problems)
    for stage in pipeline.stage.values():
        _check_stage(pipeline, stage, problems)
    for sink in pipeline.sink.values():
        _check_sink(pipeline, sink, problems)
        _check_output(pipeline, sink, problems)
    _check_shared_tables(pipeline, problems)
    if not problems.are_fatal:
        check_feedback(pipeline, problems)
    check_options(pipeline, problems)
    columns.check_names(pipeline, problems)
    _check_use(pipeline, problems)


# --- sources and tables ---------------------------------------------------------------------------


def _check_source(source: Source, problems: Problems) -> None:
    if bool(source.topics) == bool(source.pattern):
        message = "has both `topics` and `pattern`" if source.topics else "reads no topic"
        problems.add(source.at, message, "say either `topics` or `pattern`")
    if source.pattern:
        try:
            re.compile(source.pattern)
        except re.error as error:
            at = (*source.at, "pattern")
            problems.add(at, f"is no regular expression: {error}", 'for example "clicks-.*"')
    if parse_start(source.start) is None:
        at = (*source.at, "start")
        suggestion = (
            "write earliest, latest, a time such as 2026-11-15T08:00:00Z, or offsets as JSON"
        )
        problems.add(at, f"`{source.start}` is no place to start", suggestion)
    _check_decode(source.decode, problems)


def _check_table(table: Table, problems: Problems) -> None:
    _check_decode(table.decode, problems)
    if table.decode.on_failure == "quarantine":
        at = (*table.decode.at, "on_failure")
        message = "a table is read again and again, so its bad records cannot be quarantined"
        problems.add(at, message, "write drop or fail")


def _check_decode(decode: Decode, problems: Problems) -> None:
    if decode.format == "json":
        _check_json_schema(decode, problems)
    elif decode.format in ("avro", "protobuf"):
        if not decode.schema and not decode.registry:
            message = f"{decode.format} needs a schema"
            problems.add(decode.at, message, "say `schema` (a file) or `registry` (an address)")
    elif decode.schema or decode.registry:
        key = "schema" if decode.schema else "registry"
        problems.add((*decode.at, key), f"`{decode.format}` has no schema", "remove it")


def _check_json_schema(decode: Decode, problems: Problems) -> None:
    at = (*decode.at, "schema")
    if not decode.schema:
        suggestion = 'for example schema = "id STRING, at TIMESTAMP, ms INT"'
        problems.add(decode.at, "json needs a schema", suggestion)
        return
    names = columns.schema_columns(decode)
    if names is None:
        suggestion = 'for example "id STRING, at TIMESTAMP, ms INT"'
        problems.add(at, f"`{decode.schema}` is no list of columns with types", suggestion)
        return
    for name in names:
        if name.startswith("_"):
            message = f"`{name}`: names that begin with `_` are those of the record itself"
            problems.add(at, message, "decode the value as text and use get_json_object")
    for name in {name for name in names if names.count(name) > 1}:
        problems.add(at, f"the column `{name}` is there twice", "remove one")


# --- stages ---------------------------------------------------------------------------------------


def _check_stage(pipeline: Pipeline, stage: Stage, problems: Problems) -> None:
    before = [each for each in graph.stages_of(pipeline, stage) if each.name != stage.name]
    has_watermark = bool(stage.watermark) or any(each.watermark for each in before)
    if stage.dedupe and not has_watermark:
        message = "dedupe needs a watermark, or it would have to remember every row forever"
        suggestion = f'write [stage.{stage.name}.watermark] with column and delay = "10 minutes"'
        problems.add(stage.dedupe.at, message, suggestion)
    if stage.aggregate:
        _check_aggregate(stage.aggregate, problems)
    if stage.function and not re.fullmatch(r"[\w.]+:\w+", stage.function):
        message = f"`{stage.function}` names no function"
        problems.add((*stage.at, "function"), message, 'write "module:function"')
    names = [each.name for each in stage.expect]
    for number, expectation in enumerate(stage.expect):
        if expectation.name in names[:number]:
            message = f"there is an expectation `{expectation.name}` already"
            problems.add((*expectation.at, "name"), message, "give each its own name")


def _check_aggregate(aggregate: Aggregate, problems: Problems) -> None:
    window = aggregate.window
    if window and aggregate.session:
        message = "is grouped by windows and by sessions"
        problems.add(aggregate.at, message, "say either `window` or `session`")
    if window and window.slide_ms and window.slide_ms > window.size_ms:
        message = "windows that begin less often than they end leave rows out"
        problems.add((*window.at, "slide"), message, "make `slide` at most `size`")
    if aggregate.session and not aggregate.by:
        message = "sessions are sessions of somebody"
        problems.add(aggregate.at, message, 'say whose, for example by = ["user"]')
    if not aggregate.by and not window and not aggregate.session:
        problems.add(aggregate.at, "has nothing to group by", "say `by`, `window` or `session`")


# --- sinks ----------------------------------------------------------------------------------------

_TO_TOPICS = ("key", "value", "headers", "timestamp", "partition", "partitions")
_TO_TABLES = ("keys", "order_by", "tombstone")


def _check_sink(pipeline: Pipeline, sink: Sink, problems: Problems) -> None:
    targets = [name for name in ("topic", "topic_from", "table") if getattr(sink, name)]
    if len(targets) != 1:
        given = (
            f"has {' and '.join(f'`{each}`' for each in targets)}" if targets else "goes nowhere"
        )
        suggestion = "say one of `topic`, `topic_from` and `table`"
        problems.add(sink.at, given, suggestion)
        return
    is_table = targets == ["table"]
    for name in _TO_TOPICS if is_table else _TO_TABLES:
        if getattr(sink, name):
            noun = "tables" if is_table else "topics"
            problems.add((*sink.at, name), f"`{name}` means nothing for {noun}", "remove it")
    if is_table:
        _check_table_target(sink, problems)
    elif sink.mode == "upsert":
        message = "a topic takes records, it does not replace them"
        problems.add(
            (*sink.at, "mode"), message, "remove it; give the topic cleanup.policy=compact"
        )


def _check_table_target(sink: Sink, problems: Problems) -> None:
    kind, colon, location = sink.table.partition(":")
    at = (*sink.at, "table")
    if kind not in TABLE_KINDS or not colon or not location:
        near = difflib.get_close_matches(kind, TABLE_KINDS, n=1)
        suggestion = f"did you mean {near[0]}:{location}?" if near and location else ""
        expected = "write delta:URL, iceberg:CATALOG.DB.TABLE or parquet:URL"
        problems.add(at, f"`{sink.table}` is no table", suggestion or expected)
    if sink.mode == "upsert" and not sink.keys:
        message = "upsert needs to know what makes a row the same"
        problems.add((*sink.at, "mode"), message, 'say keys = ["..."]')
    for name in _TO_TABLES:
        if sink.mode == "append" and getattr(sink, name):
            message = f"`{name}` means nothing in mode append"
            problems.add((*sink.at, name), message, 'say mode = "upsert"')


def _check_shared_tables(pipeline: Pipeline, problems: Problems) -> None:
    """Queries that commit to one table keep overtaking each other."""
    writers: dict[str, str] = {}
    for sink in pipeline.sink.values():
        if not sink.table:
            continue
        kind, _, location = sink.table.partition(":")
        table = sink.table if kind == "iceberg" or ":" in location else posixpath.normpath(location)
        first = writers.setdefault(table, sink.name)
        if first != sink.name:
            message = f"sink `{first}` writes into this table already"
            suggestion = f"name another table, or let sink `{first}` have both: from = [...]"
            problems.add((*sink.at, "table"), message, suggestion)


def _check_output(pipeline: Pipeline, sink: Sink, problems: Problems) -> None:
    """Whether Spark can give the rows of the aggregates above this sink the way it asks for."""
    above = graph.stages_of(pipeline, sink)
    aggregates = [each for each in above if each.aggregate is not None]
    for stage in aggregates:
        assert stage.aggregate is not None
        _check_aggregate_output(pipeline, stage, stage.aggregate, sink, problems)
    stateful = len(aggregates) + sum(1 for each in above if each.dedupe)
    at = (*sink.at, "output")
    if sink.output == "update" and not aggregates:
        problems.add(at, "only rows of an aggregate are ever updated", 'write "append"')
    elif sink.output == "update" and stateful > 1:
        message = "Spark updates rows of one aggregate or dedupe only, and this has more"
        problems.add(at, message, 'write "append", or split it at a topic')
    elif sink.output == "update" and sink.table and sink.mode == "append":
        message = "rows that are updated would be there once for each update"
        problems.add(at, message, 'say mode = "upsert" and keys')


def _check_aggregate_output(
    pipeline: Pipeline, stage: Stage, aggregate: Aggregate, sink: Sink, problems: Problems
) -> None:
    has_watermark = any(each.watermark for each in (stage, *graph.stages_of(pipeline, stage)))
    at = (*sink.at, "output")
    if sink.output == "update":
        if aggregate.session:
            message = f"Spark does not update the sessions of stage `{stage.name}`"
            problems.add(at, message, 'write "append"')
        return
    if not aggregate.window and not aggregate.session:
        message = f"the groups of stage `{stage.name}` never end, so none would ever be written"
        problems.add(at, message, 'write output = "update", or group by a `window`')
    elif not has_watermark:
        message = f"without a watermark the windows of stage `{stage.name}` never end"
        suggestion = f'write [stage.{stage.name}.watermark] with column and delay = "10 minutes"'
        problems.add(stage.aggregate.at if stage.aggregate else stage.at, message, suggestion)


# --- the whole ------------------------------------------------------------------------------------


def _check_use(pipeline: Pipeline, problems: Problems) -> None:
    """Parts that nothing reads: no error, but hardly meant."""
    used = {node.name for sink in pipeline.sink.values() for node in graph.upstream(pipeline, sink)}
    joined = {
        join.table for name in used & set(pipeline.stage) for join in pipeline.stage[name].join
    }
    for name, node in {**pipeline.source, **pipeline.stage}.items():
        if name not in used:
            problems.add(node.at, "no sink gets any of its rows", "remove it", is_warning=True)
    for name, table in pipeline.table.items():
        if name not in joined:
            problems.add(table.at, "nothing is joined with it", "remove it", is_warning=True)


def named_topics(pipeline: Pipeline) -> set[str]:
    """Topics that the file has by their names."""
    return {topic for _, topic in _places_of_topics(pipeline) if topic}


def check_topics(
    pipeline: Pipeline,
    existing: Collection[str],
    problems: Problems,
    *,
    forbidden: Collection[str] = (),
) -> None:
    """Topics that are named and not there, given those that are and those that will be made.

    A cluster hides topics from those who may not see them; asked by name it tells them apart. Those
    of nodes with a cluster of their own are not looked up.
    """
    sinks = [each for each in pipeline.sink.values() if same_cluster(pipeline, each)]
    made = {sink.topic for sink in sinks if sink.partitions is not None}
    existing = {*existing, *made, *forbidden}
    for at, topic in _places_of_topics(pipeline):
        if topic in forbidden:
            suggestion = "ask for the right to describe and read it, or name another user"
            problems.add(at, f"the cluster denies access to topic `{topic}`", suggestion)
    for source in pipeline.source.values():
        if not same_cluster(pipeline, source):
            continue
        for number, topic in enumerate(source.topics):
            _check_topic(topic, (*source.at, "topics", number), existing, problems)
        if source.pattern and not _any_matches(source.pattern, existing):
            at = (*source.at, "pattern")
            problems.add(at, f"no topic matches `{source.pattern}` yet", is_warning=True)
    for table in pipeline.table.values():
        if same_cluster(pipeline, table):
            _check_topic(table.topic, (*table.at, "topic"), existing, problems)
    for sink in sinks:
        if sink.topic and sink.topic not in existing:
            suggestion = (
                f"`tidemill topic create {sink.topic}`, or say partitions = 3 to have it made"
            )
            problems.add((*sink.at, "topic"), f"there is no topic `{sink.topic}`", suggestion)


def _places_of_topics(pipeline: Pipeline) -> Iterator[tuple[Path, str]]:
    """In the pipeline's cluster."""
    for source in pipeline.source.values():
        for number, topic in enumerate(source.topics if same_cluster(pipeline, source) else ()):
            yield (*source.at, "topics", number), topic
    for table in pipeline.table.values():
        if same_cluster(pipeline, table):
            yield (*table.at, "topic"), table.topic
    for sink in pipeline.sink.values():
        if same_cluster(pipeline, sink):
            yield (*sink.at, "topic"), sink.topic


def _check_topic(topic: str, at: Path, existing: Collection[str], problems: Problems) -> None:
    if topic in existing:
        return
    near = difflib.get_close_matches(topic, existing, n=1)
    suggestion = f"did you mean `{near[0]}`?" if near else f"`tidemill topic create {topic}`"
    problems.add(at, f"there is no topic `{topic}`", suggestion)


def _any_matches(pattern: str, names: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)
