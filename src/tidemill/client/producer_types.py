"""What a producer takes and gives back besides bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]
"""A record's headers in order; a name may occur more than once."""

HeadersInput = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a delivered record is; `offset` is -1 with acks=0, when nobody says."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def as_headers(headers: HeadersInput) -> Headers:
    """Headers in the wire's form; text values become UTF-8."""
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple(
        (name, value.encode() if isinstance(value, str) else value) for name, value in pairs
    )
