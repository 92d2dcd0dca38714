"""Patterns of topic names: Python's answers, without Python's backtracking."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinators.regex import RegexError, compile_regex

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
     "\\", "[b-a]", "((((a{500}){500})))", "x" * 2000, "(" * 99 + ")" * 99, "(?<", "(?", "(?P<n"],
)  # fmt: skip
def test_what_re2_would_refuse_is_refused(pattern: str) -> None:
    with pytest.raises(RegexError):
        compile_regex(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "(a|aa)+c", "(a?){30}a{30}b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """Each of these keeps a backtracking matcher busy for longer than a human life."""
    regex = compile_regex(pattern)
    began = time.monotonic()
    for _ in range(20):
        assert not regex.fullmatch("a" * 248 + "!")
    assert time.monotonic() - began < 5
