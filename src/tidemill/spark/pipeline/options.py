"""A file's tables of further options, checked as the data source itself will check them.

Its own names and rules decide, so that what `check` lets pass is not refused when the query starts.
Neither Spark nor the libraries of table formats are needed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidemill.client.settings import CommonSettings, ConsumerSettings, ProducerSettings, is_known
from tidemill.spark.option_values import JAVA_ONLY, Given, OptionError
from tidemill.spark.options import SinkOptions, SourceOptions
from tidemill.spark.pipeline.inputs import source_options, table_options
from tidemill.spark.pipeline.keys import Path
from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.model import Pipeline
from tidemill.spark.pipeline.outputs import sink_options
from tidemill.spark.tables.target import TableOptions

ANYWHERE: Final = "127.0.0.1:9092"
"""Stands for the cluster, whose address is no part of what is checked here."""

_SAID_BY_KEYS: Final = {
    "kafka.bootstrap.servers": "`bootstrap`",
    "subscribe": "`topics`",
    "subscribepattern": "`pattern`",
    "assign": "`topics`",
    "startingoffsets": "`start`",
    "includeheaders": "`headers`",
    "commitoffsets": "`group`",
    "valueformat": "`decode`",
    "valueschema": "`decode.schema`",
    "valuemessage": "`decode.message`",
    "schema.registry.url": "`decode.registry`",
    "deadlettertopic": 'on_failure = "quarantine"',
    "topic": "`topic` of the sink",
    "table": "`table` of the sink",
    "mode": "`mode` of the sink",
    "keys": "`keys` of the sink",
    "table.orderby": "`order_by`",
    "table.tombstone": "`tombstone`",
}


def check_options(pipeline: Pipeline, problems: Problems) -> None:
    """Options and settings that are unknown or have no such value."""
    for source in pipeline.source.values():
        given = source_options(source, "any")
        _check(source.at, source.options, given, _as_stream, problems)
    for table in pipeline.table.values():
        _check(table.at, table.options, table_options(table), _as_batch, problems)
    for sink in pipeline.sink.values():
        given = sink_options(pipeline, sink, ANYWHERE, {})
        _check(sink.at, sink.options, given, _as_sink, problems)
    for name, text in pipeline.client.items():
        _check_setting(name, text, (*pipeline.at, "client", name), problems)


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
    given: Mapping[str, str],
    parse: Callable[[Mapping[str, str]], None],
    problems: Problems,
) -> None:
    """Each mistake among a node's `own` options, one after the other; `given` has all of them."""
    left = {name: text for name, text in given.items() if name not in own}
    try:
        parse(left)
    except OptionError:
        return  # Of the keys' own making, which others tell.
    for name, text in own.items():
        if (key := _SAID_BY_KEYS.get(name.lower())) is not None:
            problems.add((*at, "options", name), f"`{name}` is no further option", f"say {key}")
            continue
        try:
            parse({**left, name: text})
        except OptionError as error:
            problems.add((*at, "options", name), *_told(name, error))
        else:
            left[name] = text


def _told(name: str, error: OptionError) -> tuple[str, str]:
    message, _, suggestion = error.advice.partition("; ")
    value = f" = {error.value!r}" if error.value is not None else ""
    return f"`{name}`{value}: {message}", suggestion


def _check_setting(name: str, text: str, at: Path, problems: Problems) -> None:
    """Settings of the file are those of all its clients, so it takes what each of them has."""
    if name == "bootstrap.servers":
        problems.add(at, f"`{name}` is no setting here", "say `bootstrap`")
        return
    for kind, noun, where in (
        (ProducerSettings, "producers", "[sink.NAME.options]"),
        (ConsumerSettings, "consumers", "[source.NAME.options]"),
    ):
        is_theirs = is_known(kind, name) and not is_known(CommonSettings, name)
        if is_theirs and name not in JAVA_ONLY:
            suggestion = f'write "kafka.{name}" in {where}'
            problems.add(at, f"`{name}` is a setting of {noun} alone", suggestion)
            return
    try:
        Given({f"kafka.{name}": text}, ()).settings(CommonSettings, {}, required=False)
    except OptionError as error:
        problems.add(at, *_told(name, error))
