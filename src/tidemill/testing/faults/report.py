"""The report of a run: a table for people, a JSON file for programs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidemill.testing.anomalies import Report
from tidemill.testing.faults.judge import KindFigures
from tidemill.testing.faults.strikes import Struck


class RunReport(msgspec.Struct):
    """Everything that a run showed."""

    store: str
    seed: int
    flush_policy: str
    seconds: float
    faults: int
    kinds: dict[str, KindFigures]
    acked: dict[str, int]
    unknown: int
    """Records of which no client knows what became."""
    polled: int
    longest_gap_ms: float
    longest_gap_in: str
    longest_gap_of_all_ms: float
    offsets_answered: int
    anomalies: dict[str, dict[str, int]]
    """By topic, those that its producers' settings do not allow."""
    allowed: dict[str, dict[str, int]]
    problems: list[str]
    """All that must not have happened; empty if the run is good."""
    strikes: list[Struck]

    @property
    def is_good(self) -> bool:
        return not self.problems

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    def __str__(self) -> str:
        acked = sum(self.acked.values())
        lines = [
            f"{self.store}, flush policy {self.flush_policy}, seed {self.seed}:"
            f" {self.faults} faults in {self.seconds:.0f} s",
            "",
            f"{'fault':24}{'times':>6}{'gap p50':>10}{'gap max':>10}{'whole p50':>11}"
            f"{'whole max':>11}",
            *(_row(kind, figures) for kind, figures in self.kinds.items()),
            "",
            f"records acked {acked}, of unknown outcome {self.unknown}, polled {self.polled}",
            *(f"    {name} {count}" for name, count in sorted(self.acked.items())),
            f"longest gap in acks: {_s(self.longest_gap_ms)} in {self.longest_gap_in},"
            f" {_s(self.longest_gap_of_all_ms)} over all partitions",
            f"end offsets told {self.offsets_answered} times",
            *(f"{topic}: allowed {counts}" for topic, counts in self.allowed.items() if counts),
            "",
            *(self.problems or ["nothing lost, nothing twice, nothing out of order"]),
        ]
        return "\n".join(lines)


def _row(kind: str, figures: KindFigures) -> str:
    return (
        f"{kind:24}{figures.count:6}{_s(figures.gap_p50_ms):>10}{_s(figures.gap_max_ms):>10}"
        f"{_s(figures.whole_p50_ms):>11}{_s(figures.whole_max_ms):>11}"
    )


def _s(duration_ms: float | None) -> str:
    return "-" if duration_ms is None else f"{duration_ms / 1000:.2f} s"


def anomalies(reports: Mapping[str, Report]) -> dict[str, dict[str, int]]:
    return {
        topic: {str(kind): count for kind, count in report.failures.items()}
        for topic, report in reports.items()
    }


def allowed(reports: Mapping[str, Report]) -> dict[str, dict[str, int]]:
    return {
        topic: {str(kind): count for kind, count in report.counts.items() if kind in report.allowed}
        for topic, report in reports.items()
    }
