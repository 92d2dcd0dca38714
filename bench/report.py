"""Turns figures into ratios: Tidemill's over the other's, median and spread, beside the bar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

Figures = dict[str, dict[str, list[float]]]

# (pattern of the figure's name, bar as a ratio, whether larger is better)
BARS: list[tuple[str, float, bool]] = [
    (r"produce .*MB/s", 1.0, True),
    (r"produce .*user s/GB", 1 / 3, False),
    (r"fetch .*MB/s", 1.0, True),
    (r"fetch .*user s/GB", 0.6, False),
    (r"round trip p50", 1.0, False),
    (r"round trip p99,", 0.8, False),
    (r"round trip p99\.9", 0.5, False),
    (r"start to first ack", 0.25, False),
    (r"idle memory", 0.3, False),
    (r"sweep .*MB/s", 1.0, True),
    (r"[ABC]: .*MB/s", 1.0, True),
    (r"leader killed", 1.0, False),
    (r"groups: broker CPU", 1.0, False),
    (r"groups: produce p99", 1.0, False),
    (r"read 100 B \w+ 1p noop vs defaults", 5.0, True),
    (r"read 100 B \w+ 1p noop vs best", 2.5, True),
    (r"read 1000 B \w+ \dp noop", 3.0, True),
    (r"write .* vs defaults", 2.0, True),
]

# What is promised whatever the other does: (pattern, how much the worst round may be).
PROMISES: list[tuple[str, float]] = [
    (r"flood: .* of its limit", 1.0),
    (r"flood: refused requests", 0.0),
]

# Commands have no counterpart: how long a user waits is counted in seconds.
COMMAND_BARS_S = {"tidemill --help, s": 0.3, "tidemill up until it accepts, s": 1.0}


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    part: str
    name: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    bar: str
    met: str


def bar_for(name: str) -> tuple[float, bool] | None:
    for pattern, bar, larger_is_better in BARS:
        if re.match(pattern, name):
            return bar, larger_is_better
    return None


def row(part: str, name: str, ours: list[float], theirs: list[float]) -> Row:
    ratios = [_ratio(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    middle = median(ratios)
    shown, met = _verdict(name, middle, max(ours))
    return Row(
        part, name, median(ours), median(theirs), middle, min(ratios), max(ratios), shown, met
    )


def _verdict(name: str, ratio: float, worst: float) -> tuple[str, str]:
    """The bar, and whether it is met; what is promised has nothing to do with the ratio."""
    promised = next((limit for pattern, limit in PROMISES if re.match(pattern, name)), None)
    if promised is not None:
        return f"own ≤ {promised:g}", "yes" if worst <= promised else "NO"
    bar = bar_for(name)
    if bar is None:
        return "", ""
    limit, larger_is_better = bar
    is_met = ratio >= limit if larger_is_better else ratio <= limit
    return f"{'≥' if larger_is_better else '≤'} {limit:.2f}", "yes" if is_met else "NO"


def command_line(name: str, seconds: float) -> str:
    """A line of the report for what only we have, under the columns of the others."""
    bar = COMMAND_BARS_S.get(name)
    if bar is None:
        return f"{name:48} {seconds:10.3g}"
    met = "yes" if seconds <= bar else "NO"
    return f"{name:48} {seconds:10.3g} {'':10} {'':7} {'':15} {f'≤ {bar:.2f}':>7} {met}"


def _ratio(ours: float, theirs: float) -> float:
    """What is nought on both sides is equal."""
    return ours / theirs if theirs else 1.0 if not ours else float("inf")


class Report:
    """The figures of one run, as text and as a plot."""

    def __init__(self, figures: dict[str, Figures], other: str = "Apache Kafka 4.3.1") -> None:
        self.figures = figures
        self.other = other
        self.rows = [
            row(part, name, by_system["tidemill"], by_system["kafka"])
            for part, of_part in figures.items()
            for name, by_system in of_part.items()
            if "kafka" in by_system
        ]

    def text(self) -> str:
        width = max([8, *(len(part) for part in self.figures)])
        lines = [
            f"{'part':{width}} {'what':48} {'tidemill':>10} {'kafka':>10} {'ratio':>7} "
            f"{'spread':>15} {'bar':>7} met"
        ]
        for each in self.rows:
            lines.append(
                f"{each.part:{width}} {each.name:48} {each.ours:10.4g} {each.theirs:10.4g} "
                f"{each.ratio:7.2f} {each.low:7.2f}-{each.high:<7.2f} {each.bar:>7} {each.met}"
            )
        for name, by_system in self.figures.get("command", {}).items():
            lines.append(f"{'command':{width}} {command_line(name, by_system['tidemill'][0])}")
        return "\n".join(lines)

    def plot(self, path: Path) -> None:
        """The ratios as bars, and beside them the partition sweep as lines, if there was one."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        sweep = self.figures.get("sweep", {})
        widths = [3, 2] if sweep else [1]
        figure, panels = plt.subplots(
            1, len(widths), figsize=(15, 8), width_ratios=widths, squeeze=False
        )
        self._plot_ratios(panels[0][0])
        if sweep:
            _plot_sweep(panels[0][1], sweep)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        plt.close(figure)

    def _plot_ratios(self, panel: Any) -> None:
        shown = [
            each for each in self.rows if not each.name.startswith("sweep") and isfinite(each.ratio)
        ]
        names = [f"{each.name} ({each.part})" for each in shown]
        panel.barh(names, [each.ratio for each in shown], color="#1f5f8b")
        panel.axvline(1.0, color="#999", linewidth=1)
        panel.invert_yaxis()
        panel.set_xlabel(f"Tidemill / {self.other}")


def _plot_sweep(panel: Any, sweep: Figures) -> None:
    for system in ("tidemill", "kafka"):
        points = sorted(
            (int(name.split()[1]), median(by_system[system]))
            for name, by_system in sweep.items()
            if name.endswith("MB/s") and system in by_system
        )
        panel.plot(
            [partitions for partitions, _ in points],
            [rate for _, rate in points],
            marker="o",
            label=system,
        )
    panel.set_xscale("log")
    panel.set_xlabel("partitions")
    panel.set_ylabel("produce MB/s, 1,024 B records")
    panel.legend()
