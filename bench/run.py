"""`make bench`: Tidemill and Apache Kafka 4.3.1 on the same disk, interleaved, as ratios.

Each round starts both systems afresh and drives them with the same loads, load by load in turns
where that is fair to both, else one system after the other. The report is the median of the ratios
with their spread, beside the bar it has to meet, and a plot in `bench/out`.
`python -m bench.run --quick` does one short round, to see that everything works.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import measure
from bench.cluster import cluster_round, deaths_round, flushed_round
from bench.clusters import both_clusters
from bench.groups import groups_round
from bench.report import Report
from bench.systems import System, both
from tidemill.testing.running import end_in_order

OUT = Path(__file__).parent / "out"

Figures = dict[str, dict[str, list[float]]]


def one_round(system: System, *, scale: float) -> measure.Round:
    """All loads on one system that is started for it and stopped afterwards."""
    # The kernel counts CPU time in hundredths of a second: shorter loads would round it away.
    total_bytes = int(1.5e9 * scale)
    try:
        yield from measure.start_up(system)
        measure.warm_up(system, total_bytes=total_bytes // 8)
        yield from measure.round_trips(system, count=int(20_000 * scale))
        for size in (100, 1000):
            share = total_bytes // 2 if size == 100 else total_bytes
            yield from measure.produce_and_fetch(system, size=size, total_bytes=share)
    finally:
        system.stop()


def sweep_round(system: System, *, scale: float) -> measure.Round:
    """A fresh broker for each number of partitions, so that one does not pay for another."""
    for partitions in (1, 10, 50, 100, 500, 1000, 10_000):
        system.start()
        try:
            count = int((1_000_000 if partitions <= 1000 else 500_000) * scale)
            yield from measure.partition_sweep(system, partitions=partitions, count=count)
        finally:
            system.stop()


RunRound = Callable[..., measure.Round]
Measured = Iterator[tuple[Any, measure.Figure]]


def in_turns(systems: list[Any], run_round: RunRound, scale: float) -> Measured:
    """Both are up, and take turns from one figure to the next.

    A machine that others share is faster in one minute than in the next, and pairs of figures that
    lie minutes apart say more about the minutes than about the systems.
    """
    with ExitStack() as rounds:
        running = [rounds.enter_context(closing(run_round(each, scale=scale))) for each in systems]
        for figures in zip(*running, strict=True):
            yield from zip(systems, figures, strict=True)


def one_by_one(systems: list[Any], run_round: RunRound, scale: float) -> Measured:
    """One is up after the other: for loads that take the machine, or break things, for long."""
    for system in systems:
        for figure in run_round(system, scale=scale):
            yield system, figure


@dataclass(frozen=True)
class Part:
    """What is run, on what, and in which order."""

    make_systems: Callable[[], list[Any]]
    run_round: RunRound
    order: Callable[[list[Any], RunRound, float], Measured] = one_by_one


PARTS = {
    "async": Part(lambda: both("async"), one_round, in_turns),
    "flushed": Part(lambda: both("flushed"), one_round, in_turns),
    "sweep": Part(lambda: both("async"), sweep_round),
    "groups": Part(lambda: both("async"), groups_round),
    "cluster": Part(lambda: both_clusters("async"), cluster_round),
    "cluster-flushed": Part(lambda: both_clusters("flushed"), flushed_round),
    "cluster-zookeeper": Part(lambda: both_clusters("async", on_zookeeper=True), deaths_round),
}


def collect(parts: list[str], rounds: int, scale: float) -> dict[str, Figures]:
    """Run the rounds, alternating who begins, and return figures by part, name and system."""
    collected: dict[str, Figures] = {}
    for name in parts:
        part = PARTS[name]
        figures: Figures = defaultdict(lambda: defaultdict(list))
        for number in range(rounds):
            systems = part.make_systems()
            ordered = systems if number % 2 == 0 else systems[::-1]
            for system, (what, value) in part.order(ordered, part.run_round, scale):
                figures[what][system.name].append(value)
                print(f"{name} round {number + 1} {system.name:9} {what}: {value:.4g}", flush=True)
        collected[name] = {what: dict(by_system) for what, by_system in figures.items()}
    collected["command"] = {name: {"tidemill": [value]} for name, value in measure.command_times()}
    return collected


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the load")
    parser.add_argument("--part", "--parts", action="append", choices=list(PARTS))
    arguments = parser.parse_args()
    rounds, scale = (1, 0.1) if arguments.quick else (arguments.rounds, 1.0)
    figures = collect(arguments.part or list(PARTS), rounds, scale)
    OUT.mkdir(exist_ok=True)
    (OUT / "figures.json").write_text(json.dumps(figures, indent=1))
    report = Report(figures)
    print(report.text())
    report.plot(OUT / "ratios.png")
    print(f"plot: {OUT.name}/ratios.png, figures: {OUT.name}/figures.json")


if __name__ == "__main__":
    main()
