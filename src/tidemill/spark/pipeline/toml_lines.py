"""The line of every key in a TOML file.

Python's parser says what a file means, and of a mistake in its notation where it is, but not where
a value stands. This one reads the same text once more, which is known to be correct by then, and
only for positions: `lines_of` maps the path of each key, table and list element to its line.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

from tidemill.spark.pipeline.keys import Path

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}\n#]+")
_STRING: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


def lines_of(text: str) -> dict[Path, int]:
    """The line of everything that has a name or a number in a correct TOML text."""
    return _Reader(text).read()


class _Reader:
    """One pass over the text; `_at` is the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self._lines: dict[Path, int] = {}
        self._elements: dict[Path, int] = {}

    def read(self) -> dict[Path, int]:
        table: Path = ()
        while self._next() is not None:
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._assignment(table)
        return self._lines

    def _next(self) -> str | None:
        """The next character that is neither blank nor comment."""
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at] if self._at < len(self._text) else None

    def _header(self) -> Path:
        """`[a.b]` or `[[a.b]]`: the path of the table that follows."""
        is_element = self._text.startswith("[[", self._at)
        line = self._here()
        self._at += 2 if is_element else 1
        path = self._inside_lists(self._dotted())
        self._at = self._text.index("]" * (2 if is_element else 1), self._at)
        self._at += 2 if is_element else 1
        if is_element:
            self._lines.setdefault(path, line)
            number = self._elements.get(path, 0)
            self._elements[path] = number + 1
            path = (*path, number)
        self._note(path, line)
        return path

    def _inside_lists(self, names: Path) -> Path:
        """`stage.clean.expect.x` means the last element of the list `expect` so far."""
        path: Path = ()
        for at, name in enumerate(names):
            path = (*path, name)
            if path in self._elements and at < len(names) - 1:
                path = (*path, self._elements[path] - 1)
        return path

    def _assignment(self, table: Path) -> None:
        """`a.b = value`, in a table of either notation."""
        line = self._here()
        path = (*table, *self._dotted())
        self._note(path, line)
        self._at = self._text.index("=", self._at) + 1
        self._space()
        self._value(path)

    def _note(self, path: Path, line: int) -> None:
        """Remember the line of a path, and of the tables that it brings about."""
        for length in range(1, len(path)):
            self._lines.setdefault(path[:length], line)
        self._lines[path] = line

    def _dotted(self) -> Path:
        names: list[str] = []
        while True:
            self._space()
            names.append(self._name())
            self._space()
            if self._text[self._at] != ".":
                return tuple(names)
            self._at += 1

    def _name(self) -> str:
        if found := _BARE.match(self._text, self._at):
            self._at = found.end()
            return found.group()
        literal = self._string()
        return str(tomllib.loads(f"name = {literal}")["name"])

    def _value(self, path: Path) -> None:
        first = self._text[self._at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._list(path)
        elif first == "{":
            self._inline_table(path)
        else:
            found = _SCALAR.match(self._text, self._at)
            assert found is not None
            self._at = found.end()

    def _list(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._next() != "]":
            self._lines[(*path, number)] = self._here()
            self._value((*path, number))
            number += 1
            if self._next() == ",":
                self._at += 1
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._next() != "}":
            self._assignment(path)
            if self._next() == ",":
                self._at += 1
        self._at += 1

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return found.group()

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line


_POSITION: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


def read(text: str) -> dict[str, Any]:
    """The file's content; a mistake in its notation is a `TomlError` with its line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        found = _POSITION.search(said)
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        raise TomlError(line, *_in_our_words(_POSITION.sub("", said))) from None


_OUR_WORDS: Final = (
    (
        r"Cannot declare \((.*?),?\) twice",
        "[{0}] is there twice",
        "put them together, or rename one",
    ),
    (
        r"Cannot overwrite a value|Duplicate inline table key.*",
        "the key is there twice",
        "remove one",
    ),
    (r"Illegal character '\\n'|Unterminated string", "a text has no end", "close its quotes"),
    (r"Expected '\]+' at the end of .*", "a section's name has no end", "write [stage.clean]"),
    (r"Expected '=' after a key.*|Invalid statement", "is no key", 'write key = "value"'),
    (r"Invalid value", "the key has no value that can be read", "texts stand in quotes"),
    (r"Unclosed (\w+)", "the {0} has no end", "close its brackets"),
)
"""What Python's parser says of mistakes that are often made, what we say, and what to do."""


def _in_our_words(said: str) -> tuple[str, str]:
    for pattern, message, suggestion in _OUR_WORDS:
        if found := re.fullmatch(pattern, said):
            names = [each.replace("'", "").replace(", ", ".") for each in found.groups() if each]
            return message.format(*names), suggestion
    return said, "every line is a [section], a key = value, or a # comment"


class TomlError(ValueError):
    """The text is no TOML: in which line, why, and what to do about it."""

    def __init__(self, line: int, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.suggestion = suggestion
