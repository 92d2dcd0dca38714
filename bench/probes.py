"""Producers that go on while brokers die: `python -m bench.probes NAME OPTIONS`, until killed.

A probe sends a small record every few milliseconds with acks=all and prints, for each that is
acked, when it was sent and when the ack came (`SENT ACKED`, seconds since the epoch). There is one
on librdkafka and one on Tidemill's own client; the Java client's is Kafka's `VerifiableProducer`,
started by `start_probe`. All have the same settings. `paced` sends at a fixed rate instead and
prints, every second, how many bytes were acked so far.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.reference.kafka import java_command

from tidemill.client.producer import Producer as OwnProducer

INTERVAL_S = 0.01
PACE_STEP_S = 0.01
PRINT_EVERY_S = 1.0
JAVA_SLACK_S = 1.0
READ_LIMIT_S = 60

SentAt = dict[int, float]
"""When a record was sent, by its offset."""

COMMON: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "request.timeout.ms": 30_000,
    "retry.backoff.ms": 100,
    "retry.backoff.max.ms": 1_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
}
DELIVERY_TIMEOUT_MS = 120_000


def say(*words: object) -> None:
    print(*words, flush=True)


def librdkafka(bootstrap: str, topic: str) -> None:
    settings = {**COMMON, "bootstrap.servers": bootstrap, "message.timeout.ms": DELIVERY_TIMEOUT_MS}
    producer = Producer(settings)
    while True:
        sent = time.time()

        def acked(error: object, _message: object, sent: float = sent) -> None:
            if error is None:
                say(sent, time.time())

        producer.produce(topic, b"x" * 100, partition=0, on_delivery=acked)
        producer.poll(INTERVAL_S)
        time.sleep(max(0.0, sent + INTERVAL_S - time.time()))


def tidemill(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        settings = {**COMMON, "delivery.timeout.ms": DELIVERY_TIMEOUT_MS}
        async with OwnProducer(bootstrap, **settings) as producer:
            running: set[asyncio.Task[None]] = set()

            async def send() -> None:
                sent = time.time()
                await producer.send(topic, b"x" * 100, partition=0)
                say(sent, time.time())

            while True:
                task = asyncio.get_running_loop().create_task(send())
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(INTERVAL_S)

    asyncio.run(run())


def paced(
    bootstrap: str, topic: str, size: int, partitions: int, bytes_per_s: float, acks: str
) -> None:
    """Send at a rate, or as near to it as the brokers let us."""
    acked_bytes = 0

    def acked(error: object, message: Any) -> None:
        nonlocal acked_bytes
        if error is None:
            acked_bytes += len(message)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
            "queue.buffering.max.messages": 500_000,
        }
    )
    value, number, begin, printed = b"x" * size, 0, time.monotonic(), time.monotonic()
    while True:
        now = time.monotonic()
        due = int((now - begin) * bytes_per_s / size)
        while number < due:
            try:
                producer.produce(topic, value, partition=number % partitions, on_delivery=acked)
            except BufferError:
                # What could not be sent in time is not made up for: the rate is an upper limit.
                begin, due = now - number * size / bytes_per_s, number
                break
            number += 1
        producer.poll(PACE_STEP_S)
        if now - printed >= PRINT_EVERY_S:
            printed = now
            say(now, acked_bytes)


PROBES: dict[str, Callable[..., None]] = {
    "librdkafka": librdkafka,
    "tidemill": tidemill,
    "paced": paced,
}


class Running:
    """A probe in a process of its own; `lines` grows while it runs."""

    def __init__(self, command: list[str]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"a probe ended by itself, with {self._process.returncode}")


class Probe(Running):
    """A probe that can tell when the first record was acked that was sent after a moment."""

    def ack_after(self, moment: float, sent_at: SentAt | None = None) -> float | None:
        """When that was; `sent_at` is needed by probes that do not know it themselves."""
        for line in self.lines:
            sent, acked = self._times(line, sent_at)
            if sent > moment:
                return acked
        return None

    def _times(self, line: str, _sent_at: SentAt | None) -> tuple[float, float]:
        sent, acked = map(float, line.split())
        return sent, acked


class JavaProbe(Probe):
    """The same from what `VerifiableProducer` prints: an offset, and when its ack came.

    When the record was sent can only be read from the log. Until that is done a record counts as
    sent so long before its ack that it is surely none that was on its way.
    """

    def _times(self, line: str, sent_at: SentAt | None) -> tuple[float, float]:
        said = json.loads(line)
        if said.get("name") != "producer_send_success":
            return 0.0, 0.0
        acked = said["timestamp"] / 1000
        return (acked - JAVA_SLACK_S if sent_at is None else sent_at[said["offset"]]), acked


def read_sent_at(bootstrap: str, topic: str) -> SentAt:
    """When each record of the topic's partition was sent, by its offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "probes"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: SentAt = {}
    deadline = time.monotonic() + READ_LIMIT_S
    while len(found) < end and time.monotonic() < deadline:
        for message in consumer.consume(10_000, timeout=1):
            found[message.offset()] = message.timestamp()[1] / 1000
    consumer.close()
    return found


def start(probe: str, **options: Any) -> Running:
    kind = Running if probe == "paced" else Probe
    return kind([sys.executable, "-m", "bench.probes", probe, json.dumps(options)])


def start_probe(probe: str, bootstrap: str, topic: str, folder: Path) -> Probe:
    if probe != "java":
        started = start(probe, bootstrap=bootstrap, topic=topic)
        assert isinstance(started, Probe)
        return started
    settings = {**COMMON, "delivery.timeout.ms": DELIVERY_TIMEOUT_MS, "retries": 2**31 - 1}
    path = folder / "java-probe.properties"
    path.write_text("".join(f"{key}={value}\n".lower() for key, value in settings.items()))
    return JavaProbe(
        java_command(
            "org.apache.kafka.tools.VerifiableProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--acks", "-1"),
            *("--throughput", str(int(1 / INTERVAL_S)), "--command-config", str(path)),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("probe", choices=sorted(PROBES))
    parser.add_argument("options", help="the probe's keyword arguments as JSON")
    arguments = parser.parse_args()
    PROBES[arguments.probe](**json.loads(arguments.options))


if __name__ == "__main__":
    main()
