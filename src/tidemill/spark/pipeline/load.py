"""From the text of a pipeline file to the model, with every mistake in it.

This is about single keys: is it known, is it there, is it of the right kind. What only shows when
the parts are taken together is `check`'s. Nothing here stops at the first mistake, and a mistake in
one key is told once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

from tidemill.spark.pipeline import expressions
from tidemill.spark.pipeline.durations import parse_ms
from tidemill.spark.pipeline.keys import (
    InvalidPipelineError,
    Kind,
    Path,
    PipelineError,
    Section,
    keys_of,
    written,
)
from tidemill.spark.pipeline.model import Pipeline
from tidemill.spark.pipeline.toml_lines import TomlError, lines_of, read

FILE_BYTES_MAX: Final = 1 << 20
NAME_CHARS_MAX: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAMED_NODES: Final = ("source", "table", "stage", "sink")


@dataclass(slots=True)
class Problems:
    """The mistakes of one file, and where its keys stand."""

    path: str
    lines: Mapping[Path, int] = field(default_factory=dict)
    found: list[PipelineError] = field(default_factory=list)

    def add(
        self, at: Path, message: str, suggestion: str = "", *, is_warning: bool = False
    ) -> None:
        error = PipelineError(
            self.path, self.line_of(at), written(at), message, suggestion, is_warning=is_warning
        )
        self.found.append(error)

    def line_of(self, at: Path) -> int:
        """The line of a key, or of what it would be in."""
        for length in range(len(at), 0, -1):
            if at[:length] in self.lines:
                return self.lines[at[:length]]
        return 1

    @property
    def are_fatal(self) -> bool:
        return any(not error.is_warning for error in self.found)


def load(path: str | FilePath) -> Pipeline:
    """The pipeline of a file whose keys are all right; else `InvalidPipelineError`."""
    pipeline, problems = read_pipeline(path)
    if pipeline is None:
        raise InvalidPipelineError(problems.found)
    return pipeline


def read_pipeline(path: str | FilePath) -> tuple[Pipeline | None, Problems]:
    """The pipeline of a file, if there is nothing wrong with its keys, and what is."""
    file = FilePath(path)
    problems = Problems(str(path))
    if file.stat().st_size > FILE_BYTES_MAX:
        problems.add((), f"the file is larger than {FILE_BYTES_MAX:,} bytes")
        return None, problems
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        problems.add((), "the file is no UTF-8 text")
        return None, problems
    return parse(text, str(path))


def parse(text: str, path: str) -> tuple[Pipeline | None, Problems]:
    """As `read_pipeline`, of a text that `path` is the name of."""
    try:
        content = read(text)
    except TomlError as error:
        message = f"this is no TOML: {error.message}"
        wrong = PipelineError(path, error.line, "", message, error.suggestion)
        return None, Problems(path, found=[wrong])
    problems = Problems(path, lines_of(text))
    values = _values(Pipeline, content, (), problems)
    if problems.found:
        return None, problems
    return Pipeline(path=path, **values), problems


def _section(section: type[Section], content: Any, at: Path, problems: Problems) -> Section | None:
    if not isinstance(content, dict):
        problems.add(
            at, f"is {_kind_of(content)}, but has to be a section", f"write [{written(at)}]"
        )
        return None
    return section(at=at, **_values(section, content, at, problems))


def _values(
    section: type[Section], content: Mapping[str, Any], at: Path, problems: Problems
) -> dict[str, Any]:
    """What the fields of a section get; a wrong value is a problem and left out."""
    known = keys_of(section)
    for name in content:
        if name not in known:
            _unknown_key(name, known, at, problems)
    values: dict[str, Any] = {}
    for name, declared in known.items():
        if name in content:
            value = _value(declared.metadata, content[name], (*at, name), problems)
            if value is not None:
                values[declared.name] = value
        elif declared.metadata["required"]:
            _missing_key(name, declared.metadata, at, problems)
    return values


def _unknown_key(name: str, known: Iterable[str], at: Path, problems: Problems) -> None:
    where = f"[{written(at)}]" if at else "the file"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    suggestion = f"did you mean `{near[0]}`?" if near else f"it has {_listed(known)}"
    problems.add((*at, name), f"{where} has no key `{name}`", suggestion)


def _missing_key(name: str, declared: Mapping[str, Any], at: Path, problems: Problems) -> None:
    if declared["kind"] is Kind.NAMED:
        problems.add(at, f"there is no [{name}.NAME]", f"a pipeline has at least one {name}")
        return
    where = f"[{written(at)}] has" if at else "the file has"
    example = declared["example"]
    suggestion = f"for example {name} = {example}" if example else declared["meaning"]
    problems.add(at, f"{where} no `{name}`", suggestion)


def _value(declared: Mapping[str, Any], given: Any, at: Path, problems: Problems) -> Any:
    """The value of a key as the model has it; None, and a problem, if it is not of its kind."""
    kind: Kind = declared["kind"]
    if kind is Kind.SECTION:
        return _section(declared["section"], given, at, problems)
    if kind is Kind.SECTIONS:
        return _sections(declared["section"], given, at, problems)
    if kind is Kind.NAMED:
        return _named(declared["section"], given, at, problems)
    value = _READERS[kind](given)
    if value is None:
        _wrong_kind(declared, given, at, problems)
        return None
    if declared["choices"] and value not in declared["choices"]:
        near = difflib.get_close_matches(str(value).lower(), declared["choices"], n=1, cutoff=0.5)
        suggestion = (
            f"did you mean `{near[0]}`?" if near else f"one of {_listed(declared['choices'])}"
        )
        problems.add(at, f"`{value}` is no {at[-1]}", suggestion)
        return None
    faults = list(_faults(kind, value, at))
    for where, fault in faults:
        problems.add(where, *fault)
    return None if faults else value


def _sections(section: type[Section], given: Any, at: Path, problems: Problems) -> Any:
    if not isinstance(given, list):
        problems.add(at, f"is {_kind_of(given)}, but has to be a list", f"write [[{written(at)}]]")
        return None
    made = [_section(section, each, (*at, number), problems) for number, each in enumerate(given)]
    return tuple(each for each in made if each is not None)


def _named(section: type[Section], given: Any, at: Path, problems: Problems) -> Any:
    if not isinstance(given, dict):
        problems.add(at, f"is {_kind_of(given)}, but has to be sections", f"write [{at[-1]}.NAME]")
        return None
    made: dict[str, Any] = {}
    for name, content in given.items():
        where = (*at, name)
        if not _NODE_NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
            problems.add(where, f"`{name}` is no name", "use letters, digits, `-` and `_`")
        elif not isinstance(content, dict):
            _section_forgotten(section, name, content, where, problems)
        else:
            values = _values(section, content, where, problems)
            made[name] = section(at=where, name=name, **values)  # type: ignore[call-arg]
    return made


def _section_forgotten(
    section: type[Section], name: str, content: Any, at: Path, problems: Problems
) -> None:
    """`[source]` with a source's keys in it, its name left out."""
    noun = at[0]
    if name in keys_of(section):
        problems.add(at, f"stands in [{noun}], which needs a name", f"write [{noun}.NAME]")
    else:
        problems.add(
            at, f"is {_kind_of(content)}, but has to be a section", f"write [{written(at)}]"
        )


def _wrong_kind(declared: Mapping[str, Any], given: Any, at: Path, problems: Problems) -> None:
    kind: Kind = declared["kind"]
    said = f"`{given}`" if isinstance(given, str) else _kind_of(given)
    example = declared["example"]
    suggestion = f"for example {at[-1]} = {example}" if example else ""
    if kind in (Kind.TEXTS, Kind.EXPRESSIONS) and isinstance(given, str):
        suggestion = f'write {at[-1]} = ["{given}"]'
    problems.add(at, f"is {said}, but has to be {kind.value}", suggestion)


def _faults(kind: Kind, value: Any, at: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    """What is wrong with a value of the right kind: names and expressions inside it."""
    if kind is Kind.NAME and not (_NAME.fullmatch(value) and len(value) <= NAME_CHARS_MAX):
        yield at, (f"`{value}` is no name", "use letters, digits, `-`, `_` and `.`, at most 100")
    elif kind is Kind.EXPRESSION:
        yield from _expression_faults(at, value)
    elif kind is Kind.EXPRESSIONS:
        for number, text in enumerate(value):
            yield from _expression_faults((*at, number), text)
    elif kind is Kind.COLUMNS:
        for name, text in value.items():
            yield from _expression_faults((*at, name), text)


def _expression_faults(at: Path, text: str) -> Iterator[tuple[Path, tuple[str, str]]]:
    fault = expressions.fault_of(text)
    if fault is not None:
        yield at, fault


# --- one reader per kind: the value, or None ------------------------------------------------------


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) and given.strip() else None


def _texts(given: Any) -> tuple[str, ...] | None:
    if not isinstance(given, list) or not given:
        return None
    return tuple(given) if all(_text(each) for each in given) else None


def _text_or_texts(given: Any) -> tuple[str, ...] | None:
    return (given,) if _text(given) else _texts(given)


def _count(given: Any) -> int | None:
    is_count = isinstance(given, int) and not isinstance(given, bool) and given > 0
    return given if is_count else None


def _flag(given: Any) -> bool | None:
    return given if isinstance(given, bool) else None


def _duration(given: Any) -> int | None:
    return parse_ms(given) if isinstance(given, str) else None


def _columns(given: Any) -> dict[str, str] | None:
    if not isinstance(given, dict) or not given:
        return None
    return given if all(_text(each) for each in given.values()) else None


def _settings(given: Any) -> dict[str, str] | None:
    """Texts by name; numbers and flags will do, since everybody writes them without quotes."""
    if not isinstance(given, dict):
        return None
    if not all(isinstance(each, (str, int, float)) for each in given.values()):
        return None
    return {
        name: str(each).lower() if isinstance(each, bool) else str(each)
        for name, each in given.items()
    }


_READERS: Final = {
    Kind.TEXT: _text,
    Kind.NAME: _text,
    Kind.TEXTS: _texts,
    Kind.TEXT_OR_TEXTS: _text_or_texts,
    Kind.COUNT: _count,
    Kind.FLAG: _flag,
    Kind.DURATION: _duration,
    Kind.EXPRESSION: _text,
    Kind.EXPRESSIONS: _texts,
    Kind.COLUMNS: _columns,
    Kind.SETTINGS: _settings,
}


def _kind_of(given: Any) -> str:
    """What a TOML value is, in words."""
    if isinstance(given, bool):
        return str(given).lower()
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    for kind, name in names.items():
        if isinstance(given, kind):
            return name if given or kind in (int, float) else f"{name} with nothing in it"
    return "a date"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
