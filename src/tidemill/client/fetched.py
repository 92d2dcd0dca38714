"""Fetched bytes to batches to records. Pure functions, no I/O.

`split_batches` walks the headers of an answer and marks what must not be shown, as `wire.visible`
decides. `check` and `decode` are for one batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError
from tidemill.client.settings import Deserializer
from tidemill.errors import ErrorCode, WireError
from tidemill.types import TopicPartition
from tidemill.wire.batch import BatchHeader, UnsupportedMagicError, crc_matches
from tidemill.wire.declare import Records
from tidemill.wire.messages.fetch import AbortedTransaction
from tidemill.wire.records import iter_records
from tidemill.wire.visible import iter_visible


class FetchedBatch(NamedTuple):
    """A whole batch as it came; `hidden` ones only move the position."""

    header: BatchHeader
    data: memoryview
    hidden: bool


def split_batches(
    records: Records | None, aborted: Iterable[AbortedTransaction] | None, *, committed_only: bool
) -> list[FetchedBatch]:
    """The whole batches in an answer; a partial one at its end is dropped, as it may be there."""
    if not records:
        return []
    view = memoryview(records)
    return [
        FetchedBatch(header, view[pos : pos + header.size_bytes], not is_visible)
        for pos, header, is_visible in iter_visible(
            view, aborted or (), committed_only=committed_only
        )
    ]


def check(partition: TopicPartition, batch: FetchedBatch) -> None:
    """Raise if the batch's bytes are not those that were written."""
    if not crc_matches(batch.data, 0, batch.header):
        raise corrupt(partition, batch.header.base_offset, "its checksum does not match")


def decode(
    partition: TopicPartition,
    batch: FetchedBatch,
    *,
    from_offset: int,
    limit_bytes: int,
    key_deserializer: Deserializer | None,
    value_deserializer: Deserializer | None,
) -> list[ConsumerRecord]:
    """The batch's records from `from_offset` on."""
    topic, index = partition
    header = batch.header
    time_type = int(header.timestamp_type)
    epoch = header.partition_leader_epoch
    new, kind = tuple.__new__, ConsumerRecord
    try:
        records = [
            new(kind, (topic, index, offset, time_ms, time_type, key, value, headers, epoch))
            for offset, time_ms, key, value, headers in iter_records(
                batch.data, 0, header, limit_bytes=limit_bytes
            )
        ]
    except WireError as error:
        raise corrupt(partition, header.base_offset, str(error)) from error
    if header.base_offset < from_offset:
        records = [record for record in records if record.offset >= from_offset]
    if key_deserializer is None and value_deserializer is None:
        return records
    return [_deserialize(record, key_deserializer, value_deserializer) for record in records]


def _deserialize(
    record: ConsumerRecord,
    key_deserializer: Deserializer | None,
    value_deserializer: Deserializer | None,
) -> ConsumerRecord:
    key, value = record.key, record.value
    if key_deserializer is not None:
        key = key_deserializer(record.topic, key)
    if value_deserializer is not None:
        value = value_deserializer(record.topic, value)
    return record._replace(key=key, value=value)


def corrupt(partition: TopicPartition, offset: int, why: str) -> ClientError:
    return ClientError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the batch of {partition} at offset {offset} is damaged: {why}",
        hint="read it again; if it stays so, seek past it",
    )


def unreadable(partition: TopicPartition, error: WireError) -> ClientError:
    """The error for an answer whose batches cannot even be told apart."""
    if isinstance(error, UnsupportedMagicError):
        return ClientError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"{partition} holds records in a format from before Kafka 0.11",
            hint="rewrite the log with `tidemill log import`",
        )
    return corrupt(partition, -1, str(error))
