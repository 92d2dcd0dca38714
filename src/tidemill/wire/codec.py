"""Encode and decode messages: the door to the compiled codecs.

    data = encode(MetadataRequest(topics=None), 12)
    request = decode(MetadataRequest, 12, data)

Whatever is wrong with the bytes or with a value, the error is a `WireError`.
"""

from __future__ import annotations

from struct import error as StructError  # noqa: N812
from typing import Any, TypeVar

from tidemill.errors import WireError
from tidemill.wire.compile import decoder_for, encoder_for
from tidemill.wire.declare import Message, Records
from tidemill.wire.explain import explain
from tidemill.wire.primitives import Source

ELEMENTS_MAX = 250_000
"""How many array elements and tags one message may have in total, unless the caller says more.

A byte on the wire can cost far more in memory: an element of a dozen bytes becomes objects of three
hundred. If only the bytes bounded the count, a request of 100 MB could build gigabytes and hold the
event loop for half a minute. With this limit the worst request builds about 110 MB in about a
second, and no client names a quarter of a million partitions in one request.
"""

RESPONSE_ELEMENTS_MAX = 5_000_000
"""The same for what a client reads from a broker: the metadata of a large cluster is long."""

_M = TypeVar("_M", bound=Message)


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message, without any header."""
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[Records]:
    """The same in pieces, at least one: large records are passed through uncopied."""
    parts: list[Any] = []
    large: list[int] = []
    try:
        encoder_for(type(message), version)(message, parts, large.append)
        return _merge_small(parts, large) if large else [b"".join(parts)]
    except (StructError, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise explain(message, version) from error


def _merge_small(parts: list[Any], large: list[int]) -> list[Records]:
    """Join the pieces between the large ones, so that few are left."""
    merged: list[Records] = []
    start = 0
    for index in large:
        merged.append(b"".join(parts[start:index]))
        merged.append(parts[index])
        start = index + 1
    if start < len(parts):
        merged.append(b"".join(parts[start:]))
    return merged


def decode(
    cls: type[_M], version: int, data: Source, offset: int = 0, elements_max: int = ELEMENTS_MAX
) -> _M:
    """A message from its bytes. Records are slices of `data`, not copies.

    Bytes that follow the message are ignored, as Kafka does.
    """
    read = decoder_for(cls, version)
    try:
        message: _M = read(data, memoryview(data), offset, len(data), elements_max)[0]
    except _REFUSALS as error:
        raise _refusal(cls, version, data, error) from error
    return message


def decode_from(
    cls: type[_M], version: int, data: Source, offset: int = 0, elements_max: int = ELEMENTS_MAX
) -> tuple[_M, int]:
    """The same, and the position behind the message."""
    read = decoder_for(cls, version)
    try:
        return read(data, memoryview(data), offset, len(data), elements_max)
    except _REFUSALS as error:
        raise _refusal(cls, version, data, error) from error


_REFUSALS = (StructError, IndexError, UnicodeDecodeError, WireError)


def _refusal(cls: type[Message], version: int, data: Source, error: Exception) -> WireError:
    name = f"{cls.__name__} v{version}"
    if isinstance(error, WireError):
        return WireError(f"{name}: {error}")
    if isinstance(error, UnicodeDecodeError):
        return WireError(f"{name} has a string that is not UTF-8")
    return WireError(f"{name} ends too early: {len(data)} bytes")
