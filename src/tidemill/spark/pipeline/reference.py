"""The tables of `docs/pipelines.md`, made from the model; a test holds the page current.

Run `python -m tidemill.spark.pipeline.reference` after changing a key: it writes what is between
the marks of the page anew, and leaves the rest alone.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import MISSING
from pathlib import Path

from tidemill.spark.pipeline.durations import shown
from tidemill.spark.pipeline.keys import Kind, Section, keys_of
from tidemill.spark.pipeline.model import (
    Aggregate,
    Decode,
    Dedupe,
    Expectation,
    Join,
    Pipeline,
    SessionWindow,
    Sink,
    Source,
    Stage,
    Table,
    Watermark,
    Window,
)

BEGIN = "<!-- made by tidemill.spark.pipeline.reference -->"
END = "<!-- end -->"

SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("The file", Pipeline),
    ("[source.NAME]", Source),
    ("[source.NAME.decode], [table.NAME.decode]", Decode),
    ("[table.NAME]", Table),
    ("[stage.NAME]", Stage),
    ("[[stage.NAME.expect]]", Expectation),
    ("[stage.NAME.watermark]", Watermark),
    ("[stage.NAME.dedupe]", Dedupe),
    ("[[stage.NAME.join]]", Join),
    ("[stage.NAME.aggregate]", Aggregate),
    ("[stage.NAME.aggregate.window]", Window),
    ("[stage.NAME.aggregate.session]", SessionWindow),
    ("[sink.NAME]", Sink),
)


def tables() -> str:
    """Every section with every key."""
    return "\n".join(_table(title, section) for title, section in SECTIONS)


def _table(title: str, section: type[Section]) -> str:
    heading = title if title == "The file" else f"`{title}`"
    lines = [f"### {heading}", "", inspect.getdoc(section) or "", ""]
    lines += ["| key | what it is | default | meaning |", "|---|---|---|---|"]
    for name, field in keys_of(section).items():
        declared = field.metadata
        kind = " or ".join(f"`{each}`" for each in declared["choices"]) or declared["kind"].value
        meaning = declared["meaning"]
        if declared["example"]:
            meaning += f" Example: `{declared['example']}`"
        default = (
            "**needed**" if declared["required"] else _default(declared["kind"], field.default)
        )
        lines.append(f"| `{name}` | {kind} | {default} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def _default(kind: Kind, value: object) -> str:
    if value is MISSING or value in (None, "", (), 0):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if kind is Kind.DURATION and isinstance(value, int):
        return f"`{shown(value)}`"
    return f"`{value}`"


def renewed(page: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def main(path: Path = Path("docs/pipelines.md")) -> int:
    path.write_text(renewed(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
