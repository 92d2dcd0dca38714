"""Which partition of the copy a record belongs to: a function of the record and its place alone.

It must be: after a crash the copier asks again, and has to get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.partitioner import positive_hash

Route = Callable[[ConsumerRecord], int]

KEYLESS_RUN = 64
"""So many records without a key go to one partition before the next one's turn."""


def same_partition(record: ConsumerRecord) -> int:
    """A mirror keeps partitions."""
    return record.partition


def by_key(partitions: int) -> Route:
    """Where Kafka's own partitioner puts the key, so that producers of the copy agree with it."""

    def route(record: ConsumerRecord) -> int:
        if record.key is None:
            return (record.partition + record.offset // KEYLESS_RUN) % partitions
        return positive_hash(record.key) % partitions

    return route
