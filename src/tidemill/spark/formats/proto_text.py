"""`.proto` files as descriptors, without protoc: the parts of the language that say what is in a
message.

Messages, enums, maps, oneofs, labels, imports and defaults become a FileDescriptorProto; names are
resolved and everything else is checked by protobuf's own descriptor pool afterwards. Options,
services and extensions say nothing about a value's fields and are passed over. Groups and editions
are refused: for those, give the descriptor set that `protoc --descriptor_set_out` writes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf import descriptor_pb2

from tidemill.spark.formats.model import FormatError, Limits

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "double": Field.TYPE_DOUBLE,
    "float": Field.TYPE_FLOAT,
    "int32": Field.TYPE_INT32,
    "int64": Field.TYPE_INT64,
    "uint32": Field.TYPE_UINT32,
    "uint64": Field.TYPE_UINT64,
    "sint32": Field.TYPE_SINT32,
    "sint64": Field.TYPE_SINT64,
    "fixed32": Field.TYPE_FIXED32,
    "fixed64": Field.TYPE_FIXED64,
    "sfixed32": Field.TYPE_SFIXED32,
    "sfixed64": Field.TYPE_SFIXED64,
    "bool": Field.TYPE_BOOL,
    "string": Field.TYPE_STRING,
    "bytes": Field.TYPE_BYTES,
}
LABELS = {
    "optional": Field.LABEL_OPTIONAL,
    "required": Field.LABEL_REQUIRED,
    "repeated": Field.LABEL_REPEATED,
}
TOKEN = re.compile(
    r"""(?:\s|//[^\n]*|/\*.*?\*/)*(?:
        (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|\.?\d[\w.]*(?:[eE][+-]?\d+)?))
      | (?P<name>\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
      | (?P<mark>[{}\[\]()<>=;,:+-])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse_proto(
    text: str, name: str, limits: Limits | None = None
) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of one `.proto` file; `name` is what others import it by."""
    limits = limits or Limits()
    if len(text) > limits.schema_bytes_max:
        raise FormatError(f"{name} is longer than {limits.schema_bytes_max} characters")
    return _Parser(text, name, limits).file()


def _tokens(text: str, name: str) -> Iterator[Token]:
    at = 0
    while True:
        found = TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            line = text.count("\n", 0, at) + 1
            raise FormatError(
                f"{name}, line {line}: {text[at : at + 20].strip()!r} is not protobuf"
            )
        start = found.start(found.lastgroup)
        yield Token(found.lastgroup, found.group(found.lastgroup), text.count("\n", 0, start) + 1)
        if found.lastgroup == "end":
            return
        at = found.end()


class _Parser:
    """Recursive descent; one method per statement of the language."""

    def __init__(self, text: str, name: str, limits: Limits) -> None:
        self._tokens = list(_tokens(text, name))
        self._next = 0
        self._depth_max = limits.depth_max
        self._file = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto2")

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        while (token := self._take()).kind != "end":
            match token.text:
                case ";":
                    continue
                case "syntax":
                    self._expect("=")
                    self._file.syntax = self._string()
                    self._expect(";")
                case "package":
                    self._file.package = self._name()
                    self._expect(";")
                case "import":
                    self._import()
                case "message":
                    self._message(self._file.message_type.add(), self._file.package, 0)
                case "enum":
                    self._enum(self._file.enum_type.add())
                case "option" | "service" | "extend":
                    self._pass_over()
                case "edition":
                    raise self._wrong(token, "editions are not read here; give a descriptor set")
                case _:
                    raise self._wrong(token, f"{token.text!r} begins no statement")
        return self._file

    def _import(self) -> None:
        if self._peek.text in ("public", "weak"):
            modifier = self._take().text
            listed = (
                self._file.public_dependency if modifier == "public" else self._file.weak_dependency
            )
            listed.append(len(self._file.dependency))
        self._file.dependency.append(self._string())
        self._expect(";")

    def _message(self, it: descriptor_pb2.DescriptorProto, scope: str, depth: int) -> None:
        if depth > self._depth_max:
            raise self._wrong(self._peek, f"messages nest deeper than {self._depth_max}")
        it.name = self._name()
        scope = f"{scope}.{it.name}"
        self._expect("{")
        while not self._taken("}"):
            token = self._peek
            match token.text:
                case ";":
                    self._take()
                case "message" if self._is_declaration():
                    self._take()
                    self._message(it.nested_type.add(), scope, depth + 1)
                case "enum" if self._is_declaration():
                    self._take()
                    self._enum(it.enum_type.add())
                case "oneof" if self._is_declaration():
                    self._take()
                    self._oneof(it, scope)
                case "option" | "reserved" | "extensions":
                    self._pass_over()
                case "extend" if self._ahead(2).text == "{":
                    self._pass_over()
                case "map" if self._ahead(1).text == "<":
                    self._map(it, scope)
                case _:
                    self._field(it, scope)
        # Every optional field of proto3 is a oneof of its own, and those come last.
        for each in it.field:
            if each.proto3_optional:
                each.oneof_index = len(it.oneof_decl)
                it.oneof_decl.add(name=f"_{each.name}")

    def _is_declaration(self) -> bool:
        """`message Name {`, and not a field whose type is called so."""
        return self._ahead(2).text == "{"

    def _oneof(self, it: descriptor_pb2.DescriptorProto, scope: str) -> None:
        index = len(it.oneof_decl)
        it.oneof_decl.add(name=self._name())
        self._expect("{")
        while not self._taken("}"):
            if self._peek.text == "option":
                self._pass_over()
            elif not self._taken(";"):
                self._field(it, scope)
                it.field[-1].oneof_index = index

    def _field(self, it: descriptor_pb2.DescriptorProto, scope: str) -> None:
        field = it.field.add(label=Field.LABEL_OPTIONAL)
        if self._peek.text in LABELS and self._ahead(1).kind == "name":
            label = self._take().text
            field.label = LABELS[label]
            field.proto3_optional = label == "optional" and self._file.syntax == "proto3"
        token = self._peek
        self._typed(field, self._name())
        if token.text == "group":
            raise self._wrong(token, "groups are not read here; give a descriptor set")
        self._named(field)

    def _named(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        """` name = number [options];`"""
        field.name = self._name()
        self._expect("=")
        field.number = self._number()
        if self._taken("["):
            self._options(field)
        self._expect(";")

    def _typed(self, field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
        if kind in SCALARS:
            field.type = SCALARS[kind]
        else:
            field.type_name = kind

    def _map(self, it: descriptor_pb2.DescriptorProto, scope: str) -> None:
        """A map is a repeated message with a key and a value."""
        self._take()
        self._expect("<")
        entry = it.nested_type.add()
        entry.options.map_entry = True
        self._typed(entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL), self._name())
        self._expect(",")
        value = entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
        self._typed(value, self._name())
        self._expect(">")
        field = it.field.add(label=Field.LABEL_REPEATED, type=Field.TYPE_MESSAGE)
        self._named(field)
        words = field.name.split("_")
        entry.name = "".join(word[:1].upper() + word[1:] for word in words) + "Entry"
        field.type_name = f".{scope.lstrip('.')}.{entry.name}"

    def _options(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        """`default` is the only option that says something about values."""
        depth = 1
        while depth:
            token = self._take()
            if token.kind == "end":
                raise self._wrong(token, "a '[' is never closed")
            depth += token.text in "[{" and token.kind == "mark"
            depth -= token.text in "]}" and token.kind == "mark"
            if depth == 1 and token.text == "default" and self._taken("="):
                sign = self._take().text if self._peek.text in ("-", "+") else ""
                value = self._take()
                field.default_value = sign + (
                    _unquoted(value.text) if value.kind == "text" else value.text
                )

    def _enum(self, it: descriptor_pb2.EnumDescriptorProto) -> None:
        it.name = self._name()
        self._expect("{")
        while not self._taken("}"):
            token = self._peek
            if token.text == "option" and self._ahead(1).text == "allow_alias":
                it.options.allow_alias = self._ahead(3).text == "true"
            if token.text in ("option", "reserved") and self._ahead(1).text != "=":
                self._pass_over()
            elif not self._taken(";"):
                value = it.value.add(name=self._name())
                self._expect("=")
                value.number = self._number()
                if self._taken("["):
                    self._options(Field())
                self._expect(";")

    def _pass_over(self) -> None:
        """To the end of a statement: its semicolon, or the brace that closes its block."""
        depth = 0
        while True:
            token = self._take()
            if token.kind == "end":
                raise self._wrong(token, "a statement has no end")
            if token.kind != "mark":
                continue
            depth += token.text == "{"
            depth -= token.text == "}"
            if depth == 0 and token.text in ";}":
                return

    @property
    def _peek(self) -> Token:
        return self._ahead(0)

    def _ahead(self, by: int) -> Token:
        return self._tokens[min(self._next + by, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._peek
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _taken(self, mark: str) -> bool:
        found = self._peek.kind == "mark" and self._peek.text == mark
        self._next += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._taken(mark):
            raise self._wrong(self._peek, f"{self._peek.text!r} where {mark!r} should be")

    def _name(self) -> str:
        token = self._take()
        if token.kind != "name":
            raise self._wrong(token, f"{token.text!r} where a name should be")
        return token.text

    def _string(self) -> str:
        token = self._take()
        if token.kind != "text":
            raise self._wrong(token, f"{token.text!r} where a quoted text should be")
        return _unquoted(token.text)

    def _number(self) -> int:
        token = self._take()
        sign = -1 if token.text == "-" else 1
        if token.text == "-":
            token = self._take()
        try:
            text = token.text
            octal = re.fullmatch(r"[+-]?0[0-7]+", text)
            number = sign * int(text, 8 if octal else 0)
        except ValueError:
            raise self._wrong(token, f"{token.text!r} where a number should be") from None
        if not -(1 << 31) <= number < 1 << 31:
            raise self._wrong(token, f"{number} is too large")
        return number

    def _wrong(self, token: Token, why: str) -> FormatError:
        return FormatError(f"{self._file.name}, line {token.line}: {why}")


def _unquoted(text: str) -> str:
    """A quoted text's content; protobuf's escapes are Python's, but for the octal ones' length."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError) as error:
        raise FormatError(f"{text} is no text that can be read: {error}") from error
