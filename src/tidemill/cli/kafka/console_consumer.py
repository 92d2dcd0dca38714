"""`kafka-console-consumer`: records of a topic on stdout.

With `--group` it reads as a member of the group and commits; without, every run reads all
partitions by itself, from their end or, with `--from-beginning`, from their start.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemill.cli.connect import parse_pairs
from tidemill.cli.consume_group import step_back
from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out
from tidemill.cli.loops import cleaned_up_on_sigterm
from tidemill.errors import ApiError
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Consumer, ConsumerRecord

POLL_RECORDS_MAX = 2_000
FOREVER_MS = 2**62
Write = Callable[["ConsumerRecord"], bytes]

_DESERIALIZERS: dict[str, Callable[[bytes], str]] = {
    "StringDeserializer": lambda data: data.decode("utf-8", "replace"),
    "LongDeserializer": lambda data: str(struct.unpack(">q", data)[0]),
    "IntegerDeserializer": lambda data: str(struct.unpack(">i", data)[0]),
    "ShortDeserializer": lambda data: str(struct.unpack(">h", data)[0]),
    "DoubleDeserializer": lambda data: repr(struct.unpack(">d", data)[0]),
    "FloatDeserializer": lambda data: repr(struct.unpack(">f", data)[0]),
    "BooleanDeserializer": lambda data: str(data != b"\0").lower(),
    "UUIDDeserializer": lambda data: str(uuid.UUID(data.decode())),
}


def parser() -> Options:
    p = Options(
        "kafka-console-consumer",
        "This tool helps to read data from Kafka topics and outputs it to standard output.",
    )
    common.address_options(p)
    p.value("topic", "The topic to read.")
    p.value("include", "A regular expression of topics to read.")
    p.value("whitelist", "Old spelling of --include.")
    p.value("partition", "The one partition to read.", type=int)
    p.value("offset", "earliest, latest, or an offset of the partition.")
    p.flag("from-beginning", "Start at the first record, not at the next.")
    p.value("max-messages", "Stop after so many records.", type=int)
    p.value("timeout-ms", "Stop when no record came for so long.", type=int)
    p.value("group", "Read as a member of this group, and commit.")
    p.value("isolation-level", "read_uncommitted or read_committed.")
    p.value("formatter", "Default, Logging or NoOp message formatter.")
    p.many("property", "Old spelling of --formatter-property.")
    p.many("formatter-property", "key=value for the formatter: print.key, key.separator, ...")
    p.value("formatter-config", "A properties file for the formatter.")
    p.value("key-deserializer", "How keys are printed.")
    p.value("value-deserializer", "How values are printed.")
    p.many("consumer-property", "Old spelling of --command-property.")
    p.many("command-property", "key=value for the consumer.")
    p.value("consumer.config", "Old spelling of --command-config.", dest="consumer_config")
    p.flag("skip-message-on-error", "Go on when a record cannot be printed.")
    p.flag("enable-systest-events", "Say when it is over: a test may wait for that.")
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    _check(options)
    for name, instead in (
        ("property", "formatter-property"),
        ("consumer_property", "command-property"),
        ("consumer_config", "command-config"),
    ):
        if getattr(options, name):
            written = "consumer.config" if name == "consumer_config" else name.replace("_", "-")
            out(
                f"Option --{written} is deprecated and will be removed in a future version. "
                f"Use --{instead} instead."
            )
    target = common.target(
        options,
        'Missing required argument "[bootstrap-server]"',
        properties=[*options.consumer_property, *options.command_property],
        files=[options.consumer_config],
    )
    reset = target.settings.get("auto.offset.reset")
    settings = _settings(options, reset)
    write = formatter(options)
    reading = _Reading(options, write, reset)
    try:
        with cleaned_up_on_sigterm():
            async with common.for_client(target, "consumer").consumer(**settings) as consumer:
                await reading.start(consumer)
                try:
                    await reading.go(consumer)
                finally:
                    await _commit_printed(consumer, reading.unprinted)
    finally:
        sys.stdout.flush()
        common.err(f"Processed a total of {reading.count} messages")
        if options.enable_systest_events:
            out("shutdown_complete")
    return 0


def _settings(options: argparse.Namespace, reset: str | None) -> dict[str, object]:
    """The consumer's settings that have options of their own."""
    if options.from_beginning and reset not in (None, "earliest"):
        raise UsageError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', "
            "please remove one option",
            with_options=False,
        )
    settings: dict[str, object] = {"group_id": options.group} if options.group else {}
    if reset is None:
        starts_early = options.from_beginning or not options.group
        settings["auto_offset_reset"] = "earliest" if starts_early else "latest"
    if options.isolation_level:
        settings["isolation_level"] = options.isolation_level
    return settings


def _group(options: argparse.Namespace) -> str | None:
    """The group by option, property or file: whichever is given, and only one."""
    properties = parse_pairs([*options.consumer_property, *options.command_property], "a property")
    found = [options.group, properties.get("group.id")]
    for path in (options.consumer_config, options.command_config):
        if path:
            found.append(common.read_properties(path).get("group.id"))
    groups = sorted({group for group in found if group is not None})
    if len(groups) > 1:
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via "
            "'--consumer-property', or via '--consumer.config') do not match. Detected group ids: "
            + ", ".join(f"'{group}'" for group in groups)
        )
    return groups[0] if groups else None


async def _commit_printed(consumer: Consumer, unprinted: Sequence[ConsumerRecord]) -> None:
    """What was polled is printed, also after an interrupt; what could not be is read again."""
    if consumer.settings.group_id and consumer.settings.enable_auto_commit:
        step_back(consumer, unprinted)
        with suppress(ApiError):
            await consumer.commit()


def _check(options: argparse.Namespace) -> None:
    options.include = options.include or options.whitelist
    if (options.topic is None) == (options.include is None):
        raise UsageError("Exactly one of the following arguments is required: [topic], [include]")
    if options.partition is not None and options.topic is None:
        raise UsageError("The topic is required when partition is specified.")
    common.not_together(
        options,
        ("consumer-property", "command-property"),
        ("consumer.config", "command-config"),
        ("property", "formatter-property"),
    )
    options.group = _group(options)
    if options.group is not None and options.partition is not None:
        raise UsageError("Options group and partition cannot be specified together.")
    if options.offset is None:
        return
    if options.partition is None:
        raise UsageError("The partition is required when offset is specified.")
    if options.from_beginning:
        raise UsageError("Options from-beginning and offset cannot be specified together.")
    if options.offset.lower() not in ("earliest", "latest") and not options.offset.isdigit():
        raise UsageError(
            f"The provided offset value '{options.offset}' is incorrect. Valid values are "
            "'earliest', 'latest', or a non-negative long."
        )


class _Reading:
    """One run: which partitions, from where, until when."""

    def __init__(self, options: argparse.Namespace, write: Write, reset: str | None) -> None:
        self._options = options
        self._reset = reset
        self._write = write
        self._limit = options.max_messages if options.max_messages is not None else -1
        self._timeout_ms = options.timeout_ms if options.timeout_ms is not None else FOREVER_MS
        self.count = 0
        self.unprinted: Sequence[ConsumerRecord] = ()

    async def start(self, consumer: Consumer) -> None:
        if self._options.group:
            self._subscribe(consumer)
            return
        partitions = await self._partitions(consumer)
        consumer.assign(partitions)
        offset = (self._options.offset or self._reset or "latest").lower()
        if self._options.from_beginning or offset == "earliest":
            consumer.seek_to_beginning(*partitions)
        elif offset == "latest":
            consumer.seek_to_end(*partitions)
        elif self._options.offset:
            consumer.seek(partitions[0], int(offset))

    def _subscribe(self, consumer: Consumer) -> None:
        if self._options.include is None:
            consumer.subscribe([self._options.topic])
        else:
            consumer.subscribe(pattern=common.topic_pattern(self._options.include))

    async def _partitions(self, consumer: Consumer) -> list[TopicPartition]:
        if self._options.partition is not None:
            return [TopicPartition(self._options.topic, self._options.partition)]
        topics = [self._options.topic]
        if self._options.include:
            topics = await self._included(consumer)
        return [TopicPartition(t, i) for t in topics for i in await consumer.partitions_for(t)]

    async def _included(self, consumer: Consumer) -> list[str]:
        matches = common.topic_filter(self._options.include)
        target = common.target(self._options, "")
        async with common.for_client(target, "admin").admin() as admin:
            return [t.name for t in await admin.list_topics() if matches(t.name)]

    async def go(self, consumer: Consumer) -> None:
        last = time.monotonic()
        while self._limit < 0 or self.count < self._limit:
            wait_ms = min(500.0, self._timeout_ms - (time.monotonic() - last) * 1000)
            if wait_ms <= 0:
                return
            room = POLL_RECORDS_MAX if self._limit < 0 else self._limit - self.count
            records = await consumer.poll(min(room, POLL_RECORDS_MAX), timeout_ms=wait_ms)
            if records:
                last = time.monotonic()
                self._print(records)
            await asyncio.sleep(0)

    def _print(self, records: Sequence[ConsumerRecord]) -> None:
        self.unprinted = records
        parts: list[bytes] = []
        for record in records:
            try:
                parts.append(self._write(record))
            except (struct.error, ValueError) as error:
                if not self._options.skip_message_on_error:
                    raise ToolError(f"Error processing message: {error}") from None
            self.count += 1
        sys.stdout.flush()
        sys.stdout.buffer.write(b"".join(parts))
        sys.stdout.buffer.flush()
        self.unprinted = ()


def formatter(options: argparse.Namespace) -> Write:
    """How a record is printed, by `--formatter` and its properties."""
    properties = (
        common.read_properties(options.formatter_config) if options.formatter_config else {}
    )
    properties |= common.loose_pairs([*options.property, *options.formatter_property])
    if options.key_deserializer:
        properties["key.deserializer"] = options.key_deserializer
    if options.value_deserializer:
        properties["value.deserializer"] = options.value_deserializer
    kind = (options.formatter or "DefaultMessageFormatter").rpartition(".")[2]
    if kind == "NoOpMessageFormatter":
        return lambda record: b""
    if kind not in ("DefaultMessageFormatter", "LoggingMessageFormatter"):
        raise ToolError(f"java.lang.ClassNotFoundException: {options.formatter}")
    return default_formatter(properties)


def default_formatter(properties: dict[str, str]) -> Write:
    """Kafka's columns in Kafka's order: time, partition, offset, delivery, epoch, headers, key,
    value."""

    def wanted(name: str, default: bool = False) -> bool:
        return properties.get(name, str(default)).strip().lower() == "true"

    null = properties.get("null.literal", "null").encode()
    columns: list[Write] = []
    if wanted("print.timestamp"):
        columns.append(_timestamp)
    if wanted("print.partition"):
        columns.append(lambda record: b"Partition:%d" % record.partition)
    if wanted("print.offset"):
        columns.append(lambda record: b"Offset:%d" % record.offset)
    if wanted("print.delivery"):
        columns.append(lambda record: b"Delivery:NOT_PRESENT")
    if wanted("print.epoch"):
        columns.append(lambda record: b"Epoch:NOT_PRESENT")
    if wanted("print.headers"):
        split = properties.get("headers.separator", ",").encode()
        decode = _deserializer(properties.get("headers.deserializer"), null)
        columns.append(lambda record: _headers(record, split, decode))
    if wanted("print.key"):
        decode_key = _deserializer(properties.get("key.deserializer"), null)
        columns.append(lambda record: decode_key(record.key))
    if wanted("print.value", default=True):
        decode_value = _deserializer(properties.get("value.deserializer"), null)
        columns.append(lambda record: decode_value(record.value))
    between = properties.get("key.separator", "\t").encode()
    end = properties.get("line.separator", "\n").encode()
    return lambda record: between.join(column(record) for column in columns) + end


def _timestamp(record: ConsumerRecord) -> bytes:
    if record.timestamp_ms < 0:
        return b"NO_TIMESTAMP"
    kind = "LogAppendTime" if record.timestamp_type == 1 else "CreateTime"
    return f"{kind}:{record.timestamp_ms}".encode()


def _headers(
    record: ConsumerRecord, split: bytes, decode: Callable[[bytes | None], bytes]
) -> bytes:
    if not record.headers:
        return b"NO_HEADERS"
    return split.join(name.encode() + b":" + decode(value) for name, value in record.headers)


def _deserializer(name: str | None, null: bytes) -> Callable[[bytes | None], bytes]:
    if name is None:
        return lambda data: null if data is None else data
    convert = _DESERIALIZERS.get(name.rpartition(".")[2])
    if convert is None:
        return lambda data: null if data is None else data
    return lambda data: null if data is None else convert(data).encode()
