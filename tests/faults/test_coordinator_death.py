"""Groups survive the death of their coordinator: no commit is lost, and nobody is rebalanced.

Three brokers in processes of their own share what the groups know, in one partition of
`__consumer_offsets`, so that its leader coordinates them all. It is killed, or stopped, while
records flow and members commit; then it comes back, and its successor goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from bench.ask import RawConnection
from bench.clusters import TidemillCluster
from tests.faults.churn import churn_settings, eventually
from tests.faults.living_groups import (
    KINDS,
    LIMIT_S,
    OFFSETS_TOPIC,
    PARTITIONS,
    TOPIC,
    Group,
    committed,
    living_groups,
    read_to,
)

GOES_ON_LIMIT_S = 30.0
"""On a busy machine; a librdkafka that was refused a connection waits for seconds by itself."""

SESSION_MS = 45_000
"""Nobody is to be expelled because a busy machine did not let it beat."""

BY_HAND = "by-hand"
QUIET = {"log_level": 0}
"""librdkafka tells of every refused connection."""


class Flow(threading.Thread):
    """Records to every partition, all the time, until it is told how many are enough."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        self.ends = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self.ends.wait(0.05):
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"x", partition=partition)
                self.sent += 1
            self._producer.poll(0)

    def end(self) -> None:
        self.ends.set()
        self.join()
        assert self._producer.flush(LIMIT_S) == 0


class Committer(threading.Thread):
    """Somebody without a group who commits by hand, one offset after the other."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._consumer = confluent_kafka.Consumer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": BY_HAND,
                "enable.auto.commit": False,
            }
        )
        self.ends = threading.Event()
        self.acked = 0
        self.gap_s = 0.0
        """The longest time between two acks."""

    def run(self) -> None:
        offset, last = 0, time.monotonic()
        while not self.ends.is_set():
            offset += 1
            place = confluent_kafka.TopicPartition(TOPIC, 0, offset)
            try:
                self._consumer.commit(offsets=[place], asynchronous=False)
            except confluent_kafka.KafkaException:
                continue  # It may have been written, or not: only acks count.
            self.acked = offset
            self.gap_s, last = max(self.gap_s, time.monotonic() - last), time.monotonic()

    def end(self) -> None:
        self.ends.set()
        self.join()
        self._consumer.close()


class Scene:
    """Three brokers, the groups on them, and everything that goes on."""

    def __init__(self, cluster: TidemillCluster, groups: list[Group]) -> None:
        self.cluster = cluster
        self.groups = groups
        self.flow = Flow(cluster.bootstrap)
        self.committer = Committer(cluster.bootstrap)
        self.epochs = {group.name: group.epoch() for group in groups}
        self.changes = {group.name: group.assignment_changes() for group in groups}

    @property
    def coordinator(self) -> int:
        with RawConnection(self.cluster.address(self.cluster.alive[0])) as connection:
            return connection.topic(OFFSETS_TOPIC).partitions[0].leader_id

    def all_in_sync(self) -> None:
        """All three have all, so that any may go next."""

        def missing() -> str:
            with RawConnection(self.cluster.address(self.cluster.alive[0])) as connection:
                described = connection.metadata(TOPIC, OFFSETS_TOPIC).topics
            behind = [
                f"{topic.name}-{each.partition_index} has {each.isr_nodes}"
                for topic in described
                for each in topic.partitions
                if len(each.isr_nodes) < len(self.cluster.alive)
            ]
            return ", ".join(behind)

        eventually(missing, LIMIT_S)

    def lose_coordinator(self, end: Callable[[int], None]) -> float:
        """End the coordinator's broker; how long until all members have committed on."""
        victim = self.coordinator
        acked = self.committer.acked
        before = {group.name: group.committed() for group in self.groups}
        assert acked > 0
        begin = time.monotonic()
        end(victim)
        assert committed(self.cluster.bootstrap, BY_HAND)[0] >= acked, "an acked commit is lost"

        def stuck() -> str:
            for group in self.groups:
                now = group.committed()
                assert all(now[each] >= before[group.name][each] for each in now), (
                    "a commit is lost"
                )
                if any(now[each] <= before[group.name][each] for each in now):
                    return f"{group.name} stays at {now}"
            return "" if self.committer.acked > acked + 1 else "nothing is committed by hand"

        eventually(stuck, GOES_ON_LIMIT_S)
        waited_s = time.monotonic() - begin
        assert self.coordinator != victim
        self.cluster.revive(victim)
        self.all_in_sync()
        return waited_s

    def release(self) -> None:
        """Let go of the threads, whatever became of them."""
        self.flow.ends.set()
        self.committer.ends.set()

    def check_at_rest(self) -> None:
        """Nobody was rebalanced, nothing was read twice, everything is read and committed."""
        self.flow.end()
        self.committer.end()
        read_to(self.groups, self.flow.sent)
        assert {group.name: group.epoch() for group in self.groups} == self.epochs
        assert {group.name: group.assignment_changes() for group in self.groups} == self.changes
        repeated = {group.name: len(group.seen()) - self.flow.sent for group in self.groups}
        assert repeated == dict.fromkeys(self.epochs, 0), "nothing is read twice"


@contextmanager
def scene(folder: Path, kinds: list[str]) -> Iterator[Scene]:
    settings = {
        **churn_settings(SESSION_MS),
        "offsets.topic.num.partitions": "1",
        "log.flush.policy": "async",
    }
    cluster = TidemillCluster(3, settings)
    cluster.start()
    try:
        wanted = {name: KINDS[name] for name in kinds}
        with living_groups(
            cluster.bootstrap, folder, wanted, static=False, session_ms=SESSION_MS
        ) as groups:
            found = Scene(cluster, groups)
            found.flow.start()
            found.committer.start()
            eventually(lambda: "" if found.committer.acked > 10 else "no commit", LIMIT_S)
            found.all_in_sync()
            try:
                yield found
            finally:
                found.release()
    finally:
        cluster.stop()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "kinds",
    [
        ["confluent", "confluent-consumer", "kafka-python"],
        ["aiokafka", "tidemill", "tidemill-consumer"],
    ],
    ids="+".join,
)
def test_groups_do_not_notice_that_their_coordinator_dies(tmp_path: Path, kinds: list[str]) -> None:
    """rule J7: killed or stopped, another broker goes on with the same groups and commits."""
    with scene(tmp_path, kinds) as found:
        killed_s = found.lose_coordinator(found.cluster.kill)
        stopped_s = found.lose_coordinator(found.cluster.stop_broker)
        found.check_at_rest()
        print(
            f"\nkilled: commits of all go on in {killed_s:.2f} s; stopped: in {stopped_s:.2f} s; "
            f"{found.committer.acked} commits by hand, longest gap {found.committer.gap_s:.2f} s; "
            f"{found.flow.sent} records"
        )
