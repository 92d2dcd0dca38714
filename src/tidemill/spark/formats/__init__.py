"""How the bytes of a record's value become a struct column and, on the way out, bytes again.

`value_format` makes a `ValueFormat` from options; the source calls `decode` for every piece it
read, the topic sink calls `encode`. A record that cannot be decoded never fails a batch: it is
marked bad, with its cause, and everything else in the piece is delivered. What fails is what no
record is to blame for: options that cannot be right, a schema that cannot be read, a registry that
does not answer.

`json.py`, `avro.py` and `protobuf.py` are the formats, `schemas.py` reads what a user gives as a
schema, `registry.py` asks a schema registry, `framing.py` knows the bytes that such registries put
before a value, `sift.py` finds the bad records of a piece, `arrays.py` turns rows into columns,
`dead_letters.py` names the headers under which bad records go to another topic.

Importing this package imports neither pyarrow nor pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_args

from tidemill.spark.formats.model import DEFAULT_LIMITS, FormatError, FormatName, Limits

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "Decoded",
    "FormatError",
    "FormatOptions",
    "Limits",
    "ValueFormat",
    "format_options",
    "pinned",
    "value_format",
]


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a user says about the values of a topic. Plain data: it travels to the executors."""

    format: FormatName
    schema: str | None = None
    """Spark DDL, Avro or JSON Schema or `.proto` text, or the path of a file with such text."""
    registry_url: str | None = None
    """One or several URLs, comma separated: values then have the registry's framing."""
    message: str | None = None
    """The protobuf message; the first one of the schema when not given."""
    subject: str | None = None
    """Whose newest schema is the reader's where `schema` is not given."""
    registry_auth: str | None = field(default=None, repr=False)
    """`user:password` for the registry."""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.format not in get_args(FormatName):
            raise FormatError(f"valueFormat is {self.format!r}; it can be json, avro or protobuf")
        if self.schema is None and self.registry_url is None:
            raise FormatError(
                f"valueFormat {self.format} needs a schema: give valueSchema, or "
                "schema.registry.url where a registry has it"
            )


class Decoded(NamedTuple):
    """A piece of decoded values: row by row as they came, null where the value was null or bad."""

    values: pa.StructArray
    bad: np.ndarray[Any, Any]
    """One bool for each row."""
    causes: list[str]
    """Why, for the bad rows in their order."""


class ValueFormat(Protocol):
    """One format with its schema, both ways."""

    def schema(self) -> pa.StructType:
        """The type of the decoded column, in the form Spark's Arrow readers expect."""
        ...

    def decode(self, values: pa.BinaryArray) -> Decoded: ...

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        """The bytes of each struct; null for null. Raises FormatError for what cannot be said."""
        ...


def format_options(
    options: Mapping[str, str], *, topics: Sequence[str] = ()
) -> FormatOptions | None:
    """The format that a source's or sink's options ask for; None where they name none.

    The subject is `valueSubject`, else, as Confluent's serializers name it, the topic with
    `-value` where exactly one topic is read or written.
    """
    given = {key.lower(): value for key, value in options.items()}
    name = given.get("valueformat")
    if name is None:
        return None
    subject = given.get("valuesubject") or (f"{topics[0]}-value" if len(topics) == 1 else None)
    return FormatOptions(
        format=name.strip().lower(),  # type: ignore[arg-type]  # checked by __post_init__
        schema=given.get("valueschema"),
        registry_url=given.get("schema.registry.url"),
        message=given.get("valuemessage"),
        subject=subject,
        registry_auth=given.get("schema.registry.basic.auth.user.info"),
    )


def pinned(options: FormatOptions) -> FormatOptions:
    """The same options with everything in them that only this machine or this moment knows: the
    schema file's content, the registry's newest schema. Made once, on the driver, so that all tasks
    of a query see one schema."""
    from tidemill.spark.formats.schemas import pinned_schema

    return replace(options, schema=pinned_schema(options))


def value_format(options: FormatOptions) -> ValueFormat:
    """The format that these options describe; give it what `pinned` returned."""
    if options.format == "json":
        from tidemill.spark.formats.json import JsonFormat

        return JsonFormat(options)
    if options.format == "avro":
        from tidemill.spark.formats.avro import AvroFormat

        return AvroFormat(options)
    from tidemill.spark.formats.protobuf import ProtobufFormat

    return ProtobufFormat(options)
