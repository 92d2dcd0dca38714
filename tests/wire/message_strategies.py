"""Hypothesis strategies that make messages of any declared class, for a given version.

Fields that the version does not carry stay at their defaults, so that what comes back from a round
trip must be equal to what went in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from hypothesis import strategies as st

from tidemill.errors import ErrorCode
from tidemill.types import ZERO_TOPIC_ID
from tidemill.wire.apis import APIS, Api
from tidemill.wire.declare import OWN_TAG_MIN, Message
from tidemill.wire.plan import FieldPlan, StructPlan, plan_message

ARRAY_MAX = 2
TIME_MS_MAX = 2**31 - 1
"""Times are kept small: the foreign implementation turns them into dates."""

_TEXT = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["x" * 127, "é" * 80])
_BYTES = st.binary(max_size=8) | st.sampled_from([b"b" * 126, b"b" * 127, b"b" * 5000])
_INTS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **_INTS,
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "uuid": st.just(ZERO_TOPIC_ID) | st.uuids(),
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES,
}
_ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])
_TIMES = st.integers(0, TIME_MS_MAX)


def all_messages() -> Iterator[tuple[type[Message], int]]:
    """Every message class in every version of its schema."""
    return _messages_of(APIS.values())


def kafkas_messages() -> Iterator[tuple[type[Message], int]]:
    """Those that Apache Kafka has, too."""
    return _messages_of(api for api in APIS.values() if not api.is_private)


def _messages_of(apis: Iterable[Api]) -> Iterator[tuple[type[Message], int]]:
    for api in apis:
        for cls in (api.request, api.response):
            low, high = cls.version_range()
            for version in range(low, high + 1):
                yield cls, version


def messages(cls: type[Message], version: int) -> st.SearchStrategy[Any]:
    return _structs(plan_message(cls, version))


def _structs(plan: StructPlan) -> st.SearchStrategy[Any]:
    fields = {
        field.name: _values(field)
        for field in (*plan.fields, *plan.tagged)
        if (field.spec.tag or 0) < OWN_TAG_MIN
    }
    return st.builds(plan.cls, **fields)


def _values(field: FieldPlan) -> st.SearchStrategy[Any]:
    values = _present(field)
    optional = field.nullable or (field.spec.kind == "struct" and field.spec.tag is not None)
    return st.none() | values if optional else values


def _present(field: FieldPlan) -> st.SearchStrategy[Any]:
    kind, name = field.spec.kind, field.name
    if kind == "array":
        return st.lists(_elements(field), max_size=ARRAY_MAX)
    if kind == "struct":
        return _structs(cast(StructPlan, field.struct))
    if kind == "int16" and name.endswith("error_code"):
        return _ERROR_CODES
    if kind in ("int32", "int64") and ("time" in name or name.endswith("_ms")):
        return _TIMES
    return _SCALARS[kind]


def _elements(field: FieldPlan) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        return _structs(field.struct)
    return _SCALARS[cast(str, field.spec.element)]
