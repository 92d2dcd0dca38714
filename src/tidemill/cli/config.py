"""`tidemill config`: settings of topics and brokers, of a running cluster or of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli.alter import change
from tidemill.cli.command import command
from tidemill.cli.connect import parse_pairs
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.render import QUIET, Note, titled
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.client.admin_types import ConfigResource
    from tidemill.config import BrokerConfig

app = App(name="config")

Resource = Annotated[
    str, Parameter(help="topic/NAME, broker/ID, or `brokers` for the default of all of them.")
]
ConfigFile = Annotated[
    str | None,
    Parameter(
        name=("--config", "--file", "-f"), help="As `up --config`: a .properties or .toml file."
    ),
]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--set", "-s"), negative=(), show_default=False, help="As `up --set key=value`."
    ),
]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting in force, and where it comes from."""

    key: str
    value: str | None
    source: str
    read_only: bool = field(default=False, metadata=QUIET)


@dataclass(frozen=True, slots=True)
class Explanation:
    """All about one key."""

    key: str
    scope: str
    meaning: str
    type: str
    unit: str
    limits: str
    default: str | None
    kafka_default: str | None
    default_in_2_8: str | None = field(metadata=titled("DEFAULT IN 2.8"))
    current: str | None
    origin: str
    seen_at: str
    change: str
    status: str
    related: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileProblem:
    line: int | None
    key: str
    severity: str
    message: str


class FileProblems(list[FileProblem]):
    @property
    def exit_code(self) -> Exit:
        return Exit.FAILED if any(p.severity == "error" for p in self) else Exit.OK


@command(
    app,
    examples=[
        "tidemill config get topic/clicks",
        "tidemill config get topic/clicks retention.ms --format json",
        "tidemill config get broker/0 --all",
        "tidemill config get brokers",
    ],
)
async def get(
    resource: Resource,
    /,
    *keys: Annotated[str, Parameter(help="Only these keys.")],
    show_all: Annotated[
        bool,
        Parameter(name=("--all", "-a"), negative=(), show_default=False, help="Defaults, too."),
    ] = False,
    common: Common = COMMON,
) -> list[SettingRow]:
    """Show the settings in force that are not at their default, or those named."""
    wanted = parse_resource(resource)
    async with common.target.admin() as admin:
        found = (await admin.describe_configs([wanted])).raise_first()[wanted]
    for key in keys:
        if key not in found:
            raise CommandError(f"{resource} has no setting {key!r}", Exit.NOT_FOUND)
    return [
        SettingRow(e.name, e.value, e.source.name.lower(), e.read_only)
        for e in sorted(found.values(), key=lambda e: e.name)
        if (e.name in keys if keys else show_all or not e.is_default)
    ]


@command(
    app,
    mutates=True,
    name="set",
    examples=[
        "tidemill config set topic/clicks retention.ms=3600000",
        "tidemill config set topic/clicks --delete retention.ms",
        "tidemill config set brokers log.retention.ms=86400000 --dry-run",
    ],
)
async def set_settings(
    resource: Resource,
    /,
    *pairs: Annotated[str, Parameter(help="key=value to set.")],
    delete: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--delete", "-d"), negative=(), show_default=False, help="Back to default."
        ),
    ] = (),
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Change settings of a topic, of a broker or of all brokers; it takes effect at once."""
    wanted = parse_resource(resource)
    changes = parse_pairs(pairs, "config set")
    if not changes and not delete:
        raise CommandError("nothing to change: give key=value or --delete key", Exit.USAGE)
    shown = ("resource", resource)
    return await change(common.target, wanted, shown, changes, delete, dry_run=dry_run)


@command(
    app,
    examples=[
        "tidemill config explain retention.ms",
        "tidemill config explain log.retention.hours --config server.properties",
        "tidemill config explain log.retention.hours --set log.retention.hours=24",
    ],
)
async def explain(
    key: Annotated[str, Parameter(help="A broker's or a topic's key.")],
    /,
    *,
    file: ConfigFile = None,
    set_: Overrides = (),
    common: Common = COMMON,
) -> Explanation:
    """Say what a key means, its defaults, its value and where that is from.

    The value is a running broker's if one answers; with --config or --set, or if none does, the
    one that `tidemill up` would start with here. A broker named by --bootstrap has to answer.
    """
    from tidemill.cli.live_settings import of_cluster
    from tidemill.config import ConfigError
    from tidemill.config import explain as explained

    live = None if file or set_ else await of_cluster(common.target)
    seen_at, config = live or ("what `tidemill up` would use here", _load(file, set_))
    try:
        found = explained(key, config)
    except ConfigError as error:
        raise CommandError(str(error), Exit.NOT_FOUND) from None
    return Explanation(
        found.name,
        found.scope,
        found.meaning,
        found.type,
        found.unit,
        found.limits,
        found.default,
        found.kafka_default,
        found.default_2_8,
        found.current,
        found.origin,
        seen_at,
        found.update,
        found.status,
        found.related,
    )


@command(app, examples=["tidemill config check server.properties"])
def check(
    path: Annotated[str, Parameter(help="A server.properties or a .toml file.")],
    /,
    *,
    common: Common = COMMON,
) -> FileProblems:
    """Check a settings file: unknown keys, bad values, what has no effect."""
    from tidemill.config import check_file

    if not os.path.exists(path):
        raise CommandError(f"{path}: no such file", Exit.NOT_FOUND)
    return FileProblems(
        FileProblem(
            problem.line or None,
            problem.key,
            "warning" if problem.is_warning else "error",
            " ".join(part for part in (problem.message, problem.suggestion) if part),
        )
        for problem in check_file(path)
    )


@command(
    app,
    name="print",
    examples=[
        "tidemill config print",
        "tidemill config print --effective --config server.properties",
    ],
)
def print_settings(
    *,
    effective: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Defaults, too.")
    ] = False,
    file: ConfigFile = None,
    set_: Overrides = (),
    common: Common = COMMON,
) -> list[SettingRow]:
    """Show the settings that `tidemill up` would start with, and where each came from."""
    from tidemill.config import effective as listed

    return [
        SettingRow(s.name, s.value, s.origin, s.is_read_only)
        for s in listed(_load(file, set_))
        if effective or not s.is_default
    ]


def parse_resource(text: str) -> ConfigResource:
    """`topic/clicks`, `broker/1` or `brokers`."""
    from tidemill.client.admin_types import ConfigResource

    kind, slash, name = text.partition("/")
    if kind == "topic" and name:
        return ConfigResource.topic(name)
    if kind == "broker" and name.isdigit():
        return ConfigResource.broker(int(name))
    if kind == "brokers" and not slash:
        return ConfigResource.broker(None)
    raise CommandError(
        f"{text!r} is no resource: write topic/NAME, broker/ID or brokers", Exit.USAGE
    )


def _load(path: str | None, overrides: Sequence[str]) -> BrokerConfig:
    from tidemill.cli.serve import COMMAND_VARIABLES, CONFIG_VARIABLE
    from tidemill.config import load_broker_config

    path = path or os.environ.get(CONFIG_VARIABLE)
    is_toml = path is not None and path.endswith(".toml")
    environ = {k: v for k, v in os.environ.items() if k not in COMMAND_VARIABLES}
    try:
        config, _ = load_broker_config(
            properties_file=None if is_toml else path,
            toml_file=path if is_toml else None,
            environ=environ,
            overrides=list(overrides),
            for_start=False,
        )
    except TidemillError as error:
        raise CommandError(str(error), Exit.USAGE) from None
    return config
