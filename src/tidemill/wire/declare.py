"""The notation in which messages are declared: typed fields that know their versions.

    class TopicProduceData(Struct):
        name: str = string("0-12", ignorable=True)
        topic_id: UUID = uuid("13+", ignorable=True)
        partition_data: list[PartitionProduceData] = array(PartitionProduceData)

    class ProduceRequest(Message, versions="3-13", flexible="9+"):
        transactional_id: str | None = string(nullable="3+", default=None)
        ...

A `Struct` is a part of a message, a `Message` is what travels by itself. The first argument of a
field is the range of versions that carry it ("3+", "0-12", "5"; all of them if left out), the rest:

* `nullable`: the versions in which it may be None;
* `default`: its value where a version does not carry it, and in a new object;
* `ignorable`: a version that lacks the field drops it silently; if False, encoding any value but
  the default in such a version is an error, since the receiver would misunderstand;
* `tag`: an optional, tagged field, written only if it differs from its default. A tagged struct
  is None where it is absent.

The classes behave as slotted dataclasses with keyword arguments. They are built lazily: defining
one costs microseconds, its `__init__` is compiled when the first object is made, and its codec when
the first message is encoded or decoded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar, cast, dataclass_transform, overload
from uuid import UUID

from tidemill.types import ZERO_TOPIC_ID

Records = memoryview | bytearray | bytes
"""Record batches as they are on the wire; a decoded one is a slice of the frame, not a copy."""

_T = TypeVar("_T")
_ALL = "0+"


class VersionRange(NamedTuple):
    """An inclusive range of versions; an empty one has `low > high`."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


VERSION_MAX = 32767
NO_VERSIONS = VersionRange(1, 0)


@lru_cache(maxsize=256)
def version_range(text: str | None) -> VersionRange:
    """Parse "3+", "0-12" or "5"; None is the empty range."""
    if text is None:
        return NO_VERSIONS
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), VERSION_MAX)
    low, _, high = text.partition("-")
    return VersionRange(int(low), int(high or low))


OWN_TAG_MIN = 10_000
"""Tags from here on are Tidemill's own; Kafka's clients skip what they do not know."""


class FieldSpec:
    """One declared field: `kind` names its wire type, `element` what a struct or an array holds."""

    __slots__ = ("default", "element", "ignorable", "kind", "name", "nullable", "tag", "versions")

    def __init__(
        self,
        kind: str,
        versions: str,
        default: object,
        ignorable: bool,
        tag: int | None,
        nullable: str | None = None,
        element: type[Struct] | str | None = None,
    ) -> None:
        self.name = ""  # set by the class that the field belongs to
        self.kind = kind
        self.versions = versions
        self.nullable = nullable
        self.default = default
        self.ignorable = ignorable
        self.tag = tag
        self.element = element

    @property
    def is_fresh(self) -> bool:
        """Whether every object needs a default value of its own, because it can be changed."""
        return self.default is EMPTY_ARRAY or self.default is NEW_STRUCT

    def make_default(self) -> object:
        if self.default is EMPTY_ARRAY:
            return []
        if self.default is NEW_STRUCT:
            return cast(type[Struct], self.element)()
        return self.default


class _Marker:
    """A default that is made anew for each object, and has a name in messages."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


EMPTY_ARRAY = _Marker("[]")
NEW_STRUCT = _Marker("a new struct")
UNSET = _Marker("not given")


class _LazyDataclassFields:
    """`__dataclass_fields__`, made when `dataclasses.replace` or one of its friends asks for it."""

    def __get__(self, instance: object, owner: type[Struct]) -> dict[str, dataclasses.Field[Any]]:
        shadow = dataclasses.make_dataclass(
            owner.__name__,
            [
                (s.name, Any, dataclasses.field(default_factory=s.make_default))
                for s in owner.FIELDS
            ],
            kw_only=True,
        )
        owner.__dataclass_fields__ = {field.name: field for field in dataclasses.fields(shadow)}
        return owner.__dataclass_fields__


@dataclass_transform(kw_only_default=True)
class _StructType(type):
    """Turns the declared fields of a class into slots, and remembers them as `FIELDS`."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        versions: str | None = None,
        flexible: str | None = None,
    ) -> _StructType:
        specs = [(key, value) for key, value in namespace.items() if isinstance(value, FieldSpec)]
        for key, spec in specs:
            spec.name = key
            del namespace[key]
        namespace["__slots__"] = tuple(key for key, _ in specs)
        namespace["FIELDS"] = tuple(spec for _, spec in specs)
        namespace["VERSIONS"] = versions
        namespace["FLEXIBLE"] = flexible
        return super().__new__(mcs, name, bases, namespace)


class Struct(metaclass=_StructType):
    """A part of a message: a row of fields that has no version of its own."""

    FIELDS: ClassVar[tuple[FieldSpec, ...]]
    VERSIONS: ClassVar[str | None]
    FLEXIBLE: ClassVar[str | None]
    __dataclass_fields__: ClassVar[Any] = _LazyDataclassFields()

    def __init__(self, **values: object) -> None:
        cls = type(self)
        init = _compile_init(cls)
        cls.__init__ = init  # type: ignore[method-assign]
        init(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in _names(type(self)))

    __hash__ = None  # type: ignore[assignment]  # messages can be changed

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in _names(type(self)))
        return f"{type(self).__name__}({shown})"


class Message(Struct):
    """A request, a response, or anything else that is encoded by itself in a given version."""

    @classmethod
    def version_range(cls) -> VersionRange:
        return version_range(cls.VERSIONS)

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether this version has compact sizes and tagged fields."""
        return version in version_range(cls.FLEXIBLE)


def _names(cls: type[Struct]) -> Iterable[str]:
    return (spec.name for spec in cls.FIELDS)


def _shown(value: object) -> str:
    """A value for `repr`: of bytes only the size, since they may be long, or a password."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    return repr(value)


def _compile_init(cls: type[Struct]) -> Any:
    """The `__init__` that a dataclass would have: one keyword argument per field."""
    scope: dict[str, Any] = {"UNSET": UNSET}
    arguments, body = [], []
    for spec in cls.FIELDS:
        name = spec.name
        if spec.is_fresh:
            scope[f"make_{name}"] = spec.make_default
            arguments.append(f"{name}=UNSET")
            body.append(f"    self.{name} = make_{name}() if {name} is UNSET else {name}")
        else:
            scope[f"default_{name}"] = spec.default
            arguments.append(f"{name}=default_{name}")
            body.append(f"    self.{name} = {name}")
    head = f"def __init__(self{', *, ' if arguments else ''}{', '.join(arguments)}):"
    exec("\n".join([head, *(body or ["    pass"])]), scope)
    return scope["__init__"]


def int8(
    versions: str = _ALL, *, default: int = 0, ignorable: bool = False, tag: int | None = None
) -> int:
    return cast(int, FieldSpec("int8", versions, default, ignorable, tag))


def int16(
    versions: str = _ALL, *, default: int = 0, ignorable: bool = False, tag: int | None = None
) -> int:
    return cast(int, FieldSpec("int16", versions, default, ignorable, tag))


def uint16(
    versions: str = _ALL, *, default: int = 0, ignorable: bool = False, tag: int | None = None
) -> int:
    return cast(int, FieldSpec("uint16", versions, default, ignorable, tag))


def int32(
    versions: str = _ALL, *, default: int = 0, ignorable: bool = False, tag: int | None = None
) -> int:
    return cast(int, FieldSpec("int32", versions, default, ignorable, tag))


def int64(
    versions: str = _ALL, *, default: int = 0, ignorable: bool = False, tag: int | None = None
) -> int:
    return cast(int, FieldSpec("int64", versions, default, ignorable, tag))


def float64(versions: str = _ALL, *, default: float = 0.0, ignorable: bool = False) -> float:
    return cast(float, FieldSpec("float64", versions, default, ignorable, None))


def boolean(
    versions: str = _ALL, *, default: bool = False, ignorable: bool = False, tag: int | None = None
) -> bool:
    return cast(bool, FieldSpec("bool", versions, default, ignorable, tag))


def uuid(versions: str = _ALL, *, ignorable: bool = False, tag: int | None = None) -> UUID:
    return cast(UUID, FieldSpec("uuid", versions, ZERO_TOPIC_ID, ignorable, tag))


@overload
def string(
    versions: str = _ALL, *, default: str = "", ignorable: bool = False, tag: int | None = None
) -> str: ...
@overload
def string(
    versions: str = _ALL,
    *,
    nullable: str,
    default: str | None = "",
    ignorable: bool = False,
    tag: int | None = None,
) -> str | None: ...
def string(
    versions: str = _ALL,
    *,
    nullable: str | None = None,
    default: str | None = "",
    ignorable: bool = False,
    tag: int | None = None,
) -> str | None:
    return cast(str, FieldSpec("string", versions, default, ignorable, tag, nullable))


@overload
def binary(
    versions: str = _ALL, *, default: bytes = b"", ignorable: bool = False, tag: int | None = None
) -> bytes: ...
@overload
def binary(
    versions: str = _ALL,
    *,
    nullable: str,
    default: bytes | None = b"",
    ignorable: bool = False,
    tag: int | None = None,
) -> bytes | None: ...
def binary(
    versions: str = _ALL,
    *,
    nullable: str | None = None,
    default: bytes | None = b"",
    ignorable: bool = False,
    tag: int | None = None,
) -> bytes | None:
    return cast(bytes, FieldSpec("bytes", versions, default, ignorable, tag, nullable))


def record_batches(versions: str = _ALL, *, nullable: str) -> Records | None:
    return cast(Records, FieldSpec("records", versions, None, False, None, nullable))


@overload
def array(
    element: type[_T], versions: str = _ALL, *, ignorable: bool = False, tag: int | None = None
) -> list[_T]: ...
@overload
def array(
    element: type[_T],
    versions: str = _ALL,
    *,
    nullable: str,
    default: _Marker | None = EMPTY_ARRAY,
    ignorable: bool = False,
    tag: int | None = None,
) -> list[_T] | None: ...
def array(
    element: type[_T],
    versions: str = _ALL,
    *,
    nullable: str | None = None,
    default: _Marker | None = EMPTY_ARRAY,
    ignorable: bool = False,
    tag: int | None = None,
) -> list[_T] | None:
    struct = cast(type[Struct], element)
    return cast(
        list[_T], FieldSpec("array", versions, default, ignorable, tag, nullable, element=struct)
    )


class _PrimitiveArray:
    """The notation for an array of numbers or strings: `int32s("1+")`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(
        self,
        versions: str = _ALL,
        *,
        nullable: str | None = None,
        default: _Marker | None = EMPTY_ARRAY,
        ignorable: bool = False,
        tag: int | None = None,
    ) -> Any:
        return FieldSpec("array", versions, default, ignorable, tag, nullable, self._kind)


int8s = _PrimitiveArray("int8")
int32s = _PrimitiveArray("int32")
int64s = _PrimitiveArray("int64")
strings = _PrimitiveArray("string")


def struct(element: type[_T], versions: str = _ALL, *, ignorable: bool = False) -> _T:
    """A struct that is always there."""
    kind = cast(type[Struct], element)
    return cast(_T, FieldSpec("struct", versions, NEW_STRUCT, ignorable, None, element=kind))


def optional_struct(
    element: type[_T],
    versions: str = _ALL,
    *,
    ignorable: bool = False,
    tag: int | None = None,
    null_is_sent: bool = False,
) -> _T | None:
    """A struct that may be missing: None on the wire, or a tag that is not sent.

    Where `null_is_sent` the tag is there and says None: without it, Kafka would take it for an
    empty struct.
    """
    nullable = versions if tag is None or null_is_sent else None
    kind = cast(type[Struct], element)
    return cast(_T, FieldSpec("struct", versions, None, ignorable, tag, nullable, element=kind))
