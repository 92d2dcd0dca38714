"""Protobuf descriptors from where users have them: `.proto` text, a descriptor set, a registry."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto as FileProto
from google.protobuf.message import DecodeError

from tidemill.spark.formats import FormatOptions
from tidemill.spark.formats.model import FormatError, Limits
from tidemill.spark.formats.proto_text import parse_proto
from tidemill.spark.formats.registry import Registered, Registry, RegistryError
from tidemill.spark.formats.schemas import DESCRIPTORS, registered_schema, registry_of

OWN_FILE = "value.proto"
WELL_KNOWN: Mapping[str, Any] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
}


class MessageType(NamedTuple):
    """A message that can be parsed."""

    descriptor: Any
    make: Any
    """The class of its messages."""
    indexes: tuple[int, ...]
    """Its path in its file: what stands before a framed value."""


def load_message(options: FormatOptions) -> MessageType:
    """The message that values are read as."""
    registered = registered_schema(options)
    text = options.schema or ""
    if registered is not None:
        files = files_of(registry_of(options), registered, options.limits)
    elif text.startswith(DESCRIPTORS):
        files = _descriptor_set(text.removeprefix(DESCRIPTORS))
    else:
        files = [parse_proto(text, OWN_FILE, options.limits)]
    pool = _pool(files)
    descriptor = _named(pool, files[-1], options.message)
    return MessageType(
        descriptor, message_factory.GetMessageClass(descriptor), _indexes(descriptor)
    )


def message_at(
    registry: Registry, registered: Registered, indexes: tuple[int, ...], limits: Limits
) -> str:
    """The full name of the message at a path of the registry's schema."""
    if registered.kind != "PROTOBUF":
        raise FormatError(f"the registry says it is {registered.kind}, not PROTOBUF")
    file = _parsed(registry, registered, OWN_FILE, limits)
    names = [file.package] if file.package else []
    messages: Any = file.message_type
    for index in indexes:
        if index >= len(messages):
            raise FormatError(f"there is no message at {list(indexes)} in the schema")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def files_of(registry: Registry, registered: Registered, limits: Limits) -> list[FileProto]:
    """A registry's schema and what it imports, imports first."""
    files = [
        _parsed(registry, other, name, limits) for name, other in registry.references(registered)
    ]
    return [*files, _parsed(registry, registered, OWN_FILE, limits)]


def _parsed(registry: Registry, registered: Registered, name: str, limits: Limits) -> FileProto:
    """The schema's text or, where that cannot be read here, the registry's own reading of it."""
    try:
        return parse_proto(registered.text, name, limits)
    except FormatError as error:
        try:
            serialized = registry.by_id(registered.id, serialized=True).text
            file = FileProto.FromString(base64.b64decode(serialized, validate=True))
        except (RegistryError, binascii.Error, DecodeError):
            raise error from None
        file.name = name
        return file


def _descriptor_set(encoded: str) -> list[FileProto]:
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(encoded)).file)
    except DecodeError as error:
        raise FormatError(f"valueSchema is no serialized FileDescriptorSet: {error}") from error
    if not files:
        raise FormatError("the descriptor set has no files; protoc wants --include_imports")
    return files


def _pool(files: list[FileProto]) -> Any:
    """A pool of its own: two topics may have messages of one name."""
    pool = descriptor_pool.DescriptorPool()
    given = {file.name for file in files}
    for name in sorted(_imported(files) - given):
        if name not in WELL_KNOWN:
            raise FormatError(
                f"the schema imports {name}, which is not given: use the descriptor set that "
                "protoc --include_imports --descriptor_set_out writes"
            )
    try:
        for descriptor in WELL_KNOWN.values():
            if descriptor.name not in given:
                pool.AddSerializedFile(descriptor.serialized_pb)
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, ValueError, KeyError) as error:
        raise FormatError(f"the protobuf schema is wrong: {error}") from error
    return pool


def _imported(files: list[FileProto]) -> set[str]:
    return {name for file in files for name in file.dependency}


def _named(pool: Any, file: FileProto, wanted: str | None) -> Any:
    """The message of this name, package or not; the file's first where none is said."""
    if wanted is None:
        if not file.message_type:
            raise FormatError("the protobuf schema has no message")
        wanted = file.message_type[0].name
    for name in (wanted, f"{file.package}.{wanted}" if file.package else wanted):
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError:
            continue
    listed = ", ".join(each.name for each in file.message_type[:10])
    raise FormatError(f"valueMessage {wanted!r} is not in the schema, which has {listed}")


def _indexes(descriptor: Any) -> tuple[int, ...]:
    outer = descriptor.containing_type
    if outer is None:
        return (list(descriptor.file.message_types_by_name).index(descriptor.name),)
    names = [each.name for each in outer.nested_types]
    return (*_indexes(outer), names.index(descriptor.name))
