"""`kafka-verifiable-consumer`: read a topic as a member of a group and print all that happens."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.cli.kafka import common, verifiable
from tidemill.cli.kafka.verifiable import Stop, VerifiableOptions, emit
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Consumer, ConsumerRecord

POLL_MS = 100
RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"


def parser() -> VerifiableOptions:
    p = VerifiableOptions(
        "kafka-verifiable-consumer",
        "Reads a topic as a member of a group and prints, as JSON, rebalances, records and "
        "commits.",
    )
    common.address_options(p)
    p.required("topic", "The topic to read.")
    p.value("group-protocol", "classic or consumer.", default="classic")
    p.value("group-remote-assignor", "The broker's assignor, for the protocol `consumer`.")
    p.required("group-id", "The group to be a member of.")
    p.value("group-instance-id", "A name that lasts: a static member.")
    p.value("max-messages", "How many; -1: until it is stopped.", type=int, default=-1)
    p.value("session-timeout", "Session timeout, ms; only for `classic`.", type=int)
    p.flag("verbose", "Print each record.")
    p.flag("enable-autocommit", "Leave the commits to the consumer.")
    p.value("reset-policy", "earliest, latest or none.", default="earliest")
    p.value("assignment-strategy", "The assignor, for the protocol `classic`.", default=RANGE)
    p.value("consumer.config", "Old spelling of --command-config.", dest="consumer_config")
    return p


def main(argv: Sequence[str]) -> int:
    return verifiable.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    verifiable.deprecated(options, "consumer.config")
    target = common.target(
        options, "argument --bootstrap-server is required", files=[options.consumer_config]
    )
    client = common.for_client(target, "consumer")
    stop = Stop()
    stop.listen()
    run = _Run(options, stop)
    async with client.consumer(**_settings(options)) as consumer:
        emit("startup_complete")
        consumer.subscribe([options.topic], listener=run)
        await run.go(consumer)
        if stop.is_asked:
            emit("shutdown_requested")
    emit("shutdown_complete")
    if not stop.is_asked:
        emit("shutdown_requested")
    return stop.status


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says; as in Kafka it wins over a file."""
    settings: dict[str, Any] = {
        "group_id": options.group_id,
        "group_protocol": options.group_protocol.lower(),
        "group_instance_id": options.group_instance_id,
        "enable_auto_commit": options.enable_autocommit,
        "auto_offset_reset": options.reset_policy,
    }
    if settings["group_protocol"] == "classic":
        settings["partition_assignment_strategy"] = options.assignment_strategy
        if options.session_timeout is not None:
            settings["session_timeout_ms"] = options.session_timeout
    elif options.group_remote_assignor:
        settings["group_remote_assignor"] = options.group_remote_assignor
    return settings


class _Run:
    """The reading; also the listener that hears of rebalances."""

    def __init__(self, options: argparse.Namespace, stop: Stop) -> None:
        self._options = options
        self._stop = stop
        self._count = 0

    async def go(self, consumer: Consumer) -> None:
        limit = self._options.max_messages
        while (limit < 0 or self._count < limit) and not self._stop.is_asked:
            room = None if limit < 0 else limit - self._count
            records = await consumer.poll(room, timeout_ms=POLL_MS)
            if records:
                done = self._note(records)
                if not self._options.enable_autocommit:
                    await _commit(consumer, done)

    def _note(self, records: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
        """Print what came; where each partition is now."""
        self._count += len(records)
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        if self._options.verbose:
            for part in found.values():
                for record in part:
                    _print_record(record)
        summaries = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "count": len(part),
                "minOffset": part[0].offset,
                "maxOffset": part[-1].offset,
            }
            for tp, part in found.items()
        ]
        emit("records_consumed", count=len(records), partitions=summaries)
        return {tp: part[-1].offset + 1 for tp, part in found.items()}

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        emit("partitions_assigned", partitions=_places(partitions))

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        emit("partitions_revoked", partitions=_places(partitions))

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self.on_revoked(partitions)


def _print_record(record: ConsumerRecord) -> None:
    emit(
        "record_data",
        key=verifiable.text(record.key),
        value=verifiable.text(record.value),
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


async def _commit(consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
    """Commit and print; a refusal is news, not the end."""
    from tidemill.client import ClientError

    places = [{"topic": t, "partition": p, "offset": at} for (t, p), at in offsets.items()]
    try:
        await consumer.commit(dict(offsets))
    except ClientError as error:
        emit("offsets_committed", offsets=places, error=str(error), success=False)
    else:
        emit("offsets_committed", offsets=places, success=True)


def _places(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(partitions)]
