"""`make bench`: Tidemill and Apache Kafka 4.3.1 on the same disk, interleaved, as ratios.

Each round starts both systems afresh and drives them with the same loads; the report is the median
ratio over the rounds with its spread, beside the bar it has to meet, and a plot in `bench/out`.
`python -m bench.run --quick` does one short round, to see that everything works.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import measure
from bench.cluster import cluster_round, deaths_round, flushed_round
from bench.clusters import both_clusters
from bench.groups import groups_round
from bench.report import Report
from bench.systems import System, both, end_in_order

OUT = Path(__file__).parent / "out"

Figures = dict[str, dict[str, list[float]]]


def one_round(system: System, *, scale: float) -> Iterator[measure.Figure]:
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


def sweep_round(system: System, *, scale: float) -> Iterator[measure.Figure]:
    """A fresh broker for each number of partitions, so that one does not pay for another."""
    for partitions in (1, 10, 50, 100, 500, 1000, 10_000):
        system.start()
        try:
            count = int((1_000_000 if partitions <= 1000 else 500_000) * scale)
            yield from measure.partition_sweep(system, partitions=partitions, count=count)
        finally:
            system.stop()


PARTS: dict[str, tuple[Callable[[], list[Any]], Callable[..., Iterator[measure.Figure]]]] = {
    "async": (lambda: both("async"), one_round),
    "flushed": (lambda: both("flushed"), one_round),
    "sweep": (lambda: both("async"), sweep_round),
    "groups": (lambda: both("async"), groups_round),
    "cluster": (lambda: both_clusters("async"), cluster_round),
    "cluster-flushed": (lambda: both_clusters("flushed"), flushed_round),
    "cluster-zookeeper": (lambda: both_clusters("async", on_zookeeper=True), deaths_round),
}
"""What each part is run on, and how."""


def collect(parts: list[str], rounds: int, scale: float) -> dict[str, Figures]:
    """Run the rounds, alternating the systems, and return figures by mode, name and system."""
    collected: dict[str, Figures] = {}
    for part in parts:
        make_systems, run_round = PARTS[part]
        figures: Figures = defaultdict(lambda: defaultdict(list))
        for number in range(rounds):
            systems = make_systems()
            for system in systems if number % 2 == 0 else systems[::-1]:
                for name, value in run_round(system, scale=scale):
                    figures[name][system.name].append(value)
                    print(
                        f"{part} round {number + 1} {system.name:9} {name}: {value:.4g}",
                        flush=True,
                    )
        collected[part] = {name: dict(by_system) for name, by_system in figures.items()}
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
