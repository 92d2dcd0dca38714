"""The few functions that compiled codecs call, for whatever is too rare or too long to inline.

Everything here is bounded: a varint has at most five bytes, a size is compared with what is left
before anything is cut out or allocated, and tags that we do not know are skipped, not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct as Format
from typing import Any
from uuid import UUID, SafeUUID

from tidemill.errors import WireError
from tidemill.wire.plan import STRING_BYTES_MAX

Source = bytes | bytearray | memoryview

VARINT_BYTES_MAX = 5
BYTE: tuple[bytes, ...] = tuple(bytes([value]) for value in range(128))
"""The varints of one byte, which nearly all of them are."""

_SMALL_ARRAY_MAX = 16

_set_int = UUID.__dict__["int"].__set__
_set_safe = UUID.__dict__["is_safe"].__set__
_new_uuid = UUID.__new__


def write_varint(value: int) -> bytes:
    """An unsigned varint: seven bits a byte, the lowest first."""
    if value < 1 << 7:
        return BYTE[value]
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string_size(size_plus_one: int) -> bytes:
    """The compact size of a long string."""
    if size_plus_one > STRING_BYTES_MAX + 1:
        raise WireError(
            f"a string of {size_plus_one - 1} bytes is too long: at most {STRING_BYTES_MAX} fit"
        )
    return write_varint(size_plus_one)


def write_tag(tag: int, parts: Sequence[bytes]) -> bytes:
    """A tagged field: its tag, its size, its value."""
    value = b"".join(parts)
    return write_varint(tag) + write_varint(len(value)) + value


def read_varint(buf: Source, pos: int) -> tuple[int, int]:
    """An unsigned varint and the position behind it."""
    first = buf[pos]
    return (first, pos + 1) if first < 128 else read_varint_rest(buf, pos + 1, first)


def read_varint_rest(buf: Source, pos: int, first: int) -> tuple[int, int]:
    """Go on with a varint whose first byte, with the high bit set, has been read already."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
    raise WireError(f"a varint has more than {VARINT_BYTES_MAX} bytes")


def read_string_size_rest(buf: Source, pos: int, first: int) -> tuple[int, int]:
    """The same for the compact size of a string, which has a limit of its own."""
    value, pos = read_varint_rest(buf, pos, first)
    if value > STRING_BYTES_MAX + 1:
        raise WireError(f"a string claims {value - 1} bytes: at most {STRING_BYTES_MAX} may be")
    return value, pos


def skip_tags(buf: Source, pos: int, end: int, left: int, count: int) -> tuple[int, int]:
    """Step over tagged fields that this version does not know.

    `count` is the first byte of their number; `left` is how many more elements the message may
    have, tags included. Returns the new position and what is left.
    """
    if count > 127:
        count, pos = read_varint_rest(buf, pos, count)
    if count * 2 > end - pos or count > left:
        raise too_many("tagged fields", count, end - pos, left)
    for _ in range(count):
        _, pos = read_varint(buf, pos)
        size, pos = read_varint(buf, pos)
        pos += size
        if pos > end:
            raise bad_size("a tagged field", size, end - pos + size)
    return pos, left - count


def read_uuid(data: bytes) -> UUID:
    """A UUID from its 16 bytes, without the checks of its constructor, which cost a microsecond."""
    value = _new_uuid(UUID)
    _set_int(value, int.from_bytes(data, "big"))
    _set_safe(value, SafeUUID.unknown)
    return value


WriteNumbers = Callable[[Sequence[int]], bytes]
ReadNumbers = Callable[[Source, int, int], list[Any]]


def number_array(letter: str) -> tuple[WriteNumbers, ReadNumbers]:
    """Functions for arrays of one kind of number, with ready formats for short ones."""
    formats = [Format(f">{count}{letter}") for count in range(_SMALL_ARRAY_MAX + 1)]
    packs = [ready.pack for ready in formats]
    unpacks = [ready.unpack_from for ready in formats]

    def write(values: Sequence[int]) -> bytes:
        count = len(values)
        if count <= _SMALL_ARRAY_MAX:
            return packs[count](*values)
        return Format(f">{count}{letter}").pack(*values)

    def read(buf: Source, pos: int, count: int) -> list[Any]:
        if count <= _SMALL_ARRAY_MAX:
            return list(unpacks[count](buf, pos))
        return list(Format(f">{count}{letter}").unpack_from(buf, pos))

    return write, read


NUMBER_ARRAYS = {"int8": number_array("b"), "int32": number_array("i"), "int64": number_array("q")}


def bad_size(field: str, size: int, remaining: int) -> WireError:
    if size < 0:
        return WireError(f"{field} is null or has a negative size, where it must have a value")
    return WireError(f"{field} claims {size} bytes, but only {remaining} are left")


def too_many(field: str, count: int, remaining: int, left: int) -> WireError:
    if count < 0:
        return WireError(f"{field} is null, where it must be an array")
    if count > left:
        return WireError(f"{field} claims {count} elements: the message may have {left} more")
    return WireError(f"{field} claims {count} elements, which {remaining} bytes cannot hold")


def bad_tag(field: str, declared: int, used: int) -> WireError:
    return WireError(f"tagged field {field} claims {declared} bytes, but its value has {used}")


def not_in_version(field: str, version: int, value: object) -> WireError:
    shown = "set" if isinstance(value, bytes) else repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return WireError(
        f"{field} is {shown}, but version {version} cannot carry it: "
        "leave it at its default or use a version that has it"
    )
