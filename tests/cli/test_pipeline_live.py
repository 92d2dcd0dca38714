"""The live table of a pipeline's queries, as a terminal shows it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from tidemill.cli import pipeline_live
from tidemill.cli.pipeline_live import BAR_WIDTH, Live, in_words
from tidemill.spark.pipeline.progress import Progress

Rows = Sequence[tuple[str, str, Progress]]

HALF = Progress(batch=17, rows=12_345, rows_per_s=3_400.4, done=600, behind=600)


def lines(rows: Rows, *, colour: bool = False) -> list[str]:
    """The table as it is on a screen of 100 letters."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=colour)
    console.print(pipeline_live._table(rows))
    return console.export_text(styles=colour).splitlines()


def test_a_query_is_a_row_with_its_bar_its_state_and_its_rates() -> None:
    first, second = lines([("visits", "running", HALF), ("pages", "stopped", Progress())])
    name, bar, *words = first.split(maxsplit=3)
    assert (name, words[0]) == ("visits", "running")
    assert words[1].strip() == "12,345 rows, 3,400 rows/s, 600 behind, batch 17"
    assert bar.startswith("━" * (BAR_WIDTH // 2 - 1))
    assert second.split() == ["pages", *second.split()[1:2], "stopped", "0", "rows,", "0", "rows/s"]


@pytest.mark.parametrize(
    ("done", "behind", "cells"), [(0, 100, 0), (50, 50, 10), (75, 25, 15), (100, 0, 20), (0, 0, 20)]
)
def test_the_bar_is_as_long_as_what_is_done(done: int, behind: int, cells: int) -> None:
    """What is left has another colour, so colours are looked at."""
    progress = Progress(batch=1, rows=done, done=done, behind=behind)
    (line,) = lines([("q", "running", progress)], colour=True)
    done_style = line.split("━")[0].rsplit("\x1b", 1)[-1]
    filled = line.partition("\x1b" + done_style)[2].partition("\x1b")[0]
    shown = filled.count("━") + filled.count("╸")
    assert shown == (cells if cells else BAR_WIDTH), line


def test_a_query_that_has_told_nothing_yet_has_a_bar_that_pulses() -> None:
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    frames: set[str] = set()
    for _ in range(20):
        table = pipeline_live._table([("q", "running", Progress())])
        (bar,) = list(table.columns[1].cells)
        assert bar.pulse
        bar.animation_time = float(len(frames))
        frames.add("".join(segment.style.__str__() for segment in console.render(bar)))
    assert len(frames) > 1, "it moves"
    table = pipeline_live._table([("q", "stopped", Progress())])
    assert not next(iter(table.columns[1].cells)).pulse


def test_late_rows_are_in_the_line() -> None:
    assert in_words(HALF._replace(late=1_234)).endswith("batch 17, 1,234 too late")


def test_on_a_terminal_the_table_is_drawn_over_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Live() as live:
        live.show([("visits", "running", HALF)])
        live.show([("visits", "finished", HALF._replace(rows=99_999))])
    drawn = screen.getvalue()
    assert "99,999 rows" in drawn
    assert "finished" in drawn
    assert "\x1b[" in drawn


def test_elsewhere_a_line_comes_when_a_state_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Live() as live:
        for state in ("running", "running", "finished"):
            live.show([("visits", state, HALF)])
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in said] == ["visits: running", "visits: finished"]
