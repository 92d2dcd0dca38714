"""`tidemill help`: what no single command's help has room for."""

from __future__ import annotations

from dataclasses import dataclass

from cyclopts import App

from tidemill.cli import exits, formats, offsets
from tidemill.cli.command import command
from tidemill.cli.options import COMMON, Common
from tidemill.cli.render import Note

app = App(name="help")


@dataclass(frozen=True, slots=True)
class ExitCode:
    code: int
    name: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ClientSetting:
    name: str
    default: str | None
    meaning: str


@command(app, examples=["tidemill help exit-codes", "tidemill help exit-codes --format json"])
def exit_codes(*, common: Common = COMMON) -> list[ExitCode]:
    """What each exit status of a command means."""
    return [
        ExitCode(int(code), code.name.lower(), meaning) for code, meaning in exits.MEANINGS.items()
    ]


@command(app, examples=["tidemill help offsets"], name="offsets")
def offset_grammar(*, common: Common = COMMON) -> Note:
    """How to say where to start and stop reading."""
    return Note(body(offsets.__doc__))


@command(app, examples=["tidemill help formats"], name="formats")
def format_verbs(*, common: Common = COMMON) -> Note:
    """The `%` verbs of `consume -f`."""
    return Note(body(formats.__doc__))


@command(app, examples=["tidemill help settings"])
def settings(*, common: Common = COMMON) -> list[ClientSetting]:
    """The client settings that `-X key=value` takes."""
    from tidemill.client.settings import ConsumerSettings, ProducerSettings, describe

    rows: dict[str, ClientSetting] = {}
    for kind in (ProducerSettings, ConsumerSettings):
        for name, default, meaning in describe(kind):
            shown = default if isinstance(default, (str, int, float)) else None
            rows[name] = ClientSetting(name, None if shown is None else str(shown), meaning)
    return [rows[name] for name in sorted(rows)]


def body(docstring: str | None) -> str:
    """A module's docstring without its heading and its note for programmers."""
    assert docstring is not None
    paragraphs = docstring.strip().split("\n\n")
    return "\n\n".join(p for p in paragraphs[1:] if not p.startswith("Pure:")).rstrip()
