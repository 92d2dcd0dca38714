"""Writes the source of a function that decodes one message of one version.

The generated function is `decode(buf, view, pos, end, left)`: it reads from `buf`, which has `end`
bytes, and returns the message and the position behind it. `view` is a memoryview of `buf` from
which records are sliced. As in the encoder, neighbouring fields of fixed size are one unpack,
the size of what follows them included, and structs are unfolded into loops.

Nothing that the sender claims is believed: a size is compared with the bytes that are left before
it is used, an array's count is multiplied by the fewest bytes that an element takes, and `left` is
a budget of elements and tags for the whole message. Running off the end raises IndexError or
struct.error, which `tidemill.wire.codec` turns into WireError.
"""

from __future__ import annotations

from typing import Any, cast

from tidemill.wire import primitives
from tidemill.wire.declare import EMPTY_ARRAY, NEW_STRUCT, FieldSpec
from tidemill.wire.plan import FIXED, FieldPlan, StructPlan
from tidemill.wire.source import SourceWriter

_HELPERS: dict[str, Any] = {
    "new": object.__new__,
    "varint": primitives.read_varint,
    "varint_rest": primitives.read_varint_rest,
    "string_size_rest": primitives.read_string_size_rest,
    "skip_tags": primitives.skip_tags,
    "to_uuid": primitives.read_uuid,
    "bad_size": primitives.bad_size,
    "too_many": primitives.too_many,
    "bad_tag": primitives.bad_tag,
    **{f"read_{kind}s": read for kind, (_, read) in primitives.NUMBER_ARRAYS.items()},
}


def decoder_source(plan: StructPlan) -> tuple[str, dict[str, Any]]:
    """The source of `decode` and the scope to run it in."""
    return _Decoder(plan).build()


class _Decoder:
    """Walks a plan and writes lines; `_run` holds the variables that the next unpack will fill."""

    def __init__(self, plan: StructPlan) -> None:
        self._plan = plan
        self._src = SourceWriter(dict(_HELPERS))
        self._run: list[tuple[str, int, str]] = []
        self._uuids: list[str] = []

    def build(self) -> tuple[str, dict[str, Any]]:
        with self._src.block("def decode(buf, view, pos, end, left):"):
            message = self._struct(self._plan)
            self._src.line(f"return {message}, pos")
        return self._src.text(), self._src.scope

    # -- runs ------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Read what waits: one unpack for all of it."""
        if self._run:
            letters = "".join(letter for letter, _, _ in self._run)
            targets = ", ".join(target for _, _, target in self._run)
            unpack = self._src.format_method(letters, "unpack_from")
            self._src.line(f"{targets}, = {unpack}(buf, pos)")
            self._src.line(f"pos += {sum(size for _, size, _ in self._run)}")
        for name in self._uuids:
            self._src.line(f"{name} = to_uuid({name})")
        self._run = []
        self._uuids = []

    def _byte(self, stem: str) -> str:
        """Read the run and one byte behind it, which may be the first one of a varint."""
        name = self._src.name(stem)
        if self._run:
            self._run.append(("B", 1, name))
            self._flush()
        else:
            self._src.line(f"{name} = buf[pos]")
            self._src.line("pos += 1")
        return name

    def _number(self, letter: str, size: int) -> str:
        name = self._src.name("n")
        self._run.append((letter, size, name))
        self._flush()
        return name

    def _size(self, kind: str, flexible: bool) -> str:
        """A size or a count, still increased by one if it is compact."""
        if not flexible:
            return self._number("h", 2) if kind == "string" else self._number("i", 4)
        size = self._byte("n")
        rest = "string_size_rest" if kind == "string" else "varint_rest"
        with self._src.block(f"if {size} > 127:"):
            self._src.line(f"{size}, pos = {rest}(buf, pos, {size})")
        return size

    # -- structs ---------------------------------------------------------------------------------

    def _struct(self, plan: StructPlan) -> str:
        """Read a struct; returns the variable that holds the object."""
        values: dict[str, str] = {spec.name: self._default(spec) for spec in plan.absent}
        for field in plan.fields:
            values[field.name] = self._field(field, plan)
        if plan.flexible:
            values |= self._tags(plan)
        self._flush()
        obj = self._src.name("o")
        cls = self._src.constant(plan.cls.__name__, plan.cls)
        self._src.line(f"{obj} = new({cls})")
        for spec in plan.cls.FIELDS:
            self._src.line(f"{obj}.{spec.name} = {values[spec.name]}")
        return obj

    def _default(self, spec: FieldSpec) -> str:
        if spec.default is EMPTY_ARRAY:
            return "[]"
        if spec.default is NEW_STRUCT:
            return f"{self._src.constant(f'make_{spec.name}', spec.element)}()"
        if spec.kind == "uuid":
            return self._src.constant("ZERO_UUID", spec.default)
        return repr(spec.default)

    def _tags(self, plan: StructPlan) -> dict[str, str]:
        """Tagged fields; returns the variables of those that the version knows."""
        count = self._byte("t")
        if not plan.tagged:
            with self._src.block(f"if {count}:"):
                self._src.line(f"pos, left = skip_tags(buf, pos, end, left, {count})")
            return {}
        values = {field.name: self._src.name("x") for field in plan.tagged}
        for field in plan.tagged:
            self._src.line(f"{values[field.name]} = {self._default(field.spec)}")
        with self._src.block(f"if {count}:"):
            with self._src.block(f"if {count} > 127:"):
                self._src.line(f"{count}, pos = varint_rest(buf, pos, {count})")
            self._check_count(f"{plan.label}'s tags", count, 2)
            with self._src.block(f"for _ in range({count}):"):
                self._tag_entry(plan, values)
        return values

    def _tag_entry(self, plan: StructPlan, values: dict[str, str]) -> None:
        tag, size, stop = (self._src.name(stem) for stem in ("tag", "size", "stop"))
        self._src.line(f"{tag}, pos = varint(buf, pos)")
        self._src.line(f"{size}, pos = varint(buf, pos)")
        self._src.line(f"{stop} = pos + {size}")
        with self._src.block(f"if {stop} > end:"):
            self._src.line(f"raise bad_size({f'a tag of {plan.label}'!r}, {size}, end - pos)")
        for field in plan.tagged:
            with self._src.block(f"if {tag} == {field.spec.tag}:"):
                value = self._field(field, plan)
                self._flush()
                self._src.line(f"{values[field.name]} = {value}")
                with self._src.block(f"if pos != {stop}:"):
                    label = f"{plan.label}.{field.name}"
                    self._src.line(f"raise bad_tag({label!r}, {size}, pos + {size} - {stop})")
        self._src.line(f"pos = {stop}")

    # -- fields ----------------------------------------------------------------------------------

    def _field(self, field: FieldPlan, owner: StructPlan) -> str:
        """Read a field; returns the variable that will hold it once the run is flushed."""
        kind, label = field.spec.kind, f"{owner.label}.{field.name}"
        if kind in FIXED:
            name = self._src.name("x")
            self._run.append((*FIXED[kind], name))
            if kind == "uuid":
                self._uuids.append(name)
            return name
        if kind == "array":
            return self._array(field, label)
        if kind != "struct":
            return self._text_or_bytes(kind, field.flexible, field.nullable, label)
        if field.nullable:
            return self._nullable_struct(field)
        return self._struct(cast(StructPlan, field.struct))

    def _text_or_bytes(self, kind: str, flexible: bool, nullable: bool, label: str) -> str:
        size = self._size(kind, flexible)
        value, stop = self._src.name("x"), self._src.name("stop")
        minus = " - 1" if flexible else ""
        is_null = f"{size} == 0" if flexible else f"{size} < 0"
        if nullable:
            with self._src.block(f"if {is_null}:"):
                self._src.line(f"{value} = None")
            with self._src.block("else:"):
                self._cut(kind, value, stop, f"{size}{minus}", label, "")
        else:
            self._cut(kind, value, stop, f"{size}{minus}", label, f"{is_null} or ")
        return value

    def _cut(self, kind: str, value: str, stop: str, size: str, label: str, test: str) -> None:
        """Take `size` bytes out of the buffer, if they are there."""
        self._src.line(f"{stop} = pos + {size}")
        with self._src.block(f"if {test}{stop} > end:"):
            self._src.line(f"raise bad_size({label!r}, {size}, end - pos)")
        cut = {
            "string": f"str(buf[pos:{stop}], 'utf-8')",
            "bytes": f"bytes(view[pos:{stop}])",
            "records": f"view[pos:{stop}]",
        }
        self._src.line(f"{value} = {cut[kind]}")
        self._src.line(f"pos = {stop}")

    def _array(self, field: FieldPlan, label: str) -> str:
        count = self._size("array", field.flexible)
        items = self._src.name("x")
        is_null = f"{count} == 0" if field.flexible else f"{count} < 0"
        if field.nullable:
            with self._src.block(f"if {is_null}:"):
                self._src.line(f"{items} = None")
            with self._src.block("else:"):
                self._elements(field, label, count, items)
        else:
            with self._src.block(f"if {is_null}:"):
                self._src.line(f"raise too_many({label!r}, -1, 0, 0)")
            self._elements(field, label, count, items)
        return items

    def _elements(self, field: FieldPlan, label: str, count: str, items: str) -> None:
        if field.flexible:
            self._src.line(f"{count} -= 1")
        self._check_count(label, count, field.element_bytes_min)
        element = field.spec.element
        if isinstance(element, str) and element != "string":
            self._src.line(f"{items} = read_{element}s(buf, pos, {count})")
            self._src.line(f"pos += {count} * {FIXED[element][1]}")
            return
        self._src.line(f"{items} = []")
        add = self._src.name("add")
        self._src.line(f"{add} = {items}.append")
        with self._src.block(f"for _ in range({count}):"):
            if field.struct is not None:
                value = self._struct(field.struct)
            else:
                value = self._text_or_bytes("string", field.flexible, False, label)
            self._src.line(f"{add}({value})")

    def _check_count(self, label: str, count: str, bytes_min: int) -> None:
        """Refuse a count that the rest of the message cannot hold or that is over the budget."""
        with self._src.block(f"if {count} * {bytes_min} > end - pos or {count} > left:"):
            self._src.line(f"raise too_many({label!r}, {count}, end - pos, left)")
        self._src.line(f"left -= {count}")

    def _nullable_struct(self, field: FieldPlan) -> str:
        present = self._number("b", 1)
        value = self._src.name("x")
        null_max = -1 if field.spec.tag is None else 0
        with self._src.block(f"if {present} <= {null_max}:"):
            self._src.line(f"{value} = None")
        with self._src.block("else:"):
            self._src.line(f"{value} = {self._struct(cast(StructPlan, field.struct))}")
        return value
