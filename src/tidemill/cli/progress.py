"""Progress on stderr: a bar on a terminal, else one line per five seconds; never on stdout."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tidemill.cli.render import colour_wanted, human_bytes, talk

LINE_EVERY_S = 5.0


class Progress:
    """`with Progress("importing", total) as p: p.advance(n)`; `total` None means unknown."""

    def __init__(
        self, what: str, total: int | None, *, unit: str = "bytes", no_color: bool = False
    ):
        self._what = what
        self._total = total
        self._unit = unit
        self._done = 0
        self._started = self._spoke = time.monotonic()
        self._bar: Any = self._make_bar(no_color) if sys.stderr.isatty() else None
        self._task: Any = None

    def _make_bar(self, no_color: bool) -> Any:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        console = Console(stderr=True, no_color=not colour_wanted(no_color, sys.stderr))
        amount = (
            [DownloadColumn(), TransferSpeedColumn()]
            if self._unit == "bytes"
            else [MofNCompleteColumn()]
        )
        columns = [TextColumn("{task.description}"), BarColumn(), *amount, TimeRemainingColumn()]
        return RichProgress(*columns, console=console, transient=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif time.monotonic() - self._spoke >= LINE_EVERY_S:
            self._spoke = time.monotonic()
            talk(self._line())

    def _line(self) -> str:
        shown = human_bytes if self._unit == "bytes" else "{:,}".format
        of_total = f" of {shown(self._total)}" if self._total else ""
        rate = self._done / max(1e-9, self._spoke - self._started)
        return f"{self._what}: {shown(self._done)}{of_total}, {shown(int(rate))}/s"
