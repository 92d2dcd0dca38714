"""A wide cluster that loses brokers: `python -m bench.scale` (5 brokers, 2,000 partitions, RF 3).

A broker is killed, then the one that is the controller, on an idle cluster and again while produce
saturates the machine. For each death it says how long it took, from the SIGKILL on, until every
live broker names a live leader for every partition, and until every partition has acked a record
with acks=all; for the controller also until its successor has created a topic. Beside that: memory
of a broker, its share of a core when nobody asks for anything, and how long it takes until a broker
that came back is in sync everywhere. `--kafka` puts the same questions to Apache Kafka.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from statistics import median

from confluent_kafka.admin import AdminClient, NewTopic

from bench.ask import RawConnection
from bench.clusters import Cluster, KafkaCluster, TidemillCluster
from bench.measure import Figure
from bench.systems import cpu_seconds, resident_bytes
from tidemill.errors import ErrorCode
from tidemill.testing.running import end_in_order
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.metadata import MetadataResponse
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.records import Record, build_batch

TOPIC = "wide"
FLOOD = "flood"
FLOOD_PARTITIONS = 10
LIMIT_S = 180.0
POLL_S = 0.05


class Wide:
    """A cluster with one wide topic, and the questions to it."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self._serial = 0

    # Making it.

    def create(self) -> float:
        """Make the topic, and one for the flood; how long until every broker knows its leaders."""
        begin = time.monotonic()
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        wanted = [NewTopic(TOPIC, self.partitions, 3), NewTopic(FLOOD, FLOOD_PARTITIONS, 3)]
        for made in admin.create_topics(wanted, request_timeout=LIMIT_S).values():
            made.result()
        self.until_everywhere(self.is_led, begin)
        return time.monotonic() - begin

    # Looking at it.

    def metadata(self, broker_id: int) -> MetadataResponse | None:
        try:
            with RawConnection(self.cluster.address(broker_id)) as connection:
                return connection.metadata(TOPIC)
        except OSError:
            return None

    @property
    def controller_id(self) -> int:
        """Whom the first broker takes for the controller; Kafka's brokers name any of them."""
        for broker_id in self.cluster.alive:
            found = self.metadata(broker_id)
            if found is not None and found.controller_id in self.cluster.alive:
                return found.controller_id
        raise RuntimeError("no broker knows a live controller")

    def is_led(self, seen: MetadataResponse) -> bool:
        alive = self.cluster.alive
        partitions = seen.topics[0].partitions
        return len(partitions) == self.partitions and all(
            each.leader_id in alive for each in partitions
        )

    def is_in_sync(self, seen: MetadataResponse) -> bool:
        return self.is_led(seen) and all(
            len(each.isr_nodes) == len(each.replica_nodes) for each in seen.topics[0].partitions
        )

    def has_controller(self, seen: MetadataResponse) -> bool:
        return seen.controller_id in self.cluster.alive

    def until_everywhere(
        self, condition: Callable[[MetadataResponse], bool], begin: float
    ) -> float:
        """How long after `begin` the condition held at the last of the live brokers."""
        times: dict[int, float] = {}

        def watch(broker_id: int) -> None:
            while time.monotonic() - begin < LIMIT_S:
                seen = self.metadata(broker_id)
                if seen is not None and condition(seen):
                    times[broker_id] = time.monotonic() - begin
                    return
                time.sleep(POLL_S)

        in_parallel([partial(watch, each) for each in self.cluster.alive])
        if len(times) < len(self.cluster.alive):
            raise RuntimeError(f"not settled after {LIMIT_S} s: {times}")
        return max(times.values())

    def until_acked(self, begin: float) -> float:
        """How long after `begin` every partition had acked one more record, with acks=all."""
        left = set(range(self.partitions))
        while left and time.monotonic() - begin < LIMIT_S:
            seen = self.metadata(self.cluster.alive[0])
            by_leader: dict[int, list[int]] = defaultdict(list)
            for each in seen.topics[0].partitions if seen is not None else ():
                if each.partition_index in left and each.leader_id in self.cluster.alive:
                    by_leader[each.leader_id].append(each.partition_index)
            in_parallel(
                [
                    partial(self._produce, leader, wanted, left)
                    for leader, wanted in by_leader.items()
                ]
            )
            if left:
                time.sleep(POLL_S)
        if left:
            raise RuntimeError(f"{len(left)} partitions acked nothing within {LIMIT_S} s")
        return time.monotonic() - begin

    def _produce(self, leader: int, wanted: list[int], left: set[int]) -> None:
        """Send a record to each of these partitions; those that acked it leave `left`."""
        records = build_batch([Record(0, int(time.time() * 1000), None, b"x" * 100, ())])
        data = [PartitionProduceData(index=index, records=records) for index in wanted]
        topic = TopicProduceData(name=TOPIC, partition_data=data)
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
        with suppress(OSError), RawConnection(self.cluster.address(leader)) as connection:
            answer = connection.ask(ApiKey.PRODUCE, 9, request)
            results = answer.responses[0].partition_responses
            left.difference_update(each.index for each in results if each.error_code == 0)

    def until_created(self, begin: float) -> float:
        """How long after `begin` some live broker had a topic created."""
        self._serial += 1
        wanted = CreatableTopic(
            name=f"after-{self._serial}", num_partitions=1, replication_factor=2
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=5_000)
        while time.monotonic() - begin < LIMIT_S:
            address = self.cluster.address(self.cluster.alive[0])
            with suppress(OSError), RawConnection(address) as connection:
                [result] = connection.ask(ApiKey.CREATE_TOPICS, 7, request).topics
                if result.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return time.monotonic() - begin
            time.sleep(POLL_S)
        raise RuntimeError(f"no topic could be created within {LIMIT_S} s")


def in_parallel(work: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(max(1, len(work))) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result()


@contextmanager
def flood(cluster: Cluster) -> Iterator[None]:
    """Produce as fast as the machine goes, with RF 3 and acks=1, until the block ends."""
    options = {
        "bootstrap": cluster.bootstrap,
        "topic": FLOOD,
        "count": 500_000_000,
        "size": 1000,
        "acks": "1",
        "partitions": FLOOD_PARTITIONS,
    }
    command = [sys.executable, "-m", "bench.load", "produce", json.dumps(options)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        yield
        if process.poll() is not None:
            raise RuntimeError("the flood ended before it was over")
    finally:
        process.kill()
        process.wait()


def idle(cluster: Cluster, seconds: float) -> Iterator[Figure]:
    time.sleep(5)
    before = [cpu_seconds(cluster.pid(each)) for each in cluster.alive]
    time.sleep(seconds)
    after = [cpu_seconds(cluster.pid(each)) for each in cluster.alive]
    shares = [(late - early) / seconds for early, late in zip(before, after, strict=True)]
    yield "idle: share of a core, median broker", median(shares)
    yield "idle: share of a core, busiest broker", max(shares)


def memory(cluster: Cluster, when: str) -> Iterator[Figure]:
    sizes = [resident_bytes(cluster.pid(each)) / 1e6 for each in cluster.alive]
    yield f"memory of a broker {when}, MB, median", median(sizes)
    yield f"memory of a broker {when}, MB, largest", max(sizes)


def death(wide: Wide, victim: int, what: str, *, of_controller: bool) -> Iterator[Figure]:
    """Kill one broker, see how long the others need, and bring it back."""
    cluster = wide.cluster
    begin = time.monotonic()
    cluster.kill(victim)
    questions: dict[str, Callable[[], float]] = {
        "led everywhere": lambda: wide.until_everywhere(wide.is_led, begin),
        "acked everywhere": lambda: wide.until_acked(begin),
    }
    if of_controller:
        questions["a successor is known"] = lambda: wide.until_everywhere(
            wide.has_controller, begin
        )
        questions["a topic is created"] = lambda: wide.until_created(begin)
    times: dict[str, float] = {}

    def answer(name: str) -> None:
        times[name] = questions[name]()

    in_parallel([partial(answer, name) for name in questions])
    for name in questions:
        yield f"{what}: {name}, s", times[name]
    begin = time.monotonic()
    cluster.revive(victim)
    yield f"{what}: it is back, s", time.monotonic() - begin
    yield f"{what}: in sync again, s", wide.until_everywhere(wide.is_in_sync, begin)


def deaths(wide: Wide, when: str) -> Iterator[Figure]:
    controller = wide.controller_id
    victim = next(each for each in wide.cluster.alive if each != controller)
    yield from death(wide, victim, f"a broker dies, {when}", of_controller=False)
    yield from death(wide, wide.controller_id, f"the controller dies, {when}", of_controller=True)


def measure(cluster: Cluster, partitions: int, idle_s: float) -> Iterator[Figure]:
    wide = Wide(cluster, partitions)
    cluster.start()
    try:
        yield "created and led everywhere, s", wide.create()
        yield "one record to each, s", wide.until_acked(time.monotonic())
        yield from memory(cluster, "with one record in each")
        yield from idle(cluster, idle_s)
        yield from deaths(wide, "idle")
        with flood(cluster):
            yield from deaths(wide, "saturated")
            yield from memory(cluster, "under load")
    finally:
        cluster.stop()


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=2_000)
    parser.add_argument("--idle-seconds", type=float, default=20)
    parser.add_argument("--zookeeper", action="store_true", help="on a ZooKeeper server")
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka instead of Tidemill")
    arguments = parser.parse_args()
    cluster: Cluster = (
        KafkaCluster(arguments.brokers)
        if arguments.kafka
        else TidemillCluster(arguments.brokers, on_zookeeper=arguments.zookeeper)
    )
    for name, value in measure(cluster, arguments.partitions, arguments.idle_seconds):
        print(f"{cluster.name:9} {name:60} {value:8.3f}", flush=True)


if __name__ == "__main__":
    main()
