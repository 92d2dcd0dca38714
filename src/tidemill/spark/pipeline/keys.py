"""How the keys of a pipeline file are declared, and how a mistake in one is told.

`model` has the sections themselves. A field made by `key` carries what reading, checking and
documenting it takes, so that `load` and `reference` know no key by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidemill.errors import TidemillError

Path = tuple[str | int, ...]
"""Where something stands in the file: `("stage", "clean", "expect", 0, "that")`."""


class PipelineError(TidemillError):
    """One mistake in a pipeline file: where it is, what is wrong, what to write instead."""

    def __init__(
        self,
        path: str,
        line: int,
        key: str,
        message: str,
        suggestion: str = "",
        *,
        is_warning: bool = False,
    ) -> None:
        self.path = path
        self.line = line
        self.key = key
        self.message = message
        self.suggestion = suggestion
        self.is_warning = is_warning
        where = f"{path}:{line}" if line else path
        text = f"{where}: {key}: {message}" if key else f"{where}: {message}"
        super().__init__(f"{text}; {suggestion}" if suggestion else text)


class InvalidPipelineError(TidemillError):
    """A file that cannot be run, with every mistake that was found."""

    def __init__(self, errors: list[PipelineError]) -> None:
        self.errors = errors
        super().__init__("\n".join(str(error) for error in errors))


class Kind(Enum):
    """How a key is written in the file; the value says it in words."""

    TEXT = "a text"
    NAME = "a name of letters, digits, `-`, `_` and `.`"
    TEXTS = "a list of texts"
    TEXT_OR_TEXTS = "a text or a list of texts"
    COUNT = "a whole number above 0"
    FLAG = "true or false"
    DURATION = 'a duration such as "30 seconds"'
    EXPRESSION = "an SQL expression"
    EXPRESSIONS = "a list of SQL expressions"
    COLUMNS = "a table of SQL expressions by name"
    SETTINGS = "a table of texts by name"
    SECTION = "a section"
    SECTIONS = "sections, any number of them"
    NAMED = "sections by name"


_EMPTY: Mapping[Kind, Any] = {
    Kind.TEXTS: (),
    Kind.TEXT_OR_TEXTS: (),
    Kind.EXPRESSIONS: (),
    Kind.SECTIONS: (),
    Kind.COLUMNS: {},
    Kind.SETTINGS: {},
    Kind.NAMED: {},
    Kind.FLAG: False,
    Kind.TEXT: "",
    Kind.NAME: "",
    Kind.EXPRESSION: "",
}


def key(
    kind: Kind,
    meaning: str,
    *,
    example: str = "",
    default: Any = None,
    required: bool = False,
    choices: tuple[str, ...] = (),
    section: type[Section] | None = None,
    spelt: str | None = None,
) -> Any:
    """A field of a section. `spelt` is its name in the file where Python has another one."""
    metadata = {
        "kind": kind,
        "meaning": meaning,
        "example": example,
        "required": required,
        "choices": choices,
        "section": section,
        "spelt": spelt,
    }
    if default is None:
        default = _EMPTY.get(kind)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What all sections have: where they stand in the file."""

    at: Path = dataclasses.field(default=(), compare=False)


def keys_of(section: type[Section]) -> dict[str, dataclasses.Field[Any]]:
    """The declared keys of a section, as the file spells them."""
    return {
        field.metadata["spelt"] or field.name: field
        for field in dataclasses.fields(section)
        if "kind" in field.metadata
    }


def written(path: Path) -> str:
    """`("stage", "clean", "expect", 0)` as people write it: `stage.clean.expect[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")
