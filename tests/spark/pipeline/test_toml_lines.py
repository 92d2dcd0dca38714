"""Every key of a TOML text has its line, in whatever notation it is written."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.spark.pipeline.keys import Path
from tidemill.spark.pipeline.toml_lines import TomlError, lines_of, read


def test_tables_keys_lists_and_inline_tables() -> None:
    text = """\
# a comment with [brackets] and = signs
name = "x"   # and another

[a.b]
c = 1
"quoted key" = [1, [2,
  3],
  { d = 4 }]

[[a.list]]
e = 5
[[a.list]]
e.f = { g = "}", h = '#' }
[a.list.inner]
i = 2026-11-15T00:00:00Z
"""
    lines = lines_of(text)
    assert lines[("name",)] == 2
    assert lines[("a", "b")] == 4
    assert lines[("a", "b", "c")] == 5
    assert lines[("a", "b", "quoted key")] == 6
    assert lines[("a", "b", "quoted key", 1, 1)] == 7
    assert lines[("a", "b", "quoted key", 2, "d")] == 8
    assert lines[("a", "list", 0)] == 10
    assert lines[("a", "list", 0, "e")] == 11
    assert lines[("a", "list", 1)] == 12
    assert lines[("a", "list", 1, "e", "f", "h")] == 13
    assert lines[("a", "list", 1, "inner", "i")] == 15


def test_strings_over_several_lines_hide_nothing() -> None:
    text = 'a = """\nb = 1\n\\""" still\n"""\nc = \'\'\'\n[d]\n\'\'\'\ne = "\\"f = 2"\ng = 3\n'
    assert lines_of(text) == {("a",): 1, ("c",): 5, ("e",): 8, ("g",): 9}


def test_a_mistake_in_the_notation_has_its_line() -> None:
    with pytest.raises(TomlError) as caught:
        read('a = 1\nb = "never closed\nc = 2\n')
    assert caught.value.line == 2
    with pytest.raises(TomlError) as caught:
        read("a = 1\n[b\n")
    assert caught.value.line == 2
    assert "line" not in caught.value.message


NAMES = st.text("abcXYZ019_- .é\"'", min_size=1, max_size=6)
SCALARS = st.one_of(st.integers(-9, 9), st.booleans(), st.text("ab\"'\\\n#[]{}=,. é", max_size=12))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.integers(0, 2))
def test_what_is_in_the_file_has_a_line_and_the_line_has_it(
    content: dict[str, Any], blank_lines: int
) -> None:
    """Written with tomlkit, which nests inline: each key is found, in a line that shows it."""
    import tomlkit

    document = tomlkit.document()
    for name, value in content.items():
        document.add(tomlkit.key(name), tomlkit.item(value))
    text = "\n" * blank_lines + tomlkit.dumps(document)
    assert tomllib.loads(text) == content
    lines = lines_of(text)
    assert set(lines) == set(paths_of(content, ()))
    for path, line in lines.items():
        assert 1 <= line <= text.count("\n") + 1, path


def paths_of(value: Any, at: Path) -> list[Path]:
    found: list[Path] = [at] if at else []
    if isinstance(value, dict):
        for name, inner in value.items():
            found += paths_of(inner, (*at, name))
    if isinstance(value, list):
        for number, inner in enumerate(value):
            found += paths_of(inner, (*at, number))
    return found
