"""The words that all formats share: their names, their limits, what they raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FormatName = Literal["json", "avro", "protobuf"]


class FormatError(ValueError):
    """A format, schema or registry setting that cannot be right: the user has to change it."""


class UnreadableError(Exception):
    """At least one value of a piece cannot be decoded; the message is its cause."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one value and one schema may cost."""

    record_bytes_max: int = 64 << 20
    """A longer value is a bad record."""
    piece_bytes_max: int = 128 << 20
    """How much is decoded at a time."""
    piece_rows_max: int = 16_384
    """Arrow's JSON reader stops at 100,000 rows; pieces of this size stay in the caches."""
    depth_max: int = 32
    """How deep a schema may nest."""
    fields_max: int = 2_000
    """How many fields a schema may have, nested ones counted."""
    schema_bytes_max: int = 4 << 20
    """How long the text of a schema, or a registry's answer, may be."""
    cause_chars_max: int = 300
    """Causes are cut here: they go into headers and logs."""


DEFAULT_LIMITS = Limits()


class FieldBudget:
    """Counts the fields of a schema while it is read: one that names the same type over and over
    can be far larger than its text."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.fields_max

    def spend(self, depth: int) -> None:
        """One more field, this deep inside."""
        self._left -= 1
        if self._left < 0:
            raise FormatError(f"the schema has more than {self._limits.fields_max} fields")
        if depth > self._limits.depth_max:
            raise FormatError(f"the schema nests deeper than {self._limits.depth_max}")
