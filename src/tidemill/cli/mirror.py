"""`tidemill pipeline mirror`: topics of another cluster, kept here as they are there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli import connect
from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.loops import cleaned_up_on_sigterm
from tidemill.cli.options import COMMON, Common, DryRun, Regex
from tidemill.cli.render import plural, talk

app = App(name="mirror")

Topics = Annotated[tuple[str, ...], Parameter(help="Topics of the other cluster.")]
From = Annotated[str, Parameter(name=("--from",), help="The other cluster, host:port,...")]
Prefix = Annotated[str, Parameter(help="What to put before the topics' names here.")]
Once = Annotated[
    bool,
    Parameter(negative=(), show_default=False, help="End when everything there is has come over."),
]
NoGroups = Annotated[
    bool,
    Parameter(negative=(), show_default=False, help="Leave the groups' positions alone."),
]


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What `mirror` did, or would do."""

    topics: list[str]
    records: int
    groups: list[str]
    dry_run: bool = False


@command(
    app,
    default=True,
    mutates=True,
    examples=[
        "tidemill pipeline mirror clicks orders --from east:9092 --dry-run",
    ],
)
async def mirror(
    topics: Topics,
    /,
    *,
    source: From,
    prefix: Prefix = "",
    regex: Regex = False,
    once: Once = False,
    no_groups: NoGroups = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> MirrorReport:
    """Copy topics of another cluster to this one, and go on until told to end.

    Partitions, keys, headers, timestamps and the topics' settings are kept. Nothing is lost, and a
    mirror that was ended goes on where it stopped: what the copy holds is not sent again. Only
    after a SIGKILL or a power cut may one round, 8 MiB, be there twice: if a request of the dead
    mirror reaches a broker after the next one has looked, which then ends with an error. Groups
    that have no members here are put where they would go on, never beyond what they have read
    there. Nobody else may write to the copies; one mirror at a time may run for a topic.
    """
    from tidemill.copying import jobs

    if not topics:
        raise CommandError("name the topics to mirror", Exit.USAGE)
    place = connect.Target(source, connect.EXPLICIT_SOURCE, common.target.settings)
    if regex:
        topics = await _matching(place, topics)
    settings = jobs.MirrorSettings(
        jobs.Place(place.bootstrap, place.client_settings()),
        jobs.Place(common.target.bootstrap, common.target.client_settings()),
        topics,
        prefix=prefix,
        with_groups=not no_groups,
        once=once,
    )
    done = jobs.Mirrored()
    names = [prefix + topic for topic in topics]
    if dry_run:
        return MirrorReport(names, 0, [], dry_run=True)
    try:
        with cleaned_up_on_sigterm():
            await jobs.mirror(settings, talk, done)
    finally:
        talk(f"{plural(done.records, 'record')} mirrored")
    return MirrorReport(names, done.records, sorted(done.groups))


async def _matching(place: connect.Target, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The topics of the other cluster that match as a whole."""
    async with place.admin() as admin:
        names = [listing.name for listing in await admin.list_topics()]
    try:
        found = [name for name in names if any(re.fullmatch(each, name) for each in patterns)]
    except re.error as error:
        raise CommandError(f"no regular expression: {error}", Exit.USAGE) from None
    if not found:
        raise CommandError("no topic matches", Exit.NOT_FOUND)
    return tuple(found)
