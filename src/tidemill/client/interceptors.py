"""Hooks that see every record: for tracing, auditing and the like. They must be quick.

An interceptor that raises is logged and skipped: a broken observer must not stop the traffic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError
from tidemill.client.producer_types import HeadersInput, RecordMetadata

logger = logging.getLogger(__name__)


class OutgoingRecord(NamedTuple):
    """A record as the caller gave it, before it is serialized."""

    topic: str
    value: Any
    key: Any
    headers: HeadersInput
    partition: int | None
    timestamp_ms: int | None


@runtime_checkable
class ProducerInterceptor(Protocol):
    """Sees records on their way out, and what became of them."""

    def on_send(self, record: OutgoingRecord) -> OutgoingRecord:
        """Return the record to send: this one, or one made from it."""
        ...

    def on_delivery(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        """A record was delivered, or was not."""
        ...


@runtime_checkable
class ConsumerInterceptor(Protocol):
    """Sees records before `poll` returns them."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records to hand out."""
        ...


def run_on_send(chain: Sequence[ProducerInterceptor], record: OutgoingRecord) -> OutgoingRecord:
    for interceptor in chain:
        try:
            record = interceptor.on_send(record)
        except Exception:
            logger.exception(
                "interceptor failed on send interceptor=%s", type(interceptor).__name__
            )
    return record


def run_on_delivery(
    chain: Sequence[ProducerInterceptor], metadata: RecordMetadata | None, error: ClientError | None
) -> None:
    for interceptor in chain:
        try:
            interceptor.on_delivery(metadata, error)
        except Exception:
            logger.exception(
                "interceptor failed on delivery interceptor=%s", type(interceptor).__name__
            )


def run_on_consume(
    chain: Sequence[ConsumerInterceptor], records: list[ConsumerRecord]
) -> list[ConsumerRecord]:
    for interceptor in chain:
        try:
            records = interceptor.on_consume(records)
        except Exception:
            logger.exception(
                "interceptor failed on consume interceptor=%s", type(interceptor).__name__
            )
    return records
