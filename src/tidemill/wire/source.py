"""Building the source text of a compiled codec, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct as Format
from typing import Any


class SourceWriter:
    """Lines of Python with their indentation, and the names that they use from outside."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self._lines: list[str] = []
        self._level = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._level + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines inside belong to `head`, which ends in a colon."""
        self.line(head)
        self._level += 1
        yield
        self._level -= 1

    def name(self, stem: str) -> str:
        """A variable that nobody else uses."""
        self._names += 1
        return f"{stem}{self._names}"

    def format_method(self, letters: str, method: str) -> str:
        """The name of a bound method of the struct format `letters`, shared by equal formats."""
        name = f"{method}_{letters.replace('?', 'bool')}"
        self.scope.setdefault(name, getattr(Format(">" + letters), method))
        return name

    def constant(self, stem: str, value: object) -> str:
        """A name for a value from outside."""
        name = stem
        while name in self.scope and self.scope[name] is not value:
            name += "_"
        self.scope[name] = value
        return name

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"
