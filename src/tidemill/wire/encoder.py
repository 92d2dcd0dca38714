"""Writes the source of a function that encodes one message in one version.

The generated function is `encode(m, parts, large)`: it appends pieces of the message to the list
`parts`, and calls `large` with the index of each piece that is big enough to be sent uncopied. It
contains no call per field: neighbouring fields of fixed size, and the size of what follows them,
are packed by one struct format (a "run"), and nested structs are unfolded into loops.

It does not check types either. A wrong value makes a pack, a join or an attribute access fail, and
then `tidemill.wire.explain` finds out which field it was.
"""

from __future__ import annotations

from typing import Any, cast

from tidemill.wire import primitives
from tidemill.wire.declare import EMPTY_ARRAY, FieldSpec
from tidemill.wire.plan import FIXED, FieldPlan, StructPlan
from tidemill.wire.source import SourceWriter

UNCOPIED_BYTES_MIN = 4096
"""Records of this size and more are passed on as they are; below, copying is cheaper.

Such a piece need only have a length: a broker may put in a reference to stored records, and read
them while it sends.
"""

_HELPERS: dict[str, Any] = {
    "BYTE": primitives.BYTE,
    "varint": primitives.write_varint,
    "string_size": primitives.write_string_size,
    "tagged": primitives.write_tag,
    "not_in_version": primitives.not_in_version,
    **{f"write_{kind}s": write for kind, (write, _) in primitives.NUMBER_ARRAYS.items()},
}


def encoder_source(plan: StructPlan) -> tuple[str, dict[str, Any]]:
    """The source of `encode` and the scope to run it in."""
    return _Encoder(plan).build()


class _Encoder:
    """Walks a plan and writes lines; `_run` holds what waits for the next pack."""

    def __init__(self, plan: StructPlan) -> None:
        self._plan = plan
        self._src = SourceWriter(dict(_HELPERS))
        self._run: list[tuple[str, str]] = []
        self._out = "out"

    def build(self) -> tuple[str, dict[str, Any]]:
        with self._src.block("def encode(m, parts, large):"):
            self._src.line("out = parts.append")
            self._struct(self._plan, "m")
            self._flush()
        return self._src.text(), self._src.scope

    # -- runs ------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write out what waits: one pack for all of it."""
        if not self._run:
            return
        letters = "".join(letter for letter, _ in self._run)
        values = [value for _, value in self._run if value]
        self._run = []
        if not values:
            self._src.line(f"{self._out}({bytes(len(letters))!r})")
            return
        pack = self._src.format_method(letters, "pack")
        self._src.line(f"{self._out}({pack}({', '.join(values)}))")

    def _compact_size(self, size: str, slow: str = "varint") -> None:
        """A compact size at the end of the run: one byte nearly always, and packed with the run."""
        if not self._run:
            self._src.line(f"{self._out}(BYTE[{size}] if {size} < 128 else {slow}({size}))")
            return
        waiting = tuple(self._run)
        with self._src.block(f"if {size} < 128:"):
            self._run = [*waiting, ("B", size)]
            self._flush()
        with self._src.block("else:"):
            self._run = [*waiting]
            self._flush()
            self._src.line(f"{self._out}({slow}({size}))")

    # -- structs ---------------------------------------------------------------------------------

    def _struct(self, plan: StructPlan, obj: str) -> None:
        for spec in plan.absent:
            if not spec.ignorable:
                self._refuse_absent(plan, spec, obj)
        for field in plan.fields:
            self._field(field, f"{obj}.{field.name}")
        if not plan.flexible:
            return
        if plan.tagged:
            self._tags(plan, obj)
        else:
            self._run.append(("x", ""))

    def _refuse_absent(self, plan: StructPlan, spec: FieldSpec, obj: str) -> None:
        value = f"{obj}.{spec.name}"
        with self._src.block(f"if {self._differs(spec, value)}:"):
            label = f"{plan.label}.{spec.name}"
            self._src.line(f"raise not_in_version({label!r}, {plan.version}, {value})")

    def _differs(self, spec: FieldSpec, value: str) -> str:
        """An expression that is true if a field has another value than its default."""
        if spec.default is None:
            return f"{value} is not None"
        if spec.default is EMPTY_ARRAY or spec.default == "" or spec.default is False:
            return value
        if spec.kind == "uuid":
            return f"{value}.int"
        if isinstance(spec.default, int):
            return f"{value} != {spec.default}"
        default = self._src.constant(f"DEFAULT_{spec.name}", spec.make_default())
        return f"{value} != {default}"

    def _tags(self, plan: StructPlan, obj: str) -> None:
        """Tagged fields, if any of them is set; nearly always there is just a zero."""
        tests = [
            "True" if _null_is_sent(field) else self._differs(field.spec, f"{obj}.{field.name}")
            for field in plan.tagged
        ]
        waiting = tuple(self._run)
        with self._src.block(f"if {' or '.join(tests)}:"):
            self._flush()
            tags = self._src.name("tags")
            self._src.line(f"{tags} = []")
            for field, test in zip(plan.tagged, tests, strict=True):
                with self._src.block(f"if {test}:"):
                    self._tag(field, f"{obj}.{field.name}", tags)
            self._src.line(f"{self._out}(varint(len({tags})))")
            self._src.line(f"{self._out}(b''.join({tags}))")
        with self._src.block("else:"):
            self._run = [*waiting, ("x", "")]
            self._flush()

    def _tag(self, field: FieldPlan, value: str, tags: str) -> None:
        """One tagged field, encoded aside because its size comes first."""
        outer, self._out = self._out, self._src.name("out")
        parts = self._src.name("parts")
        self._src.line(f"{parts} = []")
        self._src.line(f"{self._out} = {parts}.append")
        self._field(field, value)
        self._flush()
        self._src.line(f"{tags}.append(tagged({field.spec.tag}, {parts}))")
        self._out = outer

    # -- fields ----------------------------------------------------------------------------------

    def _field(self, field: FieldPlan, value: str) -> None:
        kind = field.spec.kind
        if kind in FIXED:
            self._run.append((FIXED[kind][0], _fixed_value(kind, value)))
        elif kind == "string":
            self._string(field, value)
        elif kind in ("bytes", "records"):
            self._bytes(field, value)
        elif kind == "array":
            self._array(field, value)
        elif field.nullable:
            self._nullable_struct(field, value)
        else:
            self._struct(cast(StructPlan, field.struct), self._local(value, "s"))

    def _local(self, value: str, stem: str) -> str:
        name = self._src.name(stem)
        self._src.line(f"{name} = {value}")
        return name

    def _string(self, field: FieldPlan, value: str) -> None:
        data, size = self._src.name("b"), self._src.name("n")
        plus = " + 1" if field.flexible else ""
        if field.nullable:
            value = self._local(value, "v")
            with self._src.block(f"if {value} is None:"):
                self._src.line(f"{data} = b''")
                self._src.line(f"{size} = {0 if field.flexible else -1}")
            with self._src.block("else:"):
                self._src.line(f"{data} = {value}.encode()")
                self._src.line(f"{size} = len({data}){plus}")
        else:
            self._src.line(f"{data} = {value}.encode()")
            self._src.line(f"{size} = len({data}){plus}")
        if field.flexible:
            self._compact_size(size, "string_size")
        else:
            self._run.append(("h", size))
            self._flush()
        self._src.line(f"{self._out}({data})")

    def _bytes(self, field: FieldPlan, value: str) -> None:
        data = self._local(value, "b")
        size = self._size(field, data)
        if field.spec.kind == "records":
            with self._src.block(f"if {size} >= {UNCOPIED_BYTES_MIN + field.flexible}:"):
                with self._src.block(f"if {data}.__class__ is str:"):
                    self._src.line("raise TypeError")
                self._src.line("large(len(parts))")
        with self._src.block(f"if {data}:"):
            self._src.line(f"{self._out}({data})")

    def _size(self, field: FieldPlan, data: str) -> str:
        """Write the size of bytes or of an array, null included; four bytes unless compact."""
        size = self._src.name("n")
        plus, null = (" + 1", 0) if field.flexible else ("", -1)
        if field.nullable:
            self._src.line(f"{size} = {null} if {data} is None else len({data}){plus}")
        else:
            self._src.line(f"{size} = len({data}){plus}")
        if field.flexible:
            self._compact_size(size)
        else:
            self._run.append(("i", size))
            self._flush()
        return size

    def _array(self, field: FieldPlan, value: str) -> None:
        items = self._local(value, "v")
        self._size(field, items)
        element = field.spec.element
        if isinstance(element, str) and element != "string":
            with self._src.block(f"if {items}:"):
                self._src.line(f"{self._out}(write_{element}s({items}))")
            return
        item = self._src.name("e")
        with self._src.block(f"for {item} in {items}{' or ()' if field.nullable else ''}:"):
            if field.struct is not None:
                self._struct(field.struct, item)
            else:
                self._string(_string_element(field), item)
            self._flush()

    def _nullable_struct(self, field: FieldPlan, value: str) -> None:
        """One byte says whether the struct is there."""
        item = self._local(value, "s")
        waiting = tuple(self._run)
        with self._src.block(f"if {item} is None:"):
            self._run = [*waiting, ("b", "-1" if field.spec.tag is None else "0")]
            self._flush()
        with self._src.block("else:"):
            self._run = [*waiting, ("b", "1")]
            self._struct(cast(StructPlan, field.struct), item)
            self._flush()


def _null_is_sent(field: FieldPlan) -> bool:
    return field.spec.kind == "struct" and field.nullable


def _fixed_value(kind: str, value: str) -> str:
    return f"{value}.int.to_bytes(16, 'big')" if kind == "uuid" else value


def _string_element(field: FieldPlan) -> FieldPlan:
    """An array's strings as if each were a field; they are never null."""
    spec = FieldSpec("string", "0+", "", False, None)
    return FieldPlan(spec=spec, nullable=False, flexible=field.flexible, struct=None)
