"""Values that are Avro records, read by fastavro and resolved from the writer's to the reader's
schema.

Without a registry a value is the bare binary of the given schema. With one, each value names its
writer's schema; the reader's is the one given, or the subject's newest when the query started.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import pyarrow as pa

from tidemill.spark.formats import Decoded, FormatOptions
from tidemill.spark.formats.arrays import check_type, column_of, conform, mapped, reshape
from tidemill.spark.formats.avro_columns import CompiledAvro, compiled
from tidemill.spark.formats.avro_schema import AvroTypes, Schema, for_fastavro, parse_avro
from tidemill.spark.formats.framing import Header, all_bad, framing_of
from tidemill.spark.formats.model import FormatError, UnreadableError
from tidemill.spark.formats.registry import Registered, SchemaNotFoundError
from tidemill.spark.formats.schemas import registered_schema, registry_of, written_schema_id
from tidemill.spark.formats.sift import Complaint, decode_rows

WRITERS_MAX = 1_000
# What fastavro raises for bytes that are not a value of the schema.
BAD_BYTES = (
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    struct.error,
    fastavro.read.SchemaResolutionError,
)


class AvroFormat:
    """`valueFormat=avro`."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        registered = registered_schema(options)
        schema = self._parsed(registered) if registered else parse_avro(options.schema or "")
        types = AvroTypes(schema, options.limits)
        types.check_written()
        self._type = check_type(types.arrow_type(), options.limits)
        self._carried = types.carried_type()
        self._schema = for_fastavro(schema)
        self._own = AvroReader(self._schema, self._schema, self._carried, self._type)
        self._readers: dict[int, AvroReader | FormatError] = {}
        self._framing = framing_of(options, written=lambda: Header(written_schema_id(options)))

    def schema(self) -> pa.StructType:
        return self._type

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return self._framing.decode(values, self._part, self._type)

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        wanted = conform(values, self._type)
        try:
            carried = reshape(wanted, self._carried, _into_carrier)
            rows = reshape(carried, _numbers(self._carried), _viewed).to_pylist(
                maps_as_pydicts="strict"
            )
            encoded = [None if row is None else self._written(row) for row in rows]
        except (*BAD_BYTES, pa.ArrowException) as error:
            raise FormatError(f"a row cannot be written with the Avro schema: {error}") from error
        return self._framing.encode(pa.array(encoded, pa.binary()))

    def _written(self, row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, row)
        return out.getvalue()

    def _part(self, header: Header | None, values: pa.BinaryArray) -> Decoded:
        reader: AvroReader | FormatError = self._own if header is None else self._reader(header)
        if isinstance(reader, FormatError):
            return all_bad(self._type, len(values), str(reader))
        return decode_rows(values, reader, self._type, self._options.limits)

    def _reader(self, header: Header) -> AvroReader | FormatError:
        """The reader for one writer's schema, or what is wrong with that schema."""
        known = self._readers.get(header.schema_id)
        if known is None:
            try:
                known = self._reader_of(registry_of(self._options).by_id(header.schema_id))
            except (SchemaNotFoundError, FormatError) as error:
                known = FormatError(f"{header}: {error}")
            if len(self._readers) >= WRITERS_MAX:
                self._readers.clear()
            self._readers[header.schema_id] = known
        return known

    def _reader_of(self, written: Registered) -> AvroReader:
        if written.kind != "AVRO":
            raise FormatError(f"the registry says it is {written.kind}, not AVRO")
        schema = self._parsed(written)
        AvroTypes(schema, self._options.limits).check_written()
        return AvroReader(for_fastavro(schema), self._schema, self._carried, self._type)

    def _parsed(self, registered: Registered) -> dict[str, Any]:
        others = registry_of(self._options).references(registered)
        return parse_avro(registered.text, [other.text for _, other in others])


class AvroReader:
    """Values of one writer's schema as columns of the reader's."""

    def __init__(
        self, written: Schema, wanted: Schema, carried: pa.StructType, kind: pa.StructType
    ) -> None:
        self._written = written
        self._wanted = None if wanted == written else wanted
        self._carried = carried
        self._numbers = _numbers(carried)
        # Only compiled are the kernels faster than fastavro, and only for one schema alone.
        self._compiled = CompiledAvro.of(written) if self._wanted is None and compiled() else None
        self._type = kind

    def read(self, values: pa.BinaryArray) -> pa.StructArray:
        try:
            numbers = self._read(values)
            return reshape(reshape(numbers, self._carried, _viewed), self._type, _from_carrier)
        except (*BAD_BYTES, pa.ArrowException) as error:
            raise UnreadableError(_cause(error)) from error

    def _read(self, values: pa.BinaryArray) -> pa.StructArray:
        if self._compiled is not None:
            return self._compiled.columns(values, self._numbers)
        return column_of([self._row(each) for each in values.to_pylist()], self._numbers)

    def complaint(self, value: bytes) -> Complaint | None:
        try:
            self._row(value)
        except BAD_BYTES as error:
            return Complaint(_cause(error))
        return None

    def _row(self, value: bytes) -> Any:
        data = io.BytesIO(value)
        row = fastavro.schemaless_reader(data, self._written, self._wanted)
        if data.tell() != len(value):
            raise ValueError(f"{len(value) - data.tell()} bytes follow the record")
        return row


def _cause(error: BaseException) -> str:
    return f"no value of the Avro schema: {str(error) or type(error).__name__}"


def _numbers(carried: pa.DataType) -> pa.DataType:
    """The carrier with instants as the plain numbers that fastavro has."""
    return mapped(carried, lambda leaf: pa.int64() if pa.types.is_timestamp(leaf) else leaf)


def _viewed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same bits, called by another name."""
    return array.view(kind)


def _from_carrier(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Days and instants of any unit as what the column holds; nanoseconds are cut off."""
    if pa.types.is_date(kind):
        return array.view(kind)
    return array.cast(pa.timestamp("us"), safe=array.type.unit != "ns").cast(kind)


def _into_carrier(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Back again: what milliseconds cannot hold is cut off."""
    if pa.types.is_timestamp(kind):
        return array.cast(pa.timestamp("us")).cast(kind, safe=kind.unit != "ms")
    return array.view(kind)
