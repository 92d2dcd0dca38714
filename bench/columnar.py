"""Columns beside confluent-kafka: produce and consume from Python on one broker, as ratios.

    python -m bench.columnar            three rounds, as in `make bench`; --quick for one short one

Each round lets both clients write the same records into a topic of their own and read them back,
each in a process of its own; the clients take turns in going first. The clock of a consumer starts
with its first record, that of the columnar producer after its first ten thousand, so that nobody is
charged for starting or compiling.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import load
from bench.measure import LOAD_LIMIT_S, MB, run_load
from bench.systems import Tidemill, wait_until_quiet
from tidemill.testing.running import end_in_order

OUT = Path(__file__).parent / "out"
BAR = 5.0
"""How many times as fast as confluent-kafka columns have to be."""

ROWS_AT_ONCE = 10_000
SIZES = {100: 3_000_000, 1000: 500_000}
"""How many records of each size."""


# --- the loads of the columnar client -----------------------------------------------------------


def produce(bootstrap: str, topic: str, count: int, size: int, partitions: int) -> dict[str, Any]:
    """Send `count` values of `size` bytes over the partitions in turn; wait for every ack."""
    import numpy
    import pyarrow

    from tidemill.client.columnar import ColumnarProducer

    values = pyarrow.array([b"x" * size] * ROWS_AT_ONCE, pyarrow.binary())
    places = numpy.arange(ROWS_AT_ONCE, dtype=numpy.int32) % partitions
    with ColumnarProducer(bootstrap) as producer:
        producer.send(topic, places, None, values)  # Compiles what is not in the cache.
        producer.flush()
        begin = time.perf_counter()
        for _ in range(count // ROWS_AT_ONCE):
            producer.send(topic, places, None, values)
        producer.flush()
        elapsed = time.perf_counter() - begin
    return {"seconds": elapsed, "bytes": count * size, "count": count}


def fetch(bootstrap: str, topic: str, count: int, partitions: int) -> dict[str, Any]:
    """Read `count` records of all partitions, one after the other, with every checksum checked."""
    from tidemill.client.columnar import ColumnarReader

    seen = value_bytes = 0
    first: float | None = None
    with ColumnarReader(bootstrap) as reader:
        for partition in range(partitions):
            for piece in reader.read(topic, partition, 0, count // partitions):
                first = first or time.perf_counter()
                seen += piece.row_count
                value_bytes += piece.value.buffers()[2].size
        elapsed = time.perf_counter() - (first or 0)
    if seen < count:
        raise RuntimeError(f"read {seen} of {count} records")
    return {"seconds": elapsed, "bytes": value_bytes, "count": seen}


LOADS: dict[str, Callable[..., dict[str, Any]]] = {"produce": produce, "fetch": fetch}


def run_columnar(name: str, **options: Any) -> dict[str, Any]:
    """Run one of the loads above in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.columnar", "--load", name, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=LOAD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"load {name} {options} failed: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# --- the comparison -----------------------------------------------------------------------------

Rates = dict[str, dict[str, list[float]]]


def one_round(number: int, scale: float, rates: Rates) -> None:
    """Both clients on a fresh broker."""
    broker = Tidemill({"log.flush.policy": "async"})
    broker.start()
    try:
        for size, full_count in SIZES.items():
            count = max(int(full_count * scale) // ROWS_AT_ONCE, 1) * ROWS_AT_ONCE
            clients = ["columns", "confluent"] if number % 2 == 0 else ["confluent", "columns"]
            for step in ("produce", "fetch"):
                for client in clients:
                    topic = f"{client}-{size}"
                    rate = _rate(step, client, broker, topic, count, size)
                    rates[f"{step} {size} B"][client].append(rate)
                    print(
                        f"round {number + 1} {client:9} {step} {size} B:"
                        f" {rate / MB:.2f} M records/s",
                        flush=True,
                    )
    finally:
        broker.stop()


def _rate(step: str, client: str, broker: Tidemill, topic: str, count: int, size: int) -> float:
    options: dict[str, Any] = {"topic": topic, "count": count, "partitions": 1}
    if step == "produce":
        load.create_topic(broker.bootstrap, topic, 1)
        options["size"] = size
        if client == "confluent":
            options["acks"] = "all"
    wait_until_quiet(broker.pid)
    run = run_columnar if client == "columns" else run_load
    done = run(step, bootstrap=broker.bootstrap, **options)
    return float(done["count"] / done["seconds"])


def report(rates: Rates) -> str:
    """The median ratio of each step with its spread, beside the bar."""
    lines = []
    for name, by_client in rates.items():
        pairs = zip(by_client["columns"], by_client["confluent"], strict=True)
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        middle = statistics.median(ratios)
        ours, theirs = (statistics.median(by_client[key]) for key in ("columns", "confluent"))
        lines.append(
            f"{name:16} columns {ours / MB:5.2f} M/s, confluent {theirs / MB:5.2f} M/s:"
            f" {middle:5.1f} x ({ratios[0]:.1f} to {ratios[-1]:.1f}), bar {BAR:g} x:"
            f" {'met' if middle >= BAR else 'MISSED'}"
        )
    return "\n".join(lines)


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the load")
    parser.add_argument("--load", nargs=2, metavar=("NAME", "OPTIONS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        name, options = arguments.load
        print(json.dumps(LOADS[name](**json.loads(options))))
        return
    rates: Rates = defaultdict(lambda: defaultdict(list))
    for number in range(1 if arguments.quick else arguments.rounds):
        one_round(number, 0.1 if arguments.quick else 1.0, rates)
    OUT.mkdir(exist_ok=True)
    (OUT / "columnar.json").write_text(json.dumps(rates, indent=1))
    print(report(rates))


if __name__ == "__main__":
    main()
