"""What the benchmark's report says of figures: ratios and seconds beside their bars."""

from __future__ import annotations

import inspect

import pytest
from bench.report import COMMAND_BARS_S, Report

from bench import measure


def last_line(name: str, *by_system: tuple[str, float], part: str = "command") -> str:
    figures = {part: {name: {system: [value] for system, value in by_system}}}
    return Report(figures).text().splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "seconds", "end"),
    [
        ("tidemill --help, s", 0.29, "≤ 0.30 yes"),
        ("tidemill --help, s", 0.31, "≤ 0.30 NO"),
        ("tidemill up until it accepts, s", 0.99, "≤ 1.00 yes"),
        ("tidemill up until it accepts, s", 1.01, "≤ 1.00 NO"),
    ],
)
def test_a_command_s_time_is_beside_its_bar(name: str, seconds: float, end: str) -> None:
    assert last_line(name, ("tidemill", seconds)).endswith(end)


@pytest.mark.parametrize(
    ("name", "ours", "end"),
    [
        ("flood: heartbeat p99 of its limit", 0.9, "own ≤ 1 yes"),
        ("flood: rebalance p99 of its limit", 1.1, "own ≤ 1 NO"),
        ("flood: refused requests", 0.0, "own ≤ 0 yes"),
        ("flood: refused requests", 1.0, "own ≤ 0 NO"),
    ],
)
def test_what_is_promised_to_members_is_no_ratio(name: str, ours: float, end: str) -> None:
    """Better than a system that fails is not good enough."""
    assert last_line(name, ("tidemill", ours), ("kafka", 100.0), part="groups").endswith(end)


def test_bars_stand_in_one_column() -> None:
    command = last_line("tidemill --help, s", ("tidemill", 0.2))
    ratio = last_line("round trip p50", ("tidemill", 1.0), ("kafka", 1.0), part="flushed")
    assert command.index("≤") == ratio.index("≤")


def test_every_bar_is_of_a_time_that_is_measured() -> None:
    """A name that is changed in one place only would lose its verdict."""
    source = inspect.getsource(measure.command_times)
    assert all(f'"{name}"' in source for name in COMMAND_BARS_S)
    assert source.count("yield") == len(COMMAND_BARS_S)
