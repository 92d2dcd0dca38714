"""What a pipeline file may say: one frozen dataclass per section, one declaration per key.

Each field carries what reading, checking and documenting it takes: its kind, its meaning, whether
it must be there. `load` builds these objects from a file, `reference` makes the page about them, so
neither knows a key by name. A pipeline is a graph: sources feed stages, stages feed stages and
sinks, tables are joined to stages. Every sink becomes one Spark query with a consumer group and a
checkpoint of its own; so does every place from which records are quarantined.
"""

# ruff: noqa: RUF009 - `_key` makes a dataclass field, which ruff sees only of the standard function

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tidemill.spark.pipeline.keys import InvalidPipelineError, Kind, Path, PipelineError, Section
from tidemill.spark.pipeline.keys import key as _key

__all__ = [
    "InvalidPipelineError",
    "Path",
    "Pipeline",
    "PipelineError",
    "Sink",
    "Source",
    "Stage",
    "Table",
]

OnFailure = Literal["drop", "quarantine", "fail"]
OutputMode = Literal["append", "update"]
WriteMode = Literal["append", "upsert"]
JoinKind = Literal["left", "inner"]
Format = Literal["json", "avro", "protobuf", "text", "raw"]

METADATA = ("_key", "_value", "_tombstone", "_topic", "_partition", "_offset", "_timestamp")
"""Columns that travel with a record beside its own, up to an aggregate; sinks leave them out."""

HEADERS = "_headers"
WINDOW_COLUMNS = ("window_start", "window_end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode(Section):
    """How the bytes of a record become columns."""

    format: Format = _key(
        Kind.TEXT,
        "`json`, `avro`, `protobuf`; `text` (one column `value`) or `raw` (the same as bytes).",
        choices=("json", "avro", "protobuf", "text", "raw"),
        required=True,
        example='"json"',
    )
    schema: str = _key(
        Kind.TEXT,
        "The columns: for JSON in Spark's notation, for Avro and Protobuf a file "
        "(`.avsc`, `.proto`, a descriptor set) or its text.",
        example='"id STRING, at TIMESTAMP, ms INT"',
    )
    message: str = _key(
        Kind.TEXT, "The message of a Protobuf file that holds several.", example='"shop.Order"'
    )
    registry: str = _key(
        Kind.TEXT,
        "Address of a schema registry, for Avro and Protobuf in Confluent's framing.",
        example='"http://localhost:8081"',
    )
    timestamp_format: str = _key(
        Kind.TEXT,
        "How timestamps in JSON are written, in Spark's pattern letters; ISO 8601 by default.",
        example='"yyyy-MM-dd HH:mm:ss"',
    )
    on_failure: OnFailure = _key(
        Kind.TEXT,
        "What becomes of a record that cannot be decoded: `drop` it, `quarantine` it in the "
        "dead-letter topic, or `fail` the query.",
        choices=("drop", "quarantine", "fail"),
        default="fail",
        example='"quarantine"',
    )
    dead_letters: str = _key(
        Kind.NAME, "The dead-letter topic, if not the pipeline's.", example='"clicks.bad"'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Section):
    """Topics that are read as a stream."""

    name: str = ""
    topics: tuple[str, ...] = _key(Kind.TEXTS, "The topics to read.", example='["clicks"]')
    pattern: str = _key(
        Kind.TEXT,
        "Instead of `topics`: every topic whose name matches, new ones included.",
        example='"clicks-.*"',
    )
    start: str = _key(
        Kind.TEXT,
        "Where a new query begins: `earliest`, `latest`, a time (`2026-11-15T08:00:00Z`), or "
        "offsets as JSON. A query that has run continues where it stopped.",
        default="earliest",
        example='"latest"',
    )
    headers: bool = _key(Kind.FLAG, "Read the records' headers, as the column `_headers`.")
    records_per_trigger: int | None = _key(
        Kind.COUNT, "Records that one micro-batch takes at most.", example="500000"
    )
    allow_data_loss: bool = _key(
        Kind.FLAG,
        "Go on where records were deleted before they were read, instead of failing.",
    )
    decode: Decode = _key(Kind.SECTION, "From bytes to columns.", section=Decode, required=True)
    options: Mapping[str, str] = _key(
        Kind.SETTINGS,
        "Further options of the data source, by its own names; `kafka.bootstrap.servers` for "
        "topics of another cluster.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Section):
    """A compacted topic as a table to join with: the latest value of each key."""

    name: str = ""
    topic: str = _key(Kind.NAME, "The compacted topic.", required=True, example='"users"')
    key: str = _key(
        Kind.NAME,
        "The name that the record's key gets as a column.",
        default="key",
        example='"user_id"',
    )
    refresh_ms: int = _key(
        Kind.DURATION,
        "How old the table may get: after so long it is read again.",
        default=60_000,
        example='"5 minutes"',
        spelt="refresh",
    )
    decode: Decode = _key(
        Kind.SECTION,
        "From bytes to columns; bad records are dropped or fail the query.",
        section=Decode,
        required=True,
    )
    options: Mapping[str, str] = _key(
        Kind.SETTINGS,
        "Further options of the data source, by its own names; `kafka.bootstrap.servers` for "
        "topics of another cluster.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation(Section):
    """What has to be true of each row. Unknown (null) is not true."""

    name: str = _key(
        Kind.NAME, "What dead letters and messages call it.", required=True, example='"has-user"'
    )
    that: str = _key(Kind.EXPRESSION, "The condition.", required=True, example='"user IS NOT NULL"')
    on_failure: OnFailure = _key(
        Kind.TEXT,
        "What becomes of other rows: `drop`, `quarantine` or `fail`.",
        choices=("drop", "quarantine", "fail"),
        required=True,
        example='"quarantine"',
    )
    dead_letters: str = _key(Kind.NAME, "The dead-letter topic, if not the pipeline's.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark(Section):
    """How late rows may be, by a column of theirs, compared with the latest time that came.

    One row from the future moves it for all: let an expectation refuse what is ahead of a record's
    `_timestamp` by more than a part of the delay, or bound the column with `current_timestamp()`.
    """

    column: str = _key(Kind.TEXT, "The column with the time.", required=True, example='"at"')
    delay_ms: int = _key(
        Kind.DURATION,
        "Rows that are later than this are left out where there is a `dedupe` or an `aggregate`: "
        "without a dead letter, but counted and told.",
        required=True,
        example='"10 minutes"',
        spelt="delay",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedupe(Section):
    """Rows with the same keys pass once within the watermark's delay; rows later than that do not
    pass at all."""

    keys: tuple[str, ...] = _key(
        Kind.TEXTS, "The columns that make a row the same.", required=True, example='["id"]'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Section):
    """Columns of a table added to each row."""

    table: str = _key(Kind.NAME, "The name of a `[table.NAME]`.", required=True, example='"users"')
    on: str = _key(Kind.EXPRESSION, "What equals the table's key.", required=True, example='"user"')
    kind: JoinKind = _key(
        Kind.TEXT,
        "`left` keeps rows whose key the table does not have, `inner` drops them.",
        choices=("left", "inner"),
        default="left",
    )
    columns: Mapping[str, str] = _key(
        Kind.COLUMNS,
        "The columns to add, made from the table's; all of those by default. They are null in rows "
        "whose key the table does not have.",
        example='{ country = "upper(country)" }',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Section):
    """Windows of one size; the result has the columns `window_start` and `window_end`."""

    column: str = _key(Kind.TEXT, "The column with the time.", required=True, example='"at"')
    size_ms: int = _key(
        Kind.DURATION, "How long a window is.", required=True, example='"1 minute"', spelt="size"
    )
    slide_ms: int | None = _key(
        Kind.DURATION,
        "How often one begins; by default when the last one ends.",
        spelt="slide",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow(Section):
    """Windows that end when nothing came for a while; columns as with `window`."""

    column: str = _key(Kind.TEXT, "The column with the time.", required=True, example='"at"')
    gap_ms: int = _key(
        Kind.DURATION,
        "How long the quiet is that ends one.",
        required=True,
        example='"30 minutes"',
        spelt="gap",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Section):
    """One row per group, instead of the rows."""

    by: tuple[str, ...] = _key(
        Kind.EXPRESSIONS,
        "What makes a group: columns, or expressions with `AS name`.",
        example='["page", "date(at) AS day"]',
    )
    window: Window | None = _key(Kind.SECTION, "Groups by time, too.", section=Window)
    session: SessionWindow | None = _key(
        Kind.SECTION, "Groups by sessions, too; wants `by`.", section=SessionWindow
    )
    columns: Mapping[str, str] = _key(
        Kind.COLUMNS,
        "The aggregates.",
        required=True,
        example='{ views = "count(*)", slowest_ms = "max(ms)" }',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Section):
    """A step from rows to rows. What it says happens in the order of this table."""

    name: str = ""
    inputs: tuple[str, ...] = _key(
        Kind.TEXT_OR_TEXTS,
        "Sources and stages whose rows come in (`STAGE.ROUTE` for one route of a stage). "
        "The rows of several are put together by their columns' names.",
        spelt="from",
        required=True,
        example='"clicks"',
    )
    columns: Mapping[str, str] = _key(
        Kind.COLUMNS,
        "Columns to add or replace, one after the other: each may use those before it.",
        example='{ day = "date(at)" }',
    )
    where: str = _key(
        Kind.EXPRESSION, "Which rows go on; the others are left out.", example='"ms < 60000"'
    )
    expect: tuple[Expectation, ...] = _key(
        Kind.SECTIONS, "What has to be true of each row.", section=Expectation
    )
    watermark: Watermark | None = _key(Kind.SECTION, "How late rows may be.", section=Watermark)
    dedupe: Dedupe | None = _key(
        Kind.SECTION, "Pass the same row once; wants a watermark.", section=Dedupe
    )
    join: tuple[Join, ...] = _key(
        Kind.SECTIONS, "Columns from tables, one after the other.", section=Join
    )
    aggregate: Aggregate | None = _key(
        Kind.SECTION, "One row per group, instead of the rows.", section=Aggregate
    )
    select: tuple[str, ...] = _key(
        Kind.EXPRESSIONS,
        "The columns that go on: names, or expressions with `AS name`.",
        example='["user", "lower(page) AS page"]',
    )
    function: str = _key(
        Kind.TEXT,
        "The way out: `module:function`, called once with the frame, returns another.",
        example='"shop.jobs:only_new"',
    )
    routes: Mapping[str, str] = _key(
        Kind.COLUMNS,
        "Branches: name = condition. A row goes to the first one whose condition is true, and "
        "nowhere if none is. Read them as `STAGE.ROUTE`.",
        example='{ errors = "level = \'ERROR\'", rest = "true" }',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Section):
    """Where rows go: one Spark query, with a checkpoint and a consumer group of its own."""

    name: str = ""
    inputs: tuple[str, ...] = _key(
        Kind.TEXT_OR_TEXTS,
        "Sources and stages whose rows are written, as in a stage.",
        spelt="from",
        required=True,
        example='"clean"',
    )
    where: str = _key(Kind.EXPRESSION, "Which rows are written; the others are not.")
    topic: str = _key(Kind.NAME, "The topic to write to.", example='"clean-clicks"')
    topic_from: str = _key(
        Kind.EXPRESSION,
        "Instead of `topic`: the topic of each row.",
        example="\"concat('clicks-', country)\"",
    )
    table: str = _key(
        Kind.TEXT,
        "Instead of `topic`: `delta:URL`, `iceberg:CATALOG.DB.TABLE` or `parquet:URL`; a relative "
        "path is meant from the folder of this file.",
        example='"delta:/data/clicks"',
    )
    key: str = _key(
        Kind.EXPRESSION,
        "To topics: the record's key; by default the one it came with, if the row still has it.",
        example='"user"',
    )
    value: str = _key(
        Kind.EXPRESSION,
        "To topics: the record's value; by default the row's columns as JSON.",
        example='"to_json(struct(user, page))"',
    )
    headers: Mapping[str, str] = _key(Kind.COLUMNS, "To topics: headers of the record.")
    timestamp: str = _key(
        Kind.EXPRESSION,
        "To topics: the record's time; by default when it is written.",
        example='"at"',
    )
    partition: str = _key(
        Kind.EXPRESSION, "To topics: the partition; by default the key decides.", example='"shard"'
    )
    partitions: int | None = _key(
        Kind.COUNT, "To topics: create a topic that is not there, with so many partitions."
    )
    mode: WriteMode = _key(
        Kind.TEXT,
        "To tables: `append` rows, or `upsert` them by `keys`.",
        choices=("append", "upsert"),
        default="append",
    )
    keys: tuple[str, ...] = _key(
        Kind.TEXTS,
        "To tables, with upsert: the columns that make a row the same.",
        example='["user"]',
    )
    order_by: tuple[str, ...] = _key(
        Kind.TEXTS,
        "To tables, with upsert: the columns that say which of two rows with the same keys is the "
        "later, be it in one batch or in the table already; by default `offset` within a "
        "`partition` and `timestamp` between partitions, as far as there are such columns, and in "
        "one partition the later batch.",
        example='["at"]',
    )
    tombstone: str = _key(
        Kind.TEXT,
        "To tables, with upsert: a row in which this column is null deletes the one with its keys; "
        "by default `value`, if there is such a column.",
    )
    output: OutputMode = _key(
        Kind.TEXT,
        "`append` writes a row of an aggregate once, when the watermark has passed it; `update` "
        "each time it changes.",
        choices=("append", "update"),
        default="append",
    )
    trigger_ms: int | None = _key(
        Kind.DURATION,
        "How often a micro-batch starts, if not as the pipeline says.",
        spelt="trigger",
    )
    options: Mapping[str, str] = _key(
        Kind.SETTINGS,
        "Further options of the sink, by its own names; `kafka.bootstrap.servers` for a topic of "
        "another cluster.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Section):
    """The file as a whole."""

    path: str = ""
    name: str = _key(
        Kind.NAME,
        "What groups, checkpoints and `tidemill pipeline status` call it.",
        required=True,
        example='"site-activity"',
    )
    description: str = _key(Kind.TEXT, "One sentence for people.")
    bootstrap: str = _key(
        Kind.TEXT,
        "The cluster's address, used unless the command line, the environment or a profile says "
        "another.",
        example='"localhost:9092"',
    )
    group: str = _key(
        Kind.NAME,
        "The consumer groups' names begin with it; a query's name follows. By default `name`.",
    )
    dead_letters: str = _key(
        Kind.NAME,
        "The topic of what is quarantined; by default the name and `.dead-letters`. It is created "
        "if it is not there.",
    )
    trigger_ms: int = _key(
        Kind.DURATION,
        "How often a micro-batch starts; by default as soon as the last one is done.",
        default=0,
        example='"10 seconds"',
        spelt="trigger",
    )
    checkpoints: str = _key(
        Kind.TEXT,
        "Where queries keep their checkpoints, a URL that every executor can write to; by default "
        "in the state directory, which serves one machine.",
        example='"hdfs://namenode/checkpoints"',
    )
    client: Mapping[str, str] = _key(
        Kind.SETTINGS,
        "Settings that every client has, by Kafka's names: `client.id`, `request.timeout.ms`, "
        "`default.api.timeout.ms`, `metadata.max.age.ms`, `reconnect.backoff.ms` and the like. "
        "Those of consumers or producers alone are options of a source or a sink, such as "
        "`kafka.fetch.max.bytes`; those of consumers may be here where nothing is written to "
        "topics.",
        example='{ "request.timeout.ms" = "20000" }',
    )
    spark: Mapping[str, str] = _key(
        Kind.SETTINGS,
        "Settings of Spark.",
        example='{ "spark.sql.shuffle.partitions" = "8" }',
    )
    source: Mapping[str, Source] = _key(
        Kind.NAMED, "The topics to read.", section=Source, required=True
    )
    table: Mapping[str, Table] = _key(Kind.NAMED, "Tables to join with.", section=Table)
    stage: Mapping[str, Stage] = _key(Kind.NAMED, "Steps from rows to rows.", section=Stage)
    sink: Mapping[str, Sink] = _key(Kind.NAMED, "Where rows go.", section=Sink, required=True)

    @property
    def group_prefix(self) -> str:
        return self.group or self.name

    @property
    def dead_letter_topic(self) -> str:
        return self.dead_letters or f"{self.name}.dead-letters"
