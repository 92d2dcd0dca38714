"""Frames: the size and the header around a message.

A request's header has a client id, in the old string format even where the header is flexible, so
that a broker can read it from a version that it does not know. A response's header has only the
correlation id. Both grow a byte for tagged fields in flexible versions, except the response to
ApiVersions: a client reads it before it knows what the broker can do.

    size, api key, api version, correlation id, client id, [tags] | body
    size, correlation id, [tags]                                  | body
"""

from __future__ import annotations

from struct import Struct as Format
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from tidemill.errors import WireError
from tidemill.wire.apis import APIS, NEVER_FLEXIBLE, ApiKey
from tidemill.wire.codec import RESPONSE_ELEMENTS_MAX, decode, encode_parts
from tidemill.wire.declare import Message, Records
from tidemill.wire.plan import STRING_BYTES_MAX
from tidemill.wire.primitives import Source, skip_tags

HEADER_TAGS_MAX = 64
"""How many tagged fields a header may have; nobody has defined any so far."""

_REQUEST_HEAD = Format(">hhih")
_SIZED_REQUEST_HEAD = Format(">ihhih")
_RESPONSE_HEAD = Format(">ii")
_FLEXIBLE_RESPONSE_HEAD = Format(">iix")
_CORRELATION_ID = Format(">i")

_REQUEST_FLEXIBLE_FROM = {int(api.key): api.flexible_from for api in APIS.values()}
_RESPONSE_FLEXIBLE_FROM = {
    int(api.key): NEVER_FLEXIBLE if api.key is ApiKey.API_VERSIONS else api.flexible_from
    for api in APIS.values()
}


class RequestHeader(NamedTuple):
    """What every request begins with; `api_key` is a plain number, since it may be unknown."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: Source) -> tuple[RequestHeader, int]:
    """The header of a request, and where its body begins. `frame` is without the size.

    The header of an API that is not in the table is read as an inflexible one: its body cannot be
    understood anyway, and the caller will want to say which key it was.
    """
    try:
        api_key, version, correlation_id, size = _REQUEST_HEAD.unpack_from(frame)
        pos = _REQUEST_HEAD.size
        client_id = None
        if size >= 0:
            stop = pos + size
            if stop > len(frame):
                raise WireError(f"a client id claims {size} bytes: {len(frame) - pos} are left")
            client_id = str(frame[pos:stop], "utf-8")
            pos = stop
        if version >= _REQUEST_FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE):
            pos = _skip_header_tags(frame, pos)
    except (StructError, IndexError) as error:
        raise WireError(f"a request header ends too early: {len(frame)} bytes") from error
    except UnicodeDecodeError as error:
        raise WireError("a client id is not UTF-8") from error
    return RequestHeader(api_key, version, correlation_id, client_id), pos


def _skip_header_tags(frame: Source, pos: int) -> int:
    count = frame[pos]
    pos += 1
    return skip_tags(frame, pos, len(frame), HEADER_TAGS_MAX, count)[0] if count else pos


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """A whole request, size included."""
    return b"".join(encode_request_parts(api_key, version, correlation_id, client_id, message))


def encode_request_parts(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Records]:
    """The same in pieces; large records are in there uncopied."""
    name = b"" if client_id is None else client_id.encode()
    name_bytes = -1 if client_id is None else len(name)
    if name_bytes > STRING_BYTES_MAX:
        raise WireError(f"a client id of {name_bytes} bytes: at most {STRING_BYTES_MAX} fit")
    tags = b"\0" if version >= _REQUEST_FLEXIBLE_FROM[api_key] else b""
    parts = encode_parts(message, version)
    size = _REQUEST_HEAD.size + len(name) + len(tags) + sum(map(len, parts))
    head = _SIZED_REQUEST_HEAD.pack(size, api_key, version, correlation_id, name_bytes)
    parts[0] = b"".join((head, name, tags, parts[0]))
    return parts


def encode_response(
    api_key: int, version: int, correlation_id: int, message: Message
) -> list[Records]:
    """A whole response in pieces, size included; large records are in there uncopied."""
    flexible = version >= _RESPONSE_FLEXIBLE_FROM[api_key]
    head, head_bytes = (_FLEXIBLE_RESPONSE_HEAD, 5) if flexible else (_RESPONSE_HEAD, 4)
    parts = encode_parts(message, version)
    size = head_bytes + sum(map(len, parts))
    parts[0] = head.pack(size, correlation_id) + parts[0]
    return parts


def decode_response(api_key: int, version: int, frame: Source) -> tuple[int, Message]:
    """The correlation id and the message of a response. `frame` is without the size."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        pos = _CORRELATION_ID.size
        if version >= _RESPONSE_FLEXIBLE_FROM[api_key]:
            pos = _skip_header_tags(frame, pos)
    except (StructError, IndexError) as error:
        raise WireError(f"a response header ends too early: {len(frame)} bytes") from error
    cls = APIS[ApiKey(api_key)].response
    return correlation_id, decode(cls, version, frame, pos, RESPONSE_ELEMENTS_MAX)
