"""`tidemill broker`: bring one broker of a data directory back, add one, take one down.

`tidemill up` runs brokers and watches them; these commands are for one of them, from another shell.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli import fleet as fleets
from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.render import Note

if TYPE_CHECKING:
    from tidemill.broker.status import BrokerStatus
    from tidemill.cli.fleet import Fleet, Member

app = App(name="broker", help="Start and stop single brokers of a data directory.")

DataDir = Annotated[str, Parameter(help="The directory that `tidemill up` was given.")]
DEFAULT_DATA_DIR = "./tidemill-data"


@command(
    app,
    mutates=True,
    examples=[
        "tidemill broker start --data-dir ./three --port 9093",
        "tidemill broker start --data-dir ./three --port 9095 --dry-run",
    ],
)
def start(
    *,
    port: Annotated[int, Parameter(help="The broker's port; one not known yet adds a broker.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Start a broker in the background: one that died or was stopped, or a new one.

    It has the number and the settings that it had, those given to `tidemill up`; a new one has the
    settings of the others. The command returns once the broker accepts connections. It writes to a
    file in the data directory's `logs`, and stops with `tidemill up` where that runs.
    """
    from tidemill.cli import launch

    _check_port(port)
    with nullcontext() if dry_run else fleets.changing(data_dir):
        fleet, member, is_new = _known_or_new(data_dir, port)
        running = fleet.alive(member)
        if running is not None:
            return _note(f"{member.label} runs already", running, dry_run)
        if dry_run:
            what = "add a broker" if is_new else f"start {member.label}"
            return Note(f"would {what} on port {port} in {fleet.path_of(member)}", dry_run=True)
        fleets.save(fleet)
    launched = launch.launch(fleet, member, detached=True)
    try:
        launch.wait_until_ready(fleet, launched, common.timeout or launch.READY_TIMEOUT_S)
    except CommandError:
        if is_new and launched.process.poll() is not None:
            _forget(fleet, member)
        raise
    found = fleet.alive(member)
    if found is None:
        raise CommandError(f"{member.label} stopped again", hint=f"see {launched.log}")
    return _note(f"{'added' if is_new else 'started'} broker {found.id}", found)


@command(
    app,
    mutates=True,
    examples=[
        "tidemill broker stop --data-dir ./three --port 9093 --dry-run",
        "tidemill broker stop --data-dir ./three --port 9093",
    ],
)
def stop(
    *,
    port: Annotated[int, Parameter(help="The broker's port.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Take one broker down in good order: it hands its partitions over, flushes, and leaves.

    The command returns once the process is gone. The broker's data stays for its next start.
    """
    from tidemill.cli import launch

    _check_port(port)
    fleet, member = _known(data_dir, port)
    found = fleet.alive(member)
    if found is None:
        return Note(f"{member.label} does not run", {"port": port}, dry_run)
    if dry_run:
        return _note(f"would stop broker {found.id}", found, dry_run)
    launch.ask_to_stop(found.pid)
    if not launch.has_ended(found.pid, common.timeout or launch.STOP_TIMEOUT_S):
        raise CommandError(
            f"broker {found.id} (pid {found.pid}) was told to stop and is still there",
            hint=f"see {fleet.log_of(member)}",
        )
    return _note(f"stopped broker {found.id}", found)


def _known_or_new(data_dir: str, port: int) -> tuple[Fleet, Member, bool]:
    """The broker on this port, written down if it is a new one."""
    fleet = fleets.load(data_dir)
    if fleet is None:
        fleet = _first(Path(data_dir).absolute(), port)
        return fleet, fleet.members[0], True
    member = fleet.at_port(port)
    if member is not None:
        return fleet, member, False
    fleet = fleets.added(fleet, port)
    return fleet, fleet.members[-1], True


def _first(home: Path, port: int) -> Fleet:
    """A data directory that nobody has used yet gets a broker that has it for itself."""
    listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    return fleets.Fleet(home, (fleets.Member(None, port, fleets.FLAT, listeners),))


def _known(data_dir: str, port: int) -> tuple[Fleet, Member]:
    fleet = fleets.load(data_dir)
    if fleet is None:
        raise CommandError(f"no broker was ever started in {data_dir}", Exit.NOT_FOUND)
    member = fleet.at_port(port)
    if member is None:
        ports = _listed(each.port for each in fleet.members)
        raise CommandError(
            f"no broker of {data_dir} has port {port}; there are {ports}", Exit.NOT_FOUND
        )
    return fleet, member


def _forget(fleet: Fleet, member: Member) -> None:
    """A new broker that could not start leaves no trace in the note."""
    from dataclasses import replace

    with fleets.changing(fleet.home):
        now = fleets.load(fleet.home)
        left = tuple(each for each in now.members if each != member) if now is not None else ()
        if now is not None and left:
            fleets.save(replace(now, members=left))
        else:
            (fleet.home / fleets.NOTE_NAME).unlink(missing_ok=True)


def _note(message: str, found: BrokerStatus, dry_run: bool = False) -> Note:
    facts = {"id": found.id, "host": found.host, "port": found.port, "pid": found.pid}
    return Note(f"{message} on {found.host}:{found.port} (pid {found.pid})", facts, dry_run)


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(map(str, ports))


def _check_port(port: int) -> None:
    if not 1 <= port <= fleets.PORT_MAX:
        raise CommandError(f"{port} is no port", Exit.USAGE)
