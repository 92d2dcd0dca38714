"""`tidemill status`: which brokers live in a data directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.options import COMMON, Common

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
    started_ms: int
    data_dir: str


@dataclass(frozen=True, slots=True)
class Status:
    """The live brokers; an empty list is an answer, too."""

    brokers: tuple[BrokerRow, ...]


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
) -> Status:
    """Show the brokers that run in a data directory; one that crashed is not among them."""
    from tidemill.broker import status as notes

    found = notes.read(data_dir)
    if found is None:
        return Status(())
    row = BrokerRow(
        found.id,
        found.host,
        found.port,
        found.pid,
        found.version,
        found.cluster_id,
        found.started_ms,
        found.data_dir,
    )
    return Status((row,))
