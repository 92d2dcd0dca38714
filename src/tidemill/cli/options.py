"""The options that every command has, and the types that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from tidemill.cli import connect
from tidemill.cli.render import Format

GLOBAL_GROUP = Group("Global options", sort_key=100)
"""Shown last in every help text."""


@Parameter(name="*", group=GLOBAL_GROUP)
@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """Options that work on every command, before or after its name."""

    bootstrap: Annotated[
        str | None,
        Parameter(name=("--bootstrap", "-b"), help="Brokers to ask first, host:port,..."),
    ] = None
    profile: Annotated[str | None, Parameter(help="Use this profile's cluster.")] = None
    x: Annotated[
        tuple[str, ...],
        Parameter(
            name=("-X",),
            help="Client setting key=value; repeatable. `-X list` lists them.",
            negative=(),
            show_default=False,
        ),
    ] = ()
    format: Annotated[
        Format | None,
        Parameter(name=("--format",), help="How to print the result (default: table)."),
    ] = None
    timeout: Annotated[
        float | None, Parameter(name=("--timeout",), help="Give up on a request after so many s.")
    ] = None
    yes: Annotated[
        bool,
        Parameter(
            name=("--yes", "-y"),
            negative=(),
            show_default=False,
            help="Do not ask for confirmation.",
        ),
    ] = False
    verbose: Annotated[
        bool,
        Parameter(
            name=("--verbose", "-v"),
            negative=(),
            show_default=False,
            help="Show tracebacks and details.",
        ),
    ] = False
    no_color: Annotated[
        bool,
        Parameter(
            name=("--no-color",), negative=(), show_default=False, help="No colour in the output."
        ),
    ] = False

    @property
    def fmt(self) -> Format:
        return self.format or "table"

    @property
    def target(self) -> connect.Target:
        timeout_ms = None if self.timeout is None else max(1, int(self.timeout * 1000))
        return connect.resolve(self.bootstrap, self.profile, self.x, timeout_ms)


COMMON = Common()
"""The default of every command's last parameter."""

DryRun = Annotated[
    bool,
    Parameter(
        name=("--dry-run",),
        negative=(),
        show_default=False,
        help="Say what would be done and do nothing.",
    ),
]
Pairs = Annotated[
    tuple[str, ...],
    Parameter(name=("--config", "-c"), negative=(), show_default=False, help="Topic setting k=v."),
]
Regex = Annotated[
    bool,
    Parameter(
        name=("--regex", "-r"),
        negative=(),
        show_default=False,
        help="Names are regular expressions.",
    ),
]
OnOff = Literal["on", "off"]


def _complete_topics(context: object) -> list[str]:
    """Topic names for the shell, within a moment and without a word when nothing answers."""
    import asyncio

    async def names() -> list[str]:
        target = connect.resolve(timeout_ms=300)
        async with asyncio.timeout(0.3), target.admin() as admin:
            return sorted(topic.name for topic in await admin.list_topics())

    try:
        return asyncio.run(names())
    except Exception:  # noqa: BLE001 - a shell that waits for a Tab key wants names or nothing
        return []


TopicName = Annotated[str, Parameter(completer=_complete_topics, help="Name of the topic.")]
TopicNames = Annotated[str, Parameter(completer=_complete_topics, help="Names of topics.")]
