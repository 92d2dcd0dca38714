"""`kafka-get-offsets`: the offsets of partitions at an end or at a time."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, out
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import OffsetSpec

Match = Callable[[str, int], bool]

TIMES = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_PATTERN = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")


def parser() -> Options:
    p = Options("kafka-get-offsets", "Get the offsets of topic partitions.")
    common.address_options(p)
    p.value("topic", "A regular expression of topic names.")
    p.value("partitions", "Comma-separated partition ids.")
    p.value("topic-partitions", "Patterns topic:partition, topic:from-to, comma-separated.")
    p.value("time", "A timestamp in ms, or a name or number for an end.", default="latest")
    p.flag("exclude-internal-topics", "Leave internal topics out.")
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(
        argv, parser(), _work, on_failure=lambda text: common.err(f"Error occurred: {text}")
    )


async def _work(options: argparse.Namespace) -> int:
    if options.topic_partitions and (options.topic or options.partitions):
        raise _failure("--topic-partitions cannot be used with --topic or --partitions")
    spec = parse_time(options.time)
    matches = _filter(options)
    target = common.target(options, 'Missing required argument "[bootstrap-server]"')
    async with common.for_client(target, "admin").admin() as admin:
        await _print(admin, matches, spec, options.exclude_internal_topics)
    return 0


def _failure(text: str) -> ToolError:
    return ToolError(f"Error occurred: {text}")


def parse_time(word: str) -> OffsetSpec:
    from tidemill.client.admin_types import OffsetSpec

    if word in TIMES:
        return OffsetSpec(TIMES[word])
    try:
        value = int(word)
    except ValueError:
        raise _failure(
            f"Malformed time argument {word}. Please use -1 or latest / -2 or earliest / "
            "-3 or max-timestamp / -4 or earliest-local / -5 or latest-tiered / "
            "-6 or earliest-pending-upload, or a specified long format timestamp"
        ) from None
    return OffsetSpec(value)


def _filter(options: argparse.Namespace) -> Match:
    if options.topic_partitions:
        return parse_topic_partitions(options.topic_partitions)
    by_name = common.topic_filter(options.topic) if options.topic else lambda name: True
    if not options.partitions:
        return lambda topic, partition: by_name(topic)
    try:
        ids = {int(word) for word in options.partitions.split(",")}
    except ValueError:
        raise _failure(
            "--partitions expects a comma separated list of numeric partition ids, but received: "
            f"{options.partitions}"
        ) from None
    return lambda topic, partition: by_name(topic) and partition in ids


def parse_topic_partitions(text: str) -> Match:
    """`topic:0,other.*:2-5` as a test of (topic, partition)."""
    rules = [_rule(word) for word in text.split(",")]
    return lambda topic, partition: any(rule(topic, partition) for rule in rules)


def _rule(word: str) -> Match:
    match = _PATTERN.fullmatch(word)
    if match is None:
        raise _failure(f"Invalid rule specification: {word}")
    by_name = common.topic_filter(match[1]) if match[1] else lambda name: True
    single, low, high = match[2], match[3], match[4]
    if single:
        return lambda topic, partition: by_name(topic) and partition == int(single)
    first = int(low) if low else 0
    end = int(high) if high else 2**31
    return lambda topic, partition: by_name(topic) and first <= partition < end


async def _print(admin: Admin, matches: Match, spec: OffsetSpec, exclude_internal: bool) -> None:
    names = sorted(t.name for t in await admin.list_topics(internal=True))
    if exclude_internal:
        names = [name for name in names if name not in common.INTERNAL_TOPICS]
    topics = (await admin.describe_topics(names)).successes() if names else {}
    wanted = [
        TopicPartition(name, p.index)
        for name in sorted(topics)
        for p in sorted(topics[name].partitions, key=lambda p: p.index)
        if matches(name, p.index)
    ]
    if not wanted:
        raise _failure("Could not match any topic-partitions with the specified filters")
    results = await admin.list_offsets(dict.fromkeys(wanted, spec))
    found, errors = results.successes(), results.errors()
    for tp in wanted:
        if tp in errors:
            common.err(
                f"Skip getting offsets for topic-partition {tp} due to error: "
                f"{common.message_of(errors[tp])}"
            )
        elif found[tp].offset >= 0:
            out(f"{tp.topic}:{tp.partition}:{found[tp].offset}")
