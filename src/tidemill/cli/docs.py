"""The command reference `docs/cli.md`, made from the command tree; a test holds it current.

Run `python -m tidemill.cli.docs > docs/cli.md` after changing a command.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.cli import exits, formats, offsets
from tidemill.cli.app import build
from tidemill.cli.command import EXAMPLES_ATTRIBUTE, MUTATES_ATTRIBUTE, STREAMS_ATTRIBUTE
from tidemill.cli.kafka.__main__ import TOOLS
from tidemill.cli.root import COMMANDS

if TYPE_CHECKING:
    from cyclopts import App

GLOBALS = "Global options"

INTRODUCTION = """\
# The command line

This page is made from the commands themselves (`python -m tidemill.cli.docs`); do not edit it.

`tidemill COMMAND --help` shows the same with examples. Data goes to stdout, talk to stderr; colour
and progress bars only to a terminal, never with `NO_COLOR`. Every command takes the global options,
before or after its name. The cluster's address comes from `--bootstrap`, else from the variable
`TIDEMILL_BOOTSTRAP`, else from the profile (`--profile`, `TIDEMILL_PROFILE`, `tidemill profile
use`), else it is `localhost:9092`; when nothing answers, the error says which of them it was.
"""

KAFKA_INTRODUCTION = """\
## Kafka's commands

The scripts in `bin/` take Kafka's flags and print what Kafka's tools print. They run without
activating anything: they use the checkout's `.venv`, or the Python that `TIDEMILL_PYTHON` names, or
one on the `PATH` that has Tidemill. Beyond today's flags they take what runbooks of older releases
hold: `--zookeeper HOST:2181/CHROOT` (brokers are found there; where no ZooKeeper answers, the
address of the profile is used; either is said on stderr), `--broker-list`, and with
`kafka-topics.sh --alter` the flags `--config name=value` and `--delete-config name`.
"""


class Leaf(NamedTuple):
    """A command that does something: its words, its app, its function."""

    words: tuple[str, ...]
    app: App
    function: Any

    @property
    def examples(self) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(self.function, EXAMPLES_ATTRIBUTE)
        return found

    @property
    def mutates(self) -> bool:
        return bool(getattr(self.function, MUTATES_ATTRIBUTE))

    @property
    def streams(self) -> bool:
        return bool(getattr(self.function, STREAMS_ATTRIBUTE))


def leaves(app: App | None = None, words: tuple[str, ...] = ("tidemill",)) -> Iterator[Leaf]:
    """Every command of the tree, in the order of the table."""
    here = app or build()
    if app is not None and here.default_command is not None:
        yield Leaf(words, here, here.default_command)
    order = [name for _, name, _, _ in COMMANDS] if app is None else sorted(here)
    for name in order:
        if not name.startswith("-"):
            yield from leaves(here[name], (*words, name))


def render() -> str:
    """The whole page."""
    found = list(leaves())
    parts = [INTRODUCTION, _contents(found), _globals(found[0])]
    parts += [_section(leaf) for leaf in found]
    parts += [_kafka(), _exit_codes(), _text("Offsets", offsets), _text("Formats", formats)]
    return "\n".join(parts)


def _contents(found: list[Leaf]) -> str:
    rows = [f"| `{' '.join(leaf.words)}` | {_first_line(leaf)} |" for leaf in found]
    return "\n".join(["| command | |", "|---|---|", *rows, ""])


def _first_line(leaf: Leaf) -> str:
    text: str = leaf.function.__doc__ or ""
    return text.strip().splitlines()[0]


def _options(leaf: Leaf, *, of_all: bool) -> list[str]:
    """Table rows of the options, those of all commands or the command's own."""
    rows = []
    for argument in leaf.app.assemble_argument_collection(parse_docstring=True):
        if not argument.show or not argument.parameter.help:
            continue
        group: Any = argument.parameter.group or ()
        if (GLOBALS in {each.name for each in group}) != of_all:
            continue
        names = ", ".join(f"`{name}`" for name in argument.names)
        rows.append(f"| {names} | {argument.parameter.help} |")
    return rows


def _globals(leaf: Leaf) -> str:
    rows = _options(leaf, of_all=True)
    return "\n".join(["## Global options", "", "| option | |", "|---|---|", *rows, ""])


def _section(leaf: Leaf) -> str:
    lines = [
        f"## {' '.join(leaf.words)}",
        "",
        inspect.cleandoc(inspect.unwrap(leaf.function).__doc__ or ""),
        "",
    ]
    rows = _options(leaf, of_all=False)
    if rows:
        lines += ["| argument | |", "|---|---|", *rows, ""]
    lines += ["```sh", *leaf.examples, "```", ""]
    return "\n".join(lines)


def _kafka() -> str:
    rows = [f"* `bin/{name}.sh`" for name in TOOLS]
    return "\n".join([KAFKA_INTRODUCTION, *rows, ""])


def _exit_codes() -> str:
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in exits.MEANINGS.items()]
    return "\n".join(["## Exit codes", "", "| status | |", "|---|---|", *rows, ""])


def _text(title: str, module: Any) -> str:
    from tidemill.cli.help_topics import body

    return f"## {title}\n\n```text\n{body(module.__doc__)}\n```\n"


if __name__ == "__main__":
    sys.stdout.write(render())
