"""`tidemill cluster reassign`: plan moves of partitions, do them, watch them, take them back.

Plans are files in Kafka's format: what `plan` writes, `kafka-reassign-partitions.sh` executes, and
the other way round.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli import moves, outcomes
from tidemill.cli.command import command, confirm
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.moves import Document, DocumentError
from tidemill.cli.options import COMMON, Common, DryRun, TopicNames
from tidemill.cli.outcomes import Outcome, Outcomes
from tidemill.cli.render import FOR_PROGRAMS, QUIET, human_bytes, plural, show, talk
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import Reassignment
    from tidemill.controller.rebalance import Plan

app = App(name="reassign", help="Plan, execute, verify and cancel moves of partitions.")

FILE_BYTES_MAX = 64 << 20
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?(?:/s)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

PlanFile = Annotated[Path, Parameter(help="A plan as `plan --output` writes it.")]
Brokers = Annotated[
    str | None,
    Parameter(help="The brokers that may hold replicas, as 1,2,3 (default: all that live)."),
]
Throttle = Annotated[
    str | None,
    Parameter(help="What the moves may take per second and broker, as 20MB (default: no limit)."),
]
NoWait = Annotated[
    bool,
    Parameter(
        name=("--no-wait",),
        negative=(),
        show_default=False,
        help="Return once the moves have begun; `verify` then tells, and lifts the throttle.",
    ),
]


@dataclass(frozen=True, slots=True)
class MoveRow:
    """One partition that is to move."""

    partition: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: str
    size_bytes: int = field(metadata=FOR_PROGRAMS)


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What a plan would change, and what that costs."""

    partitions: int
    replicas_to_copy: int
    data: str
    data_bytes: int = field(metadata=FOR_PROGRAMS)
    moves: tuple[MoveRow, ...] = field(default=(), metadata=QUIET)


@dataclass(frozen=True, slots=True)
class MovingRow:
    """One partition on its way."""

    partition: str
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    copied: str
    percent: float | None


@command(
    app,
    examples=[
        "tidemill cluster reassign plan",
        "tidemill cluster reassign plan clicks --output plan.json",
    ],
)
async def plan(
    *names: TopicNames,
    brokers: Brokers = None,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write the plan to this file.")
    ] = None,
    common: Common = COMMON,
) -> PlanReport:
    """Work out how partitions would spread evenly over the brokers, moving as little as can be.

    Nothing is changed. Replicas leave brokers that are not named, go to as many racks as they can,
    and are evened out, and so are leaders. Without topics all of them are meant.
    """
    async with common.target.admin() as admin:
        made = await _make_plan(admin, names, _ids(brokers))
    if not made.moves:
        talk("everything is even already")
    if output is not None:
        output.write_text(moves.to_document({m.partition: m.after for m in made.moves}) + "\n")
        talk(f"written to {output}; `tidemill cluster reassign execute {output}` does it")
    return _report(made)


@command(
    app,
    mutates=True,
    examples=[
        "tidemill cluster reassign execute plan.json --dry-run",
        "tidemill cluster reassign execute plan.json --throttle 50MB",
    ],
)
async def execute(
    file: PlanFile,
    /,
    *,
    throttle: Throttle = None,
    no_wait: NoWait = False,
    save: Annotated[
        Path | None, Parameter(help="Write the assignment as it is now to this file, to go back.")
    ] = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Outcomes:
    """Move partitions as a plan says, and wait until they have arrived.

    Producers and consumers go on meanwhile. In the end the first replica of each leads. Ctrl-C
    ends the waiting, not the moves; `cancel` takes them back.
    """
    document = _read(file)
    rate = _rate(throttle)
    async with common.target.admin() as admin:
        changed = await _changes(admin, document)
        if save is not None and not dry_run:
            save.write_text(moves.to_document({tp: old for tp, (old, _) in changed.items()}) + "\n")
        if dry_run or not changed:
            return _planned(changed)
        return await _move(admin, changed, rate, wait=not no_wait, common=common)


@command(
    app,
    mutates=True,
    examples=[
        "tidemill cluster reassign rebalance --dry-run",
        "tidemill cluster reassign rebalance --throttle 20MB --yes",
    ],
)
async def rebalance(
    *names: TopicNames,
    brokers: Brokers = None,
    throttle: Throttle = None,
    no_wait: NoWait = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Outcomes:
    """Spread partitions evenly over the brokers: after one was added, or to empty one.

    This is `plan` and `execute` in one; --brokers leaves out those that are to be emptied.
    """
    rate = _rate(throttle)
    async with common.target.admin() as admin:
        made = await _make_plan(admin, names, _ids(brokers))
        changed = {move.partition: (move.before, move.after) for move in made.moves}
        if not changed:
            talk("everything is even already")
            return Outcomes()
        if dry_run:
            return _planned(changed)
        if common.fmt == "table":
            show(_report(made), "table", sys.stderr)
        talk(f"moves {plural(len(changed), 'partition')}, {human_bytes(made.bytes_to_move)}")
        confirm("Begin?", common)
        return await _move(admin, changed, rate, wait=not no_wait, common=common)


@command(
    app,
    mutates=True,
    examples=[
        "tidemill cluster reassign verify plan.json --dry-run",
        "tidemill cluster reassign verify plan.json",
    ],
)
async def verify(
    file: PlanFile, /, *, dry_run: DryRun = False, common: Common = COMMON
) -> Outcomes:
    """Say how far the moves of a plan are; once all have arrived, throttles are lifted.

    The exit status is 0 when all partitions are where the plan has them. With --dry-run, throttles
    are left alone.
    """
    document = _read(file)
    async with common.target.admin() as admin:
        ongoing = await admin.list_partition_reassignments()
        states = await moves.states(admin, document, ongoing)
        if not ongoing and not dry_run:
            await _lift_throttles(admin, document.topics)
    found = Outcomes()
    for tp, state in states.items():
        where = f"on {_brokers(state.current)}"
        if state.reached:
            found.append(Outcome(str(tp), "arrived", where))
        elif not state.done:
            found.append(
                Outcome(str(tp), "moving", f"to {_brokers(state.target)}", "not there yet")
            )
        else:
            error = f"nothing moves it, and it is not on {_brokers(state.target)}"
            found.append(Outcome(str(tp), "elsewhere", where, error))
    return found


@command(
    app,
    mutates=True,
    examples=[
        "tidemill cluster reassign cancel --dry-run",
        "tidemill cluster reassign cancel plan.json",
    ],
)
async def cancel(
    file: Annotated[Path | None, Parameter(help="Only the moves of this plan.")] = None,
    /,
    *,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Outcomes:
    """Take moves back that are under way: partitions stay where they were, throttles are lifted."""
    document = None if file is None else _read(file)
    async with common.target.admin() as admin:
        ongoing = await admin.list_partition_reassignments(
            None if document is None else list(document.assignment)
        )
        if not ongoing:
            talk("nothing moves")
        details = {str(tp): f"stays on {_brokers(_original(m))}" for tp, m in ongoing.items()}
        if dry_run:
            return outcomes.planned(details, "cancelled")
        results = await admin.alter_partition_reassignments(dict.fromkeys(ongoing))
        topics = {tp.topic for tp in ongoing} | set(document.topics if document else ())
        await _lift_throttles(admin, sorted(topics))
    return outcomes.of(results, "cancelled", lambda tp, _: details[str(tp)])


@command(
    app,
    name="list",
    examples=[
        "tidemill cluster reassign list",
        "tidemill cluster reassign list --format json",
    ],
)
async def list_moves(*, common: Common = COMMON) -> list[MovingRow]:
    """List the moves that are under way and how much has been copied."""
    from tidemill.cli.moving import copied

    async with common.target.admin() as admin:
        ongoing = await admin.list_partition_reassignments()
        sizes = await moves.sizes(admin) if ongoing else {}
    rows = []
    for tp, move in ongoing.items():
        done, total = copied(tp, move, sizes)
        rows.append(
            MovingRow(
                str(tp),
                move.replicas,
                move.adding,
                move.removing,
                f"{human_bytes(done)} of {human_bytes(total)}",
                100 * done / total if total else None,
            )
        )
    return rows


# --- plans ----------------------------------------------------------------------------------------

Changes = Mapping[TopicPartition, tuple[tuple[int, ...], tuple[int, ...]]]
"""Partitions that a plan changes, each with its replicas before and after."""


async def _make_plan(admin: Admin, names: Sequence[str], wanted: Sequence[int]) -> Plan:
    from tidemill.controller.rebalance import plan_rebalance

    cluster = await admin.describe_cluster()
    racks = {broker.broker_id: broker.rack for broker in cluster.brokers if not broker.is_fenced}
    unknown = sorted(set(wanted) - set(racks))
    if unknown:
        raise CommandError(f"broker {unknown[0]} is not part of the cluster", Exit.NOT_FOUND)
    topics = (await admin.describe_topics(list(names) or None)).raise_first()
    sizes = moves.largest(await moves.sizes(admin))
    return plan_rebalance(
        moves.assignment_of(topics.values()),
        {broker: racks[broker] for broker in wanted or racks},
        sizes_bytes=sizes,
    )


def _report(plan: Plan) -> PlanReport:
    rows = tuple(
        MoveRow(
            str(move.partition),
            move.before,
            move.after,
            human_bytes(move.bytes_to_move),
            move.bytes_to_move,
        )
        for move in plan.moves
    )
    size = plan.bytes_to_move
    return PlanReport(len(rows), plan.replicas_to_move, human_bytes(size), size, rows)


def _read(path: Path) -> Document:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise CommandError(f"{path} is larger than {human_bytes(FILE_BYTES_MAX)}", Exit.USAGE)
    try:
        document = moves.parse(path.read_text())
        if document.entries:  # a plan that moves nothing is a plan, too
            moves.check_executable(document)
    except (DocumentError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{path}: {error}",
            Exit.USAGE,
            "`cluster reassign plan --output FILE` writes such files",
        ) from None
    if document.directories:
        raise CommandError(
            f"{path} names directories of brokers",
            Exit.USAGE,
            "kafka-reassign-partitions.sh --execute takes such files",
        )
    return document


async def _changes(admin: Admin, document: Document) -> Changes:
    """What the plan would change now; what is there already is left out."""
    described = (await admin.describe_topics(document.topics)).raise_first()
    current = moves.assignment_of(described.values())
    missing = sorted(set(document.assignment) - set(current))
    if missing:
        raise CommandError(f"there is no partition {missing[0]}", Exit.NOT_FOUND)
    return {
        tp: (current[tp], target)
        for tp, target in document.assignment.items()
        if current[tp] != target
    }


def _planned(changes: Changes) -> Outcomes:
    if not changes:
        talk("every partition is where the plan has it")
    details = {
        str(tp): f"from {_brokers(old)} to {_brokers(new)}" for tp, (old, new) in changes.items()
    }
    return outcomes.planned(details, "moved")


# --- moves ----------------------------------------------------------------------------------------


async def _move(
    admin: Admin, changes: Changes, rate: int | None, *, wait: bool, common: Common
) -> Outcomes:
    """Throttle, begin, and watch until all have arrived and lead; then lift the throttle."""
    from tidemill.cli.moving import watch
    from tidemill.client.admin_types import ElectionType

    proposed = {tp: new for tp, (_, new) in changes.items()}
    current = {tp: old for tp, (old, _) in changes.items()}
    if rate is not None:
        ongoing = await admin.list_partition_reassignments()
        await moves.set_throttle(admin, moves.throttle_of(ongoing, current, proposed), rate)
    sizes = moves.largest(await moves.sizes(admin))
    results = await admin.alter_partition_reassignments(proposed)
    begun = list(results.successes())
    if wait and begun:
        total = sum(len(set(proposed[tp]) - set(current[tp])) * sizes.get(tp, 0) for tp in begun)
        try:
            await watch(admin, begun, total, no_color=common.no_color)
        except asyncio.CancelledError:
            talk("the moves go on; `verify` tells how far they are and lifts throttles in the end")
            raise
        # A plan that evens leaders is done when they lead; who leads already is no failure.
        await admin.elect_leaders(ElectionType.PREFERRED, begun)
        if rate is not None:
            await _lift_throttles(admin, sorted({tp.topic for tp in begun}))
    elif rate is not None:
        talk("the throttle stays until `tidemill cluster reassign verify` finds all arrived")
    return outcomes.of(
        results, "moved" if wait else "moving", lambda tp, _: f"to {_brokers(proposed[tp])}"
    )


async def _lift_throttles(admin: Admin, topics: Sequence[str]) -> None:
    brokers = [broker.broker_id for broker in (await admin.describe_cluster()).brokers]
    existing = set((await admin.describe_topics(topics)).successes()) if topics else set()
    await moves.clear_throttles(admin, brokers, [topic for topic in topics if topic in existing])


def _original(move: Reassignment) -> tuple[int, ...]:
    return tuple(broker for broker in move.replicas if broker not in move.adding)


# --- words ----------------------------------------------------------------------------------------


def _brokers(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "no broker"


def _ids(text: str | None) -> list[int]:
    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError:
        raise CommandError(f"--brokers takes ids as 1,2,3, not {text!r}", Exit.USAGE) from None


def _rate(text: str | None) -> int | None:
    """`20MB`, `512K`, `1048576`: bytes per second."""
    if text is None:
        return None
    match = _RATE.fullmatch(text.strip())
    rate = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if rate < 1:
        raise CommandError(f"--throttle takes bytes per second as 20MB, not {text!r}", Exit.USAGE)
    return rate
