"""The `%` formats, without a cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli import formats
from tidemill.cli.exits import CommandError
from tidemill.client import ConsumerRecord


def record(
    key: bytes | None = b"k1",
    value: bytes | None = b"v1",
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> ConsumerRecord:
    return ConsumerRecord("clicks", 3, 42, 1_794_700_800_000, 0, key, value, headers, 7)


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("%t %p %o %k %v\\n", b"clicks 3 42 k1 v1\n"),
        ("%s", b"v1"),
        ("%K %S %V", b"2 2 2"),
        ("%T", b"1794700800000"),
        ("%d{strftime[%Y-%m-%d]}", b"2026-11-15"),
        ("%d{%H:%M}", b"00:00"),
        ("%d", b"2026-11-15T00:00:00"),
        ("%v{hex}/%k{base64}/%v{json}", b'7631/azE=/"v1"'),
        ("100%% %n %e", b"100% 9 7"),
        ("%h", b"a=1,b=NULL"),
        ("\\t\\x41\\\\", b"\tA\\"),
        ("plain", b"plain"),
    ],
)
def test_verb(template: str, printed: bytes) -> None:
    one = record(headers=(("a", b"1"), ("b", None)))
    assert formats.compile_format(template)(one, 9) == printed


def test_null_is_empty_and_has_length_minus_one() -> None:
    assert formats.compile_format("[%k|%v|%K|%S]")(record(None, None), 1) == b"[||-1|-1]"


@pytest.mark.parametrize("template", ["%y", "%v{octal}"])
def test_unknown_verbs_are_refused(template: str) -> None:
    with pytest.raises(CommandError):
        formats.compile_format(template)


@given(key=st.none() | st.binary(), value=st.none() | st.binary())
def test_a_json_line_loses_nothing(key: bytes | None, value: bytes | None) -> None:
    """What `consume` prints, `produce --json` sends again."""
    from tidemill.cli.produce import Shape

    line = formats.json_line(record(key, value, (("h", value),)), 1)
    assert line.count(b"\n") == 1
    shape = Shape(None, None, (), tombstones=False, as_json=True, partition=None)
    again = shape.record(line, 1)
    assert (again["key"], again["value"]) == (key, value)
    assert again["headers"] == (("h", value),)
    assert again["timestamp_ms"] == json.loads(line)["timestamp"]


@given(key=st.none() | st.binary(), value=st.none() | st.binary())
def test_a_pretty_line_is_one_printable_line(key: bytes | None, value: bytes | None) -> None:
    text = formats.pretty_line(record(key, value), 1).decode()
    assert text.endswith("\n")
    assert text[:-1].isprintable()
