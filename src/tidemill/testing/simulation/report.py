"""What came of one seed, and of many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

SHOWN_TRACE_LINES = 400


@dataclass(slots=True)
class Outcome:
    """One seed's end."""

    seed: int
    digest: str
    """Of everything that arrived anywhere, was written or seen: the same seed has the same."""
    virtual_s: float
    cpu_s: float
    counts: Counter[str]
    failures: list[str]
    trace: list[str]

    def __str__(self) -> str:
        """The story of a seed."""
        verdict = "FAILED" if self.failures else "is fine"
        lines = [f"seed {self.seed} {verdict}, digest {self.digest}"]
        lines += [f"  {failure}" for failure in self.failures]
        lines += ["what happened:", *(f"  {line}" for line in self.trace[-SHOWN_TRACE_LINES:])]
        return "\n".join(lines)


@dataclass(slots=True)
class Tally:
    """Many seeds' ends together."""

    seeds: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    in_seeds: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.virtual_s += outcome.virtual_s
        self.cpu_s += outcome.cpu_s
        self.counts += outcome.counts
        self.in_seeds.update(name for name, count in outcome.counts.items() if count)
        if outcome.failures:
            self.failed.append(outcome.seed)

    def __str__(self) -> str:
        each_s = self.cpu_s / max(1, self.seeds)
        lines = [
            f"{self.seeds} seeds, {self.virtual_s / 3600:.1f} hours of virtual time,"
            f" {each_s:.2f} s of CPU a seed; {len(self.failed)} failed"
        ]
        width = max(map(len, self.counts), default=0)
        lines += [
            f"  {name:<{width}} {count:>9} in {self.in_seeds[name]} seeds"
            for name, count in sorted(self.counts.items())
        ]
        if self.failed:
            lines.append(f"failed seeds: {' '.join(map(str, sorted(self.failed)))}")
        return "\n".join(lines)
