"""How far a pipeline's queries are, on stderr: live lines on a terminal, else one every 5 s."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tidemill.children import Running
from tidemill.cli.progress import LINE_EVERY_S
from tidemill.cli.render import colour_wanted, talk

if TYPE_CHECKING:
    from tidemill.spark.pipeline.progress import Progress

    Rows = Sequence[tuple[str, str, Progress]]

BAR_WIDTH = 20


class Live(Running):
    """`with Live() as live: live.show(rows)`, a row per query: its name, state and progress."""

    def __init__(self, *, no_color: bool = False) -> None:
        self._no_color = no_color
        self._live: Any = None
        self._spoke = time.monotonic()
        self._told: dict[str, str] = {}

    def start(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live as RichLive

            colour = colour_wanted(self._no_color, sys.stderr)
            console = Console(stderr=True, no_color=not colour)
            self._live = RichLive(console=console, refresh_per_second=4)
            self._live.start()
        return self

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: Rows) -> None:
        if self._live is not None:
            self._live.update(_table(rows))
            return
        changed = [name for name, state, _ in rows if self._told.get(name) != state]
        if changed or time.monotonic() - self._spoke >= LINE_EVERY_S:
            self._spoke = time.monotonic()
            for name, state, progress in rows:
                self._told[name] = state
                talk(f"{name}: {state}, {in_words(progress)}")


def in_words(progress: Progress) -> str:
    """`12,345 rows, 3,400 rows/s, 1,200 behind, batch 17`, and `5 too late` if there were any."""
    parts = [f"{progress.rows:,} rows", f"{progress.rows_per_s:,.0f} rows/s"]
    if progress.behind is not None:
        parts.append(f"{progress.behind:,} behind")
    if progress.batch is not None:
        parts.append(f"batch {progress.batch}")
    if progress.late:
        parts.append(f"{progress.late:,} too late")
    return ", ".join(parts)


def _table(rows: Rows) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, state, progress in rows:
        fraction = progress.fraction
        bar = ProgressBar(
            total=1.0 if fraction is not None else None,
            completed=fraction or 0.0,
            width=BAR_WIDTH,
            pulse=fraction is None and state == "running",
        )
        table.add_row(name, bar, state, in_words(progress))
    return table
