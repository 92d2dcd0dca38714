"""What becomes of a batch: delivered, sent again, split, or given up.

`Outcomes.settle` decides what each kind of failure means; order and exactly-once within a partition
are the business of `sequences`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.client.accumulator import Accumulator, PartitionQueue
from tidemill.client.batches import Batch
from tidemill.client.cluster import Cluster
from tidemill.client.deadlines import Deadlines
from tidemill.client.errors import ClientError, RequestTimeoutError, UnreachableError, failure_of
from tidemill.client.produce_requests import Sent
from tidemill.client.sequences import FORGOTTEN
from tidemill.client.settings import ProducerSettings
from tidemill.client.splitting import split
from tidemill.errors import ErrorCode
from tidemill.wire.messages.produce import PartitionProduceResponse

_STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)

_NOT_WRITTEN = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        *FORGOTTEN,
    }
)
"""Answers of a leader that has refused a batch. With any other it may be in the log all the same:
a leader that was deposed, or waited for its followers in vain, wrote it first."""


class Outcomes:
    """One per producer."""

    accumulator: Accumulator
    """Set right after construction: the two need each other."""

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        ready: Callable[[PartitionQueue], None],
        on_failure: Callable[[Batch], None],
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._ready = ready
        self._on_failure = on_failure
        self._idempotent = settings.enable_idempotence
        self._deadlines = Deadlines(cluster.clock, settings.delivery_timeout_ms, self._run_out)
        self._loop = asyncio.get_running_loop()
        self.trouble: ClientError | None = None
        """Why the latest batch that came back must be sent again; None while all goes well."""

    def watch(self, queue: PartitionQueue, batch: Batch) -> None:
        """A batch was opened: it fails if it is not delivered in time."""
        self._deadlines.watch(queue, batch)

    def close(self) -> None:
        self._deadlines.close()

    # --- answers ---------------------------------------------------------------------------------

    def settle_one(
        self, queue: PartitionQueue, batch: Batch, result: PartitionProduceResponse | None
    ) -> None:
        """The broker's word on one batch."""
        if result is None:
            self._settle(queue, batch, UnreachableError("the answer lacks a partition"), True)
        elif result.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self.trouble = None
            queue.sequences.returned(batch)
            if self._idempotent:
                queue.sequences.acknowledged(batch)
            if not batch.finished:
                batch.base_offset = result.base_offset
                batch.log_append_time_ms = result.log_append_time_ms
                self.accumulator.finish(batch, None)
        else:
            error = failure_of(str(queue.partition), result.error_code, result.error_message)
            self._settle(queue, batch, error, error.code not in _NOT_WRITTEN)
        self._ready(queue)

    def settle_all(self, sent: Sent, error: ClientError, *, maybe_written: bool) -> None:
        """One failure for a whole request: nobody answers it."""
        for queue, batch in sent:
            batch.at_large |= maybe_written
            self._settle(queue, batch, error, maybe_written)
            self._ready(queue)

    def settle_unacknowledged(self, sent: Sent) -> None:
        """Nobody will answer (acks=0): written to the socket is all there is to know."""
        for queue, batch in sent:
            queue.sequences.returned(batch)
            self.accumulator.finish(batch, None)
            self._ready(queue)

    def _settle(
        self, queue: PartitionQueue, batch: Batch, error: ClientError, maybe_written: bool
    ) -> None:
        """Decide what becomes of a batch that was not acknowledged."""
        sequences = queue.sequences
        sequences.returned(batch)
        batch.maybe_written |= maybe_written
        if error.code in _STALE_METADATA:
            self._cluster.refresh_soon()
        if batch.finished:  # It ran out of time while it was on its way.
            sequences.gave_up(batch)
            return
        if self._idempotent and error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            sequences.out_of_order(batch, queue.batches)
            self._send_again(queue, batch, error)
        elif self._idempotent and error.code in FORGOTTEN:
            sequences.forgotten()
            self._send_again(queue, batch, error)
        elif error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(queue, batch)
        elif error.retriable:
            self._send_again(queue, batch, error)
        else:
            self.give_up(queue, batch, error)

    def _send_again(self, queue: PartitionQueue, batch: Batch, error: ClientError) -> None:
        if batch.attempts > self._settings.retries:
            is_adrift = bool(queue.sequences.adrift((batch,)))
            self.give_up(queue, batch, _fate_unknown(batch) if is_adrift else error)
            return
        self.trouble = batch.refusal = error
        queue.put_back(batch)
        if not queue.backing_off:
            queue.backing_off = True
            delay_ms = self._cluster.retry_backoff.delay_ms(batch.attempts)
            self._loop.call_later(delay_ms / 1000, self._end_backoff, queue)

    def _end_backoff(self, queue: PartitionQueue) -> None:
        queue.backing_off = False
        self._ready(queue)

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        """The broker takes smaller batches only: send the halves, under the same numbers."""
        queue.sequences.came_apart(batch)
        parts = split(batch)
        for _, part in parts:
            queue.put_back(part)
            self._deadlines.watch(queue, part)
        self.accumulator.replace(batch, parts)

    def gives_up_adrift(self, queue: PartitionQueue) -> bool:
        """Whether there was something that must not be numbered anew; it has failed now."""
        adrift = queue.sequences.adrift(queue.batches)
        for batch in adrift:
            queue.batches.remove(batch)
            self.give_up(queue, batch, _fate_unknown(batch))
        return bool(adrift)

    def give_up(self, queue: PartitionQueue, batch: Batch, error: ClientError) -> None:
        """This batch failed for good."""
        if self._idempotent:
            queue.sequences.gave_up(batch)
        self.accumulator.finish(batch, error)
        if not batch.observed:
            self._on_failure(batch)

    # --- time ------------------------------------------------------------------------------------

    def _run_out(self, queue: PartitionQueue, batch: Batch) -> None:
        if batch in queue.batches:
            queue.batches.remove(batch)
            if queue.open is batch:
                queue.open = None
        else:
            batch.maybe_written = True
        limit_ms = self._settings.delivery_timeout_ms
        # Without a producer id nothing is sent at all: then that is the reason.
        refusal = batch.refusal or self.trouble
        reason = "" if refusal is None else f": {refusal.message or refusal.code.name}"
        error = RequestTimeoutError(
            f"{batch.record_count} records for {queue.partition} were not delivered"
            f" in delivery.timeout.ms={limit_ms}{reason}",
            hint=None if refusal is None else refusal.hint,
        )
        error.__cause__ = refusal
        self.give_up(queue, batch, error)
        self._ready(queue)


def _fate_unknown(batch: Batch) -> ClientError:
    return RequestTimeoutError(
        f"the connection broke before {batch.record_count} records for {batch.partition} were"
        " acknowledged, and records before them were given up: they may be written or not",
        hint="look for them in the topic before you send them again; larger `delivery.timeout.ms`"
        " and `retries` outlast longer failures",
    )
