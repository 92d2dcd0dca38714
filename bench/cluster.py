"""The cluster's part of the benchmark: three brokers each, with the same timeouts.

`replicated_load` asks what replication costs: A is RF 1 with acks=1, B is RF 3 with acks=all, C is
RF 3 with acks=1. `leader_deaths` kills the leader of a partition again and again and asks three
producers when the next of their records was acked. `overload` sends 1.3 times what B took until
followers lag, then less than B until all are in sync again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

from bench.ask import RawConnection
from bench.clusters import LAG_TIME_MAX_MS, Cluster
from bench.measure import GB, MB, Figure, Round, run_load
from bench.probes import Probe, read_sent_at, start, start_probe
from bench.systems import user_seconds, wait_until_quiet

BROKERS = 3
PARTITIONS = 6
VALUE_BYTES = 1000
LIMIT_S = 120.0
POLL_S = 0.1
OVERLOAD = 1.3
RELIEF = 0.7
BEHIND_BYTES_MIN = 1 << 20
"""What a follower may be behind and still be called even: a fetch or two."""

PROBES = ("librdkafka", "tidemill", "java")

LOADS = {
    "A: RF 1, acks 1": (1, "1"),
    "B: RF 3, acks all": (3, "all"),
    "C: RF 3, acks 1": (3, "1"),
}


def until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """How long it takes until the condition holds; brokers that do not answer are asked again."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit_s:
        with suppress(OSError):
            if condition():
                return time.monotonic() - begin
        time.sleep(POLL_S)
    raise RuntimeError(f"not within {limit_s} s: {what}")


# What clusters look like from outside.


def out_of_sync(cluster: Cluster, topic: str) -> int:
    """How many partitions miss a replica in their ISR, as the worst informed broker sees it."""
    counts = []
    for broker_id in cluster.alive:
        with RawConnection(cluster.address(broker_id)) as connection:
            counts.append(
                sum(
                    len(each.isr_nodes) < len(each.replica_nodes)
                    for each in connection.topic(topic).partitions
                )
            )
    return max(counts)


def behind_bytes(cluster: Cluster, topic: str) -> int:
    """How far the replica that is furthest behind is from the longest one of its partition."""
    sizes: dict[int, list[int]] = {}
    for broker_id in cluster.alive:
        with RawConnection(cluster.address(broker_id)) as connection:
            for partition, size_bytes in connection.replica_bytes(topic).items():
                sizes.setdefault(partition, []).append(size_bytes)
    return max((max(each) - min(each) for each in sizes.values()), default=0)


def leader_of(cluster: Cluster, topic: str) -> int:
    with RawConnection(cluster.address(cluster.alive[0])) as connection:
        return connection.topic(topic).partitions[0].leader_id


# Throughput.


def produce(
    cluster: Cluster, topic: str, *, replicas: int, acks: str, count: int
) -> tuple[float, float]:
    """Bytes per second of one load, and the brokers' user seconds per GB."""
    run_load(
        "create",
        bootstrap=cluster.bootstrap,
        topic=topic,
        partitions=PARTITIONS,
        replicas=replicas,
    )
    pids = [cluster.pid(each) for each in cluster.alive]
    for pid in pids:
        wait_until_quiet(pid)
    before = sum(map(user_seconds, pids))
    load = {"topic": topic, "count": count, "size": VALUE_BYTES, "acks": acks}
    done = run_load("produce", bootstrap=cluster.bootstrap, partitions=PARTITIONS, **load)
    until(lambda: behind_bytes(cluster, topic) == 0, "followers have it all")
    for pid in pids:
        wait_until_quiet(pid)
    spent = sum(map(user_seconds, pids)) - before
    return done["bytes"] / done["seconds"], spent / (done["bytes"] / GB)


def replicated_load(cluster: Cluster, *, scale: float) -> Iterator[Figure]:
    count = int(600_000 * scale)
    produce(cluster, "warm", replicas=3, acks="all", count=count // 3)
    for number, (name, (replicas, acks)) in enumerate(LOADS.items()):
        rate, cpu = produce(cluster, f"load-{number}", replicas=replicas, acks=acks, count=count)
        yield f"{name}, MB/s per broker", rate / MB / BROKERS
        yield f"{name}, user s/GB of all brokers", cpu


# A leader's death.


def leader_deaths(cluster: Cluster, *, kills: int) -> Iterator[Figure]:
    topic = "mortal"
    run_load("create", bootstrap=cluster.bootstrap, topic=topic, partitions=1, replicas=3)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        probes = {
            name: running.enter_context(start_probe(name, cluster.bootstrap, topic, Path(folder)))
            for name in PROBES
        }
        until(lambda: _all_go_on(probes, time.time() - 1), "all producers get acks")
        moments = [_kill_leader(cluster, topic, probes) for _ in range(kills)]
        sent_at = read_sent_at(cluster.bootstrap, topic)
        for name, probe in probes.items():
            waits = [(probe.ack_after(each, sent_at) or 0.0) - each for each in moments]
            yield f"leader killed: next ack, {name}, p50 s", median(waits)
            yield f"leader killed: next ack, {name}, max s", max(waits)


def _all_go_on(probes: dict[str, Probe], moment: float) -> bool:
    """Whether every producer has an ack for something that it sent after the moment."""
    for probe in probes.values():
        probe.check()
    return all(probe.ack_after(moment) for probe in probes.values())


def _kill_leader(cluster: Cluster, topic: str, probes: dict[str, Probe]) -> float:
    """Kill the leader, wait until every producer gets on, and bring the broker back; when."""
    until(lambda: out_of_sync(cluster, topic) == 0, "all replicas are in sync")
    victim = leader_of(cluster, topic)
    moment = time.time()
    cluster.kill(victim)
    until(lambda: _all_go_on(probes, moment), "every producer gets an ack")
    cluster.revive(victim)
    return moment


# Too much, then less.


def overload(cluster: Cluster, rate: float, *, scale: float) -> Iterator[Figure]:
    """`rate` is what B took, in bytes per second."""
    topic = "overloaded"
    run_load("create", bootstrap=cluster.bootstrap, topic=topic, partitions=PARTITIONS, replicas=3)
    options = {
        "bootstrap": cluster.bootstrap,
        "topic": topic,
        "size": VALUE_BYTES,
        "partitions": PARTITIONS,
        "acks": "1",
    }
    limit_s = max(5.0, 4 * LAG_TIME_MAX_MS / 1000 * min(1.0, scale))
    with start("paced", bytes_per_s=OVERLOAD * rate, **options) as flood:
        shrunk = _watch_overload(cluster, topic, limit_s)
        behind = behind_bytes(cluster, topic)
        flood.check()
        taken = _rate(flood.lines)
    yield "1.3 B: taken, times B", taken / rate
    # Each system's B is its own: what was taken is compared in bytes.
    yield "1.3 B: taken, MB/s per broker", taken / MB / BROKERS
    yield "1.3 B: furthest behind, MB", behind / MB
    yield "1.3 B: partitions out of sync", float(shrunk)
    with start("paced", bytes_per_s=RELIEF * rate, **options):
        seconds = until(lambda: _is_even(cluster, topic), "all are in sync again")
    yield "0.7 B after it: in sync again, s", seconds


def _rate(lines: list[str]) -> float:
    """Bytes per second between the first and the last line of a paced load."""
    early, before = map(float, lines[0].split())
    late, after = map(float, lines[-1].split())
    return (after - before) / (late - early)


def _watch_overload(cluster: Cluster, topic: str, limit_s: float) -> int:
    """Wait until followers are out of sync, or long enough; how many partitions miss one."""
    deadline = time.monotonic() + limit_s
    time.sleep(4)
    while time.monotonic() < deadline:
        shrunk = out_of_sync(cluster, topic)
        if shrunk:
            return shrunk
        time.sleep(1)
    return 0


def _is_even(cluster: Cluster, topic: str) -> bool:
    if out_of_sync(cluster, topic):
        return False
    return behind_bytes(cluster, topic) < BEHIND_BYTES_MIN


# The rounds.


def cluster_round(cluster: Cluster, *, scale: float) -> Round:
    """Everything, on a cluster that is started for it and stopped afterwards."""
    cluster.start()
    try:
        rate = 0.0
        for name, value in replicated_load(cluster, scale=scale):
            if name.startswith("B:") and name.endswith("MB/s per broker"):
                rate = value * MB * BROKERS
            yield name, value
        yield from overload(cluster, rate, scale=scale)
        yield from leader_deaths(cluster, kills=max(1, int(4 * scale)))
    finally:
        cluster.stop()


def flushed_round(cluster: Cluster, *, scale: float) -> Round:
    """The loads alone: every ack waits for the disk."""
    cluster.start()
    try:
        yield from replicated_load(cluster, scale=scale / 2)
    finally:
        cluster.stop()


def deaths_round(cluster: Cluster, *, scale: float) -> Round:
    """The deaths alone, for Tidemill on a ZooKeeper server, which has to wait for the session."""
    cluster.start()
    try:
        yield from leader_deaths(cluster, kills=max(1, int(4 * scale)))
    finally:
        cluster.stop()
