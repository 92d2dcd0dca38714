"""The bytes that serializers with a schema registry put before a value, and taking them off.

Confluent's framing is a zero byte, four bytes of schema id, and for protobuf a message's path
in its file: a count and that many indexes as zigzag varints, where one zero byte stands for the
first message. Values are grouped by that header, columnwise, since a piece mostly has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.spark.formats import Decoded, FormatOptions
from tidemill.spark.formats.arrays import byte_ends, bytes_of
from tidemill.spark.formats.model import FormatError, Limits
from tidemill.spark.formats.sift import Found, Rows

MAGIC = 0
HEADER_BYTES = 5
INDEXES_MAX = 32
VARINT_BYTES_MAX = 5
FIRST_MESSAGE = (0,)


class Header(NamedTuple):
    """What stands before a value."""

    schema_id: int
    indexes: tuple[int, ...] = FIRST_MESSAGE

    def __str__(self) -> str:
        return f"schema id {self.schema_id}"


DecodePart = Callable[[Header | None, pa.BinaryArray], Decoded]
"""Decodes values that have the same header, which is taken off."""


class Framing(Protocol):
    """How values are wrapped."""

    def decode(self, values: pa.BinaryArray, part: DecodePart, kind: pa.StructType) -> Decoded: ...

    def encode(self, values: pa.BinaryArray) -> pa.BinaryArray: ...


class Bare:
    """Values are what they are."""

    def decode(self, values: pa.BinaryArray, part: DecodePart, kind: pa.StructType) -> Decoded:
        return part(None, values)

    def encode(self, values: pa.BinaryArray) -> pa.BinaryArray:
        return values


class Confluent:
    """Values have a schema id before them."""

    def __init__(
        self,
        limits: Limits,
        *,
        with_indexes: bool = False,
        written: Callable[[], Header] | None = None,
    ) -> None:
        self._limits = limits
        self._with_indexes = with_indexes
        self._written = written
        self._prefix: bytes | None = None

    def decode(self, values: pa.BinaryArray, part: DecodePart, kind: pa.StructType) -> Decoded:
        found = Found(kind, len(values))
        for header, rows, inside in self._groups(values, found):
            found.add(rows, part(header, inside))
        return found.decoded(self._limits)

    def encode(self, values: pa.BinaryArray) -> pa.BinaryArray:
        if self._prefix is None:
            if self._written is None:
                raise FormatError("to write with a registry's framing, name the subject")
            self._prefix = prefix_of(self._written(), with_indexes=self._with_indexes)
        return pc.binary_join_element_wise(pa.scalar(self._prefix), values, pa.scalar(b""))

    def _groups(
        self, values: pa.BinaryArray, found: Found
    ) -> list[tuple[Header, Rows, pa.BinaryArray]]:
        """The rows of each header; those without one are found to be bad."""
        framed = self._framed(values, found)
        ids = _schema_ids(values, framed)
        groups: list[tuple[Header, Rows, pa.BinaryArray]] = []
        for schema_id in np.unique(ids):
            rows = framed[ids == schema_id]
            inside = without_prefix(_taken(values, rows), HEADER_BYTES)
            if self._with_indexes:
                groups += _by_indexes(int(schema_id), rows, inside, found)
            else:
                groups.append((Header(int(schema_id)), rows, inside))
        return groups

    def _framed(self, values: pa.BinaryArray, found: Found) -> Rows:
        lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
        long_enough = np.flatnonzero(lengths >= HEADER_BYTES)
        for at in np.flatnonzero((lengths >= 0) & (lengths < HEADER_BYTES)):
            found.bad[int(at)] = f"{lengths[at]} bytes are too few for a registry's framing"
        first = _bytes_at(values, long_enough, 0)
        for at, byte in zip(long_enough[first != MAGIC], first[first != MAGIC], strict=True):
            found.bad[int(at)] = (
                f"the first byte is {byte:#04x}, not the 0x00 of a registry's framing"
            )
        framed: Rows = long_enough[first == MAGIC]
        return framed


def _bytes_at(
    values: pa.BinaryArray, rows: Rows, place: int
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    if not len(rows):
        return np.zeros(0, np.uint8)
    data = bytes_of(values)
    return data[byte_ends(values)[rows] + place]


def _schema_ids(values: pa.BinaryArray, rows: Rows) -> Rows:
    ids = np.zeros(len(rows), np.int64)
    for place in range(1, HEADER_BYTES):
        ids = ids << 8 | _bytes_at(values, rows, place)
    return ids


def without_prefix(values: pa.BinaryArray, size: int) -> pa.BinaryArray:
    """Each value without its first bytes; none is null, and all have that many."""
    ends = byte_ends(values).astype(np.int64)
    kept = np.ones(ends[-1] - ends[0], bool)
    for place in range(size):
        kept[ends[:-1] - ends[0] + place] = False
    data = bytes_of(values)[ends[0] : ends[-1]][kept]
    left = ends - ends[0] - size * np.arange(len(ends))
    buffers = [None, pa.py_buffer(left.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _taken(values: pa.BinaryArray, rows: Rows) -> pa.BinaryArray:
    return values if len(rows) == len(values) else values.take(pa.array(rows))


def _by_indexes(
    schema_id: int, rows: Rows, inside: pa.BinaryArray, found: Found
) -> list[tuple[Header, Rows, pa.BinaryArray]]:
    """The rows by the message they hold; nearly always all of them hold the first."""
    filled = pc.binary_length(inside).to_numpy() > 0
    first = np.zeros(len(rows), bool)
    first[filled] = _bytes_at(inside, np.flatnonzero(filled), 0) == 0
    groups: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for at in np.flatnonzero(~first):
        try:
            indexes, size = message_indexes(inside[int(at)].as_py())
        except ValueError as error:
            found.bad[int(rows[at])] = str(error)
            continue
        groups.setdefault((indexes, size), []).append(int(at))
    if first.any():
        groups[FIRST_MESSAGE, 1] = np.flatnonzero(first).tolist()
    return [
        (
            Header(schema_id, indexes),
            rows[places],
            without_prefix(_taken(inside, np.array(places, np.int64)), size),
        )
        for (indexes, size), places in groups.items()
    ]


def message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes at the beginning of a framed protobuf value, and how many bytes they take."""
    count, at = _zigzag(data, 0)
    if count == 0:
        return FIRST_MESSAGE, at
    if not 0 < count <= INDEXES_MAX:
        raise ValueError(f"{count} message indexes; there can be 1 to {INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        if index < 0:
            raise ValueError(f"message index {index} is negative")
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(data[at : at + VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + shift + 1
    raise ValueError("the message indexes are cut off or longer than they can be")


def prefix_of(header: Header, *, with_indexes: bool) -> bytes:
    """The bytes of a header."""
    prefix = bytes([MAGIC]) + header.schema_id.to_bytes(4, "big")
    if not with_indexes:
        return prefix
    if header.indexes == FIRST_MESSAGE:
        return prefix + b"\0"
    return prefix + b"".join(map(_varint, (len(header.indexes), *header.indexes)))


def _varint(number: int) -> bytes:
    """A number, which is not negative, as a zigzag varint."""
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def framing_of(
    options: FormatOptions,
    *,
    with_indexes: bool = False,
    written: Callable[[], Header] | None = None,
) -> Framing:
    """Values of a topic with a registry are framed, others are bare."""
    if options.registry_url is None:
        return Bare()
    return Confluent(options.limits, with_indexes=with_indexes, written=written)


def all_bad(kind: pa.StructType, length: int, cause: str) -> Decoded:
    """A part of which no value can be read, for one reason."""
    return Decoded(pa.nulls(length, kind), np.ones(length, bool), [cause] * length)
