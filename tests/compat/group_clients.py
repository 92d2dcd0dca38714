"""Consumer groups, spoken by each foreign client in a thread of its own.

A `Member` reads a topic as part of a group until it is told to stop, and reports what it saw and
what it was assigned. `killable` runs one in a process, for tests that end it without a goodbye.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka

SESSION_MS = 6_000
LIMIT_S = 30


class Member(threading.Thread):
    """One member of a group; what it saw is (partition, offset)."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.settings = settings
        self.seen: list[tuple[int, int]] = []
        self.assigned: frozenset[int] = frozenset()
        self.rebalances = 0
        self.error: BaseException | None = None
        self._stop_asked = threading.Event()

    def run(self) -> None:
        try:
            self.consume()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.error = error

    def consume(self) -> None:
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        return self._stop_asked.is_set()

    def stop(self) -> None:
        """Leave the group in good order."""
        self._stop_asked.set()
        self.join(LIMIT_S)
        assert not self.is_alive(), "the member does not end"
        if self.error is not None:
            raise self.error


class ConfluentMember(Member):
    def consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                **self._timeouts(),
                **self.settings,
            }
        )
        consumer.subscribe([self.topic], on_assign=self._on_assign)
        try:
            while not self.stopping:
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    self.seen.append((message.partition(), message.offset()))
                self.assigned = frozenset(each.partition for each in consumer.assignment())
        finally:
            consumer.close()

    def _timeouts(self) -> dict[str, Any]:
        if self.settings.get("group.protocol") == "consumer":
            return {}
        return {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300}

    def _on_assign(self, consumer: Any, partitions: Any) -> None:
        self.rebalances += 1


class KafkaPythonMember(Member):
    def consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            metadata_max_age_ms=2_000,
            **self.settings,
        )
        try:
            while not self.stopping:
                for records in consumer.poll(timeout_ms=50).values():
                    self.seen += [(each.partition, each.offset) for each in records]
                self.assigned = frozenset(each.partition for each in consumer.assignment())
        finally:
            consumer.close()


class AiokafkaMember(Member):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            **self.settings,
        )
        await consumer.start()
        try:
            while not self.stopping:
                found = await consumer.getmany(timeout_ms=50)
                for records in found.values():
                    self.seen += [(each.partition, each.offset) for each in records]
                self.assigned = frozenset(each.partition for each in consumer.assignment())
        finally:
            await consumer.stop()


MEMBERS: dict[str, Callable[..., Member]] = {
    "confluent": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}

_KILLABLE = """
    import sys, confluent_kafka
    bootstrap, group, topic = sys.argv[1:]
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 300, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    told = False
    while True:
        consumer.poll(0.1)
        if consumer.assignment() and not told:
            told = True
            print("assigned", flush=True)
"""


def killable(bootstrap: str, group: str, topic: str) -> subprocess.Popen[str]:
    """A member in a process of its own, already assigned something."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_KILLABLE), bootstrap, group, topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "assigned"
    return process
