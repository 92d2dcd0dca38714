"""`tidemill pipeline repartition`: a topic's records in a topic with more partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli.command import command, confirm
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.loops import cleaned_up_on_sigterm
from tidemill.cli.options import COMMON, Common, DryRun, TopicName
from tidemill.cli.render import plural, talk

app = App(name="repartition")

PARTITIONS_MAX = 10_000

NewName = Annotated[str, Parameter(help="Name of the topic that takes over.")]
Partitions = Annotated[
    int, Parameter(name=("--partitions", "-p"), help="How many partitions it has.")
]
Group = Annotated[
    str | None,
    Parameter(name=("--group", "-g"), help="Begin where this group stands: move its backlog."),
]
Once = Annotated[
    bool, Parameter(negative=(), show_default=False, help="End when everything is copied.")
]
HandOver = Annotated[
    bool,
    Parameter(
        name=("--hand-over",),
        negative=(),
        show_default=False,
        help="When nearly done, refuse writes to the old topic, copy the rest and end.",
    ),
]


@dataclass(frozen=True, slots=True)
class RepartitionReport:
    """What `repartition` did, or would do."""

    old: str
    new: str
    partitions: int
    records: int
    handed_over: bool
    refused_ms: int = 0
    dry_run: bool = False


@command(
    app,
    default=True,
    mutates=True,
    examples=[
        "tidemill pipeline repartition orders orders-12 -p 12 --dry-run",
        "tidemill pipeline repartition orders orders-12 -p 12 --once",
    ],
)
async def repartition(
    topic: TopicName,
    new: NewName,
    /,
    *,
    partitions: Partitions,
    group: Group = None,
    once: Once = False,
    hand_over: HandOver = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> RepartitionReport:
    """Copy a topic into one with more partitions, each key always to one of them, in its order.

    Producers go on meanwhile. With --hand-over the old topic is sealed when the copy has nearly
    caught up: it refuses every record from then on, what it had taken is copied, and when the
    command ends with status 0 the new topic is complete, and producers may write to it. A producer
    whose record was refused sends it to the new topic, after that. Interrupted at any point, the
    same command goes on where it stopped; after a SIGKILL with the reservation of `mirror`.
    """
    from tidemill.copying import jobs

    if not 1 <= partitions <= PARTITIONS_MAX:
        raise CommandError(
            f"--partitions must be from 1 to {PARTITIONS_MAX}, not {partitions}", Exit.USAGE
        )
    if once and hand_over:
        raise CommandError("--once and --hand-over exclude each other", Exit.USAGE)
    place = jobs.Place(common.target.bootstrap, common.target.client_settings())
    settings = jobs.RepartitionSettings(place, topic, new, partitions, group, hand_over, once)
    done = jobs.Repartitioned()
    if dry_run:
        return RepartitionReport(topic, new, partitions, 0, False, dry_run=True)
    if hand_over:
        confirm(f"{topic} will refuse all writes once it is copied. Go on?", common)
    try:
        with cleaned_up_on_sigterm():
            await jobs.repartition(settings, talk, done)
    finally:
        talk(f"{plural(done.records, 'record')} copied")
    if done.handed_over:
        talk(f"{new} is complete after {done.refused_ms} ms: producers may write to it")
    return RepartitionReport(
        topic, new, partitions, done.records, done.handed_over, done.refused_ms
    )
