"""What is measured: each function drives one system and yields named figures.

A figure's name is the row of the report; `run.py` pairs the two systems' figures into ratios, the
first of a name with the other's first. Whoever yields leaves a system that has come to rest, since
the other's turn may be next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from typing import Any

from bench.systems import System, Tidemill, resident_bytes, user_seconds, wait_until_quiet

GB = 1e9
MB = 1e6
LOAD_LIMIT_S = 600
REPEATS = 3
"""How often a load is measured that takes a second or two, for a machine that others share: within
a minute the same fetch was seen to reach 950 MB/s and 1,250 MB/s, of either system."""

Figure = tuple[str, float]
Round = Generator[Figure, None, None]
"""All loads on one system that is started for them, and stopped when the round is closed, too."""


def run_load(load: str, **options: Any) -> dict[str, Any]:
    """Run one load generator in its own process and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", load, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=LOAD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"load {load} {options} failed: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def settle(system: System) -> None:
    """Wait until the system has stopped working, and the kernel has written what it was given."""
    wait_until_quiet(system.pid)
    os.sync()


def start_up(system: System) -> Iterator[Figure]:
    """From starting the process to the first acked record, and memory once it is idle."""
    begin = time.time()
    system.start()
    acked = run_load("first-ack", bootstrap=system.bootstrap, topic="first")
    settle(system)
    yield "start to first ack, s", acked["at"] - begin
    yield "idle memory, MB", resident_bytes(system.pid) / MB


def warm_up(system: System, *, total_bytes: int) -> None:
    """The same kinds of load, unmeasured: a Java broker is slow until it has compiled itself."""
    for acks in ("1", "all"):
        topic, count = f"warm-{acks}", total_bytes // 200
        run_load("create", bootstrap=system.bootstrap, topic=topic, partitions=1)
        load = {"topic": topic, "count": count, "size": 200, "acks": acks, "partitions": 1}
        run_load("produce", bootstrap=system.bootstrap, **load)
        run_load("fetch", bootstrap=system.bootstrap, topic=topic, count=count, partitions=1)
    load = {"topic": "warm-1", "count": 5_000, "size": 100, "acks": "1"}
    run_load("round-trip", bootstrap=system.bootstrap, **load)
    settle(system)


def produce_and_fetch(system: System, *, size: int, total_bytes: int) -> Iterator[Figure]:
    """Throughput and broker CPU of produce (acks 1 and all) and of fetch, at one value size."""
    count = total_bytes // size
    for acks in ("1", "all"):
        topic = f"p-{size}-{acks}"
        run_load("create", bootstrap=system.bootstrap, topic=topic, partitions=1)
        settle(system)
        before = user_seconds(system.pid)
        load = {"topic": topic, "count": count, "size": size, "acks": acks, "partitions": 1}
        done = run_load("produce", bootstrap=system.bootstrap, **load)
        settle(system)
        spent = user_seconds(system.pid) - before
        yield f"produce {size} B acks={acks}, MB/s", done["bytes"] / MB / done["seconds"]
        yield f"produce {size} B acks={acks}, user s/GB", spent / (done["bytes"] / GB)
    for _ in range(REPEATS):
        before = user_seconds(system.pid)
        done = run_load("fetch", bootstrap=system.bootstrap, topic=topic, count=count, partitions=1)
        settle(system)
        spent = user_seconds(system.pid) - before
        yield f"fetch {size} B, MB/s", done["bytes"] / MB / done["seconds"]
        yield f"fetch {size} B, user s/GB", spent / (done["bytes"] / GB)


def round_trips(system: System, *, count: int) -> Iterator[Figure]:
    """The latency of one record at a time, acks=1, as the machine is and with its cores awake."""
    run_load("create", bootstrap=system.bootstrap, topic="rt", partitions=1)
    load = {"topic": "rt", "count": count, "size": 100, "acks": "1"}
    for awake, cores in ((False, ""), (True, ", cores awake")) * REPEATS:
        done = run_load("round-trip", bootstrap=system.bootstrap, awake=awake, **load)
        settle(system)
        yield f"round trip p50{cores}, µs", done["p50_us"]
        yield f"round trip p99{cores}, µs", done["p99_us"]
        yield f"round trip p99.9{cores}, µs", done["p999_us"]


def partition_sweep(system: System, *, partitions: int, count: int) -> Iterator[Figure]:
    """1,024-byte records spread over many partitions."""
    topic = f"sweep-{partitions}"
    run_load("create", bootstrap=system.bootstrap, topic=topic, partitions=partitions)
    wait_until_quiet(system.pid)
    before = user_seconds(system.pid)
    load = {"topic": topic, "count": count, "size": 1024, "acks": "1", "partitions": partitions}
    done = run_load("produce", bootstrap=system.bootstrap, **load)
    wait_until_quiet(system.pid)
    spent = user_seconds(system.pid) - before
    yield f"sweep {partitions} partitions, MB/s", done["bytes"] / MB / done["seconds"]
    yield f"sweep {partitions} partitions, user µs/record", spent / count * 1e6


def command_times() -> Iterator[Figure]:
    """`tidemill --help`, and `up` until it accepts: the best of five, for a busy machine's sake."""
    best = min(_timed([sys.executable, "-m", "tidemill.cli.main", "--help"]) for _ in range(5))
    yield "tidemill --help, s", best
    yield "tidemill up until it accepts, s", min(_until_ready() for _ in range(5))


def _until_ready() -> float:
    broker = Tidemill()
    begin = time.perf_counter()
    broker.start()
    elapsed = time.perf_counter() - begin
    broker.stop()
    return elapsed


def _timed(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin
