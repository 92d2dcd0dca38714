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
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar
from uuid import UUID

from tidemill.client import admin as async_admin
from tidemill.client import consumer as async_consumer
from tidemill.client import producer as async_producer
from tidemill.client.admin_groups import GroupDescription, GroupListing
from tidemill.client.admin_types import (
    AlterOp,
    BrokerApiVersions,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    ElectionType,
    ListedOffset,
    LogDirDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ProducerDescription,
    Reassignment,
    Replica,
    ResourceType,
    Results,
    TopicDescription,
    TopicListing,
)
from tidemill.client.batches import Delivery as AsyncDelivery
from tidemill.client.commits import OnCommit
from tidemill.client.consumer_types import ConsumerRecord, RawBatch
from tidemill.client.errors import BufferFullError, ClientError, ClosedError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.member import RebalanceListener
from tidemill.client.producer_types import HeadersInput, RecordMetadata
from tidemill.types import TopicPartition

WAITING_MAX = 10_000
"""Records that may wait for the loop's thread; then `send_soon` waits for it."""

ITERATION_WAIT_MS = 1_000

T = TypeVar("T")


class _Twin(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Twin)


class _Client(Generic[C]):
    """A loop in a thread, and the asyncio client that lives on it."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._twin: C | None = None

    def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(
            target=loop.run_forever, name="tidemill-client", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._begin())
        except BaseException:
            self._stop_loop()
            raise

    async def _begin(self) -> None:
        twin = self._make()
        await twin.start()
        self._twin = twin

    def close(self) -> None:
        """Finish what is under way and end the thread."""
        twin, self._twin = self._twin, None
        try:
            if twin is not None:
                self._wait(twin.close())
        finally:
            self._stop_loop()

    def _stop_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _running(self) -> C:
        if self._twin is None:
            raise ClosedError("this client is not running; use it inside `with`")
        return self._twin

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop's thread and wait for it."""
        loop = self._loop
        if loop is None:
            work.close()
            raise ClosedError("this client is not running; use it inside `with`")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while we wait ends the work, too.
            raise

    def _call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function on the loop's thread."""

        async def call() -> T:
            return function(*args)

        return self._wait(call())


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


class Producer(_Client[async_producer.Producer]):
    """See `tidemill.client.producer.Producer`."""

    def __init__(self, bootstrap: str | Sequence[str] | None = None, **settings: object) -> None:
        super().__init__(lambda: async_producer.Producer(bootstrap, **settings))  # type: ignore[arg-type]
        self._waiting: deque[tuple[Delivery, tuple[Any, ...]]] = deque()
        self._refused: deque[Delivery] = deque(maxlen=async_producer.UNSEEN_FAILURES_MAX)
        self._drainer: asyncio.Task[None] | None = None
        self._scheduled = False

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersInput = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Deliver one record and say where it is."""
        return self._wait(
            self._running.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        )

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

    def wait_for_room(self) -> None:
        """Return when half of `buffer.memory` is free."""
        self._wait(self._running.wait_for_room())

    def partitions_for(self, topic: str) -> list[int]:
        return self._wait(self._running.partitions_for(topic))

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


class Consumer(_Client[async_consumer.Consumer]):
    """See `tidemill.client.consumer.Consumer`."""

    def __init__(self, bootstrap: str | Sequence[str] | None = None, **settings: object) -> None:
        super().__init__(lambda: async_consumer.Consumer(bootstrap, **settings))  # type: ignore[arg-type]

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions."""
        self._call(self._running.assign, list(partitions))

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics with the rest of the group; the listener runs on the client's own thread."""
        self._call(partial(self._running.subscribe, topics, pattern=pattern, listener=listener))

    def unsubscribe(self) -> None:
        self._wait(self._running.unsubscribe())

    def subscription(self) -> set[str]:
        return self._call(self._running.subscription)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit these offsets (of the next record to read), or all that was read so far."""
        self._wait(self._running.commit(offsets))

    def commit_soon(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        self._call(self._running.commit_soon, offsets, on_commit)

    def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return self._wait(self._running.committed(*partitions))

    def assignment(self) -> set[TopicPartition]:
        return self._call(self._running.assignment)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from this offset."""
        self._call(self._running.seek, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        self._call(self._running.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        self._call(self._running.seek_to_end, *partitions)

    def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        self._wait(self._running.seek_to_time(timestamp_ms, *partitions))

    def position(self, partition: TopicPartition) -> int:
        return self._wait(self._running.position(partition))

    def pause(self, *partitions: TopicPartition) -> None:
        self._call(self._running.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._call(self._running.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        return self._call(self._running.paused)

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self._call(self._running.high_watermark, partition)

    def lag(self, partition: TopicPartition) -> int | None:
        return self._call(self._running.lag, partition)

    def poll(self, max_records: int | None = None, timeout_ms: float = 0) -> list[ConsumerRecord]:
        """Records that are there, else the first to come within the timeout; [] if none came."""
        return self._wait(self._running.poll(max_records, timeout_ms))

    def poll_batches(self, max_bytes: int | None = None, timeout_ms: float = 0) -> list[RawBatch]:
        return self._wait(self._running.poll_batches(max_bytes, timeout_ms))

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


class Admin(_Client[async_admin.Admin]):
    """See `tidemill.client.admin.Admin`."""

    def __init__(self, bootstrap: str | Sequence[str] | None = None, **settings: object) -> None:
        super().__init__(lambda: async_admin.Admin(bootstrap, **settings))  # type: ignore[arg-type]

    def list_topics(self, internal: bool = False) -> list[TopicListing]:
        return self._wait(self._running.list_topics(internal))

    def describe_topics(self, names: Iterable[str] | None = None) -> Results[str, TopicDescription]:
        return self._wait(self._running.describe_topics(names))

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        return self._wait(self._running.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names_or_ids: Iterable[str | UUID]) -> Results[str | UUID, None]:
        return self._wait(self._running.delete_topics(names_or_ids))

    def create_partitions(
        self, topics: Mapping[str, NewPartitions], *, validate_only: bool = False
    ) -> Results[str, None]:
        return self._wait(self._running.create_partitions(topics, validate_only=validate_only))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        return self._wait(self._running.delete_records(offsets))

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
    ) -> Results[TopicPartition, ListedOffset]:
        return self._wait(self._running.list_offsets(specs, isolation_level=isolation_level))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, list[ProducerDescription]]:
        return self._wait(self._running.describe_producers(partitions))

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        return self._wait(
            self._running.describe_configs(
                resources,
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )
        )

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[AlterOp]],
        *,
        validate_only: bool = False,
    ) -> Results[ConfigResource, None]:
        return self._wait(self._running.alter_configs(changes, validate_only=validate_only))

    def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        return self._wait(self._running.list_config_resources(types))

    def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[GroupListing]:
        return self._wait(self._running.list_groups(states, types))

    def describe_groups(self, group_ids: Iterable[str]) -> Results[str, GroupDescription]:
        return self._wait(self._running.describe_groups(group_ids))

    def delete_groups(self, group_ids: Iterable[str]) -> Results[str, None]:
        return self._wait(self._running.delete_groups(group_ids))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[TopicPartition, OffsetAndMetadata | None]:
        return self._wait(self._running.list_group_offsets(group_id, partitions))

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> Results[TopicPartition, None]:
        return self._wait(self._running.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        return self._wait(self._running.delete_group_offsets(group_id, partitions))

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> Results[TopicPartition, None]:
        return self._wait(
            self._running.alter_partition_reassignments(
                targets, allow_replication_factor_change=allow_replication_factor_change
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        return self._wait(self._running.list_partition_reassignments(partitions))

    def elect_leaders(
        self, election: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[TopicPartition, None]:
        return self._wait(self._running.elect_leaders(election, partitions))

    def alter_replica_log_dirs(self, moves: Mapping[Replica, str]) -> Results[Replica, None]:
        return self._wait(self._running.alter_replica_log_dirs(moves))

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        return self._wait(self._running.describe_cluster(include_fenced=include_fenced))

    def describe_log_dirs(
        self, broker_ids: Iterable[int] | None = None
    ) -> Results[int, dict[str, LogDirDescription]]:
        return self._wait(self._running.describe_log_dirs(broker_ids))

    def api_versions(self, broker_id: int | None = None) -> BrokerApiVersions:
        return self._wait(self._running.api_versions(broker_id))
