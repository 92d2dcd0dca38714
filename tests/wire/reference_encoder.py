"""A slow encoder that reads the plan field by field, and can add tags that nobody knows.

It exists to check the compiled one, and to make messages that the compiled one never would.
"""

from __future__ import annotations

from struct import Struct as Format
from typing import Any, cast

from tidemill.wire.declare import Message
from tidemill.wire.plan import FIXED, FieldPlan, StructPlan, plan_message
from tidemill.wire.primitives import write_varint

UNKNOWN_TAG = 9000
UNKNOWN_VALUE = b"from the future"


def reference_encode(message: Message, version: int, *, unknown_tags: bool = False) -> bytes:
    return _struct(plan_message(type(message), version), message, unknown_tags)


def _struct(plan: StructPlan, value: Any, unknown_tags: bool) -> bytes:
    data = b"".join(
        _field(field, getattr(value, field.name), unknown_tags) for field in plan.fields
    )
    if not plan.flexible:
        return data
    tags = [
        (cast(int, field.spec.tag), _field(field, getattr(value, field.name), unknown_tags))
        for field in plan.tagged
        if getattr(value, field.name) != field.spec.make_default()
    ]
    if unknown_tags:
        tags.append((UNKNOWN_TAG, UNKNOWN_VALUE))
    data += write_varint(len(tags))
    return data + b"".join(write_varint(tag) + _sized(value) for tag, value in tags)


def _sized(value: bytes) -> bytes:
    return write_varint(len(value)) + value


def _field(field: FieldPlan, value: Any, unknown_tags: bool) -> bytes:
    kind = field.spec.kind
    if kind == "struct":
        marker = b"" if not field.nullable else b"\xff" if value is None else b"\x01"
        plan = cast(StructPlan, field.struct)
        return marker + (b"" if value is None else _struct(plan, value, unknown_tags))
    if kind != "array":
        return _scalar(kind, value, field.flexible)
    if value is None:
        return _count(-1, field.flexible)
    return _count(len(value), field.flexible) + b"".join(
        _struct(field.struct, item, unknown_tags)
        if field.struct is not None
        else _scalar(cast(str, field.spec.element), item, field.flexible)
        for item in value
    )


def _scalar(kind: str, value: Any, flexible: bool) -> bytes:
    if kind == "uuid":
        return cast(bytes, value.bytes)
    if kind in FIXED:
        return Format(">" + FIXED[kind][0]).pack(value)
    data = value.encode() if isinstance(value, str) else value
    size = -1 if data is None else len(data)
    prefix = _count(size, flexible) if kind != "string" or flexible else Format(">h").pack(size)
    return prefix + (data or b"")


def _count(count: int, flexible: bool) -> bytes:
    return write_varint(count + 1) if flexible else Format(">i").pack(count)
