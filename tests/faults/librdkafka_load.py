"""The load of the fault runs by librdkafka: two producers and a member of a group.

    python -m tests.faults.librdkafka_load --bootstrap HOST:PORT,... --history FILE

The same as `tidemill.testing.faults.load`, by the client that most of the world uses: what holds
for our own client only would not be worth much.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tidemill.clock import SystemClock
from tidemill.testing.faults.cluster import CLIENTS, EXACT, LOOSE, PARTITIONS, TOPICS
from tidemill.testing.faults.load import (
    DELIVERY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    TICK_S,
    WINDOW,
    Options,
    key_of,
    options,
    text_of,
    value_of,
)
from tidemill.testing.history import History, Operation

COMMON = {
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 3,
}


class Writer:
    """One producer, in a thread of its own."""

    def __init__(self, told: Options, history: History, topic: str) -> None:
        self.name = f"librdkafka-{topic}"
        self._topic = topic
        self._history = history
        self._rate = told.rate
        self._sent = 0
        self._under_way = dict.fromkeys(range(PARTITIONS), 0)
        is_exact = topic == EXACT
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": told.bootstrap,
                "client.id": f"{CLIENTS}-{self.name}",
                "acks": "all",
                "enable.idempotence": is_exact,
                "max.in.flight": 5,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "retry.backoff.ms": 100,
                "linger.ms": 5,
            }
        )

    def run(self, stop: threading.Event) -> None:
        began, due = time.monotonic(), 0.0
        while not stop.is_set():
            self._producer.poll(TICK_S)
            due += (time.monotonic() - began) * self._rate
            began = time.monotonic()
            while due >= 1:
                due -= 1
                self._send()
        self._producer.flush(DELIVERY_TIMEOUT_MS / 1000)

    def _send(self) -> None:
        partition = self._sent % PARTITIONS
        self._sent += 1
        if self._under_way[partition] >= WINDOW:
            return
        value = f"{self.name}:{self._sent}"
        operation = self._history.send(self.name, key_of(self._topic, partition), value)
        self._under_way[partition] += 1
        self._producer.produce(
            self._topic,
            value_of(value),
            partition=partition,
            on_delivery=lambda error, message: self._delivered(
                operation, partition, error, message
            ),
        )

    def _delivered(
        self, operation: Operation, partition: int, error: KafkaError | None, message: Message
    ) -> None:
        self._under_way[partition] -= 1
        if error is None:
            offset = message.offset()
            self._history.ok(
                operation, offset=offset if offset is not None and offset >= 0 else None
            )
        else:
            self._history.info(operation)
            sys.stderr.write(f"{self.name}: {error}\n")


class Member:
    """A consumer of a group of one; a change of its assignment is noted."""

    def __init__(self, told: Options, history: History) -> None:
        self.name = "librdkafka-member"
        self._history = history
        self._consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": told.bootstrap,
                "client.id": f"{CLIENTS}-{self.name}",
                "group.id": "faults",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "auto.commit.interval.ms": 1_000,
            }
        )

    def run(self, stop: threading.Event) -> None:
        self._consumer.subscribe(
            list(TOPICS), on_assign=self._moved, on_revoke=self._moved, on_lost=self._moved
        )
        while not stop.is_set():
            found: dict[str, list[tuple[int, str]]] = {}
            for message in self._consumer.consume(500, timeout=0.2):
                self._take(message, found)
            if found:
                self._history.polled(self.name, found)
        self._consumer.close()

    def _take(self, message: Message, found: dict[str, list[tuple[int, str]]]) -> None:
        error = message.error()
        if error is not None:
            sys.stderr.write(f"{self.name}: {error}\n")
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        key, value = key_of(topic, partition), message.value()
        found.setdefault(key, []).append((offset, text_of(value)))

    def _moved(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._history.assigned(self.name)


def main() -> None:
    told = options()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    history = History(SystemClock())
    work: list[Writer | Member] = [Writer(told, history, topic) for topic in (EXACT, LOOSE)]
    work.append(Member(told, history))
    threads = [threading.Thread(target=each.run, args=(stop,), name=each.name) for each in work]
    for thread in threads:
        thread.start()
    while not stop.wait(0.2):
        pass
    for thread in threads:
        thread.join()
    history.save(told.history)


if __name__ == "__main__":
    main()
