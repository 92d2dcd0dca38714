"""`tidemill topic`: list, create, describe, alter, delete, add-partitions, trim."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli import offsets, outcomes
from tidemill.cli.alter import change
from tidemill.cli.command import command, confirm
from tidemill.cli.connect import parse_pairs
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun, Pairs, Regex, TopicName, TopicNames
from tidemill.cli.outcomes import Outcomes
from tidemill.cli.render import QUIET, Note, human_bytes, plural, talk
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import TopicDescription

app = App(name="topic")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A line of `topic list`."""

    name: str
    partitions: int
    replicas: int
    internal: bool = field(default=False, metadata=QUIET)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition in `topic describe`."""

    partition: int
    leader: int | None
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start: int | None
    end: int | None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """All about one topic; `configs` holds what is not at its default."""

    name: str
    topic_id: str
    partition_count: int
    replication_factor: int
    internal: bool
    configs: dict[str, str | None] = field(default_factory=dict)
    partitions: tuple[PartitionRow, ...] = ()


@command(
    app, examples=["tidemill topic list", "tidemill topic list --regex 'click.*'"], name="list"
)
async def list_topics(
    *patterns: TopicNames,
    internal: Annotated[
        bool,
        Parameter(
            name=("--internal", "-i"),
            negative=(),
            show_default=False,
            help="Show internal topics, too.",
        ),
    ] = False,
    regex: Regex = False,
    common: Common = COMMON,
) -> list[TopicRow]:
    """List topics with their partitions and replicas."""
    async with common.target.admin() as admin:
        names = await select(admin, patterns, regex, internal=internal)
        found = (await admin.describe_topics(names)).successes() if names else {}
    return [
        TopicRow(t.name, len(t.partitions), t.replication_factor, t.is_internal)
        for t in sorted(found.values(), key=lambda t: t.name)
    ]


@command(
    app,
    mutates=True,
    examples=[
        "tidemill topic create clicks",
        "tidemill topic create clicks orders --partitions 6 --config retention.ms=86400000",
        "tidemill topic create clicks -p 6 -r 1 --dry-run",
    ],
)
async def create(
    *names: TopicNames,
    partitions: Annotated[
        int | None, Parameter(name=("--partitions", "-p"), help="How many; default: the brokers'.")
    ] = None,
    replicas: Annotated[
        int | None,
        Parameter(name=("--replicas", "-r"), help="Copies of each; default: the brokers'."),
    ] = None,
    config: Pairs = (),
    if_not_exists: Annotated[
        bool, Parameter(negative=(), show_default=False, help="An existing topic is no failure.")
    ] = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Outcomes:
    """Create topics."""
    from tidemill.client.admin_types import NewTopic
    from tidemill.errors import ErrorCode

    _need_names(names)
    _need_some(partitions, "--partitions")
    _need_some(replicas, "--replicas")
    configs: dict[str, str | None] = dict(parse_pairs(config, "--config"))
    wanted = [NewTopic(name, partitions or -1, replicas or -1, None, configs) for name in names]
    async with common.target.admin() as admin:
        results = await admin.create_topics(wanted, validate_only=dry_run)
    existing = [n for n, e in results.errors().items() if e.code is ErrorCode.TOPIC_ALREADY_EXISTS]
    if if_not_exists:
        for name in existing:
            del results[name]
    made = outcomes.of(
        results,
        "would be created" if dry_run else "created",
        lambda _, topic: f"{plural(topic.partitions, 'partition')}" if topic.partitions > 0 else "",
    )
    if if_not_exists:
        made.extend(outcomes.Outcome(name, "exists") for name in existing)
    return made


@command(
    app,
    examples=["tidemill topic describe clicks", "tidemill topic describe clicks --format json"],
)
async def describe(
    *names: TopicNames, regex: Regex = False, common: Common = COMMON
) -> list[TopicDetail] | TopicDetail:
    """Describe topics: settings that differ from the default, partitions, offsets and sizes."""
    _need_names(names)
    async with common.target.admin() as admin:
        selected = await select(admin, names, regex, internal=True)
        described = (await admin.describe_topics(selected)).raise_first()
        details = [await _detail(admin, described[name]) for name in selected]
    return details[0] if len(details) == 1 else details


@command(
    app,
    mutates=True,
    examples=[
        "tidemill topic alter clicks --set retention.ms=86400000",
        "tidemill topic alter clicks --delete retention.ms --dry-run",
    ],
)
async def alter(
    name: TopicName,
    /,
    *,
    set_: Annotated[
        tuple[str, ...],
        Parameter(name=("--set", "-s"), negative=(), show_default=False, help="Set key=value."),
    ] = (),
    delete: Annotated[
        tuple[str, ...],
        Parameter(name=("--delete",), negative=(), show_default=False, help="Back to default."),
    ] = (),
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Change a topic's settings."""
    from tidemill.client.admin_types import ConfigResource

    changes = parse_pairs(set_, "--set")
    if not changes and not delete:
        raise CommandError("nothing to change: give --set key=value or --delete key", Exit.USAGE)
    resource = ConfigResource.topic(name)
    shown = ("topic", name)
    return await change(common.target, resource, shown, changes, delete, dry_run=dry_run)


@command(
    app,
    mutates=True,
    examples=[
        "tidemill topic delete orders --yes",
        "tidemill topic delete --regex 'tmp-.*' --dry-run",
    ],
)
async def delete(
    *names: TopicNames, regex: Regex = False, dry_run: DryRun = False, common: Common = COMMON
) -> Outcomes:
    """Delete topics and everything in them."""
    _need_names(names)
    async with common.target.admin() as admin:
        selected = await select(admin, names, regex, internal=False)
        if not selected:
            return Outcomes()
        described = (await admin.describe_topics(selected)).raise_first()
        radius = await _blast_radius(admin, described.values())
        if dry_run:
            talk(f"would delete {radius}")
            return outcomes.planned(selected, "deleted")
        talk(f"deletes {radius}")
        confirm(f"Delete {', '.join(selected)} for good?", common)
        return outcomes.of(await admin.delete_topics(selected), "deleted")


@command(
    app,
    mutates=True,
    examples=[
        "tidemill topic add-partitions clicks --total 12 --yes",
        "tidemill topic add-partitions clicks -n 2 --dry-run",
    ],
)
async def add_partitions(
    name: TopicName,
    /,
    *,
    total: Annotated[int | None, Parameter(help="How many there shall be.")] = None,
    num: Annotated[
        int | None, Parameter(name=("--num", "-n"), help="How many to add to those there are.")
    ] = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Give a topic more partitions. Keys will move: the records of one key will be found in two."""
    from tidemill.cli.key_sample import has_keys
    from tidemill.client.admin_types import NewPartitions

    if (total is None) == (num is None):
        raise CommandError("give either --total or --num", Exit.USAGE)
    async with common.target.admin() as admin:
        described = (await admin.describe_topics([name])).raise_first()[name]
        count = len(described.partitions)
        wanted = total if total is not None else count + (num or 0)
        check_growth(name, count, wanted)
        if await has_keys(common, described):
            talk(keys_will_move(name, count, wanted))
            if not dry_run:
                confirm(f"Add partitions to {name} all the same?", common)
        grown = await admin.create_partitions({name: NewPartitions(wanted)}, validate_only=dry_run)
        grown.raise_first()
    verb = "would have" if dry_run else "has"
    return Note(
        f"{name} {verb} {plural(wanted, 'partition')}, up from {count}",
        {"topic": name, "before": count, "after": wanted},
        dry_run,
    )


def check_growth(name: str, count: int, wanted: int) -> None:
    """Partitions are only ever added: to drop one would be to drop its records."""
    if wanted > count:
        return
    if wanted == count:
        raise CommandError(f"{name} has {plural(count, 'partition')} already", Exit.USAGE)
    raise CommandError(
        f"{name} has {plural(count, 'partition')}; it cannot be cut to {wanted} "
        "because that would lose records",
        Exit.USAGE,
        hint=f"create a new topic with {wanted}, copy with `tidemill consume {name} --offset :end "
        "| tidemill produce NEW --json`, and point the producers at it",
    )


def keys_will_move(name: str, count: int, wanted: int) -> str:
    return (
        f"warning: {name} holds records with keys. A key's partition is its hash modulo the number "
        f"of partitions, so with {wanted} instead of {count} most keys will move: new records of a "
        "key will not follow its old ones in order, and compaction will not see them together."
    )


@command(
    app,
    mutates=True,
    examples=[
        "tidemill topic trim clicks --offset @-7d --yes",
        "tidemill topic trim clicks --offset end --partition 0 --dry-run",
    ],
)
async def trim(
    name: TopicName,
    /,
    *,
    offset: Annotated[
        str, Parameter(name=("--offset", "-o"), help="Delete what is before; see `help offsets`.")
    ],
    partition: Annotated[
        tuple[int, ...],
        Parameter(
            name=("--partition", "-p"),
            negative=(),
            show_default=False,
            help="Only these partitions.",
        ),
    ] = (),
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Outcomes:
    """Delete a topic's oldest records, up to an offset or a time."""
    import time

    from tidemill.cli import ranges

    span = offsets.parse(offset, int(time.time() * 1000))
    if span.stop is not None:
        raise CommandError("trim takes one point, not a range", Exit.USAGE)
    async with common.target.admin() as admin:
        described = (await admin.describe_topics([name])).raise_first()[name]
        wanted = ranges.choose_partitions(described, partition)
        plan = {
            tp: (min(bounds.start, bounds.last), bounds.first)
            for tp, bounds in (await ranges.settle_all(admin, wanted, span)).items()
            if min(bounds.start, bounds.last) > bounds.first
        }
        details = {str(tp): f"{start - first:,} records" for tp, (start, first) in plan.items()}
        lost = sum(start - first for start, first in plan.values())
        if dry_run or not plan:
            return outcomes.planned(details, "trimmed")
        talk(f"deletes {plural(lost, 'record')} of {plural(len(plan), 'partition')} of {name}")
        confirm(f"Trim {name}?", common)
        results = await admin.delete_records({tp: start for tp, (start, _) in plan.items()})
    return outcomes.of(results, "trimmed", lambda _, low: f"starts at {low}")


def _need_names(names: Sequence[str]) -> None:
    if not names:
        raise CommandError("name at least one topic", Exit.USAGE)


def _need_some(count: int | None, option: str) -> None:
    if count is not None and count < 1:
        raise CommandError(f"{option} must be at least 1, not {count}", Exit.USAGE)


async def select(
    admin: Admin, patterns: Sequence[str], regex: bool, *, internal: bool
) -> list[str]:
    """The topics meant: all of them, those named, or those that match."""
    if patterns and not regex:
        return list(dict.fromkeys(patterns))
    everything = [t.name for t in await admin.list_topics(internal=internal)]
    if not patterns:
        return sorted(everything)
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise CommandError(f"no regular expression: {error}", Exit.USAGE) from None
    return sorted(n for n in everything if any(c.fullmatch(n) for c in compiled))


async def _detail(admin: Admin, topic: TopicDescription) -> TopicDetail:
    from tidemill.client.admin_types import ConfigResource, OffsetSpec

    led = [TopicPartition(topic.name, p.index) for p in topic.partitions if p.leader is not None]
    first = (await admin.list_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST))).successes()
    last = (await admin.list_offsets(dict.fromkeys(led, OffsetSpec.LATEST))).successes()
    resource = ConfigResource.topic(topic.name)
    configs = (await admin.describe_configs([resource])).raise_first()[resource]
    sizes = await _sizes(admin, [topic.name])
    rows = []
    for p in topic.partitions:
        tp = TopicPartition(topic.name, p.index)
        start = first[tp].offset if tp in first else None
        end = last[tp].offset if tp in last else None
        rows.append(
            PartitionRow(
                p.index, p.leader, p.leader_epoch, p.replicas, p.isr, start, end, sizes.get(tp)
            )
        )
    return TopicDetail(
        topic.name,
        str(topic.topic_id),
        len(topic.partitions),
        topic.replication_factor,
        topic.is_internal,
        {e.name: e.value for e in configs.values() if not e.is_default},
        tuple(rows),
    )


async def _sizes(admin: Admin, names: Iterable[str]) -> dict[TopicPartition, int]:
    """Bytes per partition, the largest replica's; empty where the cluster does not say."""
    wanted = set(names)
    sizes: dict[TopicPartition, int] = {}
    for dirs in (await admin.describe_log_dirs()).successes().values():
        for directory in dirs.values():
            for tp, replica in directory.replicas.items():
                if tp.topic in wanted and not replica.is_future:
                    sizes[tp] = max(sizes.get(tp, 0), replica.size_bytes)
    return sizes


async def _blast_radius(admin: Admin, topics: Iterable[TopicDescription]) -> str:
    """What a deletion takes with it, in words."""
    listed = list(topics)
    partitions = sum(len(topic.partitions) for topic in listed)
    sizes = await _sizes(admin, [topic.name for topic in listed])
    size = human_bytes(sum(sizes.values()))
    return f"{plural(len(listed), 'topic')}, {plural(partitions, 'partition')}, {size}"
