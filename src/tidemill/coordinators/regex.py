"""Regular expressions for topic names, in Kafka's dialect and in time linear in the name.

A pattern comes from any client and runs inside the broker, so it must never backtrack: Python's
`re` can be made to run for hours by a short pattern. Kafka matches with RE2's syntax, and so do
we, with RE2 itself. What is bounded here is its size: a name has at most 249 characters, so a
pattern whose program is larger than `PROGRAM_MAX` says nothing that a smaller one could not.

Start at `compile_regex`.
"""

from __future__ import annotations

from typing import Any

PATTERN_CHARS_MAX = 1_024
PROGRAM_MAX = 4_000
"""RE2's instructions: one per literal or ASCII class, about nine per `.`, times repetitions."""
MEMORY_BYTES_MAX = 512 * 1024
"""What one pattern may use for its program and the states that RE2 remembers."""

_KAFKA_SAYS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
}
_TOO_LARGE = "pattern too large"


class RegexError(ValueError):
    """The pattern is not one that we take; the message says why."""


class Regex:
    """A compiled pattern; `fullmatch` says whether it describes the whole of a text."""

    def __init__(self, pattern: str, compiled: Any) -> None:
        self.pattern = pattern
        self.program_size: int = compiled.programsize
        self._fullmatch = compiled.fullmatch

    def fullmatch(self, text: str) -> bool:
        # Bytes, since the library counts the characters of a `str` one by one.
        return self._fullmatch(text.encode()) is not None


def compile_regex(pattern: str) -> Regex:
    """The pattern, ready to match; raises `RegexError` for what is no pattern or too large."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise RegexError(f"it is longer than {PATTERN_CHARS_MAX} characters")
    import re2  # Late: most brokers and commands never see a pattern.

    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True  # Nobody asks what a group matched, and it costs.
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)  # The library keeps the last 128.
    except re2.error as error:
        raise RegexError(_reason(error.args[0])) from error
    except UnicodeEncodeError as error:
        raise RegexError("it is not valid Unicode") from error
    if compiled.programsize > PROGRAM_MAX:
        raise RegexError(_too_large())
    return Regex(pattern, compiled)


def _reason(said: bytes | str) -> str:
    """What is wrong, in Kafka's words; like Kafka, without the place."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    if text.startswith(_TOO_LARGE):
        return _too_large()
    kind = text.partition(": ")[0]
    return _KAFKA_SAYS.get(kind, kind)


def _too_large() -> str:
    return (
        f"it is too large: it needs more than {PROGRAM_MAX} instructions; "
        "use fewer or smaller repetitions and character classes"
    )
