"""The options of the source and of the sinks: names as for Spark's Kafka source, checked at once.

`SourceOptions.parse` and `SinkOptions.parse` turn what a user wrote into values that cannot be
wrong any more. Which topics is `Assign`, `Subscribe` or `SubscribePattern`; where to begin and to
end is one of `Edge`, `AtOffsets`, `AtTime` and `AtTimes`. Every mistake is an `OptionError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidemill.client.settings import (
    CommonSettings,
    ConsumerSettings,
    ProducerSettings,
    is_known,
    parse,
)
from tidemill.spark.formats import FormatError, FormatOptions, format_options
from tidemill.spark.offsets import EARLIEST, LATEST, Offsets
from tidemill.spark.option_values import Given, OptionError

__all__ = ["OptionError", "SinkOptions", "SourceOptions"]

MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
FETCH_RETRIES: Final = 3
FETCH_RETRY_INTERVAL_MS: Final = 10
METADATA_CACHE_MS: Final = 1_000
SINK_MODES: Final = ("append", "upsert")

_PARTITIONS_EXAMPLE = '{"clicks": [0, 1]}'
_OFFSETS_EXAMPLE = '{"clicks": {"0": 23, "1": -2}} (-2 earliest, -1 latest)'
_TIMES_EXAMPLE = '{"clicks": {"0": 1735689600000}} (milliseconds since 1970)'


class Edge(Enum):
    """One end of every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"
    WHEN_READ = "whenread"
    """The end that a partition has when it is read; Spark plans a frame once, whenever that was."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every partition; `EARLIEST` and `LATEST` stand for the ends."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTime:
    """In every partition the first record of this time or later."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """A time for every partition."""

    times_ms: Offsets


Where = Edge | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions, whatever else the topics have."""

    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """These topics with all their partitions."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Every topic whose whole name matches; the cluster's internal topics never do."""

    pattern: str


Subscription = Assign | Subscribe | SubscribePattern

_OWNED_BY_SOURCE: Final[Mapping[str, str]] = {
    "auto.offset.reset": "is decided by `startingOffsets`; what is missing, by `failOnDataLoss`",
    "key.deserializer": "keys are always binary; decode them with DataFrame functions",
    "value.deserializer": "values are binary; decode them with `valueFormat` or in the query",
    "enable.auto.commit": "Spark keeps the offsets; `commitOffsets` = GROUP shows them to others",
    "interceptor.classes": "the source runs no interceptors",
}
_OWNED_BY_SINK: Final[Mapping[str, str]] = {
    "key.serializer": "keys are binary or string columns",
    "value.serializer": "values are binary or string columns, or structs with `valueFormat`",
    "interceptor.classes": "the sink runs no interceptors",
    "partitioner": "give the partition as a column `partition`, or let the key decide",
    "partitioner.class": "give the partition as a column `partition`, or let the key decide",
}

_VALUE_OPTIONS: Final = (
    "valueFormat",
    "valueSchema",
    "valueMessage",
    "valueSubject",
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
)
SOURCE_OPTIONS: Final = (
    "kafka.bootstrap.servers",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
    "commitOffsets",
    *_VALUE_OPTIONS,
    "deadLetterTopic",
)
SINK_OPTIONS: Final = (
    "kafka.bootstrap.servers",
    "topic",
    "table",
    "mode",
    "keys",
    "includeHeaders",
    *_VALUE_OPTIONS,
)
TABLE_PREFIXES: Final = ("table.", "catalog.", "storage.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """What the rows look like; a query's schema depends on nothing else."""

    include_headers: bool = False
    value: FormatOptions | None = None
    dead_letter_topic: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ColumnOptions:
        """Only these, whatever else was given: Spark asks for a schema before all else."""
        given = Given(options, SOURCE_OPTIONS)
        return _columns(given, given.names("subscribe") or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Everything the source is told; see docs/spark.md for what each option means."""

    bootstrap: str
    subscription: Subscription
    starting: Where
    starting_without_match: str = "error"
    """What to do when no record is as late as the starting time: `error` or `latest`."""
    ending: Where = Edge.LATEST
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    columns: ColumnOptions = ColumnOptions()
    fetch_retries: int = FETCH_RETRIES
    fetch_retry_interval_ms: int = FETCH_RETRY_INTERVAL_MS
    metadata_cache_ms: int = METADATA_CACHE_MS
    commit_group: str | None = None
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of the client, without their prefix."""

    @property
    def isolation_level(self) -> str:
        return self.client.get("isolation.level", "read_uncommitted").lower()

    @property
    def common_settings(self) -> dict[str, str]:
        """Of the client's settings those that every kind of client has."""
        return {name: text for name, text in self.client.items() if is_known(CommonSettings, name)}

    @property
    def api_timeout_ms(self) -> int:
        """How long any question to the brokers may take, connecting included."""
        return parse(CommonSettings, self.common_settings).default_api_timeout_ms

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """What a query was given, checked; `streaming` queries have no end, others no triggers."""
        given = Given(options, SOURCE_OPTIONS)
        bootstrap, client = given.settings(ConsumerSettings, _OWNED_BY_SOURCE)
        # Labels of consumers that Spark's own source has and this one does not.
        given.text("groupIdPrefix")
        poll_ms = given.duration_ms("kafkaConsumer.pollTimeoutMs")
        if poll_ms is not None:
            client.setdefault("default.api.timeout.ms", str(poll_ms))
        least, most = given.count("minOffsetsPerTrigger"), given.count("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            raise OptionError(
                "minOffsetsPerTrigger", str(least), f"is more than `maxOffsetsPerTrigger` = {most}"
            )
        subscription = _subscription(given)
        topics = subscription.topics if isinstance(subscription, Subscribe) else ()
        found = cls(
            bootstrap=bootstrap,
            client=client,
            subscription=subscription,
            starting=_starting(given, streaming=streaming),
            starting_without_match=given.choice(
                "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
            ),
            ending=_ending(given, streaming=streaming),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=_or(given.duration_ms("maxTriggerDelay"), MAX_TRIGGER_DELAY_MS),
            min_partitions=given.count("minPartitions"),
            max_records_per_partition=given.count("maxRecordsPerPartition"),
            columns=_columns(given, topics),
            fetch_retries=_or(given.count("fetchOffset.numRetries", low=0), FETCH_RETRIES),
            fetch_retry_interval_ms=_or(
                given.duration_ms("fetchOffset.retryIntervalMs"), FETCH_RETRY_INTERVAL_MS
            ),
            metadata_cache_ms=_or(
                given.count("partition.metadata.cache.ttl.ms", low=-1), METADATA_CACHE_MS
            ),
            commit_group=_commit_group(given, streaming=streaming),
        )
        given.finish()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where rows go: to a topic (named here or by a `topic` column), or into a table."""

    bootstrap: str = ""
    topic: str | None = None
    table: str | None = None
    mode: str = "append"
    keys: tuple[str, ...] = ()
    value: FormatOptions | None = None
    """How `value`, a struct, becomes bytes; without it the column has to be bytes or text."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of the producer, without their prefix."""
    table_options: Mapping[str, str] = field(default_factory=dict)
    """Options that begin with `table.`, `catalog.` or `storage.`, as they were given."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        given = Given(options, SINK_OPTIONS)
        table, topic = given.text("table"), given.text("topic")
        if table is not None and topic is not None:
            raise OptionError("topic", topic, "a sink has one target: give `topic` or `table`")
        given.flag("includeHeaders", False)  # A `headers` column is written whenever there is one.
        bootstrap, client = given.settings(ProducerSettings, _OWNED_BY_SINK, required=table is None)
        mode = given.choice("mode", SINK_MODES, "append")
        keys = given.names("keys") or ()
        if mode == "upsert" and (table is None or not keys):
            raise OptionError("mode", mode, "needs `table` and `keys` = the columns of its key")
        if mode == "append" and keys:
            raise OptionError("keys", ",".join(keys), "are for `mode` = upsert")
        value = _value(given, () if topic is None else (topic,))
        if value is not None and table is not None:
            raise OptionError("valueFormat", value.format, "is for topics; a table has columns")
        table_options = given.prefixed(*TABLE_PREFIXES)
        given.finish()
        return cls(
            bootstrap=bootstrap,
            topic=topic,
            table=table,
            mode=mode,
            keys=keys,
            value=value,
            client=client,
            table_options=table_options,
        )


# --- which topics ---------------------------------------------------------------------------------


def _subscription(given: Given) -> Subscription:
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if given.has(name)]
    if len(ways) != 1:
        raise OptionError(
            ways[1] if ways else "subscribe",
            None,
            "exactly one of `subscribe`, `subscribePattern` and `assign` says what to read",
        )
    topics = given.names("subscribe")
    if topics is not None:
        return Subscribe(topics)
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError("subscribePattern", pattern, f"is no pattern: {error}") from None
        return SubscribePattern(pattern)
    return _assign(given)


def _assign(given: Given) -> Assign:
    found = given.json_object("assign", _PARTITIONS_EXAMPLE) or {}
    for partitions in found.values():
        fits = isinstance(partitions, list) and partitions
        if not fits or not all(_is_index(each) for each in partitions):
            raise OptionError("assign", str(found), f"must look like {_PARTITIONS_EXAMPLE}")
    if not found:
        raise OptionError("assign", "{}", f"names no partition; write {_PARTITIONS_EXAMPLE}")
    return Assign({topic: tuple(sorted(set(found[topic]))) for topic in sorted(found)})


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- where to begin and to end --------------------------------------------------------------------


def _starting(given: Given, *, streaming: bool) -> Where:
    default = Edge.LATEST if streaming else Edge.EARLIEST
    where = _where(given, "starting", default)
    if not streaming and (where is Edge.LATEST or _names(where, LATEST)):
        raise OptionError(
            "startingOffsets", "latest", "a query that ends cannot begin at the end of the topic"
        )
    return where


def _ending(given: Given, *, streaming: bool) -> Where:
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if streaming and given.has(name):
            advice = "a stream has no end; use `spark.read`, or the trigger availableNow"
            raise OptionError(name, given.text(name), advice)
    where = _where(given, "ending", Edge.LATEST)
    if where is Edge.EARLIEST or _names(where, EARLIEST):
        raise OptionError(
            "endingOffsets", "earliest", "a query that ends at the beginning reads nothing"
        )
    return where


def _where(given: Given, side: str, default: Edge) -> Where:
    """The most particular of the three ways wins, as in Spark's own source."""
    time_ms = given.count(f"{side}Timestamp", low=0)
    times_option = f"{side}OffsetsByTimestamp"
    times = given.json_object(times_option, _TIMES_EXAMPLE)
    name = f"{side}Offsets"
    text = given.text(name)
    if time_ms is not None:
        return AtTime(time_ms)
    if times is not None:
        return AtTimes(_by_partition(times_option, times, _TIMES_EXAMPLE, low=0))
    if text is None:
        return default
    if text.lower() in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(text.lower())
    if side == "ending" and text.lower() == Edge.WHEN_READ.value:
        return Edge.WHEN_READ
    example = f"earliest, latest or {_OFFSETS_EXAMPLE}"
    found = Given({name: text}, ()).json_object(name, example) or {}
    return AtOffsets(_by_partition(name, found, _OFFSETS_EXAMPLE, low=EARLIEST))


def _by_partition(option: str, found: Mapping[str, object], example: str, *, low: int) -> Offsets:
    mistake = OptionError(option, str(found), f"must look like {example}")
    checked: Offsets = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict) or not partitions:
            raise mistake
        for index, number in partitions.items():
            if not re.fullmatch(r"\d+", index) or not isinstance(number, int) or number < low:
                raise mistake
            checked.setdefault(topic, {})[int(index)] = number
    if not checked:
        raise mistake
    return checked


def _names(where: Where, edge: int) -> bool:
    if not isinstance(where, AtOffsets):
        return False
    return any(edge in partitions.values() for partitions in where.offsets.values())


# --- the rest -------------------------------------------------------------------------------------


def _commit_group(given: Given, *, streaming: bool) -> str | None:
    group = given.text("commitOffsets")
    if group is not None and not streaming:
        raise OptionError(
            "commitOffsets", group, "shows the progress of a stream; a batch query has none"
        )
    if group is not None and group.lower() in ("true", "false"):
        raise OptionError("commitOffsets", group, "takes the name of a group")
    return group


def _columns(given: Given, topics: tuple[str, ...]) -> ColumnOptions:
    letters = given.text("deadLetterTopic")
    if letters in topics:
        raise OptionError("deadLetterTopic", letters, "is read by the same query, without end")
    return ColumnOptions(
        value=_value(given, topics, is_wanted=letters is not None),
        include_headers=given.flag("includeHeaders", False),
        dead_letter_topic=letters,
    )


def _value(
    given: Given, topics: tuple[str, ...], *, is_wanted: bool = False
) -> FormatOptions | None:
    """The format of values, from its options; other options may want that there is one."""
    said = {name: text for name in _VALUE_OPTIONS if (text := given.text(name)) is not None}
    if "valueFormat" not in said and (said or is_wanted):
        raise OptionError("valueFormat", None, "is missing: json, avro or protobuf")
    try:
        return format_options(said, topics=topics)
    except FormatError as error:
        raise OptionError("valueFormat", said.get("valueFormat"), str(error)) from None


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
