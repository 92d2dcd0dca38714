"""One member of a consumer group as a process of its own: it can be killed, paused, and told to go.

    python group_member.py '{"client": "confluent", "name": "m1", "bootstrap": ..., ...}'

The member reads and writes what happens to it, line by line, to its diary: records as it has
processed them, and its assignment whenever that changes. A line is in the file before the record
can be committed, so a killed member's diary tells what it did. SIGTERM makes it leave in good
order. The parent starts members with `spawn` and reads their diaries with `Diary`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

CLIENTS = ("confluent", "kafka-python", "aiokafka", "tidemill")
HEARTBEAT_MS = 300
POLL_MS = 50

Place = tuple[str, int]
Seen = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a member shall be."""

    client: str
    name: str
    bootstrap: str
    group: str
    topics: tuple[str, ...]
    diary: str
    protocol: str = "classic"
    strategy: str = "range"
    session_ms: int = 6_000
    commit_ms: int = 1_000
    instance: str | None = None
    crowd: int = 0
    """So many members in one process instead of one; each has a diary of its own."""
    more: Mapping[str, Any] = field(default_factory=dict)


# --- the parent's side ----------------------------------------------------------------------------


def spawn(plan: Plan) -> subprocess.Popen[bytes]:
    """Start the member; its complaints go beside its diary."""
    with Path(f"{plan.diary}.err").open("ab") as complaints:
        return subprocess.Popen(
            [sys.executable, __file__, json.dumps(asdict(plan))],
            stdin=subprocess.DEVNULL,
            stdout=complaints,
            stderr=complaints,
        )


class Diary:
    """A member's diary, read on as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read: list[tuple[float, Seen]] = []
        self.assigned: list[tuple[float, frozenset[Place]]] = []
        self._at = 0

    def catch_up(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            if "read" in entry:
                self.read += [(entry["at"], tuple(each)) for each in entry["read"]]
            else:
                places = frozenset((topic, partition) for topic, partition in entry["assigned"])
                self.assigned.append((entry["at"], places))

    @property
    def owned(self) -> frozenset[Place]:
        return self.assigned[-1][1] if self.assigned else frozenset()

    def owned_between(self, begin: float, end: float) -> list[frozenset[Place]]:
        """What the member had when that time began, and all that it had until it ended."""
        before = [owned for at, owned in self.assigned if at <= begin]
        return [
            before[-1] if before else frozenset(),
            *(owned for at, owned in self.assigned if begin < at <= end),
        ]


# --- the member's side ----------------------------------------------------------------------------


_told_to_go = threading.Event()


class _Life:
    """What every kind of member does: write its diary, and go when it is told."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._parent = os.getppid()
        self._diary = os.open(plan.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._assigned: frozenset[Place] = frozenset()

    @property
    def stopping(self) -> bool:
        """Told to go, or left alone by a parent that was killed."""
        return _told_to_go.is_set() or os.getppid() != self._parent

    def note_read(self, records: Iterable[Seen]) -> None:
        if found := list(records):
            self._write({"at": time.monotonic(), "read": found})

    def note_assigned(self, places: Iterable[Place]) -> None:
        found = frozenset(places)
        if found != self._assigned:
            self._assigned = found
            self._write({"at": time.monotonic(), "assigned": sorted(found)})

    def _write(self, entry: Mapping[str, object]) -> None:
        os.write(self._diary, json.dumps(entry).encode() + b"\n")


def _confluent(life: _Life) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(_confluent_settings(life.plan))
    consumer.subscribe(list(life.plan.topics))
    while not life.stopping:
        messages = consumer.consume(500, POLL_MS / 1000)
        good = [each for each in messages if each.error() is None]
        life.note_read((each.topic(), each.partition(), each.offset()) for each in good)
        # librdkafka counts a record as done when it hands it over; we, when the diary has it.
        for each in good:
            _store(consumer, each)
        life.note_assigned((each.topic, each.partition) for each in consumer.assignment())
    consumer.close()


def _store(consumer: Any, message: Any) -> None:
    import confluent_kafka

    try:
        consumer.store_offsets(message)
    except confluent_kafka.KafkaException:
        return  # The partition has gone to somebody else meanwhile.


def _confluent_settings(plan: Plan) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": plan.bootstrap,
        "client.id": plan.name,
        "group.id": plan.group,
        "group.protocol": plan.protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": plan.commit_ms,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
    }
    if plan.instance is not None:
        settings["group.instance.id"] = plan.instance
    if plan.protocol == "classic":
        settings |= {
            "partition.assignment.strategy": plan.strategy,
            "session.timeout.ms": plan.session_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    return settings | dict(plan.more)


def _kafka_python(life: _Life) -> None:
    import kafka

    plan = life.plan
    consumer = kafka.KafkaConsumer(
        *plan.topics,
        bootstrap_servers=plan.bootstrap,
        client_id=plan.name,
        group_id=plan.group,
        group_instance_id=plan.instance,
        partition_assignment_strategy=[_kafka_python_assignor(plan.strategy)],
        auto_offset_reset="earliest",
        auto_commit_interval_ms=plan.commit_ms,
        session_timeout_ms=plan.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        fetch_max_wait_ms=100,
        **plan.more,
    )
    while not life.stopping:
        found = consumer.poll(timeout_ms=POLL_MS)
        life.note_read((r.topic, r.partition, r.offset) for rs in found.values() for r in rs)
        life.note_assigned((each.topic, each.partition) for each in consumer.assignment())
    consumer.close()


def _kafka_python_assignor(strategy: str) -> Any:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    known = [
        CooperativeStickyAssignor,
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
    ]
    return next(each for each in known if each.name == strategy)


async def _aiokafka(life: _Life) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    plan = life.plan
    known = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]
    consumer = aiokafka.AIOKafkaConsumer(
        *plan.topics,
        bootstrap_servers=plan.bootstrap,
        client_id=plan.name,
        group_id=plan.group,
        group_instance_id=plan.instance,
        partition_assignment_strategy=[next(k for k in known if k.name == plan.strategy)],
        auto_offset_reset="earliest",
        auto_commit_interval_ms=plan.commit_ms,
        session_timeout_ms=plan.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        fetch_max_wait_ms=100,
        **plan.more,
    )
    await consumer.start()
    while not life.stopping:
        found = await consumer.getmany(timeout_ms=POLL_MS)
        life.note_read((r.topic, r.partition, r.offset) for rs in found.values() for r in rs)
        life.note_assigned((each.topic, each.partition) for each in consumer.assignment())
    await consumer.stop()


async def _tidemill(life: _Life) -> None:
    from tidemill.client import ClientError, Consumer

    plan = life.plan
    settings: dict[str, Any] = {
        "group_id": plan.group,
        "client_id": plan.name,
        "group_protocol": plan.protocol,
        "group_instance_id": plan.instance,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": plan.commit_ms,
        "session_timeout_ms": plan.session_ms,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "fetch_max_wait_ms": 100,
        **plan.more,
    }
    if plan.protocol == "classic":
        settings["partition_assignment_strategy"] = plan.strategy
    async with Consumer(plan.bootstrap, **settings) as consumer:
        consumer.subscribe(plan.topics)
        while not life.stopping:
            try:
                records = await consumer.poll(timeout_ms=POLL_MS)
            except ClientError as error:
                print(f"{time.monotonic():.1f} poll: {error}", file=sys.stderr, flush=True)
                continue
            life.note_read((r.topic, r.partition, r.offset) for r in records)
            life.note_assigned(consumer.assignment())


def _live(plan: Plan) -> None:
    life = _Life(plan)
    if plan.client == "confluent":
        _confluent(life)
    elif plan.client == "kafka-python":
        _kafka_python(life)
    elif plan.client == "aiokafka":
        asyncio.run(_aiokafka(life))
    else:
        asyncio.run(_tidemill(life))


def crowd(plan: Plan) -> list[Plan]:
    """The members that one process stands for."""
    return [
        replace(plan, name=f"{plan.name}-{number}", diary=f"{plan.diary}-{number}", crowd=0)
        for number in range(plan.crowd)
    ]


def _main(text: str) -> None:
    given = json.loads(text)
    plan = Plan(**{**given, "topics": tuple(given["topics"])})
    signal.signal(signal.SIGTERM, lambda *_: _told_to_go.set())
    if not plan.crowd:
        _live(plan)
        return
    threads = [threading.Thread(target=_live, args=(each,)) for each in crowd(plan)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _main(sys.argv[1])
