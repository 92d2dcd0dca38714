"""`kafka-consumer-groups --reset-offsets`: where offsets go, and what is printed about it."""

from __future__ import annotations

import argparse
import csv
import datetime
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin

SCENARIOS = (
    "to_offset",
    "to_datetime",
    "by_duration",
    "to_earliest",
    "to_latest",
    "to_current",
    "shift_by",
    "from_file",
)
"""In the order in which Kafka's tool looks whether there are two of them."""
NO_ACTION = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this "
    "command will require either --dry-run or --execute to be specified. You should add the "
    "--dry-run option explicitly if you are scripting this command and want to keep the current "
    "default behavior without prompting."
)
_DURATION = re.compile(
    r"(-)?P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)

UNQUOTED_MAX = 24

Offsets = dict[TopicPartition, int]


def add_options(parser: Options) -> None:
    parser.flag("to-earliest", "To the first offset there is.")
    parser.flag("to-latest", "To the end.")
    parser.flag("to-current", "To where it is.")
    parser.value("to-offset", "To this offset.", type=int)
    parser.value("shift-by", "By so many records, back if negative.", type=int)
    parser.value("to-datetime", "To a time: YYYY-MM-DDThh:mm:ss.sss.")
    parser.value("by-duration", "To so long ago: PnDTnHnMnS.")
    parser.many("from-file", "To what a CSV file says: topic,partition,offset.")


def check_manner(options: argparse.Namespace) -> None:
    if options.dry_run and options.execute:
        raise UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not options.dry_run and not options.execute:
        common.err(NO_ACTION)


def check_scenarios(options: argparse.Namespace) -> None:
    chosen = [name for name in SCENARIOS if common.is_given(options, name)]
    if len(chosen) > 1:
        raise common.cannot_be_used_with(*chosen[:2])


async def reset(admin: Admin, options: argparse.Namespace) -> None:
    """Plan for each group that may be moved, do it if asked, and print the new offsets."""
    from tidemill.cli.kafka.consumer_groups import print_error

    names = options.group
    if options.all_groups:
        names = [
            g.group_id for g in await admin.list_groups() if g.protocol_type in ("consumer", "")
        ]
    described = await admin.describe_groups(names)
    plans: dict[str, Offsets] = {}
    for name in dict.fromkeys(names):
        group = described.successes().get(name)
        if group is not None and group.is_active:
            print_error(
                f"Assignments can only be reset if the group '{name}' is inactive, "
                f"but the current state is {group.state}."
            )
            plans[name] = {}
            continue
        plans[name] = await _plan(admin, name, options)
        if options.execute:
            (await admin.alter_group_offsets(name, plans[name])).raise_first()
    if options.export:
        _print_csv(plans)
    else:
        _print_table(plans)


def _print_table(plans: Mapping[str, Offsets]) -> None:
    rows = [(g, tp, at) for g, plan in plans.items() for tp, at in sorted(plan.items())]
    group_width = max([15, *map(len, plans)])
    topic_width = max([15, *(len(tp.topic) for _, tp, _ in rows)])
    out()
    for cells in [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"),
                  *((g, tp.topic, str(tp.partition), str(at)) for g, tp, at in rows)]:  # fmt: skip
        group, topic, partition, offset = cells
        out(f"{group:<{group_width}} {topic:<{topic_width}} {partition:<10} {offset}")


def _print_csv(plans: Mapping[str, Offsets]) -> None:
    several = len(plans) > 1
    for group, plan in plans.items():
        for tp, offset in sorted(plan.items()):
            prefix = f"{_quoted(group)}," if several else ""
            out(f"{prefix}{_quoted(tp.topic)},{tp.partition},{offset}")
    out()


def _quoted(name: str) -> str:
    """Kafka's CSV writer does not look into long names for what needs quotes: they get them."""
    return f'"{name}"' if len(name) > UNQUOTED_MAX else name


async def _plan(admin: Admin, group: str, options: argparse.Namespace) -> Offsets:
    from tidemill.client.admin_types import OffsetSpec

    if options.from_file:
        wanted = {tp: at for p in options.from_file for tp, at in _read(p, group).items()}
        return await _within(admin, wanted)
    partitions = await _partitions(admin, group, options)
    if options.to_earliest:
        return await _listed(admin, partitions, OffsetSpec.EARLIEST)
    if options.to_latest:
        return await _listed(admin, partitions, OffsetSpec.LATEST)
    if options.to_offset is not None:
        return await _within(admin, dict.fromkeys(partitions, options.to_offset))
    if options.to_datetime is not None:
        return await _at_time(admin, partitions, _date_ms(options.to_datetime))
    if options.by_duration is not None:
        now_ms = int(time.time() * 1000)
        return await _at_time(admin, partitions, now_ms - _duration_ms(options.by_duration))
    committed = await _committed(admin, group)
    if options.shift_by is not None:
        missing = [str(tp) for tp in partitions if tp not in committed]
        if missing:
            raise ToolError(
                "java.lang.IllegalArgumentException: Cannot shift offset for partition "
                f"{missing[0]} since there is no current committed offset"
            )
        moved = {tp: committed[tp] + options.shift_by for tp in partitions}
        return await _within(admin, moved)
    if options.to_current:
        known = {tp: committed[tp] for tp in partitions if tp in committed}
        latest = await _listed(
            admin, [tp for tp in partitions if tp not in known], OffsetSpec.LATEST
        )
        return await _within(admin, known) | latest
    names = ", ".join(f"[{name.replace('_', '-')}]" for name in SCENARIOS)
    raise ToolError(f"Option [reset-offsets] requires one of: {names}")


# --- which partitions -----------------------------------------------------------------------------


async def _partitions(
    admin: Admin, group: str, options: argparse.Namespace
) -> list[TopicPartition]:
    if options.all_topics:
        return sorted(await _committed(admin, group))
    if options.topic:
        return await named_partitions(admin, options.topic)
    raise UsageError(
        "One of the reset scopes should be defined: --all-topics, --topic.", with_options=True
    )


async def named_partitions(admin: Admin, words: Sequence[str]) -> list[TopicPartition]:
    """`topic` and `topic:0,1` as partitions; numbers are taken as they are."""
    found: list[TopicPartition] = []
    whole: list[str] = []
    for word in words:
        name, colon, numbers = word.partition(":")
        if colon:
            try:
                found += [TopicPartition(name, int(part)) for part in numbers.split(",")]
            except ValueError:
                raise ToolError(f"Invalid topic arg '{word}', expected topic name and partitions"
                                ) from None  # fmt: skip
        else:
            whole.append(name)
    if whole:
        described = (await admin.describe_topics(whole)).raise_first()
        found += [TopicPartition(n, p.index) for n in whole for p in described[n].partitions]
    return found


async def _committed(admin: Admin, group: str) -> Offsets:
    found = (await admin.list_group_offsets(group)).raise_first()
    return {tp: at.offset for tp, at in found.items() if at is not None}


# --- which offsets --------------------------------------------------------------------------------


async def _listed(admin: Admin, partitions: Sequence[TopicPartition], spec: Any) -> Offsets:
    if not partitions:
        return {}
    found = (await admin.list_offsets(dict.fromkeys(partitions, spec))).raise_first()
    return {tp: listed.offset for tp, listed in found.items()}


async def _within(admin: Admin, wanted: Offsets) -> Offsets:
    from tidemill.client.admin_types import OffsetSpec

    first = await _listed(admin, list(wanted), OffsetSpec.EARLIEST)
    last = await _listed(admin, list(wanted), OffsetSpec.LATEST)
    return {tp: max(first[tp], min(at, last[tp])) for tp, at in wanted.items()}


async def _at_time(admin: Admin, partitions: Sequence[TopicPartition], at_ms: int) -> Offsets:
    from tidemill.client.admin_types import OffsetSpec

    found = await _listed(admin, partitions, OffsetSpec.at_time(max(at_ms, 0)))
    latest = await _listed(admin, [tp for tp, at in found.items() if at < 0], OffsetSpec.LATEST)
    for tp in latest:
        out(
            f"\nWarn: Partition {tp.partition} from topic {tp.topic} is empty. "
            "Falling back to latest known offset."
        )
    return found | latest


def _date_ms(text: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ToolError(f'java.text.ParseException: Unparseable date: "{text}"') from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ToolError(
            "java.time.format.DateTimeParseException: Text cannot be parsed to a Duration"
        )
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups()[1:])
    total_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return int(total_s * 1000) * (-1 if match[1] else 1)


def _read(path: str, group: str) -> Offsets:
    """CSV lines of this group: topic,partition,offset, with the group in front if for several."""
    try:
        with open(path, encoding="utf-8", newline="") as source:
            rows = [row for row in csv.reader(source) if row]
    except OSError:
        raise ToolError(f"java.io.IOException: Unable to read file {path}") from None
    try:
        mine = [row[-3:] for row in rows if len(row) == 3 or row[0] == group]
        return {TopicPartition(topic, int(p)): int(at) for topic, p, at in mine}
    except ValueError:
        raise ToolError(f"java.io.IOException: {path} holds no offsets") from None
