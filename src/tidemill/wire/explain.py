"""Finds out why a message could not be encoded.

Compiled encoders do not check values; when one of them fails, this module walks the message slowly
and names the field, what it holds, and what it should hold.
"""

from __future__ import annotations

from struct import Struct as Format
from struct import error as StructError  # noqa: N812
from typing import Any, cast
from uuid import UUID

from tidemill.errors import WireError
from tidemill.wire.declare import Message
from tidemill.wire.plan import FIXED, STRING_BYTES_MAX, FieldPlan, StructPlan, plan_message


def explain(message: Message, version: int) -> WireError:
    """The error to raise for a message that an encoder choked on."""
    plan = plan_message(type(message), version)
    trouble = _struct_trouble(plan, message, plan.label)
    return WireError(trouble or f"{plan.label} v{version} cannot be encoded: {message!r:.200}")


def _struct_trouble(plan: StructPlan, value: object, path: str) -> str | None:
    if not isinstance(value, plan.cls):
        return f"{path} must be a {plan.label}, not {_shown(value)}"
    for field in (*plan.fields, *plan.tagged):
        if not hasattr(value, field.name):
            return f"{path}.{field.name} is not set"
        trouble = _field_trouble(field, getattr(value, field.name), f"{path}.{field.name}")
        if trouble:
            return f"{trouble} (version {plan.version})" if path == plan.label else trouble
    return None


def _field_trouble(field: FieldPlan, value: Any, path: str) -> str | None:
    kind = field.spec.kind
    if value is None:
        absent = kind == "struct" and field.spec.tag is not None
        return None if field.nullable or absent else f"{path} must not be null"
    if kind == "struct":
        return _struct_trouble(cast(StructPlan, field.struct), value, path)
    if kind != "array":
        return _scalar_trouble(kind, value, path)
    if not isinstance(value, (list, tuple)):
        return f"{path} must be a list, not {_shown(value)}"
    for index, item in enumerate(value):
        if field.struct is not None:
            trouble = _struct_trouble(field.struct, item, f"{path}[{index}]")
        else:
            trouble = _scalar_trouble(cast(str, field.spec.element), item, f"{path}[{index}]")
        if trouble:
            return trouble
    return None


def _scalar_trouble(kind: str, value: Any, path: str) -> str | None:
    if kind == "uuid":
        return None if isinstance(value, UUID) else f"{path} must be a UUID, not {_shown(value)}"
    if kind == "string":
        return _string_trouble(value, path)
    if kind in ("bytes", "records"):
        is_bytes = isinstance(value, (bytes, bytearray, memoryview))
        return None if is_bytes else f"{path} must be bytes, not {_shown(value)}"
    try:
        Format(">" + FIXED[kind][0]).pack(value)
    except StructError:
        return f"{path} must be a number that fits {kind}, not {_shown(value)}"
    return None


def _string_trouble(value: Any, path: str) -> str | None:
    if not isinstance(value, str):
        return f"{path} must be a string, not {_shown(value)}"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return f"{path} has a character that UTF-8 cannot express: {_shown(value)}"
    if size > STRING_BYTES_MAX:
        return f"{path} has {size} bytes: a string may have {STRING_BYTES_MAX}"
    return None


def _shown(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"  # which may be a password
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
