"""Numbered records that flow into a topic while a test breaks things: each number once."""

from __future__ import annotations

import threading
import time
from typing import Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.children import Running

FLUSH_S = 120
TURN_S = 0.25


class Traffic(Running):
    """`with Traffic(...) as traffic:` sends in the background until `all_acked` is asked."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, rate: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._per_turn = max(1, int(rate * TURN_S))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failures: list[str] = []
        self.sent = 0

    def create_topic(self, replicas: int = 1) -> Self:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        new = NewTopic(self._topic, self._partitions, replicas)
        admin.create_topics([new])[self._topic].result()
        return self

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_S)

    def all_acked(self) -> list[str]:
        """All values that were sent, and no more are; whatever was not acked is a failure."""
        self.stop()
        assert not self._thread.is_alive(), "the records were not acked in time"
        assert not self._failures, self._failures[:3]
        return [str(number) for number in range(self.sent)]

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "on_delivery": self._delivered,
            }
        )
        while not self._stopping.is_set():
            for _ in range(self._per_turn):
                value = str(self.sent).encode()
                producer.produce(self._topic, value, partition=self.sent % self._partitions)
                self.sent += 1
            producer.poll(0)
            time.sleep(TURN_S)
        producer.flush(FLUSH_S)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._failures.append(str(error))
