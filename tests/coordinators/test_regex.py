"""Patterns of topic names: Python's answers without Python's backtracking, RE2's refusals."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinators.regex import PROGRAM_MAX, RegexError, compile_regex

PATTERNS = [
    "", "a", "a.*", ".*", "clicks|orders", "(a|b)+c", "[a-c]{2,3}", "[^a]b?", "x{0}y", "a{2}",
    "a{1,}b", r"\d+\.\w*", "^abc$", "(?:ab)*", "(?i)Ab[C-D]", "a|", "(a*)*b", "a+?b*?", r"a\.b",
    "[]a]", "[a-]", "(?P<n>ab)c", "a$b", "(a|ab)(c|bcd)", "x{a}", "[0-9_-]+", "((a))", "(^a)+",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text("abcdxyABCD01._-]{}", max_size=8))
def test_it_agrees_with_python(pattern: str, text: str) -> None:
    assert compile_regex(pattern).fullmatch(text) == (re.fullmatch(pattern, text) is not None)


@given(pattern=st.text("ab()|*+?.[]^${}12,-", max_size=10), text=st.text("ab1", max_size=6))
def test_whatever_it_takes_means_what_it_means_to_python(pattern: str, text: str) -> None:
    try:
        ours = compile_regex(pattern)
    except RegexError:
        return
    try:
        theirs = re.compile(pattern)
    except re.error:
        return
    except FutureWarning:
        return
    assert ours.fullmatch(text) == (theirs.fullmatch(text) is not None)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "*a", "a**", "[a", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b", "a{3,2}", "a{2000}",
     "\\", "[b-a]", "((((a{500}){500})))", "x" * 2000, "(?<", "(?", "(?P<n"],
)  # fmt: skip
def test_what_re2_would_refuse_is_refused(pattern: str) -> None:
    with pytest.raises(RegexError):
        compile_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing closing )"),
        ("*a", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("[a", "missing closing ]"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("a{2000}", "invalid repeat count"),
        ("\\", "trailing backslash at end of expression"),
    ],
)
def test_the_reason_is_in_kafkas_words(pattern: str, reason: str) -> None:
    with pytest.raises(RegexError) as refused:
        compile_regex(pattern)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("[[:alpha:]]+", "orders"), (r"\Qa.b\E", "a.b"), (r"\pL+", "orders"), ("(?<n>a)b", "ab"),
     ("(?s)a.*", "a.b"), ("(?m)^a$", "a"), (r"a\b.*", "a.b"), ("(" * 99 + "a" + ")" * 99, "a")],
)  # fmt: skip
def test_what_kafka_takes_is_taken(pattern: str, name: str) -> None:
    assert compile_regex(pattern).fullmatch(name)


MANY = "".join(chr(0x4E00 + i) for i in range(990))


@pytest.mark.parametrize("pattern", [f"([^{MANY}]?){{999}}", "(.?){900}.*", f"[{MANY}]{{900}}"])
def test_a_pattern_that_is_too_large_is_refused_at_once(pattern: str) -> None:
    began = time.monotonic()
    with pytest.raises(RegexError, match=f"more than {PROGRAM_MAX} instructions; use fewer"):
        compile_regex(pattern)
    assert time.monotonic() - began < 1


def test_a_pattern_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(RegexError, match="not valid Unicode"):
        compile_regex("a\udc80")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "(a|aa)+c", "(a?){30}a{30}b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """Each of these keeps a backtracking matcher busy for longer than a human life."""
    regex = compile_regex(pattern)
    began = time.monotonic()
    for _ in range(20):
        assert not regex.fullmatch("a" * 248 + "!")
    assert time.monotonic() - began < 5
