"""Java's properties format: how a `server.properties` is read, escapes and continuations included.

The rules are those of `java.util.Properties.load`: a line's key ends at the first unescaped `=`,
`:` or blank; a backslash at the end joins the next line; `#` and `!` start comments. One
difference: files are read as UTF-8, where Java sees Latin-1, because that is what editors write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidemill.config.keys import ConfigError

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n", "f": "\f"}
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")


class Property(NamedTuple):
    """One entry and the number of the line it starts at."""

    line: int
    key: str
    value: str


def parse_properties(text: str) -> Iterator[Property]:
    """The entries of a properties file, in order; a key may come more than once."""
    for number, line in _logical_lines(text):
        key, value = _split(line)
        yield Property(number, _unescape(key, number), _unescape(value, number))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, comments and blank lines left out."""
    joined, first = "", 0
    for number, natural in enumerate(_natural_lines(text), start=1):
        line = natural.lstrip(_BLANKS)
        if not joined:
            if not line or line[0] in "#!":
                first = 0
                continue
            first = number
        if _continues(line):
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if first:  # the file ends in a backslash
        yield first, joined


def _natural_lines(text: str) -> list[str]:
    """Java's line ends only: `str.splitlines` knows more of them. The last one ends the file."""
    if text.endswith(("\n", "\r")) and not text.endswith("\r\n"):
        text = text[:-1]
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _continues(line: str) -> bool:
    """Whether the line ends in a backslash that is not itself escaped."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Key and value, both still escaped."""
    end = _key_end(line)
    start = end
    while start < len(line) and line[start] in _BLANKS:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _BLANKS:
            start += 1
    return line[:end], line[start:]


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 1
        elif line[position] in "=:" or line[position] in _BLANKS:
            return position
        position += 1
    return len(line)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    out, position = [], 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if len(digits) != 4 or not _HEX_DIGITS.issuperset(digits):
                    raise ConfigError(f"line {line}: \\u must be followed by four hex digits")
                character = chr(int(digits, 16))
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        elif character == "\\":
            break  # a lone backslash at the very end stands for nothing
        out.append(character)
    return "".join(out)
