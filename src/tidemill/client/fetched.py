"""Fetched bytes to batches to records. Pure functions, no I/O.

`split_batches` walks the headers of an answer and marks what must not be shown: control batches
always, batches of aborted transactions for whoever reads committed records only. `decode` checks
and decodes one batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError
from tidemill.client.settings import Deserializer
from tidemill.errors import ErrorCode, WireError
from tidemill.types import TopicPartition
from tidemill.wire.batch import (
    BatchHeader,
    UnsupportedMagicError,
    crc_matches,
    iter_headers,
)
from tidemill.wire.control import ControlType, read_marker
from tidemill.wire.declare import Records
from tidemill.wire.messages.fetch import AbortedTransaction
from tidemill.wire.records import iter_records


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
    pending = sorted(aborted or (), key=lambda entry: entry.first_offset, reverse=True)
    aborting: set[int] = set()
    found = []
    for pos, header in iter_headers(view):
        data = view[pos : pos + header.size_bytes]
        hidden = header.is_control
        if committed_only:
            while pending and pending[-1].first_offset <= header.last_offset:
                aborting.add(pending.pop().producer_id)
            if header.is_control:
                _end_transaction(data, header, aborting)
            elif header.is_transactional and header.producer_id in aborting:
                hidden = True
        found.append(FetchedBatch(header, data, hidden))
    return found


def _end_transaction(data: memoryview, header: BatchHeader, aborting: set[int]) -> None:
    """An abort marker ends its producer's aborted transaction: what follows is a new one."""
    if header.record_count == 0:
        return  # The marker itself was compacted away.
    marker = read_marker(data, 0, header)
    if marker is not None and marker.control_type is ControlType.ABORT:
        aborting.discard(header.producer_id)


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
