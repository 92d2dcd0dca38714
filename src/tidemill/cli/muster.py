"""From what `tidemill up` was given to the brokers that it will run.

Flags and files count anew with every `up`; what is remembered from the last time is only who there
is (`fleet.py`): the brokers' numbers and directories, and their ports where none is named now.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from tidemill.cli import fleet as fleets
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.fleet import FLAT, MEMBERS_MAX, OWN_KEYS, STORE_KEY, Fleet, Member

if TYPE_CHECKING:
    from tidemill.config import BrokerConfig

# Below the range from which systems take ports for outgoing connections: a client that keeps
# trying to reach a broker that is down must not get the broker's own port for its end.
FREE_PORTS = range(20_000, 32_000)
_TRIES_MAX = 1_000

BROKERS_MIN_KEY = "cluster.brokers.min"
"""Without it, topics that are made while the first brokers come up would have too few replicas."""


def home_of(config: BrokerConfig) -> Path:
    """The data directory: the first one, where a broker has several."""
    return config.log_dirs[0].absolute()


def wanted_count(config: BrokerConfig, asked: int | None) -> int:
    """How many brokers to run: as many as were asked for, or as there were the last time."""
    if asked is not None:
        if not 1 <= asked <= MEMBERS_MAX:
            raise CommandError(f"--brokers is 1 to {MEMBERS_MAX}, not {asked}", Exit.USAGE)
        return asked
    known = fleets.load(home_of(config))
    return len(known.members) if known is not None else 1


def is_alone(config: BrokerConfig, count: int) -> bool:
    """Whether one broker has the data directory for itself, and so needs nobody to watch it."""
    known = fleets.load(home_of(config))
    return count == 1 and (known is None or known.members[0].is_flat)


def alone(config: BrokerConfig, levels: Sequence[str], port: int) -> Fleet:
    """The fleet of a broker that runs in the foreground; those who joined it are not forgotten."""
    home = home_of(config)
    known = fleets.load(home)
    others = known.members[1:] if known is not None else ()
    return replace(_base(config, levels), members=(_flat(config, port), *others))


def several(config: BrokerConfig, count: int, levels: Sequence[str]) -> Fleet:
    """The fleet with `count` brokers at least, each with a port of its own."""
    _refuse_what_each_has(config, count)
    home = home_of(config)
    known = fleets.load(home)
    base = _base(config, levels)
    base = replace(base, settings={BROKERS_MIN_KEY: str(count), **base.settings})
    if known is not None:
        fleet = replace(base, members=known.members)
        if _says_where(config):
            fleet = _at(fleet, config, count)
        return fleets.grown(fleet, count)
    first = fleets.first_port(_listeners(config))
    if (home / "meta.properties").exists():
        fleet = replace(base, members=(_flat(config, first),))
    else:
        number = 1 if base.numbers_itself else None
        fleet = replace(base, members=(Member(number, first, "broker-1", _ports(config)),))
    fleet = fleets.grown(fleet, count)
    return fleet if first else _with_free_ports(fleet)


def _base(config: BrokerConfig, levels: Sequence[str]) -> Fleet:
    settings = {
        name: text
        for name in config.static_names()
        if name not in OWN_KEYS and (text := config.text(name)) is not None
    }
    return Fleet(home_of(config), (), settings, _store(config), tuple(levels))


def _store(config: BrokerConfig) -> str | None:
    """The store that was asked for; a file's path is made absolute, whoever starts a broker."""
    if STORE_KEY not in config.static_names():
        return None
    url = config.text(STORE_KEY) or ""
    path = url.removeprefix("sqlite://")
    return f"sqlite://{Path(path).absolute()}" if path != url else url


def _refuse_what_each_has(config: BrokerConfig, count: int) -> None:
    """Settings that cannot be shared by several brokers."""
    given = set(config.static_names())
    if count > 1 and (numbers := {"node.id", "broker.id"} & given):
        raise CommandError(
            f"--brokers {count} gives each broker a number; leave {min(numbers)} out", Exit.USAGE
        )
    if len(config.log_dirs) > 1:
        raise CommandError(
            f"--brokers {count} gives each broker a directory below one; name one in log.dirs",
            Exit.USAGE,
        )


def _says_where(config: BrokerConfig) -> bool:
    return "listeners" in config.static_names()


def _listeners(config: BrokerConfig) -> str:
    return config.text("listeners") or ""


def _ports(config: BrokerConfig) -> dict[str, str]:
    """A broker's addresses as settings."""
    advertised = config.text("advertised.listeners")
    return {"listeners": _listeners(config)} | (
        {"advertised.listeners": advertised} if advertised else {}
    )


def _flat(config: BrokerConfig, port: int) -> Member:
    """The broker that has the data directory for itself; only it may have further directories."""
    settings = _ports(config)
    if fleets.first_port(settings["listeners"]) == 0:
        settings["listeners"] = _opened(settings["listeners"], port)
    own = {
        key: text
        for key in ("log.dirs", "node.id")
        if key in config.static_names() and (text := config.text(key)) is not None
    }
    if "log.dirs" in own:
        own["log.dirs"] = ",".join(str(path.absolute()) for path in config.log_dirs)
    return Member(None, port, FLAT, settings | own)


def _at(fleet: Fleet, config: BrokerConfig, count: int) -> Fleet:
    """The known brokers on the ports that are named now, counting up from the first."""
    first = fleets.first_port(_listeners(config))
    if first == 0:
        return _with_free_ports(fleet)
    settings = _ports(config)
    members = []
    for at, member in enumerate(fleet.members):
        if at >= count:
            members.append(member)
            continue
        own = {key: text for key, text in member.settings.items() if key not in settings}
        base = Member(member.id, first, member.directory, own | settings)
        members.append(fleets.moved(base, first + at))
    return replace(fleet, members=tuple(members))


def _with_free_ports(fleet: Fleet) -> Fleet:
    members = []
    taken: set[int] = set()
    for member in fleet.members:
        port = free_port(taken)
        taken.add(port)
        listeners = _opened(member.settings["listeners"], port)
        settings = {**member.settings, "listeners": listeners}
        members.append(replace(member, port=port, settings=settings))
    return replace(fleet, members=tuple(members))


def _opened(listeners: str, port: int) -> str:
    """The listeners with this port for the first of them."""
    head, _, rest = listeners.partition(",")
    return f"{head.rpartition(':')[0]}:{port}" + (f",{rest}" if rest else "")


def free_port(taken: set[int]) -> int:
    """A port of this machine that nobody listens on right now."""
    chance = SystemRandom()
    for _ in range(_TRIES_MAX):
        port = chance.choice(FREE_PORTS)
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise CommandError(f"no free port from {FREE_PORTS.start} to {FREE_PORTS.stop - 1}")
