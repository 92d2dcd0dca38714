"""SQL expressions without Spark: what is wrong on the face of them, and the names they give.

Spark's own parser and analyzer judge expressions in `compile`, where Spark can be had. What is here
needs no Spark: quotes and brackets that do not close, an end where something has to follow, and the
top-level names of a schema or of a list of columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

EXPRESSION_CHARS_MAX: Final = 10_000

_PAIRS: Final = {")": "(", "]": "[", "}": "{"}
_QUOTES: Final = "'\"`"
_DANGLING: Final = re.compile(r"(?:[-+/%<>=,|&]|\b(?:and|or|not|like|in|is|between|as))$", re.I)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|`[^`]+`")
_ALIAS: Final = re.compile(r"\bas\s+([A-Za-z_][A-Za-z0-9_]*|`[^`]+`)$", re.IGNORECASE)


def fault_of(text: str) -> tuple[str, str] | None:
    """What is wrong with an expression on the face of it, and what to do; None if nothing is."""
    if len(text) > EXPRESSION_CHARS_MAX:
        return f"is longer than {EXPRESSION_CHARS_MAX:,} characters", "split it into columns"
    open_brackets: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter in _QUOTES:
            end = _end_of_quote(text, at)
            if end is None:
                return f"the quote {letter} is never closed in `{text}`", f"add a {letter}"
            at = end
        elif letter in _PAIRS.values():
            open_brackets.append(letter)
        elif letter in _PAIRS and (not open_brackets or open_brackets.pop() != _PAIRS[letter]):
            return f"`{letter}` closes nothing in `{text}`", f"remove it, or add a {_PAIRS[letter]}"
        at += 1
    if open_brackets:
        return f"`{open_brackets[-1]}` is never closed in `{text}`", "add the closing bracket"
    if "&&" in blanked(text):
        return f"`&&` is no SQL in `{text}`", "write AND"
    dangling = _DANGLING.search(text.rstrip())
    if dangling:
        return f"nothing follows `{dangling.group()}` in `{text}`", "finish the expression"
    return None


def _end_of_quote(text: str, start: int) -> int | None:
    """Where the quote that opens at `start` closes; SQL doubles it or escapes it with `\\`."""
    at = start + 1
    while at < len(text):
        if text[at] == "\\" and text[start] != "`":
            at += 2
            continue
        if text[at] == text[start]:
            return at
        at += 1
    return None


def blanked(text: str) -> str:
    """The expression with what is quoted as text replaced by blanks."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        end = _end_of_quote(text, at) if text[at] in "'\"" else None
        parts.append(text[at] if end is None else " " * (end + 1 - at))
        at = at + 1 if end is None else end + 1
    return "".join(parts)


def plain_name(text: str) -> str | None:
    """The column that an expression merely names, if that is all it does."""
    stripped = text.strip()
    return stripped.strip("`") if _PLAIN_NAME.fullmatch(stripped) else None


def result_name(text: str) -> str | None:
    """The name of an expression's column: itself, or what follows AS; None if only Spark knows."""
    alias = _ALIAS.search(text.strip())
    return alias[1].strip("`") if alias else plain_name(text)


def without_alias(text: str) -> str:
    """The expression that `AS name` gives a name, or all of one that has none."""
    return _ALIAS.sub("", text.strip()).strip()


def schema_columns(ddl: str) -> tuple[str, ...] | None:
    """The top-level names of `a INT, b STRUCT<c: INT, d: STRING>`; None if it cannot be told."""
    names: list[str] = []
    for part in _split(ddl):
        found = re.match(r"\s*(`[^`]+`|[^\s:`]+)(?:\s*:\s*|\s+)\S", part)
        if found is None:
            return None
        names.append(found[1].strip("`"))
    return tuple(names) or None


def _split(ddl: str) -> Iterator[str]:
    """The parts between the commas that are in no brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(ddl):
        if letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and not depth:
            yield ddl[start:at]
            start = at + 1
    yield ddl[start:]
