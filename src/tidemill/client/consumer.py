"""`Consumer`: read records from assigned partitions.

    async with Consumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("clicks", 0)])
        async for record in consumer:
            ...

Records are fetched ahead in the background, within `prefetch.max.bytes`; `poll` takes from that
stock. Who decodes in bulk takes whole batches with `poll_batches`. One task may poll at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Self

from tidemill.client.admin_types import ListedOffset, OffsetSpec, Results
from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connector, connect_tcp
from tidemill.client.consumer_types import ConsumerRecord, RawBatch
from tidemill.client.errors import ClientError, ClosedError, RequestTimeoutError
from tidemill.client.fetched import check, decode
from tidemill.client.fetcher import Fetcher
from tidemill.client.interceptors import ConsumerInterceptor, run_on_consume
from tidemill.client.offsets import list_offsets
from tidemill.client.positions import PartitionState
from tidemill.client.settings import ConsumerSettings, parse
from tidemill.clock import Clock
from tidemill.types import TopicPartition

ITERATION_WAIT_MS = 1_000
BYTES_PER_TURN = 128 * 1024
TURNS_MAX = 64

_Take = Callable[[PartitionState], bool]
"""Takes from one partition; False when that is enough."""

_Move = Callable[[PartitionState], None]


class Consumer:
    """Reads the partitions it is assigned; use it inside `async with`.

    Args:
        bootstrap: brokers to ask first, "host:port,host:port" or a list of such.
        settings: see `ConsumerSettings`; `fetch_min_bytes=1` and `**{"fetch.min.bytes": 1}` both
            work.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        connector: Connector = connect_tcp,
        **settings: object,
    ) -> None:
        self.settings = parse(ConsumerSettings, settings, bootstrap)
        self._cluster = Cluster(
            self.settings,
            clock=clock,
            random=random,
            connector=connector,
            auto_create_topics=self.settings.allow_auto_create_topics,
        )
        self._clock = self._cluster.clock
        self._interceptors: Sequence[ConsumerInterceptor] = tuple(self.settings.interceptors)
        self._fetcher: Fetcher | None = None
        self._turn: list[PartitionState] = []
        self._news = asyncio.Event()

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        await self._cluster.start()
        self._fetcher = Fetcher(self.settings, self._cluster, self._news.set)
        self._fetcher.start()

    async def close(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            await fetcher.close()
        await self._cluster.close()
        self._news.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- what to read ----------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; those assigned before keep their positions.

        A new one starts where `auto.offset.reset` says, unless it is sought first.
        """
        fetcher = self._running()
        fetcher.assign(TopicPartition(*partition) for partition in partitions)
        self._turn = list(fetcher.states.values())

    def assignment(self) -> set[TopicPartition]:
        return set(self._running().states)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from this offset."""
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}; see seek_to_beginning")
        self._move(self._state(partition), lambda state: state.seek(offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read from the first record there is, of these partitions or of all."""
        for state in self._states(partitions):
            self._move(state, lambda state: state.seek_to(OffsetSpec.EARLIEST))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read what comes from now on, of these partitions or of all."""
        for state in self._states(partitions):
            self._move(state, lambda state: state.seek_to(OffsetSpec.LATEST))

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Read from the first record of this time or later; from the end if there is none."""
        states = self._states(partitions)
        found = await self.offsets_for_times({s.partition: timestamp_ms for s in states})
        for state in states:
            offset = found[state.partition]
            if offset is None:
                self.seek_to_end(state.partition)
            else:
                self.seek(state.partition, offset)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that `poll` will return, looked up if need be."""
        state = self._state(partition)
        try:
            async with asyncio.timeout(self.settings.default_api_timeout_ms / 1000):
                while state.position is None:
                    self._raise_error_of(state)
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise RequestTimeoutError(f"the position of {partition} could not be found") from None
        return state.position

    def pause(self, *partitions: TopicPartition) -> None:
        """Neither fetch nor return records of these until `resume`."""
        for state in self._states(partitions):
            state.paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        for state in self._states(partitions):
            state.paused = False
        self._running().wake()
        self._news.set()

    def paused(self) -> set[TopicPartition]:
        return {state.partition for state in self._running().states.values() if state.paused}

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The end of the partition as of the last fetch, or None before the first."""
        return self._state(partition).high_watermark

    def lag(self, partition: TopicPartition) -> int | None:
        """How many records are between the position and the end, as of the last fetch."""
        return self._state(partition).lag

    # --- reading ---------------------------------------------------------------------------------

    async def poll(
        self, max_records: int | None = None, timeout_ms: float = 0
    ) -> list[ConsumerRecord]:
        """Records that are there, else the first to come within the timeout; [] if none came.

        Raises the error of a partition that cannot be read; the others go on with the next call.
        """
        limit = self.settings.max_poll_records if max_records is None else max_records
        records: list[ConsumerRecord] = []

        def take(state: PartitionState) -> bool:
            self._take_records(state, records, limit - len(records))
            return len(records) < limit

        await self._gather(take, records, timeout_ms)
        return run_on_consume(self._interceptors, records) if self._interceptors else records

    async def poll_batches(
        self, max_bytes: int | None = None, timeout_ms: float = 0
    ) -> list[RawBatch]:
        """Whole record batches, checked but not decoded, for who decodes in bulk."""
        limit = self.settings.fetch_max_bytes if max_bytes is None else max_bytes
        batches: list[RawBatch] = []
        taken_bytes = 0

        def take(state: PartitionState) -> bool:
            nonlocal taken_bytes
            taken_bytes += self._take_batches(state, batches, limit - taken_bytes)
            return taken_bytes < limit

        await self._gather(take, batches, timeout_ms)
        return batches

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Each record as it comes, until the consumer is closed."""
        while self._fetcher is not None:
            for record in await self.poll(timeout_ms=ITERATION_WAIT_MS):
                yield record

    async def _gather(self, take: _Take, taken: Sequence[object], timeout_ms: float) -> None:
        """Go round the partitions until `take` has enough; wait if there was nothing at all."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            fetcher = self._running()
            before = fetcher.buffered_bytes
            self._go_round(take, taken)
            taken_bytes = before - fetcher.buffered_bytes
            if taken_bytes:
                fetcher.wake()
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if taken or left_ms <= 0:
                await _let_others_work(taken_bytes)
                return
            self._news.clear()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue  # One last look.

    def _go_round(self, take: _Take, taken: Sequence[object]) -> None:
        for _ in range(len(self._turn)):
            state = self._turn.pop(0)
            self._turn.append(state)
            if state.paused:
                continue
            if state.batches:
                if not take(state):
                    return
            elif state.error is not None and not taken:
                self._raise_error_of(state)

    def _take_records(
        self, state: PartitionState, records: list[ConsumerRecord], limit: int
    ) -> None:
        while state.batches and limit > 0:
            if state.records is None:
                state.records = self._open_first(state)
            part = state.records[state.taken : state.taken + limit]
            records += part
            limit -= len(part)
            state.taken += len(part)
            if state.taken >= len(state.records):
                self._drop_first(state)
            else:
                state.position = part[-1].offset + 1

    def _open_first(self, state: PartitionState) -> list[ConsumerRecord]:
        """Decode the partition's first batch; a damaged one is fetched again."""
        batch = state.batches[0]
        if batch.hidden:
            return []
        try:
            self._check_first(state)
            return decode(
                state.partition,
                batch,
                from_offset=state.position or 0,
                limit_bytes=self.settings.max_batch_decompressed_bytes,
                key_deserializer=self.settings.key_deserializer,
                value_deserializer=self.settings.value_deserializer,
            )
        except ClientError:
            self._move(state, PartitionState.refetch)
            raise

    def _take_batches(
        self, state: PartitionState, batches: list[RawBatch], limit_bytes: int
    ) -> int:
        taken_bytes = 0
        while state.batches and taken_bytes < limit_bytes:
            batch = state.batches[0]
            if not batch.hidden:
                try:
                    self._check_first(state)
                except ClientError:
                    self._move(state, PartitionState.refetch)
                    raise
                start = max(batch.header.base_offset, state.position or 0)
                batches.append(RawBatch(*state.partition, start, batch.header, batch.data))
                taken_bytes += len(batch.data)
            self._drop_first(state)
        return taken_bytes

    def _check_first(self, state: PartitionState) -> None:
        if self.settings.check_crcs:
            check(state.partition, state.batches[0])

    def _drop_first(self, state: PartitionState) -> None:
        self._running().consumed(len(state.batches[0].data))
        state.drop_first()

    # --- questions -------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> list[int]:
        """The topic's partitions; raises if there is no such topic."""
        self._running()
        answer = await self._cluster.fetch_metadata([topic])
        if topic in self._cluster.view.errors:
            raise self._cluster.view.errors[topic]
        return sorted(entry.partition_index for t in answer.topics for entry in t.partitions)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset that exists in each partition."""
        found = await self._list(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        return {partition: listed.offset for partition, listed in found.raise_first().items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the next record to be written, as far as this consumer may read."""
        found = await self._list(dict.fromkeys(partitions, OffsetSpec.LATEST))
        return {partition: listed.offset for partition, listed in found.raise_first().items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset whose record is of the given time (ms) or later, or None."""
        specs = {partition: OffsetSpec.at_time(time) for partition, time in times.items()}
        found = (await self._list(specs)).raise_first()
        return {
            partition: listed.offset if listed.offset >= 0 else None
            for partition, listed in found.items()
        }

    async def _list(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> Results[TopicPartition, ListedOffset]:
        self._running()
        level = self.settings.isolation_level
        return await list_offsets(self._cluster, specs, isolation_level=level)

    # --- inside ----------------------------------------------------------------------------------

    def _running(self) -> Fetcher:
        if self._fetcher is None:
            raise ClosedError("this consumer is not running; use it inside `async with`")
        return self._fetcher

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._running().states.get(TopicPartition(*partition))
        if state is None:
            raise ValueError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return state

    def _states(self, partitions: Sequence[TopicPartition]) -> list[PartitionState]:
        if not partitions:
            return list(self._running().states.values())
        return [self._state(partition) for partition in partitions]

    def _move(self, state: PartitionState, how: _Move) -> None:
        fetcher = self._running()
        fetcher.consumed(state.buffered_bytes)
        how(state)
        fetcher.wake()

    def _raise_error_of(self, state: PartitionState) -> None:
        """Raise a partition's error once; the next call finds it tried again."""
        error, state.error = state.error, None
        if error is not None:
            self._running().wake()
            raise error


async def _let_others_work(taken_bytes: int) -> None:
    """Give the loop the turns that the network needs to bring as much as was just taken.

    A reader that never has to wait would otherwise keep the fetcher from its sockets.
    """
    for _ in range(min(1 + taken_bytes // BYTES_PER_TURN, TURNS_MAX)):
        await asyncio.sleep(0)
