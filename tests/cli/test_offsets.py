"""The offset grammar, without a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli import offsets
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.offsets import END, START, Point, Range

NOW_MS = 1_794_700_000_000
HOUR_MS = 3_600_000

SPELLINGS: list[tuple[str, Range]] = [
    ("start", Range(START)),
    ("end", Range(END)),
    ("5", Range(Point("absolute", 5))),
    ("+10", Range(Point("start", 10))),
    ("-10", Range(Point("end", -10))),
    (":end", Range(START, END)),
    ("5:9", Range(Point("absolute", 5), Point("absolute", 9))),
    ("5:end", Range(Point("absolute", 5), END)),
    ("-3:end", Range(Point("end", -3), END)),
    (":", Range(START)),
    ("@2026-11-15", Range(Point("timestamp", 1_794_700_800_000))),
    ("@2026-11-15T01:00:00Z", Range(Point("timestamp", 1_794_700_800_000 + HOUR_MS))),
    ("@2026-11-15T01:00:00+01:00", Range(Point("timestamp", 1_794_700_800_000))),
    ("@2026-11-15T01:00:00Z:end", Range(Point("timestamp", 1_794_700_800_000 + HOUR_MS), END)),
    ("@1731628800000", Range(Point("timestamp", 1_731_628_800_000))),
    ("@1731628800", Range(Point("timestamp", 1_731_628_800_000))),
    ("@-1h", Range(Point("timestamp", NOW_MS - HOUR_MS))),
    ("@-1h:end", Range(Point("timestamp", NOW_MS - HOUR_MS), END)),
    ("@-1h30m", Range(Point("timestamp", NOW_MS - HOUR_MS * 3 // 2))),
    (
        "@-2h:-1h",
        Range(Point("timestamp", NOW_MS - 2 * HOUR_MS), Point("timestamp", NOW_MS - HOUR_MS)),
    ),
    (
        "@2026-11-14:@2026-11-15",
        Range(Point("timestamp", 1_794_614_400_000), Point("timestamp", 1_794_700_800_000)),
    ),
    ("@-500ms", Range(Point("timestamp", NOW_MS - 500))),
]


@pytest.mark.parametrize(("text", "meant"), SPELLINGS, ids=[text for text, _ in SPELLINGS])
def test_spelling(text: str, meant: Range) -> None:
    assert offsets.parse(text, NOW_MS) == meant


@pytest.mark.parametrize("text", ["", "five", "1.5", "@", "@tomorrow", "9:5", "@-1y", "--3", "5:x"])
def test_nonsense_is_a_usage_error_with_a_hint(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        offsets.parse(text, NOW_MS)
    assert caught.value.exit_code is Exit.USAGE
    assert caught.value.hint is not None


@given(st.text(max_size=40))
def test_any_text_is_a_range_or_a_usage_error(text: str) -> None:
    try:
        found = offsets.parse(text, NOW_MS)
    except CommandError:
        return
    assert all(point.value <= 2**63 - 1 for point in found.points())


@given(
    anchor=st.sampled_from(["start", "end", "timestamp"]),
    value=st.integers(-(2**40), 2**40),
    first=st.integers(0, 2**40),
    length=st.integers(0, 2**40),
)
def test_a_relative_point_settles_inside_the_partition(
    anchor: offsets.Anchor, value: int, first: int, length: int
) -> None:
    last = first + length
    settled = offsets.settle(Point(anchor, value), first=first, last=last, at_time=None)
    assert first <= settled <= last
