"""`tidemill group`: list, describe, members, offsets, seek, delete."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli import group_moves, offsets, outcomes
from tidemill.cli.command import command, confirm
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.outcomes import Outcomes
from tidemill.cli.render import ALWAYS, plural, talk
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_groups import GroupDescription, MemberDescription

app = App(name="group")

AGE_SAMPLE_TIMEOUT_S = 5.0
AGE_SAMPLE_PARTITIONS_MAX = 1_000

GroupName = Annotated[str, Parameter(help="Name of the group.")]
GroupNames = Annotated[str, Parameter(help="Names of groups.")]
OfTopics = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--topic", "-t"),
        negative=(),
        show_default=False,
        help="Only this topic, or with TOPIC:0,2 these partitions of it; repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A line of `group list`."""

    group: str
    type: str
    state: str
    protocol: str


@dataclass(frozen=True, slots=True)
class LagRow:
    """One partition of a group: how far it is read and by whom, and how old the next record is."""

    topic: str
    partition: int
    committed: int | None = field(metadata=ALWAYS)
    end: int | None = field(metadata=ALWAYS)
    lag: int | None = field(metadata=ALWAYS)
    oldest_unread_s: float | None = field(metadata=ALWAYS)
    member: str | None = field(metadata=ALWAYS)
    host: str | None = field(metadata=ALWAYS)
    client: str | None


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """All about one group."""

    group: str
    state: str
    type: str
    assignor: str
    coordinator: str
    members: int
    lag: int
    partitions: tuple[LagRow, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A line of `group members`."""

    group: str
    member: str
    instance: str | None
    client: str
    host: str
    epoch: int | None
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A line of `group offsets`."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str | None


@command(
    app,
    name="list",
    examples=["tidemill group list", "tidemill group list --state stable --format json"],
)
async def list_groups(
    *,
    state: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="Only groups in this state; repeatable."),
    ] = (),
    type_: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--type",),
            negative=(),
            show_default=False,
            help="Only `classic` or `consumer` groups.",
        ),
    ] = (),
    common: Common = COMMON,
) -> list[GroupRow]:
    """List groups with their type and state."""
    async with common.target.admin() as admin:
        found = await admin.list_groups(_capitalized(state), [word.lower() for word in type_])
    return [GroupRow(g.group_id, g.type, g.state, g.protocol_type) for g in found]


def _capitalized(states: Sequence[str]) -> list[str]:
    """States as the protocol spells them, however they were typed."""
    known = {s.lower(): s for s in group_moves.STATES}
    return [known.get(word.lower().replace("-", ""), word) for word in states]


@command(
    app,
    examples=["tidemill group describe audit", "tidemill group describe audit --format json"],
)
async def describe(*groups: GroupNames, common: Common = COMMON) -> list[GroupDetail] | GroupDetail:
    """Show a group's state and, per partition, what is committed, how much is left, and whose."""
    _need_names(groups)
    async with common.target.admin() as admin:
        described = (await admin.describe_groups(groups)).raise_first()
        details = [await _detail(admin, common, described[name]) for name in groups]
    return details[0] if len(details) == 1 else details


async def _detail(admin: Admin, common: Common, group: GroupDescription) -> GroupDetail:
    found = await admin.list_group_offsets(group.group_id)
    committed = {tp: at.offset for tp, at in found.successes().items() if at is not None}
    readers = group_moves.readers(group)
    wanted = sorted({*committed, *readers})
    ends = await group_moves.ends(admin, wanted)
    behind = {tp: at for tp, at in committed.items() if at < ends.get(tp, 0)}
    ages = await oldest_unread(common, behind)
    _remark_unknown_ages(group.group_id, len(behind) - len(ages), len(behind))
    rows = tuple(
        _lag_row(tp, committed.get(tp), ends.get(tp), ages.get(tp), readers.get(tp))
        for tp in wanted
    )
    return GroupDetail(
        group.group_id,
        group.state,
        group.type,
        group.assignor,
        group.coordinator,
        len(group.members),
        sum(row.lag or 0 for row in rows),
        rows,
    )


def _remark_unknown_ages(group_id: str, unknown: int, behind: int) -> None:
    """An empty cell is not to be taken for a record that is not old."""
    if unknown:
        talk(
            f"{group_id}: how old the oldest unread record is was not found out for {unknown} of "
            f"{plural(behind, 'partition')}: at most {AGE_SAMPLE_PARTITIONS_MAX:,} are looked at, "
            f"for {AGE_SAMPLE_TIMEOUT_S:g} s"
        )


def _lag_row(
    tp: TopicPartition,
    committed: int | None,
    end: int | None,
    age_s: float | None,
    reader: MemberDescription | None,
) -> LagRow:
    lag = None if committed is None or end is None else max(end - committed, 0)
    return LagRow(
        tp.topic,
        tp.partition,
        committed,
        end,
        lag,
        age_s,
        reader.member_id if reader else None,
        reader.host if reader else None,
        reader.client_id if reader else None,
    )


async def oldest_unread(
    common: Common, behind: dict[TopicPartition, int]
) -> dict[TopicPartition, float]:
    """How old, in seconds, the first record after each offset is, as far as it can be read."""
    wanted = dict(sorted(behind.items())[:AGE_SAMPLE_PARTITIONS_MAX])
    ages: dict[TopicPartition, float] = {}
    if not wanted:
        return ages
    settings = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": 1}
    async with common.target.consumer(**settings) as consumer:
        consumer.assign(wanted)
        for tp, offset in wanted.items():
            consumer.seek(tp, offset)
        deadline = time.monotonic() + AGE_SAMPLE_TIMEOUT_S
        while len(ages) < len(wanted) and time.monotonic() < deadline:
            for record in await consumer.poll(timeout_ms=200):
                tp = TopicPartition(record.topic, record.partition)
                if tp not in ages:
                    ages[tp] = max(0.0, time.time() - record.timestamp_ms / 1000)
                    consumer.pause(tp)
    return ages


@command(app, examples=["tidemill group members audit"])
async def members(*groups: GroupNames, common: Common = COMMON) -> list[MemberRow]:
    """List the members of groups and what each of them reads."""
    _need_names(groups)
    async with common.target.admin() as admin:
        described = (await admin.describe_groups(groups)).raise_first()
    return [
        MemberRow(
            name,
            member.member_id,
            member.instance_id,
            member.client_id,
            member.host,
            member.epoch,
            tuple(str(tp) for tp in sorted(member.assignment)),
        )
        for name in groups
        for member in sorted(described[name].members, key=lambda m: (m.client_id, m.member_id))
    ]


@command(
    app,
    name="offsets",
    examples=[
        "tidemill group offsets audit",
        "tidemill group offsets audit --topic clicks:0,1 --format json",
    ],
)
async def list_offsets(
    group: GroupName, /, *, topic: OfTopics = (), common: Common = COMMON
) -> list[OffsetRow]:
    """List the offsets that a group has committed; with --format json, input for `seek --file`."""
    chosen = group_moves.parse_topics(topic)
    async with common.target.admin() as admin:
        found = (await admin.list_group_offsets(group)).raise_first()
    return [
        OffsetRow(
            tp.topic,
            tp.partition,
            at.offset,
            at.leader_epoch if at.leader_epoch >= 0 else None,
            at.metadata or None,
        )
        for tp, at in sorted(found.items())
        if at is not None and group_moves.is_chosen(tp, chosen)
    ]


@command(
    app,
    mutates=True,
    examples=[
        "tidemill group seek audit --to start",
        "tidemill group seek audit --to @-1h --topic clicks --execute",
        "tidemill group seek audit --shift -100 --topic clicks:0 --execute",
        "tidemill group seek audit --file offsets.csv --execute",
    ],
)
async def seek(
    group: GroupName,
    /,
    *,
    to: Annotated[
        str | None,
        Parameter(help="start, end, an offset, or @time; see `tidemill help offsets`."),
    ] = None,
    shift: Annotated[
        int | None, Parameter(help="So many records on from where it is; negative: back.")
    ] = None,
    file: Annotated[
        str | None,
        Parameter(help="Offsets from a file: lines TOPIC,PARTITION,OFFSET, or `offsets` as JSON."),
    ] = None,
    topic: OfTopics = (),
    execute: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Do it; without this, only say what."),
    ] = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> list[group_moves.Move]:
    """Move a group's committed offsets. It must have no members, and nothing is done without
    --execute."""
    if sum(way is not None for way in (to, shift, file)) != 1:
        raise CommandError("give one of --to, --shift and --file", Exit.USAGE)
    if execute and dry_run:
        raise CommandError("give --execute or --dry-run, not both", Exit.USAGE)
    async with common.target.admin() as admin:
        await group_moves.refuse_if_active(admin, group)
        plan = await group_moves.plan(
            admin,
            group,
            to=None if to is None else _point(to),
            shift=shift,
            file=file,
            chosen=group_moves.parse_topics(topic),
        )
        if execute and plan:
            moved = {TopicPartition(move.topic, move.partition): move.after for move in plan}
            (await admin.alter_group_offsets(group, moved)).raise_first()
        elif plan:
            talk("dry run: nothing was changed; add --execute to do it")
    return plan


def _point(text: str) -> offsets.Point:
    span = offsets.parse(text, int(time.time() * 1000))
    if span.stop is not None:
        raise CommandError("--to takes one point, not a range", Exit.USAGE)
    return span.start


@command(
    app,
    mutates=True,
    examples=[
        "tidemill group delete audit --yes",
        "tidemill group delete audit --topic clicks --dry-run",
    ],
)
async def delete(
    *groups: GroupNames,
    topic: OfTopics = (),
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Outcomes:
    """Delete groups that have no members; with --topic, only their offsets of these topics."""
    _need_names(groups)
    chosen = group_moves.parse_topics(topic)
    async with common.target.admin() as admin:
        if chosen:
            return await _delete_offsets(admin, groups, chosen, dry_run, common)
        described = (await admin.describe_groups(groups)).raise_first()
        for group in described.values():
            group_moves.check_idle(group)
        if dry_run:
            return outcomes.planned(list(groups), "deleted")
        confirm(f"Delete {plural(len(groups), 'group')} and their offsets for good?", common)
        return outcomes.of(await admin.delete_groups(groups), "deleted")


async def _delete_offsets(
    admin: Admin,
    groups: Sequence[str],
    chosen: group_moves.Chosen,
    dry_run: bool,
    common: Common,
) -> Outcomes:
    found = Outcomes()
    if not dry_run:
        confirm(f"Delete offsets of {plural(len(groups), 'group')} for good?", common)
    for group in groups:
        committed = (await admin.list_group_offsets(group)).successes()
        wanted = sorted(tp for tp in committed if group_moves.is_chosen(tp, chosen))
        label = [f"{group} {tp}" for tp in wanted]
        if dry_run:
            found.extend(outcomes.planned(label, "deleted"))
        elif wanted:
            results = await admin.delete_group_offsets(group, wanted)
            found.extend(outcomes.of(results, "deleted", label=lambda tp, g=group: f"{g} {tp}"))  # type: ignore[misc]
    return found


def _need_names(groups: Sequence[str]) -> None:
    if not groups:
        raise CommandError("name at least one group", Exit.USAGE)
