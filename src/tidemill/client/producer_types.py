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
    """Headers in the wire's form; text values become UTF-8. What cannot be sent is refused here."""
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((_header_name(name), _header_value(name, value)) for name, value in pairs)


def _header_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name must be text, not {type(name).__name__}")
    if not name.isascii():
        name.encode()  # Half of a surrogate pair has no UTF-8: better found now than on the way.
    return name


def _header_value(name: str, value: object) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"header {name!r} must be bytes, str or None, not {type(value).__name__}")
