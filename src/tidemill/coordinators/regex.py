r"""Regular expressions for topic names that match in time linear in the name.

A pattern comes from any client and runs inside the broker, so it must never backtrack: Python's
`re` can be made to run for hours by a short pattern. This is the dialect of RE2 that topic names
need - literals, `.`, classes, `\d \w \s`, groups, `|`, `* + ? {m,n}` (lazy or not), `^ $`, `(?i)` -
turned into states that are all followed at once. Which states follow which by a character is
remembered, so a second name costs one look-up per character. What RE2 refuses, such as
back-references and look-around, is refused here.

Start at `compile_regex`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PATTERN_CHARS_MAX = 1_024
STATES_MAX = 10_000
REPEAT_MAX = 1_000
REMEMBERED_MAX = 2_000
DEPTH_MAX = 50

_Test = Callable[[str], bool]


class RegexError(ValueError):
    """The pattern is not one that we take; the message says where and why."""


class _Node:
    """One state: it is left by a character that passes `test`, or freely along `free`."""

    __slots__ = ("at_end", "at_start", "free", "next", "test")

    def __init__(self) -> None:
        self.test: _Test | None = None
        self.next: _Node | None = None
        self.free: list[_Node] = []
        self.at_start = False
        self.at_end = False


class _Piece(NamedTuple):
    """A part of the pattern: where it begins and where it ends."""

    first: _Node
    last: _Node


_States = frozenset[_Node]


class Regex:
    """A compiled pattern; `fullmatch` says whether it describes the whole of a text."""

    def __init__(self, pattern: str, whole: _Piece) -> None:
        self.pattern = pattern
        self._start = _closure({whole.first}, at_start=True)
        self._last = whole.last
        self._steps: dict[tuple[_States, str], _States] = {}

    def fullmatch(self, text: str) -> bool:
        states = self._start
        for char in text:
            following = self._steps.get((states, char))
            if following is None:
                following = self._step(states, char)
            if not following:
                return False
            states = following
        return self._last in _closure(states, at_start=not text, at_end=True)

    def _step(self, states: _States, char: str) -> _States:
        moved = {n.next for n in states if n.test is not None and n.next and n.test(char)}
        following = _closure(moved)
        if len(self._steps) >= REMEMBERED_MAX:
            self._steps.clear()
        self._steps[states, char] = following
        return following


def _closure(
    nodes: set[_Node] | _States, *, at_start: bool = False, at_end: bool = False
) -> _States:
    """The nodes with all that can be reached from them without a character."""
    found: set[_Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if (node.at_start and not at_start) or (node.at_end and not at_end):
            continue
        waiting += node.free
    return frozenset(found)


def compile_regex(pattern: str) -> Regex:
    """The pattern, ready to match; raises `RegexError` for what is no pattern."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise RegexError(f"it is longer than {PATTERN_CHARS_MAX} characters")
    parser = _Parser(pattern)
    whole = parser.alternatives(0)
    if not parser.at_end:
        raise RegexError(f"unexpected `{parser.peek()}` at position {parser.position}")
    return Regex(pattern, whole)


class _Parser:
    """Recursive descent: alternatives of sequences of repeated atoms."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self.position = 0
        self._ignore_case = False
        self._nodes = 0

    # --- reading ---------------------------------------------------------------------------------

    @property
    def at_end(self) -> bool:
        return self.position >= len(self._text)

    def peek(self) -> str:
        return self._text[self.position] if not self.at_end else ""

    def _take(self) -> str:
        if self.at_end:
            raise RegexError("unexpected end of expression")
        self.position += 1
        return self._text[self.position - 1]

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    # --- grammar ---------------------------------------------------------------------------------

    def alternatives(self, depth: int) -> _Piece:
        if depth > DEPTH_MAX:
            raise RegexError(f"groups are nested more than {DEPTH_MAX} deep")
        before = self._ignore_case
        pieces = [self._sequence(depth)]
        while self._accept("|"):
            pieces.append(self._sequence(depth))
        self._ignore_case = before
        return pieces[0] if len(pieces) == 1 else self._either(pieces)

    def _sequence(self, depth: int) -> _Piece:
        node = self._node()
        whole = _Piece(node, node)
        while not self.at_end and self.peek() not in "|)":
            begin = self.position
            piece = self._atom(depth)
            end, ignore_case = self.position, self._ignore_case
            piece = self._repeated(piece, begin, end, depth, ignore_case)
            whole.last.free.append(piece.first)
            whole = _Piece(whole.first, piece.last)
        return whole

    def _atom(self, depth: int) -> _Piece:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._one(self._class())
        if char == ".":
            return self._one(lambda c: c != "\n")
        if char == "\\":
            return self._escape()
        if char in "*+?":
            raise RegexError(f"missing argument to repetition operator: `{char}`")
        if char in "^$":
            return self._anchor(at_start=char == "^")
        return self._one(self._literal(char))

    def _group(self, depth: int) -> _Piece:
        if self._accept("?"):
            if self._accept("P<") or (self.peek() == "<" and self._named()):
                self._name()
            elif not self._flags():
                return self._empty()
        piece = self.alternatives(depth + 1)
        if not self._accept(")"):
            raise RegexError("missing closing )")
        return piece

    def _named(self) -> bool:
        """`(?<name>` is a group, `(?<=` and `(?<!` look behind."""
        following = self._text[self.position + 1 : self.position + 2]
        if following in ("=", "!", ""):
            raise RegexError("invalid or unsupported Perl syntax: look-around")
        self.position += 1
        return True

    def _name(self) -> None:
        while self._take() != ">":
            pass

    def _flags(self) -> bool:
        """Flags after `(?`: True if a group follows, False if they hold for what comes next."""
        turn_on = True
        while True:
            char = self._take()
            if char in ":)":
                return char == ":"
            if char == "-":
                turn_on = False
            elif char == "i":
                self._ignore_case = turn_on
            elif char not in "sU":
                raise RegexError(f"invalid or unsupported Perl syntax: `(?{char}`")

    def _repeated(
        self, piece: _Piece, begin: int, end: int, depth: int, ignore_case: bool
    ) -> _Piece:
        bounds = self._bounds()
        if bounds is None:
            return piece
        self._accept("?")  # Lazy or not: whether the whole name matches is the same.
        if self.peek() in ("*", "+"):
            raise RegexError(f"invalid nested repetition operator: `{self.peek()}`")
        low, high = bounds
        after = self.position
        copies = [piece]
        for _ in range(max(low, high or 1, 1) - 1):
            self.position, self._ignore_case = begin, ignore_case
            copies.append(self._atom(depth))
        self.position = after
        return self._chain(copies, low, high)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(sign):
                return bounds
        return self._braces() if self.peek() == "{" else None

    def _braces(self) -> tuple[int, int | None] | None:
        """`{m}`, `{m,}`, `{m,n}`; anything else is a brace and nothing more."""
        close = self._text.find("}", self.position)
        low, comma, high = self._text[self.position + 1 : close].partition(",")
        numbers = low.isdecimal() and (high.isdecimal() or not high)
        if close < 0 or not numbers or not (low + high).isascii():
            return None
        self.position = close + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise RegexError(f"a repetition must be in order and at most {REPEAT_MAX}")
        return least, most

    def _chain(self, copies: list[_Piece], low: int, high: int | None) -> _Piece:
        """The copies one after the other; those beyond `low` may be skipped, the last may loop."""
        if high == 0:
            return self._empty()
        first, last = self._node(), self._node()
        here = first
        for number, copy in enumerate(copies):
            if number >= low:
                here.free.append(last)
            here.free.append(copy.first)
            here = copy.last
        if high is None:
            here.free.append(copies[-1].first)
        here.free.append(last)
        return _Piece(first, last)

    # --- atoms -----------------------------------------------------------------------------------

    def _escape(self) -> _Piece:
        char = self._take()
        if char in "Az":
            return self._anchor(at_start=char == "A")
        return self._one(self._escaped(char))

    def _escaped(self, char: str) -> _Test:
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return self._literal(_CONTROLS[char])
        if char == "x":
            return self._literal(self._hex())
        if char.isalnum():
            raise RegexError(f"invalid escape sequence: `\\{char}`")
        return self._literal(char)

    def _hex(self) -> str:
        digits = self._text[self.position : self.position + 2]
        try:
            code = int(digits, 16)
        except ValueError:
            raise RegexError("`\\x` needs two hexadecimal digits") from None
        self.position += 2
        return chr(code)

    def _class(self) -> _Test:
        inverted = self._accept("^")
        tests: list[_Test] = []
        first = True
        while first or self.peek() != "]":
            first = False
            tests.append(self._class_item())
        self._take()
        return lambda c: any(test(c) for test in tests) != inverted

    def _class_item(self) -> _Test:
        char = self._take()
        if char == "[" and self.peek() == ":":
            raise RegexError("`[:name:]` is not supported; write the range")
        if char == "\\":
            char = self._take()
            if char in _CLASSES:
                return _CLASSES[char]
            char = _CONTROLS.get(char) or (self._hex() if char == "x" else char)
        following = self._text[self.position + 1 : self.position + 2]
        if self.peek() != "-" or following in ("]", ""):
            return self._literal(char)
        self._take()
        return self._span(char, self._take())

    def _span(self, low: str, high: str) -> _Test:
        if high == "\\":
            high = self._take()
        if high < low:
            raise RegexError(f"invalid character class range: `{low}-{high}`")
        if self._ignore_case:
            return lambda c: low <= c.lower() <= high or low <= c.upper() <= high
        return lambda c: low <= c <= high

    def _literal(self, char: str) -> _Test:
        if self._ignore_case:
            folded = char.lower()
            return lambda c: c.lower() == folded
        return lambda c: c == char

    # --- pieces ----------------------------------------------------------------------------------

    def _node(self) -> _Node:
        self._nodes += 1
        if self._nodes > STATES_MAX:
            raise RegexError(f"it needs more than {STATES_MAX} states")
        return _Node()

    def _one(self, test: _Test) -> _Piece:
        first, last = self._node(), self._node()
        first.test, first.next = test, last
        return _Piece(first, last)

    def _empty(self) -> _Piece:
        node = self._node()
        return _Piece(node, node)

    def _anchor(self, *, at_start: bool) -> _Piece:
        node, after = self._node(), self._node()
        node.at_start, node.at_end = at_start, not at_start
        node.free.append(after)
        return _Piece(node, after)

    def _either(self, pieces: list[_Piece]) -> _Piece:
        first, last = self._node(), self._node()
        for piece in pieces:
            first.free.append(piece.first)
            piece.last.free.append(last)
        return _Piece(first, last)


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


_CLASSES: dict[str, _Test] = {
    "d": lambda c: "0" <= c <= "9",
    "D": lambda c: not "0" <= c <= "9",
    "w": _is_word,
    "W": lambda c: not _is_word(c),
    "s": lambda c: c in " \t\n\r\f\v",
    "S": lambda c: c not in " \t\n\r\f\v",
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
