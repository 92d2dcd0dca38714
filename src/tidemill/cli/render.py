"""One renderer for every result: a table for people, JSON for programs.

A command returns a dataclass, a list of dataclasses, or a `Note`; nothing prints for itself. The
same value gives both forms, so what a table shows can never differ from what the JSON says.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TextIO

Format = Literal["table", "json"]
Field = dataclasses.Field[Any]

NOT_AVAILABLE = "-"
QUIET: Mapping[str, Any] = {"quiet": True}
"""Metadata of a field that a table shows only where it is true of something."""

ALWAYS: Mapping[str, Any] = {"always": True}
"""Metadata of a field that a table shows even where it is empty throughout."""


FOR_PROGRAMS: Mapping[str, Any] = {"programs": True}
"""Metadata of a field that only JSON shows, because another one says it better to people."""


def titled(text: str) -> Mapping[str, Any]:
    """Metadata of a field whose heading is not simply its name."""
    return {"heading": text}


@dataclass(frozen=True, slots=True)
class Note:
    """The result of a command that changed something: one sentence and the facts behind it."""

    message: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dry_run: bool = False


def show(result: object, fmt: Format, out: TextIO | None = None) -> None:
    """Print `result` on stdout in the form asked for."""
    stream = out or sys.stdout
    if result is None:
        return
    text = to_json(result) if fmt == "json" else to_text(result)
    if text:
        stream.write(text + "\n")
        stream.flush()


def to_json(result: object) -> str:
    return json.dumps(plain(result), indent=2 if sys.stdout.isatty() else None)


def plain(value: Any) -> Any:
    """`value` in JSON's types."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def to_text(result: object) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, Note):
        return ("dry run: " if result.dry_run else "") + result.message
    if isinstance(result, (list, tuple)):
        return table(result)
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return _record(result)
    return json.dumps(plain(result), indent=2)


def table(rows: Sequence[object]) -> str:
    """Aligned columns, headings from the fields' names; a column that is empty throughout is left
    out. Objects inside a row are counted in its line and listed in a table of their own below."""
    if not rows:
        return ""
    first = rows[0]
    if isinstance(first, type) or not dataclasses.is_dataclass(first):
        return "\n".join(cell(row) for row in rows)
    used = [f for f in dataclasses.fields(first) if any(_is_worth_showing(f, row) for row in rows)]
    lines = [[heading(f) for f in used]]
    lines += [[_counted(getattr(row, f.name)) for f in used] for row in rows]
    return "\n\n".join([align(lines), *_inner_tables(rows, used)])


def _is_worth_showing(field: Field, row: object) -> bool:
    value = getattr(row, field.name)
    if "programs" in field.metadata:
        return False
    if "always" in field.metadata:
        return True
    if "quiet" in field.metadata:
        return bool(value)
    return value not in (None, "", [], (), {})


def _holds_objects(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and dataclasses.is_dataclass(value[0])


def _counted(value: Any) -> str:
    return str(len(value)) if _holds_objects(value) else cell(value)


def _inner_tables(rows: Sequence[object], used: Sequence[Field]) -> list[str]:
    return [
        f"{heading(field)} OF {cell(getattr(row, used[0].name))}\n{table(inner)}"
        for row in rows
        for field in used
        if _holds_objects(inner := getattr(row, field.name))
    ]


def align(lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = (
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    return "\n".join(rows)


def heading(field: Field) -> str:
    title: str = field.metadata.get("heading") or field.name.replace("_", " ").upper()
    return title


def cell(value: Any) -> str:
    """One value as a person reads it; a dash for what is not there."""
    if value is None or value == "":
        return NOT_AVAILABLE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, Mapping):
        return ",".join(f"{k}={cell(v)}" for k, v in value.items()) or NOT_AVAILABLE
    if isinstance(value, (list, tuple)):
        return ",".join(cell(item) for item in value) or NOT_AVAILABLE
    return str(plain(value))


def _record(record: Any) -> str:
    """A single object: one field per line, nested lists of objects as tables below."""
    scalars: list[list[str]] = []
    tables: list[str] = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if "programs" in field.metadata or ("quiet" in field.metadata and not value):
            continue
        if _holds_objects(value):
            tables.append(f"{heading(field)}\n{table(value)}")
        else:
            scalars.append([heading(field), cell(value)])
    return "\n\n".join(part for part in (align(scalars), *tables) if part)


def human_bytes(count: int) -> str:
    """1536 -> `1.5 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{int(size)} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable: the last unit has no upper bound")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def colour_wanted(no_color: bool, stream: TextIO) -> bool:
    """Colour only for a person: a terminal, no NO_COLOR, no --no-color, no dumb terminal."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def talk(message: str) -> None:
    """Say something to the person; data goes to stdout, talk to stderr."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def json_lines(rows: Iterable[object]) -> str:
    return "\n".join(json.dumps(plain(row)) for row in rows)
