"""Values that are protobuf messages, read into columns field by field.

The messages of a piece are parsed by protobuf's own library; then each field is taken out of all of
them at once, and repeated ones are laid end to end, so that Python's part is a few calls
for each column. The reader's message is the one of the given schema, or of the subject's newest
when the query started: protobuf matches fields by number, so values of older and newer schemas are
read with it, after the registry has said that they are the same message.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidemill.spark.formats import Decoded, FormatOptions
from tidemill.spark.formats.arrays import check_type, conform
from tidemill.spark.formats.descriptors import MessageType, load_message, message_at
from tidemill.spark.formats.framing import Header, all_bad, framing_of
from tidemill.spark.formats.messages import MessageReader, fill_message, message_type
from tidemill.spark.formats.model import FormatError
from tidemill.spark.formats.registry import SchemaNotFoundError
from tidemill.spark.formats.schemas import registry_of, written_schema_id
from tidemill.spark.formats.sift import decode_rows

WRITERS_MAX = 1_000


class ProtobufFormat:
    """`valueFormat=protobuf`."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._message: MessageType = load_message(options)
        self._type = check_type(
            message_type(self._message.descriptor, options.limits), options.limits
        )
        self._reader = MessageReader(self._message, self._type)
        self._framing = framing_of(options, with_indexes=True, written=self._written_header)
        self._strangers: dict[Header, str | None] = {}

    def schema(self) -> pa.StructType:
        return self._type

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return self._framing.decode(values, self._part, self._type)

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        wanted = conform(values, self._type)
        try:
            rows = wanted.to_pylist(maps_as_pydicts="strict")
            encoded = [None if row is None else self._written(row) for row in rows]
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            name = self._message.descriptor.full_name
            raise FormatError(f"a row cannot be written as {name}: {error}") from error
        return self._framing.encode(pa.array(encoded, pa.binary()))

    def _written(self, row: dict[str, Any]) -> bytes:
        message = self._message.make()
        fill_message(message, row)
        return bytes(message.SerializeToString())

    def _written_header(self) -> Header:
        return Header(written_schema_id(self._options), self._message.indexes)

    def _part(self, header: Header | None, values: pa.BinaryArray) -> Decoded:
        fault = None if header is None else self._fault(header)
        if fault is not None:
            return all_bad(self._type, len(values), fault)
        return decode_rows(values, self._reader, self._type, self._options.limits)

    def _fault(self, header: Header) -> str | None:
        """Why values with this header are not of the reader's message; None where they are."""
        if header not in self._strangers:
            if len(self._strangers) >= WRITERS_MAX:
                self._strangers.clear()
            self._strangers[header] = self._ask(header)
        return self._strangers[header]

    def _ask(self, header: Header) -> str | None:
        wanted = self._message.descriptor.full_name
        try:
            registry = registry_of(self._options)
            registered = registry.by_id(header.schema_id)
            found = message_at(registry, registered, header.indexes, self._options.limits)
        except (SchemaNotFoundError, FormatError) as error:
            return f"{header}: {error}"
        return None if found == wanted else f"{header}: the message is {found}, not {wanted}"
