"""Schemas as Spark writes them, `id BIGINT NOT NULL, tags ARRAY<STRING>`, read without a JVM.

Executors have no Spark session to ask, and a driver should be able to check a schema before it has
one. The grammar is that of `StructType.fromDDL`: names in backticks where they need them, an
optional colon, `NOT NULL`, `COMMENT '...'`. What Spark has and Arrow cannot carry (intervals,
VARIANT) is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from tidemill.spark.formats.model import FieldBudget, FormatError, Limits

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

# The first name of a type is the one that `to_ddl` writes.
SCALARS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}
DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
DECIMAL_DIGITS_MAX = 38
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>\w+)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<mark>[<>(),:])
    )""",
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_ddl(text: str, limits: Limits | None = None) -> pa.StructType:
    """The struct type that a DDL string describes. NOT NULL is kept as the field's nullability."""
    limits = limits or Limits()
    if len(text) > limits.schema_bytes_max:
        raise FormatError(f"the schema is longer than {limits.schema_bytes_max} characters")
    return _Parser(text, limits).whole()


def list_of(element: pa.DataType) -> pa.DataType:
    """A list as Spark wants it: it compares the child's name, too."""
    return pa.list_(pa.field("element", element))


def _tokens(text: str) -> Iterator[Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise FormatError(f"schema: {text[at : at + 20]!r} at position {at} is not DDL")
        yield Token(found.lastgroup, found.group(found.lastgroup), found.start(found.lastgroup))
        at = found.end()
    yield Token("end", "", end)


class _Parser:
    """Recursive descent; one method per rule of the grammar."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._limits = limits
        self._budget = FieldBudget(limits)

    def whole(self) -> pa.StructType:
        # `STRUCT<...>` is also what a schema's own simpleString() gives.
        if self._peek_word(0) == "STRUCT" and self._tokens[1].text == "<":
            struct = self._type(0)
        else:
            struct = self._struct("", 0)
        if self._peek.kind != "end":
            raise self._unexpected("a comma or the end")
        return struct

    def _struct(self, closing: str, depth: int) -> pa.StructType:
        fields: list[pa.Field] = []
        names: set[str] = set()
        while True:
            one = self._field(depth)
            if one.name in names:
                raise FormatError(f"schema: there are two fields {one.name!r}")
            names.add(one.name)
            fields.append(one)
            if not self._take(","):
                break
        if closing:
            self._expect(closing)
        return pa.struct(fields)

    def _field(self, depth: int) -> pa.Field:
        self._budget.spend(depth)
        name = self._name()
        self._take(":")
        kind = self._type(depth)
        nullable = True
        if self._take_word("NOT"):
            if not self._take_word("NULL"):
                raise self._unexpected("NULL after NOT")
            nullable = False
        if self._take_word("COMMENT"):
            if self._peek.kind != "text":
                raise self._unexpected("a quoted text after COMMENT")
            self._next += 1
        return pa.field(name, kind, nullable)

    def _name(self) -> str:
        token = self._peek
        if token.kind not in ("word", "quoted"):
            raise self._unexpected("a field's name")
        self._next += 1
        return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text

    def _type(self, depth: int) -> pa.DataType:
        if depth >= self._limits.depth_max:
            raise FormatError(f"schema: nested deeper than {self._limits.depth_max}")
        token = self._peek
        if token.kind != "word":
            raise self._unexpected("a type")
        self._next += 1
        word = token.text.upper()
        if word == "STRUCT":
            self._expect("<")
            return self._struct(">", depth + 1)
        if word == "ARRAY":
            self._expect("<")
            element = self._type(depth + 1)
            self._expect(">")
            return list_of(element)
        if word == "MAP":
            return self._map(depth)
        if word in DECIMALS:
            return self._decimal()
        if word in ("VARCHAR", "CHAR"):
            self._numbers(1)
        if word not in SCALARS:
            raise FormatError(f"schema: unknown type {token.text!r} at position {token.at}")
        return SCALARS[word]

    def _map(self, depth: int) -> pa.DataType:
        self._expect("<")
        key = self._type(depth + 1)
        self._expect(",")
        item = self._type(depth + 1)
        self._expect(">")
        return pa.map_(key, item)

    def _decimal(self) -> pa.DataType:
        numbers = self._numbers(2)
        precision, scale = [*numbers, *(10, 0)[len(numbers) :]]
        if not 0 <= scale <= precision or not 1 <= precision <= DECIMAL_DIGITS_MAX:
            raise FormatError(
                f"schema: DECIMAL({precision},{scale}): at most {DECIMAL_DIGITS_MAX} digits, and "
                "the scale at most the precision"
            )
        return pa.decimal128(precision, scale)

    def _numbers(self, most: int) -> list[int]:
        """`(10, 2)`, or nothing."""
        if not self._take("("):
            return []
        numbers = [self._number()]
        while len(numbers) < most and self._take(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        token = self._peek
        if not (token.text.isascii() and token.text.isdigit() and len(token.text) < 10):
            raise self._unexpected("a number")
        self._next += 1
        return int(token.text)

    @property
    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _peek_word(self, at: int) -> str:
        token = self._tokens[at]
        return token.text.upper() if token.kind == "word" else ""

    def _take(self, mark: str) -> bool:
        found = self._peek.kind == "mark" and self._peek.text == mark
        self._next += found
        return found

    def _take_word(self, word: str) -> bool:
        found = self._peek_word(self._next) == word
        self._next += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._unexpected(repr(mark))

    def _unexpected(self, wanted: str) -> FormatError:
        token = self._peek
        what = repr(token.text) if token.text else "the end"
        return FormatError(f"schema: {what} at position {token.at}, where {wanted} should be")


def to_ddl(kind: pa.StructType) -> str:
    """The DDL of a struct's fields: what Spark takes as a schema."""
    return ", ".join(f"{_quoted(each.name)} {type_to_ddl(each.type)}" for each in kind)


def type_to_ddl(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        inside = ", ".join(f"{_quoted(each.name)}: {type_to_ddl(each.type)}" for each in kind)
        return f"STRUCT<{inside}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_to_ddl(kind.key_type)}, {type_to_ddl(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_to_ddl(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    for name, scalar in SCALARS.items():
        if scalar == kind:
            return name
    raise FormatError(f"Spark has no type for Arrow's {kind}")


def _quoted(name: str) -> str:
    if PLAIN_NAME.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"
