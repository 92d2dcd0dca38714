"""The same clients without asyncio: `Producer`, `Consumer` and `Admin` with identical names.

    with Producer("127.0.0.1:9092") as producer:
        producer.send("clicks", b"...", key=b"user-7")

    with Consumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("clicks", 0)])
        for record in consumer:
            ...

Each client runs its asyncio twin on a loop in a thread of its own; every method waits for the
twin's answer. A client may be used from several threads, but only one may poll at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidemill.client import admin as async_admin
from tidemill.client import consumer as async_consumer
from tidemill.client import producer as async_producer
from tidemill.client.batches import Delivery as AsyncDelivery
from tidemill.client.blocking_twin import Client, calls, waits_for
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import BufferFullError, ClientError, ClosedError
from tidemill.client.producer_types import HeadersInput, RecordMetadata
from tidemill.types import TopicPartition

WAITING_MAX = 10_000
"""Records that may wait for the loop's thread; then `send_soon` waits for it."""

ITERATION_WAIT_MS = 1_000


class Delivery:
    """What becomes of a record that was sent with `send_soon`."""

    __slots__ = ("_error", "_producer", "_seen", "_twin")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._twin: AsyncDelivery | None = None
        self._error: Exception | None = None
        self._seen = False

    def done(self) -> bool:
        return self._error is not None or (self._twin is not None and self._twin.done())

    def result(self, timeout_ms: float | None = None) -> RecordMetadata:
        """Wait for the outcome: where the record is, or its error is raised."""
        return self._producer._outcome(self, timeout_ms)

    def exception(self, timeout_ms: float | None = None) -> Exception | None:
        """Wait for the outcome: why the record was not delivered, or None if it was."""
        try:
            self.result(timeout_ms)
        except (TimeoutError, ClosedError):
            raise
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            return error
        return None

    async def _settle(self) -> RecordMetadata:
        self._seen = True
        if self._error is not None:
            raise self._error
        if self._twin is None:
            raise ClosedError("the record was never taken")
        return await self._twin


class Producer(Client[async_producer.Producer]):
    """See `tidemill.client.producer.Producer`."""

    def __init__(self, bootstrap: str | Sequence[str] | None = None, **settings: object) -> None:
        super().__init__(lambda: async_producer.Producer(bootstrap, **settings))  # type: ignore[arg-type]
        self._waiting: deque[tuple[Delivery, tuple[Any, ...]]] = deque()
        self._refused: deque[Delivery] = deque(maxlen=async_producer.UNSEEN_FAILURES_MAX)
        self._drainer: asyncio.Task[None] | None = None
        self._scheduled = False

    send = waits_for(async_producer.Producer.send)

    def send_soon(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersInput = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Queue one record; waits while the producer's memory is taken."""
        if self._loop is None or self._twin is None:
            raise ClosedError("this client is not running; use it inside `with`")
        if len(self._waiting) >= WAITING_MAX:
            self._wait(self._drained())
        delivery = Delivery(self)
        self._waiting.append((delivery, (topic, value, key, headers, partition, timestamp_ms)))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._start_drainer)
        return delivery

    def flush(self) -> None:
        """Wait for everything sent so far; raises the first failure that nobody looked at."""
        self._wait(self._flush())

    def close(self) -> None:
        """Deliver what is queued; raises the first failure that nobody looked at."""
        try:
            if self._twin is not None:
                self._wait(self._flush())
        finally:
            super().close()

    wait_for_room = waits_for(async_producer.Producer.wait_for_room)
    partitions_for = waits_for(async_producer.Producer.partitions_for)

    @property
    def buffered_bytes(self) -> int:
        return self._running.buffered_bytes

    @property
    def trouble(self) -> ClientError | None:
        return self._running.trouble

    def _outcome(self, delivery: Delivery, timeout_ms: float | None) -> RecordMetadata:
        async def wait() -> RecordMetadata:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._drained()
                return await delivery._settle()

        return self._wait(wait())

    # --- on the loop's thread --------------------------------------------------------------------

    def _start_drainer(self) -> None:
        if self._drainer is None or self._drainer.done():
            self._drainer = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Hand over what waits, in order, at the pace that the producer's memory allows."""
        while True:
            while self._waiting:
                delivery, record = self._waiting[0]
                try:
                    self._hand_over(delivery, record)
                except BufferFullError:
                    await self._make_room(delivery)
                    continue
                self._waiting.popleft()
            self._scheduled = False
            if not self._waiting:  # One may have come between the last look and the flag.
                return

    def _hand_over(self, delivery: Delivery, record: tuple[Any, ...]) -> None:
        topic, value, key, headers, partition, timestamp_ms = record
        try:
            delivery._twin = self._running.send_soon(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        except BufferFullError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this record's error
            self._refuse(delivery, error)

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        delivery._error = error
        self._refused.append(delivery)

    async def _make_room(self, delivery: Delivery) -> None:
        try:
            await self._running.wait_for_room()
        except (ClientError, ClosedError) as error:
            self._refuse(delivery, error)
            self._waiting.popleft()

    async def _drained(self) -> None:
        if self._waiting:
            self._start_drainer()
        if self._drainer is not None:
            await asyncio.shield(self._drainer)

    async def _flush(self) -> None:
        await self._drained()
        await self._running.flush()
        self._raise_unseen()

    def _raise_unseen(self) -> None:
        unseen = [delivery for delivery in self._refused if not delivery._seen]
        self._refused.clear()
        if unseen and unseen[0]._error is not None:
            raise unseen[0]._error


class Consumer(Client[async_consumer.Consumer]):
    """See `tidemill.client.consumer.Consumer`; a listener runs on the client's own thread."""

    def __init__(self, bootstrap: str | Sequence[str] | None = None, **settings: object) -> None:
        super().__init__(lambda: async_consumer.Consumer(bootstrap, **settings))  # type: ignore[arg-type]

    assign = calls(async_consumer.Consumer.assign)
    subscribe = calls(async_consumer.Consumer.subscribe)
    unsubscribe = waits_for(async_consumer.Consumer.unsubscribe)
    subscription = calls(async_consumer.Consumer.subscription)
    assignment = calls(async_consumer.Consumer.assignment)

    commit = waits_for(async_consumer.Consumer.commit)
    commit_soon = calls(async_consumer.Consumer.commit_soon)
    committed = waits_for(async_consumer.Consumer.committed)

    seek = calls(async_consumer.Consumer.seek)
    seek_to_beginning = calls(async_consumer.Consumer.seek_to_beginning)
    seek_to_end = calls(async_consumer.Consumer.seek_to_end)
    seek_to_time = waits_for(async_consumer.Consumer.seek_to_time)
    position = waits_for(async_consumer.Consumer.position)
    pause = calls(async_consumer.Consumer.pause)
    resume = calls(async_consumer.Consumer.resume)
    paused = calls(async_consumer.Consumer.paused)
    high_watermark = calls(async_consumer.Consumer.high_watermark)
    lag = calls(async_consumer.Consumer.lag)

    poll = waits_for(async_consumer.Consumer.poll)
    poll_batches = waits_for(async_consumer.Consumer.poll_batches)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Each record as it comes, until the consumer is closed."""
        while (twin := self._twin) is not None:
            records = self.poll(timeout_ms=ITERATION_WAIT_MS)
            for index, record in enumerate(records):
                twin._note_reading(records, index)
                yield record
            twin._note_reading(records, len(records))

    def partitions_for(self, topic: str) -> list[int]:
        return self._wait(self._running.partitions_for(topic))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._wait(self._running.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._wait(self._running.end_offsets(partitions))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        return self._wait(self._running.offsets_for_times(times))


class Admin(Client[async_admin.Admin]):
    """See `tidemill.client.admin.Admin`."""

    def __init__(self, bootstrap: str | Sequence[str] | None = None, **settings: object) -> None:
        super().__init__(lambda: async_admin.Admin(bootstrap, **settings))  # type: ignore[arg-type]

    list_topics = waits_for(async_admin.Admin.list_topics)
    describe_topics = waits_for(async_admin.Admin.describe_topics)
    create_topics = waits_for(async_admin.Admin.create_topics)
    delete_topics = waits_for(async_admin.Admin.delete_topics)
    create_partitions = waits_for(async_admin.Admin.create_partitions)
    delete_records = waits_for(async_admin.Admin.delete_records)
    list_offsets = waits_for(async_admin.Admin.list_offsets)
    describe_producers = waits_for(async_admin.Admin.describe_producers)
    describe_configs = waits_for(async_admin.Admin.describe_configs)
    alter_configs = waits_for(async_admin.Admin.alter_configs)
    list_config_resources = waits_for(async_admin.Admin.list_config_resources)
    list_groups = waits_for(async_admin.Admin.list_groups)
    describe_groups = waits_for(async_admin.Admin.describe_groups)
    delete_groups = waits_for(async_admin.Admin.delete_groups)
    list_group_offsets = waits_for(async_admin.Admin.list_group_offsets)
    alter_group_offsets = waits_for(async_admin.Admin.alter_group_offsets)
    delete_group_offsets = waits_for(async_admin.Admin.delete_group_offsets)
    alter_partition_reassignments = waits_for(async_admin.Admin.alter_partition_reassignments)
    list_partition_reassignments = waits_for(async_admin.Admin.list_partition_reassignments)
    elect_leaders = waits_for(async_admin.Admin.elect_leaders)
    alter_replica_log_dirs = waits_for(async_admin.Admin.alter_replica_log_dirs)
    describe_cluster = waits_for(async_admin.Admin.describe_cluster)
    describe_log_dirs = waits_for(async_admin.Admin.describe_log_dirs)
    api_versions = waits_for(async_admin.Admin.api_versions)
