"""What users give as a schema: DDL, a file, Spark's or JSON Schema's JSON, or a registry's subject.

`pinned_schema` runs on the driver and returns text that stands for itself everywhere: a file's
content, or the id of the registry's newest schema. The formats read only such text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemill.spark.formats import FormatOptions
from tidemill.spark.formats.ddl import TIMESTAMP, list_of, parse_ddl
from tidemill.spark.formats.model import FieldBudget, FormatError, Limits
from tidemill.spark.formats.registry import Registered, Registry, SchemaKind, registry_for

REGISTRY_ID = "registry-id:"
"""Before the number of a schema that the registry has."""
DESCRIPTORS = "descriptors:"
"""Before a serialized FileDescriptorSet in base64."""
TEXT_FILES = (".avsc", ".json", ".proto", ".ddl", ".sql")
DESCRIPTOR_FILES = (".desc", ".pb", ".binpb", ".protoset", ".fds")
KIND_OF: Mapping[str, SchemaKind] = {"json": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}


def pinned_schema(options: FormatOptions) -> str:
    """The schema as text that means the same on every machine."""
    if options.schema is not None:
        return _loaded(options.schema.strip(), options.limits)
    if options.subject is None:
        raise FormatError(
            "several topics are read: name the registry's subject with valueSubject, or give "
            "valueSchema"
        )
    found = registry_of(options).latest(options.subject)
    return f"{REGISTRY_ID}{_right_kind(found, options, options.subject).id}"


def _loaded(given: str, limits: Limits) -> str:
    """A file's content where a path was given, else what was given."""
    suffix = Path(given).suffix.lower() if "\n" not in given and len(given) < 4096 else ""
    if given.startswith(("{", "[", '"')) or suffix not in (*TEXT_FILES, *DESCRIPTOR_FILES):
        return given
    path = Path(given.removeprefix("file://"))
    try:
        if path.stat().st_size > limits.schema_bytes_max:
            raise FormatError(f"valueSchema {given}: longer than {limits.schema_bytes_max} bytes")
        content = path.read_bytes()
        if suffix in DESCRIPTOR_FILES:
            return DESCRIPTORS + base64.b64encode(content).decode()
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"valueSchema {given} cannot be read: {error}") from error


def registry_of(options: FormatOptions) -> Registry:
    if options.registry_url is None:
        raise FormatError("schema.registry.url is not given")
    return registry_for(options.registry_url, options.registry_auth)


def registered_schema(options: FormatOptions) -> Registered | None:
    """The registry's own entry, where the schema was pinned to one."""
    if options.schema is None or not options.schema.startswith(REGISTRY_ID):
        return None
    schema_id = int(options.schema.removeprefix(REGISTRY_ID))
    return _right_kind(registry_of(options).by_id(schema_id), options, f"id {schema_id}")


def written_schema_id(options: FormatOptions) -> int:
    """The id that stands before values written with this schema."""
    registered = registered_schema(options)
    if registered is not None:
        return registered.id
    if options.subject is None:
        raise FormatError("to write with a registry's framing, name the subject: valueSubject")
    kind = KIND_OF[options.format]
    return registry_of(options).lookup(options.subject, options.schema or "", kind)


def _right_kind(found: Registered, options: FormatOptions, where: str) -> Registered:
    if found.kind != KIND_OF[options.format]:
        raise FormatError(
            f"the registry's schema of {where} is {found.kind}, but valueFormat is {options.format}"
        )
    return found


def json_type(options: FormatOptions) -> pa.StructType:
    """The type of JSON values, NOT NULL kept."""
    registered = registered_schema(options)
    text = registered.text if registered is not None else options.schema or ""
    if not text.lstrip().startswith("{"):
        return parse_ddl(text, options.limits)
    try:
        document = json.loads(text)
        if document.get("type") == "struct":
            kind = _spark_type(document)
        else:
            kind = _JsonSchema(document, options.limits).type_of(document, ())
    except json.JSONDecodeError as error:
        raise FormatError(f"the schema is no JSON: {error}") from error
    except RecursionError as error:
        raise FormatError("the schema nests too deep") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"the schema lacks something: {error!r}") from error
    if not pa.types.is_struct(kind):
        raise FormatError("the schema has to describe an object with properties")
    return kind


SPARK_NAMES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}


def _spark_type(said: Any) -> pa.DataType:
    """The type that `StructType.json()` wrote."""
    if isinstance(said, str):
        if said in SPARK_NAMES:
            return SPARK_NAMES[said]
        return parse_ddl(f"it {said}").field("it").type
    match said:
        case {"type": "struct", "fields": [*fields]}:
            return pa.struct(
                pa.field(each["name"], _spark_type(each["type"]), each.get("nullable", True))
                for each in fields
            )
        case {"type": "array", "elementType": element}:
            return list_of(_spark_type(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_spark_type(key), _spark_type(value))
    raise FormatError(f"the schema has a type that is none of Spark's: {str(said)[:100]}")


class _JsonSchema:
    """JSON Schema's types as columns. Constraints on values are not checked: a schema here says
    which columns there are."""

    NAMES: Mapping[str, pa.DataType] = {
        "boolean": pa.bool_(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "string": pa.string(),
    }
    FORMATS: Mapping[str, pa.DataType] = {"date-time": TIMESTAMP, "date": pa.date32()}

    def __init__(self, document: Mapping[str, Any], limits: Limits) -> None:
        self._document = document
        self._budget = FieldBudget(limits)

    def type_of(self, said: Any, inside: tuple[str, ...]) -> pa.DataType:
        self._budget.spend(len(inside))
        if not isinstance(said, Mapping):
            raise FormatError(f"the JSON schema says {str(said)[:100]!r} where a type should be")
        if "$ref" in said:
            return self._referred(str(said["$ref"]), inside)
        for key in ("anyOf", "oneOf"):
            if key in said:
                return self._one_of(said[key], inside)
        kinds = said.get("type", "object" if "properties" in said else None)
        if isinstance(kinds, list):
            return self._one_of([{**said, "type": kind} for kind in kinds], inside)
        if kinds == "object":
            return self._object(said, inside)
        if kinds == "array" and isinstance(said.get("items"), Mapping):
            return list_of(self.type_of(said["items"], (*inside, "[]")))
        if kinds == "string":
            if said.get("contentEncoding") == "base64":
                return pa.binary()
            return self.FORMATS.get(said.get("format", ""), pa.string())
        if kinds is None and all(isinstance(each, str) for each in said.get("enum", [0])):
            return pa.string()
        if kinds in self.NAMES:
            return self.NAMES[kinds]
        raise FormatError(
            f"the JSON schema has no column's type at {'.'.join(inside) or 'its top'}"
        )

    def _object(self, said: Mapping[str, Any], inside: tuple[str, ...]) -> pa.DataType:
        properties = said.get("properties")
        if not properties and isinstance(said.get("additionalProperties"), Mapping):
            item = self.type_of(said["additionalProperties"], (*inside, "*"))
            return pa.map_(pa.string(), item)
        if not isinstance(properties, Mapping) or not properties:
            raise FormatError(f"the object {'.'.join(inside) or 'at the top'} has no properties")
        required = set(said.get("required", ()))
        return pa.struct(
            pa.field(
                name, self.type_of(each, (*inside, name)), not self._needed(name, each, required)
            )
            for name, each in properties.items()
        )

    def _needed(self, name: str, said: Any, required: set[str]) -> bool:
        """Required, and not allowed to be null."""
        return name in required and not _may_be_null(said)

    def _one_of(self, choices: list[Any], inside: tuple[str, ...]) -> pa.DataType:
        others = [each for each in choices if each != "null" and not _is_null(each)]
        if len(others) != 1:
            raise FormatError(
                f"{'.'.join(inside) or 'the top'} can be of {len(others)} types; "
                "a column has one, and may be null"
            )
        return self.type_of(others[0], inside)

    def _referred(self, where: str, inside: tuple[str, ...]) -> pa.DataType:
        if not where.startswith("#/"):
            raise FormatError(f"the JSON schema refers to {where}, which is not in itself")
        if where in inside:
            raise FormatError(f"the JSON schema's {where} contains itself; columns cannot")
        found: Any = self._document
        for step in where[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return self.type_of(found, (*inside, where))


def _is_null(said: Any) -> bool:
    return isinstance(said, Mapping) and said.get("type") == "null"


def _may_be_null(said: Any) -> bool:
    if not isinstance(said, Mapping):
        return True
    kinds = said.get("type")
    listed = [*said.get("anyOf", ()), *said.get("oneOf", ())]
    return (
        (isinstance(kinds, list) and "null" in kinds)
        or any(map(_is_null, listed))
        or "$ref" in said
    )
