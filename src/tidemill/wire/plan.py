"""What one version of a message looks like on the wire: the declaration with the versions resolved.

The encoder, the decoder and the explainer of errors all walk the same plan, so that they cannot
disagree about which fields there are, in which order, and what may be null.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

from tidemill.errors import WireError
from tidemill.wire.declare import FieldSpec, Message, Struct, version_range

FIXED = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "bool": ("?", 1),
    "uuid": ("16s", 16),
}
"""Kinds whose size never varies: their letter in a struct format, and their size in bytes."""

STRING_BYTES_MAX = 32767
"""The longest string, also where a compact length could say more."""


@dataclass(frozen=True)
class FieldPlan:
    """A field that this version carries."""

    spec: FieldSpec
    nullable: bool
    flexible: bool
    struct: StructPlan | None
    """The struct itself, or the elements of an array of structs."""

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def bytes_min(self) -> int:
        """The fewest bytes that any value takes; bounds how many elements can be there."""
        kind = self.spec.kind
        if kind in FIXED:
            return FIXED[kind][1]
        if kind == "struct":
            return 1 if self.nullable else cast(StructPlan, self.struct).bytes_min
        return size_prefix_bytes(kind, self.flexible)

    @cached_property
    def element_bytes_min(self) -> int:
        """The same for one element of this array."""
        if self.struct is not None:
            return self.struct.bytes_min
        element = cast(str, self.spec.element)
        return FIXED[element][1] if element in FIXED else size_prefix_bytes(element, self.flexible)


@dataclass(frozen=True)
class StructPlan:
    """One struct in one version: what is there, in order, and what is not."""

    cls: type[Struct]
    version: int
    flexible: bool
    fields: tuple[FieldPlan, ...]
    tagged: tuple[FieldPlan, ...]
    absent: tuple[FieldSpec, ...]

    @cached_property
    def bytes_min(self) -> int:
        return sum(field.bytes_min for field in self.fields) + self.flexible

    @property
    def label(self) -> str:
        return self.cls.__name__


def size_prefix_bytes(kind: str, flexible: bool) -> int:
    """How long the size in front of an empty value is: one byte if compact."""
    if flexible:
        return 1
    return 2 if kind == "string" else 4


def plan_message(cls: type[Message], version: int) -> StructPlan:
    """The plan of a whole message; WireError if the message has no such version."""
    if version not in cls.version_range():
        raise WireError(
            f"{cls.__name__} has no version {version}, only {cls.version_range()}: "
            "agree on a version with ApiVersions first"
        )
    return _plan_struct(cls, version, cls.is_flexible(version))


def _plan_struct(cls: type[Struct], version: int, flexible: bool) -> StructPlan:
    present = [spec for spec in cls.FIELDS if version in version_range(spec.versions)]
    plans = [_plan_field(spec, version, flexible) for spec in present]
    tagged = [plan for plan in plans if plan.spec.tag is not None]
    return StructPlan(
        cls=cls,
        version=version,
        flexible=flexible,
        fields=tuple(plan for plan in plans if plan.spec.tag is None),
        tagged=tuple(sorted(tagged, key=lambda plan: plan.spec.tag or 0)),
        absent=tuple(spec for spec in cls.FIELDS if spec not in present),
    )


def _plan_field(spec: FieldSpec, version: int, flexible: bool) -> FieldPlan:
    struct = None
    if spec.element is not None and not isinstance(spec.element, str):
        struct = _plan_struct(spec.element, version, flexible)
    return FieldPlan(
        spec=spec,
        nullable=version in version_range(spec.nullable),
        flexible=flexible,
        struct=struct,
    )
