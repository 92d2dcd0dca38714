"""`kafka-verifiable-producer`: send growing integers and print what became of each of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidemill.cli.kafka import common, verifiable
from tidemill.cli.kafka.verifiable import Stop, VerifiableOptions, emit

if TYPE_CHECKING:
    from tidemill.client import Producer
    from tidemill.client.batches import Delivery

ACKS = (0, 1, -1)
YIELD_EVERY = 256


def parser() -> VerifiableOptions:
    p = VerifiableOptions(
        "kafka-verifiable-producer",
        "Sends growing integers to a topic and prints, as JSON, which of them were acked.",
    )
    common.address_options(p)
    p.required("topic", "The topic to send to.")
    p.value("max-messages", "How many; -1: until it is stopped.", type=int, default=-1)
    p.value("throughput", "Records per second; -1: no limit.", type=int, default=-1)
    p.value("acks", "0, 1 or -1 (all in sync).", type=int, default=-1)
    p.value("producer.config", "Old spelling of --command-config.", dest="producer_config")
    p.value("message-create-time", "Time of the first record, ms.", type=int, default=-1)
    p.value("value-prefix", "An integer before each value, with a dot between.", type=int)
    p.value("repeating-keys", "Keys from 0 up to this one, over and over.", type=int)
    return p


def main(argv: Sequence[str]) -> int:
    return verifiable.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    if options.acks not in ACKS:
        parser().refuse(f"argument --acks: invalid choice: '{options.acks}' (choose from 0, 1, -1)")
    verifiable.deprecated(options, "producer.config")
    target = common.target(
        options, "argument --bootstrap-server is required", files=[options.producer_config]
    )
    # Retrying is off, so that each line tells of one attempt; a file may say otherwise.
    settings = {"acks": str(options.acks), "retries": "0"} | dict(target.settings)
    stop = Stop()
    stop.listen()
    run = _Run(options, stop)
    client = common.for_client(target, "producer")
    async with client.producer(**{k.replace(".", "_"): v for k, v in settings.items()}) as producer:
        emit("startup_complete")
        await run.go(producer)
    emit("shutdown_complete")
    run.report()
    return stop.status


class _Run:
    """The sending, and what came back."""

    def __init__(self, options: argparse.Namespace, stop: Stop) -> None:
        self._options = options
        self._stop = stop
        self._sent = self._acked = 0
        self._start_ms = _now_ms()
        self._create_time_ms = options.message_create_time

    async def go(self, producer: Producer) -> None:
        limit = self._options.max_messages
        while (limit < 0 or self._sent < limit) and not self._stop.is_asked:
            await self._send(producer, self._sent)
            self._sent += 1
            await self._keep_pace(producer)

    async def _keep_pace(self, producer: Producer) -> None:
        rate = self._options.throughput
        if rate > 0:
            ahead_s = self._sent / rate - (_now_ms() - self._start_ms) / 1000
            await self._stop.within(ahead_s)
        elif rate == 0:
            await self._stop.within(None)
        elif self._sent % YIELD_EVERY == 0:
            await producer.wait_for_room()

    async def _send(self, producer: Producer, number: int) -> None:
        from tidemill.client.errors import BufferFullError, ClientError

        key, value, at_ms = self._key(number), self._value(number), self._next_time_ms()
        topic = self._options.topic
        try:
            try:
                delivery = producer.send_soon(topic, value, key=key, timestamp_ms=at_ms)
            except BufferFullError:
                await producer.wait_for_room()
                delivery = producer.send_soon(topic, value, key=key, timestamp_ms=at_ms)
        except ClientError as error:
            self._failed(key, value, error)
            return
        delivery.add_done_callback(partial(self._delivered, key, value))

    def _key(self, number: int) -> str | None:
        keys = self._options.repeating_keys
        return str(number % keys) if keys else None

    def _value(self, number: int) -> str:
        prefix = self._options.value_prefix
        return str(number) if prefix is None else f"{prefix}.{number}"

    def _next_time_ms(self) -> int | None:
        """From the given time on, and further the longer the tool runs."""
        if self._create_time_ms < 0:
            return None
        found: int = self._create_time_ms
        self._create_time_ms += _now_ms() - self._start_ms
        return found

    def _delivered(self, key: str | None, value: str, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            self._failed(key, value, error)
            return
        self._acked += 1
        at = delivery.result()
        emit(
            "producer_send_success",
            key=key,
            value=value,
            offset=at.offset,
            topic=at.topic,
            partition=at.partition,
        )

    def _failed(self, key: str | None, value: str, error: BaseException) -> None:
        emit(
            "producer_send_error",
            topic=self._options.topic,
            key=key,
            value=value,
            exception=verifiable.exception_name(error),
            message=verifiable.message_of(error),
        )

    def report(self) -> None:
        took_s = max(_now_ms() - self._start_ms, 1) / 1000
        emit(
            "tool_data",
            sent=self._sent,
            acked=self._acked,
            target_throughput=self._options.throughput,
            avg_throughput=self._acked / took_s,
        )


def _now_ms() -> int:
    return int(time.time() * 1000)
