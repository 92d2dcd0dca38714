"""A file's tables of further options, checked as the data source itself will check them.

Its own names and rules decide, so that what `check` lets pass is not refused when the query starts.
Neither Spark nor the libraries of table formats are needed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tidemill.client.settings import CommonSettings, ConsumerSettings, ProducerSettings, is_known
from tidemill.spark.option_values import JAVA_ONLY, Given, OptionError
from tidemill.spark.options import SinkOptions, SourceOptions
from tidemill.spark.pipeline.inputs import source_options, table_options
from tidemill.spark.pipeline.keys import Path
from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.model import Pipeline
from tidemill.spark.pipeline.outputs import sink_options
from tidemill.spark.pipeline.plan import dead_letter_topics
from tidemill.spark.tables.target import TableOptions

ANYWHERE: Final = "127.0.0.1:9092"
"""Stands for the cluster, whose address is no part of what is checked here."""

_OF_VALUES: Final = {
    "valueformat": "`decode`",
    "valueschema": "`decode.schema`",
    "valuemessage": "`decode.message`",
    "schema.registry.url": "`decode.registry`",
}
_SAID_OF_SOURCES: Final = _OF_VALUES | {
    "subscribe": "`topics`",
    "subscribepattern": "`pattern`",
    "assign": "`topics`",
    "startingoffsets": "`start`",
    "includeheaders": "`headers`",
    "commitoffsets": "`group` of the pipeline",
    "deadlettertopic": 'on_failure = "quarantine"',
}
_SAID_OF_TABLES: Final = _OF_VALUES | {
    "subscribe": "`topic`",
    "subscribepattern": "`topic`",
    "assign": "`topic`",
    "deadlettertopic": 'on_failure = "drop"',
}
_SAID_OF_SINKS: Final = {
    "topic": "`topic`",
    "table": "`table`",
    "mode": "`mode`",
    "keys": "`keys`",
    "table.orderby": "`order_by`",
    "table.tombstone": "`tombstone`",
}
"""What the keys of each kind of node say, so that it is no further option of it."""

Parse = Callable[[Mapping[str, str]], None]


def check_options(pipeline: Pipeline, problems: Problems) -> None:
    """Options and settings that are unknown or have no such value."""
    for source in pipeline.source.values():
        given = source_options(replace(source, options={}), "any")
        _check(source.at, source.options, _SAID_OF_SOURCES, given, _as_stream, problems)
    for table in pipeline.table.values():
        given = table_options(replace(table, options={}))
        _check(table.at, table.options, _SAID_OF_TABLES, given, _as_batch, problems)
    for sink in pipeline.sink.values():
        given = sink_options(pipeline, replace(sink, options={}), ANYWHERE, {})
        _check(sink.at, sink.options, _SAID_OF_SINKS, given, _as_sink, problems)
    has_producers = any(not each.table for each in pipeline.sink.values())
    has_producers = has_producers or bool(dead_letter_topics(pipeline))
    for name, text in pipeline.client.items():
        at = (*pipeline.at, "client", name)
        _check_setting(name, text, at, problems, has_producers=has_producers)


def _as_stream(options: Mapping[str, str]) -> None:
    SourceOptions.parse({"kafka.bootstrap.servers": ANYWHERE, **options}, streaming=True)


def _as_batch(options: Mapping[str, str]) -> None:
    SourceOptions.parse({"kafka.bootstrap.servers": ANYWHERE, **options}, streaming=False)


def _as_sink(options: Mapping[str, str]) -> None:
    parsed = SinkOptions.parse(options)
    if parsed.table is not None:
        TableOptions.parse(parsed, overwrite=False)


def _check(
    at: Path,
    own: Mapping[str, str],
    said: Mapping[str, str],
    given: Mapping[str, str],
    parse: Parse,
    problems: Problems,
) -> None:
    """Each mistake among a node's `own` options; `given` are those that its keys make, and `said`
    has the keys."""
    try:
        parse(given)
    except OptionError:
        return  # Of the keys' own making, which others tell.
    further = {name: text for name, text in own.items() if name.lower() not in said}
    mistakes = _mistakes(further, given, parse)
    for name in own:
        if name not in further:
            key = said[name.lower()]
            problems.add((*at, "options", name), f"`{name}` is no further option", f"say {key}")
        elif name in mistakes:
            problems.add((*at, "options", name), *_told(name, mistakes[name]))


def _mistakes(
    own: Mapping[str, str], given: Mapping[str, str], parse: Parse
) -> dict[str, OptionError]:
    """What is wrong with options that are taken together, as some need each other: the one that
    gets the blame is left out, and the others are tried again."""
    left, found = dict(own), dict[str, OptionError]()
    while left:
        try:
            parse({**given, **left})
        except OptionError as error:
            name = _blamed(error, left, given, parse)
            del left[name]
            # What goes together with a wrong one is not wrong itself.
            if not any(f"`{each}`" in error.advice for each in found):
                found[name] = error
        else:
            break
    return found


def _blamed(
    error: OptionError, own: Mapping[str, str], given: Mapping[str, str], parse: Parse
) -> str:
    option = error.option.lower()
    for name in own:
        if name.lower() == option or name.lower().startswith(f"{option}."):
            return name
    for name in own:
        try:
            parse({**given, name: own[name]})
        except OptionError:
            return name
    return next(iter(own))


def _told(name: str, error: OptionError) -> tuple[str, str]:
    message, _, suggestion = error.advice.partition("; ")
    value = f" = {error.value!r}" if error.value is not None else ""
    return f"`{name}`{value}: {message}", suggestion


def _check_setting(
    name: str, text: str, at: Path, problems: Problems, *, has_producers: bool
) -> None:
    """Settings of the file are those of all its clients, so it takes what each of them has. There
    is always a consumer."""
    if name == "bootstrap.servers":
        problems.add(at, f"`{name}` is no setting here", "say `bootstrap`")
        return
    is_shared = is_known(CommonSettings, name) or name in JAVA_ONLY
    if not is_shared and is_known(ProducerSettings, name):
        noun, where = "producers", "[sink.NAME.options]"
    elif not is_shared and has_producers and is_known(ConsumerSettings, name):
        noun, where = "consumers", "[source.NAME.options]"
    else:
        _check_value(name, text, at, problems, has_producers=has_producers)
        return
    suggestion = f'write "kafka.{name}" in {where}'
    problems.add(at, f"`{name}` is a setting of {noun} alone", suggestion)


def _check_value(
    name: str, text: str, at: Path, problems: Problems, *, has_producers: bool
) -> None:
    try:
        if has_producers:
            Given({f"kafka.{name}": text}, ()).settings(CommonSettings, {}, required=False)
        else:
            _as_stream({"subscribe": "any", f"kafka.{name}": text})
    except OptionError as error:
        problems.add(at, *_told(name, error))
