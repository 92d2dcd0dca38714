"""Turns our messages into those of kio, an independent implementation of the same schemas.

kio has one class for each version, with the same fields in the same order. It spells some of them
differently: times are timedeltas and datetimes and lose their unit, error codes are an enum, a zero
UUID and an absent time are None.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import re
from functools import cache
from importlib import import_module
from typing import Any, get_args

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from tidemill.wire.declare import OWN_TAG_MIN, FieldSpec, Message, Struct, version_range

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@cache
def kio_class(cls: type[Message], version: int) -> Any:
    """The class of kio for one version of one of our messages."""
    base, kind = re.fullmatch(r"(\w+)(Request|Response)", cls.__name__).groups()  # type: ignore[union-attr]
    package = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", base).lower()
    module = import_module(f"kio.schema.{package}.v{version}.{kind.lower()}")
    return getattr(module, cls.__name__)


def to_kio(message: Message, version: int) -> Any:
    return _struct(message, kio_class(type(message), version), version)


def kio_encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_decode(cls: type[Message], version: int, data: bytes) -> tuple[Any, int]:
    """The entity and how many bytes it took."""
    entity, size = entity_reader(kio_class(cls, version))(data, 0)
    return entity, size


def _struct(value: Struct, target: Any, version: int) -> Any:
    ours = [
        spec
        for spec in type(value).FIELDS
        if version in version_range(spec.versions) and (spec.tag or 0) < OWN_TAG_MIN
    ]
    theirs = dataclasses.fields(target)
    pairs = zip(ours, theirs, strict=True)
    return target(**{t.name: _field(getattr(value, o.name), o, t, version) for o, t in pairs})


def _field(value: Any, ours: FieldSpec, theirs: Any, version: int) -> Any:
    assert theirs.name in (ours.name, ours.name.removesuffix("_ms")), (ours.name, theirs.name)
    inner = _inner_class(theirs.type)
    if ours.kind == "array":
        if value is None:
            return None
        if inner is None:
            return tuple(value)
        return tuple(_struct(item, inner, version) for item in value)
    if ours.kind == "struct":
        if value is None:
            return None if ours.tag is None else theirs.default
        return _struct(value, inner, version)
    return _scalar(
        value, theirs.metadata["kafka_type"], is_optional=type(None) in get_args(theirs.type)
    )


def _inner_class(annotation: Any) -> Any:
    """The dataclass inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    return next(filter(None, map(_inner_class, get_args(annotation))), None)


def _scalar(value: Any, kind: str, *, is_optional: bool) -> Any:
    if value is None:
        return None
    if kind == "error_code":
        return KioErrorCode(value)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=value)
    if kind == "datetime_i64":
        if value == -1 and is_optional:
            return None
        return _EPOCH + datetime.timedelta(milliseconds=value)
    if kind == "uuid":
        return value if value.int else None
    return value
