"""`tidemill status`: which brokers live in a data directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.options import COMMON, Common
from tidemill.cli.render import FOR_PROGRAMS, QUIET

if TYPE_CHECKING:
    from tidemill.broker.status import BrokerStatus

app = App(name="status")


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A live broker."""

    id: int
    host: str
    port: int
    pid: int
    version: str
    cluster_id: str
    started: str
    started_ms: int = field(metadata=FOR_PROGRAMS)
    data_dir: str


@dataclass(frozen=True, slots=True)
class DownRow:
    """A broker that belongs to the data directory and does not run."""

    id: int | None
    port: int
    data_dir: str


@dataclass(frozen=True, slots=True)
class Status:
    """The live brokers; an empty list is an answer, too."""

    brokers: tuple[BrokerRow, ...]


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The same where several brokers live, and those of them that do not run."""

    brokers: tuple[BrokerRow, ...]
    down: tuple[DownRow, ...] = field(default=(), metadata=QUIET)


@command(
    app,
    default=True,
    examples=["tidemill status", "tidemill status --data-dir ./tidemill-data --format json"],
)
def status(
    *,
    data_dir: Annotated[str, Parameter(help="The directory that `tidemill up` was given.")] = (
        "./tidemill-data"
    ),
    common: Common = COMMON,
) -> Status | FleetStatus:
    """Show the brokers that run in a data directory, and those that should but do not."""
    from tidemill.broker import status as notes
    from tidemill.cli import fleet as fleets

    fleet = fleets.load(data_dir)
    if fleet is None or (len(fleet.members) == 1 and fleet.members[0].is_flat):
        alone = notes.read(data_dir)
        return Status((_row(alone),) if alone is not None else ())
    found = {member.directory: fleet.alive(member) for member in fleet.members}
    return FleetStatus(
        tuple(_row(note) for note in found.values() if note is not None),
        tuple(
            DownRow(member.id, member.port, str(fleet.path_of(member)))
            for member in fleet.members
            if found[member.directory] is None
        ),
    )


def _row(found: BrokerStatus) -> BrokerRow:
    return BrokerRow(
        found.id,
        found.host,
        found.port,
        found.pid,
        found.version,
        found.cluster_id,
        datetime.fromtimestamp(found.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        found.started_ms,
        found.data_dir,
    )
