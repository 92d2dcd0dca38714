"""What a consumer hands out: records, or whole batches for those who decode in bulk."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemill.wire.batch import BatchHeader


class ConsumerRecord(NamedTuple):
    """One record with its place; `timestamp_type` is 0 (set by the producer) or 1 (by the log)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


class RawBatch(NamedTuple):
    """One record batch as stored, checked but not decoded: `data` is all of it, header included.

    A fetch from the middle of a batch returns the whole batch: skip records before `start_offset`.
    """

    topic: str
    partition: int
    start_offset: int
    header: BatchHeader
    data: memoryview
