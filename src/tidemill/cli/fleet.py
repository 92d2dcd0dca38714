"""Which brokers live in a data directory, and with what settings: the note that `up` leaves there.

`tidemill up` writes down what it was given, so that `tidemill broker start` can bring one of its
brokers back, or add another, from any shell and without being told again. The note says nothing
about who is alive: that is asked of the brokers' own notes (`broker/status.py`).

A data directory comes in two layouts. One broker alone keeps its data in the directory itself.
Several have a directory each below it (`broker-1`, `broker-2`, ...) and share the store beside
them; where a single broker was joined by others later, theirs are below `brokers/`, because a
directory `broker-1` among its partitions would look like one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from tidemill.broker.status import BrokerStatus

NOTE_NAME = "brokers.json"
LOCK_NAME = "brokers.lock"
STORE_NAME = "store.db"
LOGS_NAME = "logs"
FORMAT = 1
MEMBERS_MAX = 64
PORT_MAX = 65_535
FLAT = "."
"""The directory of a member that has the whole data directory for itself."""

STORE_KEY = "store.url"
ZOOKEEPER_KEY = "zookeeper.connect"
OWN_KEYS = frozenset(
    {
        "listeners",
        "advertised.listeners",
        "log.dirs",
        "log.dir",
        "node.id",
        "broker.id",
        STORE_KEY,
    }
)
"""Settings that each broker has for itself; all others are shared."""

_PORT_KEYS = ("listeners", "advertised.listeners")
_PORT = re.compile(r":(\d+)(?=\s*(?:,|$))")


@dataclass(frozen=True, slots=True)
class Member:
    """One broker: its number (None: the store gives it one), its port, its directory."""

    id: int | None
    port: int
    directory: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_flat(self) -> bool:
        return self.directory == FLAT

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"broker {self.id}" if self.id is not None else f"the broker on port {self.port}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The brokers of one data directory, in the order of their ports."""

    home: Path
    members: tuple[Member, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None
    log_levels: tuple[str, ...] = ()

    def path_of(self, member: Member) -> Path:
        return self.home / member.directory

    def log_of(self, member: Member) -> Path:
        """The file that a broker without a terminal writes to."""
        name = "broker" if member.is_flat else Path(member.directory).name
        return self.home / LOGS_NAME / f"{name}.log"

    def at_port(self, port: int) -> Member | None:
        return next((member for member in self.members if member.port == port), None)

    def in_directory(self, directory: str) -> Member | None:
        return next((each for each in self.members if each.directory == directory), None)

    def alive(self, member: Member) -> BrokerStatus | None:
        """The broker that runs in a member's directory, if one does."""
        from tidemill.broker import status

        return status.read(self.path_of(member))

    def settings_of(self, member: Member) -> dict[str, str]:
        """Everything that a member's process is to be started with."""
        found = dict(self.settings)
        if self.store is not None:
            found[STORE_KEY] = self.store
        elif ZOOKEEPER_KEY not in found and len(self.members) > 1:
            found[STORE_KEY] = f"sqlite://{self.home / STORE_NAME}"
        if member.id is not None:
            found["node.id"] = str(member.id)
        found["log.dirs"] = str(self.path_of(member))
        return found | dict(member.settings)

    @property
    def numbers_itself(self) -> bool:
        """Whether this directory is all there is of the cluster, so that its numbers are ours."""
        if ZOOKEEPER_KEY in self.settings:
            return False
        return self.store is None or self.store.startswith("sqlite:")


def load(home: Path | str) -> Fleet | None:
    """What is noted in a data directory; None where nothing is."""
    place = Path(home).absolute()
    try:
        noted = json.loads((place / NOTE_NAME).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CommandError(f"{place / NOTE_NAME} cannot be read: {error}") from None
    try:
        return _from_note(place, noted)
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(
            f"{place / NOTE_NAME} is not what `tidemill up` writes: {error!r}",
            hint="remove it and run `tidemill up` with the settings again; no records are lost",
        ) from None


def _from_note(home: Path, noted: dict[str, Any]) -> Fleet:
    if noted["format"] != FORMAT:
        raise ValueError(f"format {noted['format']}, not {FORMAT}")
    members = tuple(Member(**each) for each in noted["members"])
    if not 0 < len(members) <= MEMBERS_MAX:
        raise ValueError(f"{len(members)} brokers")
    return Fleet(home, members, dict(noted["settings"]), noted["store"], tuple(noted["log_levels"]))


def save(fleet: Fleet) -> None:
    """Write the note, whole or not at all; settings may be secret, so it is the owner's alone."""
    fleet.home.mkdir(parents=True, exist_ok=True)
    note = {
        "format": FORMAT,
        "store": fleet.store,
        "settings": dict(fleet.settings),
        "log_levels": list(fleet.log_levels),
        "members": [asdict(member) for member in fleet.members],
    }
    target = fleet.home / NOTE_NAME
    temporary = target.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(json.dumps(note, indent=2) + "\n")
    temporary.replace(target)


@contextmanager
def changing(home: Path | str) -> Iterator[None]:
    """One command at a time reads the note, changes it and writes it back."""
    place = Path(home)
    place.mkdir(parents=True, exist_ok=True)
    with open(place / LOCK_NAME, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def shifted(listeners: str, ports: int) -> str:
    """The same listeners, each so many ports further up; a port that was left open stays open."""

    def shift(match: re.Match[str]) -> str:
        port = int(match[1])
        return f":{port + ports if port else 0}"

    return _PORT.sub(shift, listeners)


def first_port(listeners: str) -> int:
    match = _PORT.search(listeners)
    if match is None:
        raise CommandError(f"listeners={listeners} names no port", Exit.USAGE)
    return int(match[1])


def grown(fleet: Fleet, count: int) -> Fleet:
    """The fleet with new members, on the next ports, until it has `count`."""
    while len(fleet.members) < count:
        fleet = added(fleet, max(member.port for member in fleet.members) + 1)
    return fleet


def added(fleet: Fleet, port: int) -> Fleet:
    """The fleet with one more broker on a port of its own, otherwise like the first one."""
    if len(fleet.members) >= MEMBERS_MAX:
        raise CommandError(f"a data directory has at most {MEMBERS_MAX} brokers", Exit.USAGE)
    if port > PORT_MAX:
        raise CommandError(f"no port is left above {port - 1}; begin further down", Exit.USAGE)
    first = moved(fleet.members[0], port)
    number = _next_number(fleet)
    name = f"broker-{number}"
    member = Member(
        number if fleet.numbers_itself else None,
        port,
        f"brokers/{name}" if first.is_flat else name,
        {key: text for key, text in first.settings.items() if key in _PORT_KEYS},
    )
    return replace(fleet, members=(*fleet.members, member))


def _next_number(fleet: Fleet) -> int:
    """One more than any that is taken, by a member's number or by its directory's name."""
    taken = [member.id or 0 for member in fleet.members]
    for member in fleet.members:
        suffix = member.directory.rpartition("-")[2]
        taken.append(int(suffix) if suffix.isdigit() else 0)
    return max(taken) + 1


def moved(member: Member, port: int) -> Member:
    """The member with its listeners on another port."""
    settings = {
        key: shifted(text, port - member.port) if key in _PORT_KEYS else text
        for key, text in member.settings.items()
    }
    return replace(member, port=port, settings=settings)
