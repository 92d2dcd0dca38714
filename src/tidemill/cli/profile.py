"""`tidemill profile`: name clusters once, then switch between them."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli import profiles
from tidemill.cli.command import command
from tidemill.cli.connect import parse_pairs
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.render import Note

app = App(name="profile")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    name: str
    bootstrap: str | None
    current: bool
    settings: dict[str, str]


@command(
    app,
    mutates=True,
    examples=[
        "tidemill profile create local --bootstrap localhost:9092",
        "tidemill profile create prod --bootstrap kafka-1:9092 --set client.rack=eu-1 --dry-run",
    ],
)
def create(
    name: Annotated[str, Parameter(help="Name of the profile.")],
    /,
    *,
    set_: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--set", "-s"), negative=(), show_default=False, help="Client setting key=value."
        ),
    ] = (),
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Create a profile, or replace it, and use it from now on."""
    if not common.bootstrap:
        raise CommandError("give the cluster's address with --bootstrap", Exit.USAGE)
    made = profiles.Profile(name, common.bootstrap, parse_pairs(set_, "--set"))
    if not dry_run:
        profiles.save(made, make_current=True)
    verb = "would be" if dry_run else "is"
    return Note(
        f"profile {name} ({made.bootstrap}) {verb} in {profiles.path()} and in use",
        {"name": name, "bootstrap": made.bootstrap, "path": str(profiles.path())},
        dry_run,
    )


@command(
    app,
    mutates=True,
    examples=["tidemill profile use local", "tidemill profile use local --dry-run"],
)
def use(
    name: Annotated[str, Parameter(help="Name of the profile.")],
    /,
    *,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Use another profile from now on."""
    chosen = profiles.active(name)
    assert chosen is not None
    if not dry_run:
        profiles.use(name)
    verb = "would be" if dry_run else "is"
    return Note(f"profile {name} ({chosen.bootstrap}) {verb} in use", {"name": name}, dry_run)


@command(
    app, name="list", examples=["tidemill profile list", "tidemill profile list --format json"]
)
def list_profiles(*, common: Common = COMMON) -> list[ProfileRow]:
    """List the profiles and show which one is in use."""
    book = profiles.read()
    return [
        ProfileRow(p.name, p.bootstrap, p.name == book.current, dict(p.settings))
        for _, p in sorted(book.profiles.items())
    ]


@command(
    app,
    mutates=True,
    examples=["tidemill profile edit --dry-run", "EDITOR=true tidemill profile edit"],
)
def edit(*, dry_run: DryRun = False, common: Common = COMMON) -> Note:
    """Open the profiles in $VISUAL or $EDITOR."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    target = profiles.path()
    if dry_run:
        return Note(f"would run {editor} {target}", {"path": str(target)}, dry_run=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600, exist_ok=True)
    status = subprocess.run([*shlex.split(editor), str(target)], check=False).returncode
    if status:
        raise CommandError(f"{editor} ended with status {status}")
    profiles.read()
    return Note(f"{target} is fine", {"path": str(target)})
