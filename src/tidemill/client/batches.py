"""A batch on its way from `send` to the broker, and `Delivery`, a caller's hold on one record.

A million records a minute must not mean a million futures: a delivery is two references, and what
happened to a whole batch is noted once, in the batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from tidemill.client.errors import ClientError
from tidemill.client.producer_types import RecordMetadata
from tidemill.types import TopicPartition
from tidemill.wire.records import BatchBuilder

NO_SEQUENCE = -1

_log = logging.getLogger(__name__)


class Batch:
    """Records of one partition that travel together; open until full, due or sent.

    `order` sorts the batches of a partition by when they were opened; the parts of a split batch
    come where it was.
    """

    __slots__ = (
        "at_large",
        "attempts",
        "base_offset",
        "base_sequence",
        "born_ms",
        "builder",
        "callbacks",
        "closed",
        "compressed",
        "due",
        "error",
        "finished",
        "log_append_time_ms",
        "maybe_written",
        "observed",
        "order",
        "partition",
        "parts",
        "record_count",
        "refusal",
        "size_bytes",
        "turn",
    )

    def __init__(
        self,
        partition: TopicPartition,
        born_ms: int,
        order: tuple[int, ...] = (),
        encoded: BatchBuilder | None = None,
    ) -> None:
        """A batch to be filled, or `encoded`, one that is complete."""
        self.partition = partition
        self.order = order
        self.born_ms = born_ms
        self.builder: BatchBuilder | None = encoded or BatchBuilder()
        self.size_bytes = 0 if encoded is None else encoded.size_bytes
        self.record_count = 0 if encoded is None else encoded.record_count
        self.closed = encoded is not None
        self.compressed = False
        self.due = False
        self.attempts = 0
        self.base_sequence = NO_SEQUENCE
        self.turn = NO_SEQUENCE  # which of the partition's batches it was when first sent
        self.maybe_written = False
        self.at_large = False  # sent where no answer will come from: it may arrive at any time
        self.finished = False
        self.error: ClientError | None = None
        self.refusal: ClientError | None = None  # why the last attempt was not the last
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.parts: list[tuple[int, Batch]] = []
        self.observed = False
        self.callbacks: list[Callable[[], None]] | None = None

    def finish(self, error: ClientError | None) -> None:
        """Note the outcome and tell everyone who waits; the records themselves are let go."""
        self.finished = True
        self.error = error
        self.builder = None
        callbacks, self.callbacks = self.callbacks, None
        for callback in callbacks or ():
            try:
                callback()
            except Exception:  # noqa: BLE001 - it is logged, and the others are settled
                _log.exception("a delivery callback for %s failed", self.partition)

    def when_finished(self, callback: Callable[[], None]) -> None:
        if self.finished:
            callback()
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def part_of(self, index: int) -> tuple[Batch, int]:
        """Where record `index` is now: here, or in a part if the batch had to be split."""
        batch = self
        while batch.parts:
            start, part = max(
                (entry for entry in batch.parts if entry[0] <= index), key=lambda entry: entry[0]
            )
            batch, index = part, index - start
        return batch, index


class _Waker:
    """Resolves a future when called, if that still interests anybody."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def __call__(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Held:
    """A record whose topic is not known yet; `batch` is set when it found its partition."""

    __slots__ = ("batch", "callbacks", "error", "index", "observed", "urgent")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.index = 0
        self.error: ClientError | None = None
        self.observed = False
        self.urgent = False
        self.callbacks: list[Callable[[], None]] = []

    def settle(self) -> None:
        """The batch is known now, or the failure is."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class Delivery:
    """What becomes of one record: await it, or ask `done`, `result` and `exception` later.

    Awaiting returns the `RecordMetadata` or raises the `ClientError`; cancelling whoever awaits
    does not take the record back.
    """

    __slots__ = ("_batch", "_held", "_index", "_timestamp_ms")

    def __init__(
        self, batch: Batch | None, index: int, timestamp_ms: int, held: Held | None = None
    ) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._held = held

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        self._mark_observed()
        while not self.done():
            future = asyncio.get_running_loop().create_future()
            self._when_moved(_Waker(future))
            yield from future
        return self.result()

    def done(self) -> bool:
        batch = self._find()
        if batch is None:
            return self._held is not None and self._held.error is not None
        return batch.finished

    def result(self) -> RecordMetadata:
        """Where the record is; raises its error, or `InvalidStateError` while it is on its way."""
        error = self.exception()
        if error is not None:
            raise error
        batch = self._find()
        assert batch is not None
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        appended_ms = batch.log_append_time_ms
        timestamp_ms = appended_ms if appended_ms >= 0 else self._timestamp_ms
        return RecordMetadata(*batch.partition, offset, timestamp_ms)

    def exception(self) -> ClientError | None:
        """Why the record was not delivered, or None if it was."""
        if not self.done():
            raise asyncio.InvalidStateError("the record is still on its way")
        self._mark_observed()
        batch = self._find()
        if batch is not None:
            return batch.error
        return self._held.error if self._held is not None else None

    @property
    def attempts(self) -> int:
        """How often the record has been sent so far."""
        batch = self._find()
        return 0 if batch is None else batch.attempts

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` when the outcome is known; at once if it is already."""
        self._mark_observed()
        if self.done():
            callback(self)
        else:
            self._when_moved(lambda: self.add_done_callback(callback))

    def _find(self) -> Batch | None:
        """The batch that the record is in now; it may have found or changed it since."""
        held = self._held
        if held is not None:
            if held.batch is None:
                return None
            self._batch, self._index, self._held = held.batch, held.index, None
        batch = self._batch
        if batch is not None and batch.parts:
            self._batch, self._index = batch.part_of(self._index)
            self._batch.observed |= batch.observed
        return self._batch

    def _when_moved(self, callback: Callable[[], Any]) -> None:
        batch = self._find()
        if batch is not None:
            batch.when_finished(callback)
        elif self._held is not None:
            self._held.callbacks.append(callback)

    def _mark_observed(self) -> None:
        batch = self._find()
        if batch is not None:
            batch.observed = True
        elif self._held is not None:
            self._held.observed = True
