"""Values that are JSON objects, decoded by Arrow's JSON reader on whole pieces.

Values are joined by newlines and parsed at once against an explicit schema. That this gives one row
for each value, and no value's bytes to another's row, is checked and not hoped for: a value has to
begin with `{`, end with `}` and have no zero byte. Then no document can reach over a boundary,
since `}` newline `{` occurs in no document (a newline inside a string is an error), so every value
is at least one document, and as many rows as values means exactly one each.

Texts become timestamps, dates and bytes afterwards, a column at a time. A schema with a MAP is read
by msgspec instead, row by row, since Arrow's reader has no maps.
"""

from __future__ import annotations

import base64
import decimal
import re
from abc import ABC, abstractmethod
from types import GenericAlias
from typing import Annotated, Any, Required, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from tidemill.spark.formats import Decoded, FormatOptions
from tidemill.spark.formats.arrays import (
    byte_ends,
    bytes_of,
    check_type,
    column_of,
    conform,
    contains,
    mapped,
    missing,
    reshape,
)
from tidemill.spark.formats.framing import Header, framing_of
from tidemill.spark.formats.model import FormatError, UnreadableError
from tidemill.spark.formats.schemas import json_type, written_schema_id
from tidemill.spark.formats.sift import Complaint, PieceReader, decode_rows

SPACES = " \t\r\n"
# ISO 8601 may leave out the zone, which then is UTC, and may have more digits than Spark keeps.
ZONE = r"[T ]\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)$"
LOST_DIGITS = r"(\.\d{6})\d+"
NUMBERS_OF_OURS = re.compile(rb"NaN|Inf")
INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class JsonFormat:
    """`valueFormat=json`."""

    def __init__(self, options: FormatOptions) -> None:
        declared = check_type(json_type(options), options.limits)
        self._type = mapped(declared)
        self._limits = options.limits
        self._framing = framing_of(options, written=lambda: Header(written_schema_id(options)))
        self._reader: PieceReader = (
            PlainReader(declared) if contains(declared, pa.types.is_map) else ArrowReader(declared)
        )
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    def schema(self) -> pa.StructType:
        return self._type

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return self._framing.decode(
            values,
            lambda _, inside: decode_rows(inside, self._reader, self._type, self._limits),
            self._type,
        )

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        rows = conform(values, self._type).to_pylist(maps_as_pydicts="strict")
        encoded = [None if row is None else self._encoder.encode(row) for row in rows]
        return self._framing.encode(pa.array(encoded, pa.binary()))


def carrier(leaf: pa.DataType) -> pa.DataType:
    """What a leaf is read as before it gets its own type: JSON has no instants and no bytes."""
    if pa.types.is_timestamp(leaf) or pa.types.is_date(leaf) or pa.types.is_binary(leaf):
        return pa.string()
    return leaf


def from_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of texts as instants, days or bytes; raises ValueError, of which ArrowInvalid is
    one."""
    if pa.types.is_binary(kind):
        return pa.array([_bytes_of(text) for text in texts.to_pylist()], kind)
    if pa.types.is_date(kind):
        return texts.cast(kind)
    short = pc.replace_substring_regex(texts, LOST_DIGITS, r"\1")
    zoned = pc.match_substring_regex(short, ZONE)
    if kind.tz is None:
        if pc.any(zoned).as_py():
            raise ValueError("a TIMESTAMP_NTZ has a zone")
        return short.cast(kind)
    none = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, short, none).cast(kind)
    without = pc.if_else(zoned, none, short).cast(pa.timestamp("us")).cast(kind)
    return pc.coalesce(with_zone, without)


def _bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


class _Reader(ABC):
    """What both readers know: the types on the way, and what msgspec says against a value."""

    def __init__(self, declared: pa.StructType) -> None:
        self._declared = declared
        self._type = mapped(declared)
        self._carrier = mapped(declared, carrier)
        self._decimals = contains(declared, pa.types.is_decimal)
        self._ascii = not contains(declared, has_names_beyond_ascii)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            plain_type(mapped(declared, carrier, keep_required=True))
        )

    def complaint(self, value: bytes) -> Complaint | None:
        try:
            self._decoder.decode(value)
        except RecursionError as error:
            return Complaint(str(error), certain=False)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # msgspec knows no NaN and no Infinity, which are numbers here, and misses some names.
            certain = self._ascii and not NUMBERS_OF_OURS.search(value)
            return Complaint(str(error), certain)
        return None

    def read(self, values: pa.BinaryArray) -> pa.StructArray:
        try:
            structs = reshape(self._carried(values), self._type, from_text)
            if self._decimals:
                structs.validate(full=True)  # a reader may have rescaled beyond the precision
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            raise UnreadableError(str(error)) from error
        for name, _ in missing(structs, self._declared):
            raise UnreadableError(f"{name} is NOT NULL and is not there")
        return structs

    @abstractmethod
    def _carried(self, values: pa.BinaryArray) -> pa.StructArray:
        """The values with their leaves as JSON has them; raises ValueError."""


class ArrowReader(_Reader):
    """Arrow's own JSON reader, made strict."""

    def __init__(self, declared: pa.StructType) -> None:
        super().__init__(declared)
        self._options = pa_json.ParseOptions(
            explicit_schema=pa.schema(list(self._carrier)),
            newlines_in_values=False,
            unexpected_field_behavior="ignore",
        )

    def _carried(self, values: pa.BinaryArray) -> pa.StructArray:
        lines = pc.binary_join_element_wise(_objects(values), "", "\n")
        text = lines.buffers()[2].slice(0, int(byte_ends(lines)[-1]))
        if not np.frombuffer(text, np.uint8).all():
            raise ValueError("the value has a zero byte")
        # One block for all: a block's end inside a value with newlines would be an error.
        table = pa_json.read_json(
            pa.BufferReader(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=self._options,
        )
        if table.num_rows != len(values):
            raise ValueError("the value is more than one JSON object")
        columns = [table.column(each.name).combine_chunks() for each in self._carrier]
        return pa.StructArray.from_arrays(columns, fields=list(self._carrier))


class PlainReader(_Reader):
    """msgspec row by row, for what Arrow's reader cannot do."""

    def __init__(self, declared: pa.StructType) -> None:
        # msgspec 0.22 misses some names outside ASCII, such as "\x80": rather none than nulls.
        if contains(declared, has_names_beyond_ascii):
            raise FormatError("a JSON schema with a MAP can have ASCII names only")
        super().__init__(declared)

    def _carried(self, values: pa.BinaryArray) -> pa.StructArray:
        rows = [self._decoder.decode(value) for value in values.to_pylist()]
        return column_of(rows, self._carrier)


def has_names_beyond_ascii(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and not all(each.name.isascii() for each in kind)


def _objects(values: pa.BinaryArray) -> pa.StringArray:
    """The values as texts that begin and end with a brace; raises ValueError.

    Arrow's reader is given nothing else: a text that begins with `null` ends the process.
    """
    texts = values.cast(pa.string())  # checks UTF-8, which Arrow's JSON reader does not
    if not _braced(texts):
        texts = pc.ascii_trim(texts, SPACES)
        if not _braced(texts):
            raise ValueError("the value is not a JSON object")
    return texts


def _braced(texts: pa.StringArray) -> bool:
    """Whether every text begins with { and ends with }."""
    if pc.min(pc.binary_length(texts)).as_py() < 2:
        return False
    offsets = byte_ends(texts)
    data = bytes_of(texts)
    opened = (data[offsets[:-1]] == ord("{")).all()
    return bool(opened and (data[offsets[1:] - 1] == ord("}")).all())


def plain_type(kind: pa.DataType) -> Any:
    """The type by which msgspec checks what Arrow's type would take."""
    if pa.types.is_struct(kind):
        fields = {
            each.name: plain_type(each.type) | None
            if each.nullable
            else Required[plain_type(each.type)]
            for each in kind
        }
        return TypedDict("Object", fields, total=False)  # type: ignore[operator]
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise FormatError("a MAP in JSON has STRING keys")
        return GenericAlias(dict, (str, plain_type(kind.item_type) | None))
    if pa.types.is_list(kind):
        return GenericAlias(list, (plain_type(kind.value_type) | None,))
    if kind in INTEGER_BITS:
        half = 1 << (INTEGER_BITS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    return bool if pa.types.is_boolean(kind) else str
