"""The names of the columns at each point of a pipeline, as far as the file alone tells.

Keys that merely name a column (`watermark.column`, `dedupe.keys`, ...) can be checked with that,
without Spark. Where only Spark knows the columns, after a `function` or with a schema from
elsewhere, they are `None`, and nothing is said.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Literal

from tidemill.spark.pipeline import expressions, graph
from tidemill.spark.pipeline.keys import Path
from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.model import (
    HEADERS,
    METADATA,
    WINDOW_COLUMNS,
    Aggregate,
    Decode,
    Join,
    Pipeline,
    SessionWindow,
    Sink,
    Source,
    Stage,
    Table,
    Window,
)

Names = tuple[str, ...] | None


def check_names(pipeline: Pipeline, problems: Problems) -> None:
    """Columns that are named and are not there."""
    known: dict[str, Names] = {
        name: source_columns(source) for name, source in pipeline.source.items()
    }
    for stage in graph.order(pipeline):
        found = _put_together([known[graph.node_of(each)] for each in stage.inputs])
        known[stage.name] = _after(pipeline, stage, found, problems)
    for sink in pipeline.sink.values():
        found = _put_together([known[graph.node_of(each)] for each in sink.inputs])
        for key in ("keys", "order_by"):
            for number, name in enumerate(getattr(sink, key)):
                _check_name(name, found, (*sink.at, key, number), problems)
        if sink.tombstone:
            _check_name(sink.tombstone, found, (*sink.at, "tombstone"), problems)
        if sink.mode == "upsert" and sink.table and sink.keys:
            _check_order(pipeline, sink, found, problems)


def _check_order(pipeline: Pipeline, sink: Sink, names: Names, problems: Problems) -> None:
    """Of two rows of a batch with the same keys one has to be the later."""
    if names is None or sink.order_by or sink.output == "update":
        return
    lower = {each.lower() for each in names}
    keys = frozenset(each.lower() for each in sink.keys)
    if not keys <= lower or "offset" in lower:
        return
    told = _told_apart(pipeline, sink.inputs, keys)
    if told != "surely":
        message = (
            "a batch may have two rows with the same keys, and nothing says which is the later"
        )
        suggestion = 'say order_by = ["..."], or let a stage give it the column "_offset AS offset"'
        problems.add((*sink.at, "mode"), message, suggestion, is_warning=told == "perhaps")


ToldApart = Literal["surely", "perhaps", "not"]


def _told_apart(pipeline: Pipeline, inputs: Sequence[str], keys: frozenset[str]) -> ToldApart:
    """Whether a batch can have two rows with the same keys; not where only one group or one of
    duplicates has them. Groups by something else, or of several inputs, may have them twice."""
    found = [_in_node(pipeline, graph.node_of(each), keys) for each in inputs]
    if "not" in found:
        return "not"
    return found[0] if len(found) == 1 else "perhaps"


def _in_node(pipeline: Pipeline, name: str, keys: frozenset[str]) -> ToldApart:
    stage = pipeline.stage.get(name)
    if stage is None:
        return "not"
    if stage.function:
        return "perhaps"
    if stage.select:
        keys = _before_select(stage, keys)
    if (aggregate := stage.aggregate) is not None:
        by = {(expressions.result_name(each) or each).lower() for each in aggregate.by}
        has_window = aggregate.window is not None or aggregate.session is not None
        is_by = by <= keys and (not has_window or bool(keys & set(WINDOW_COLUMNS)))
        return "surely" if is_by else "perhaps"
    for join in stage.join:
        keys -= {each.lower() for each in _joined(pipeline, join) or ()}
    if stage.dedupe is not None and {each.lower() for each in stage.dedupe.keys} <= keys:
        return "surely"
    for column, text in reversed(list(stage.columns.items())):
        if column.lower() in keys:
            keys = keys - {column.lower()} | _named(text)
    return _told_apart(pipeline, stage.inputs, keys)


def _before_select(stage: Stage, keys: frozenset[str]) -> frozenset[str]:
    """The columns that are keys by what a `select` calls them."""
    if "*" in stage.select:
        return keys
    before: set[str] = {each for each in keys if each in (*METADATA, HEADERS)}
    for text in stage.select:
        if (expressions.result_name(text) or "").lower() in keys:
            before |= _named(expressions.without_alias(text))
    return frozenset(before)


def _named(text: str) -> frozenset[str]:
    """The column that an expression hands on as it is; none if it makes another of it."""
    plain = expressions.plain_name(text)
    return frozenset() if plain is None else frozenset((plain.lower(),))


def schema_columns(decode: Decode) -> Names:
    """The columns of a decoded value, where the file itself has them."""
    if decode.format in ("text", "raw"):
        return ("value",)
    return expressions.schema_columns(decode.schema) if decode.format == "json" else None


def source_columns(source: Source) -> Names:
    own = schema_columns(source.decode)
    headers = (HEADERS,) if source.headers else ()
    return None if own is None else (*own, *METADATA, *headers)


def table_columns(table: Table) -> Names:
    own = schema_columns(table.decode)
    return None if own is None else (table.key, *own)


def _put_together(inputs: Sequence[Names]) -> Names:
    """The columns of all inputs; those that one of them lacks are null in its rows."""
    together: dict[str, None] = {}
    for names in inputs:
        if names is None:
            return None
        together.update(dict.fromkeys(names))
    return tuple(together)


def _after(pipeline: Pipeline, stage: Stage, names: Names, problems: Problems) -> Names:
    """The columns that a stage gives, with its keys checked on the way."""
    names = _with(names, stage.columns)
    if stage.watermark:
        _check_name(stage.watermark.column, names, (*stage.watermark.at, "column"), problems)
    if stage.dedupe:
        for number, name in enumerate(stage.dedupe.keys):
            _check_name(name, names, (*stage.dedupe.at, "keys", number), problems)
    for join in stage.join:
        names = _with(names, _joined(pipeline, join))
    if stage.aggregate:
        names = _grouped(stage.aggregate, names, problems)
    if stage.select:
        names = _selected(stage, names, problems)
    return None if stage.function else names


def _with(names: Names, more: Iterable[str] | None) -> Names:
    if names is None or more is None:
        return None
    return tuple(dict.fromkeys((*names, *more)))


def _joined(pipeline: Pipeline, join: Join) -> Names:
    if join.columns:
        return tuple(join.columns)
    table = pipeline.table[join.table]
    names = table_columns(table)
    return None if names is None else tuple(name for name in names if name != table.key)


def _grouped(aggregate: Aggregate, names: Names, problems: Problems) -> Names:
    windows: list[Window | SessionWindow | None] = [aggregate.window, aggregate.session]
    for window in windows:
        if window is not None:
            _check_name(window.column, names, (*window.at, "column"), problems)
    by = _results(aggregate.by, names, (*aggregate.at, "by"), problems)
    has_window = aggregate.window or aggregate.session
    return (
        None if by is None else (*(WINDOW_COLUMNS if has_window else ()), *by, *aggregate.columns)
    )


def _selected(stage: Stage, names: Names, problems: Problems) -> Names:
    """`select` has the say about a record's own columns; metadata travels on by itself."""
    if "*" in stage.select:
        return None
    chosen = _results(stage.select, names, (*stage.at, "select"), problems)
    if chosen is None or names is None:
        return None
    kept = [name for name in names if name in (*METADATA, HEADERS) and name not in chosen]
    return (*chosen, *kept)


def _results(
    texts: Sequence[str], names: Names, at: Path, problems: Problems
) -> tuple[str, ...] | None:
    """The names that a list of expressions gives; None if only Spark knows one of them."""
    results: list[str | None] = []
    for number, text in enumerate(texts):
        if (plain := expressions.plain_name(text)) is not None:
            _check_name(plain, names, (*at, number), problems)
        results.append(expressions.result_name(text))
    return None if None in results else tuple(name for name in results if name is not None)


def _check_name(name: str, names: Names, at: Path, problems: Problems) -> None:
    # Spark's names are the same in capitals.
    if names is None or name.lower() in {each.lower() for each in names}:
        return
    shown = [each for each in names if not each.startswith("_")]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    suggestion = f"did you mean `{near[0]}`?" if near else f"there is {', '.join(shown)}"
    problems.add(at, f"there is no column `{name}` here", suggestion)
