"""The coordinator's part of the benchmark: many members, many commits, and a busy broker.

`coordinator_load` asks what 1,000 groups of 10 members and 5,000 commits a second cost, and what a
producer beside them feels. `under_data_load` is the reverse: produce and fetch take all that the
machine has, and members must not be late: a p99 below a tenth of the session timeout, nobody
expelled. One group of ten rebalances all the while; its rounds are held to the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.measure import Figure, Round, run_load
from bench.systems import System, cpu_seconds

SESSION_TIMEOUT_MS = 10_000
LATENCY_SHARE_MAX = 0.1
"""How much of the session timeout the slowest percentile may take."""
KINDS_UNDER_LOAD = ("heartbeat", "join", "commit", "rebalance")
"""Of which none may take longer: the last is a whole round of a group of ten."""

ESTABLISH_LIMIT_S = 300


@contextmanager
def group_load(system: System, topic: str, **options: float) -> Iterator[subprocess.Popen[str]]:
    """The members in a process of their own, established when this is entered."""
    run_load("create", bootstrap=system.bootstrap, topic=topic, partitions=1)
    command = [sys.executable, "-m", "bench.group_load", "--bootstrap", system.bootstrap]
    command += ["--topic", topic, "--prefix", topic]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("established"):
                raise RuntimeError(f"the groups were not established: {line!r}")
            yield process
        finally:
            process.kill()


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the group load ended without a result")
    result: dict[str, Any] = json.loads(line)
    return result


def coordinator_load(system: System, *, scale: float) -> Iterator[Figure]:
    """Heartbeats and commits at a fixed rate, and one producer that sends now and then."""
    topic = "committed"
    groups, commits = max(10, int(1000 * scale)), 5000 * scale
    seconds = max(5.0, 30 * scale)
    options = {"groups": groups, "commits_per_s": commits, "seconds": seconds}
    with group_load(system, topic, **options) as members:
        before, begin = cpu_seconds(system.pid), time.monotonic()
        load = {"topic": topic, "count": int(seconds * 100), "size": 100, "acks": "1"}
        produced = run_load("round-trip", bootstrap=system.bootstrap, pause_s=0.005, **load)
        seen = result_of(members)
        share = (cpu_seconds(system.pid) - before) / (time.monotonic() - begin)
    yield "groups: broker CPU, share of a core", share
    yield "groups: heartbeats/s", seen["heartbeat"]["per_second"]
    yield "groups: heartbeat p99, ms", seen["heartbeat"]["p99_ms"]
    yield "groups: commits/s", seen["commit"]["per_second"]
    yield "groups: commit p99, ms", seen["commit"]["p99_ms"]
    yield "groups: produce p50 beside them, ms", produced["p50_us"] / 1000
    yield "groups: produce p99 beside them, ms", produced["p99_us"] / 1000
    yield "groups: refused requests", float(sum(seen["errors"].values()))


@contextmanager
def data_load(system: System) -> Iterator[None]:
    """Produce and fetch as fast as the machine goes, until the block ends."""
    topic = "flood"
    run_load("create", bootstrap=system.bootstrap, topic=topic, partitions=1)
    options: dict[str, Any] = {"bootstrap": system.bootstrap, "topic": topic, "partitions": 1}
    produce = {**options, "count": 50_000_000, "size": 1000, "acks": "1"}
    fetch = {**options, "count": 50_000_000}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.load", load, json.dumps(given)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for load, given in (("produce", produce), ("fetch", fetch))
    ]
    try:
        time.sleep(2)
        if any(process.poll() is not None for process in running):
            raise RuntimeError("the data load ended before it was measured")
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def under_data_load(
    system: System, *, scale: float, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> Iterator[Figure]:
    """The members' latencies while the data path is at the machine's limit."""
    seconds = max(4.0, 20 * scale)
    options = {
        "commits_per_s": 200,
        "session_timeout_ms": session_timeout_ms,
        "seconds": seconds + 2,
    }
    groups = {"groups": 100, "loners": 5, "restless": 10}
    with (
        group_load(system, "committed-in-flood", **groups, **options) as members,
        data_load(system),
    ):
        seen = result_of(members)
    limit_ms = session_timeout_ms * LATENCY_SHARE_MAX
    for kind in KINDS_UNDER_LOAD:
        yield f"flood: {kind} p99, ms", seen[kind]["p99_ms"]
        yield f"flood: {kind} p99 of its limit", seen[kind]["p99_ms"] / limit_ms
    yield "flood: refused requests", float(sum(seen["errors"].values()))


def groups_round(system: System, *, scale: float) -> Round:
    """Both parts on one system that is started for them and stopped afterwards."""
    system.start()
    try:
        yield from coordinator_load(system, scale=scale)
        yield from under_data_load(system, scale=scale)
    finally:
        system.stop()
