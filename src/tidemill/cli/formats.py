r"""`%` formats: how `consume -f` prints a record, and how a record is shown when nobody says.

    %t topic   %p partition   %o offset   %k key   %v or %s value   %h headers   %T timestamp in ms
    %K, %S, %V  length of key and value; -1 for null     %d{...} timestamp by strftime
    %k{hex}, %v{hex}, %k{base64}, %v{base64}, %v{json}   another spelling of the bytes
    %n  count so far   %e leader epoch   %%  a percent sign   \n \t \r \\ \xHH  as in C

`%t %p %o %k %s %h %T %K %S` mean what they mean to kcat, which adds `%n` for a counter.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from tidemill.client import ConsumerRecord

Formatter = Callable[["ConsumerRecord", int], bytes]
_Part = Callable[["ConsumerRecord", int], bytes]

_TOKEN = re.compile(
    r"%(?P<verb>[a-zA-Z%])(?:\{(?P<how>(?:[^{}]|\[[^\]]*\])*)\})?|\\(?P<esc>x[0-9a-fA-F]{2}|.)",
    re.S,
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def compile_format(template: str) -> Formatter:
    """A function from (record, count) to the bytes to print."""
    parts: list[_Part] = []
    position = 0
    for match in _TOKEN.finditer(template):
        _literal(parts, template[position : match.start()].encode())
        if match["esc"]:
            _literal(parts, _escape(match["esc"]))
        else:
            parts.append(_verb(match["verb"], match["how"], match[0]))
        position = match.end()
    _literal(parts, template[position:].encode())
    return lambda record, count: b"".join(part(record, count) for part in parts)


def _literal(parts: list[_Part], text: bytes) -> None:
    if text:
        parts.append(lambda record, count: text)


def _escape(code: str) -> bytes:
    if len(code) == 3:
        return bytes([int(code[1:], 16)])
    return _ESCAPES.get(code, code.encode())


def _verb(verb: str, how: str | None, written: str) -> _Part:
    if verb in "kvs":
        return _bytes_part(0 if verb == "k" else 1, how, written)
    if verb == "d":
        return lambda record, count: _date(record.timestamp_ms, how or "%Y-%m-%dT%H:%M:%S").encode()
    if verb not in _VERBS:
        raise CommandError(
            f"{written!r} is no format", Exit.USAGE, hint="see `tidemill help formats`"
        )
    return _VERBS[verb]


def _number(read: Callable[[ConsumerRecord, int], int]) -> _Part:
    return lambda record, count: b"%d" % read(record, count)


_VERBS: dict[str, _Part] = {
    "%": lambda record, count: b"%",
    "t": lambda record, count: record.topic.encode(),
    "p": _number(lambda record, count: record.partition),
    "o": _number(lambda record, count: record.offset),
    "T": _number(lambda record, count: record.timestamp_ms),
    "e": _number(lambda record, count: record.leader_epoch),
    "n": _number(lambda record, count: count),
    "K": _number(lambda record, count: _length(record.key)),
    "V": _number(lambda record, count: _length(record.value)),
    "S": _number(lambda record, count: _length(record.value)),
    "h": lambda record, count: _headers(record.headers),
}


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _bytes_part(which: int, how: str | None, written: str) -> _Part:
    encode = _ENCODINGS.get(how or "")
    if encode is None:
        known = ", ".join(name for name in _ENCODINGS if name)
        raise CommandError(f"{written!r}: the spellings are {known}", Exit.USAGE)
    if which == 0:
        return lambda record, count: encode(record.key)
    return lambda record, count: encode(record.value)


_ENCODINGS: dict[str, Callable[[bytes | None], bytes]] = {
    "": lambda data: data or b"",
    "hex": lambda data: (data or b"").hex().encode(),
    "base64": lambda data: base64.b64encode(data or b""),
    "json": lambda data: json.dumps(_text(data)).encode(),
}


def _headers(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in headers
    )


def _date(timestamp_ms: int, how: str) -> str:
    """`how` is a strftime pattern, bare or as `strftime[...]`; time is UTC."""
    if how.startswith("strftime[") and how.endswith("]"):
        how = how[len("strftime[") : -1]
    moment = datetime.datetime.fromtimestamp(max(0, timestamp_ms) / 1000, datetime.UTC)
    return moment.strftime(how)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def as_object(record: ConsumerRecord) -> dict[str, Any]:
    """A record in JSON's types. Bytes that are no UTF-8 are given as base64 beside a null, so that
    nothing is lost and nothing is guessed."""
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    found |= named("key", record.key) | named("value", record.value)
    if record.headers:
        found["headers"] = [header(n, v) for n, v in record.headers]
    return found


def header(name: str, value: bytes | None) -> dict[str, str | None]:
    """A header as a JSON object."""
    return {"name": name, **named("value", value)}


def named(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode()}


def json_line(record: ConsumerRecord, count: int) -> bytes:
    return json.dumps(as_object(record), ensure_ascii=False).encode() + b"\n"


def pretty_line(record: ConsumerRecord, count: int) -> bytes:
    """One line for a person: where, when, key and value, cut to nothing but made printable."""
    when = _date(record.timestamp_ms, "%H:%M:%S")
    key = "" if record.key is None else f" {_printable(record.key)} ="
    value = "(tombstone)" if record.value is None else _printable(record.value)
    headers = f"  [{_printable(_headers(record.headers))}]" if record.headers else ""
    return f"{record.partition}@{record.offset} {when}{key} {value}{headers}\n".encode()


def _printable(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
