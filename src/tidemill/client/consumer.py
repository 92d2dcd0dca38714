"""`Consumer`: read records, as a member of a group or from partitions of one's own choice.

    async with Consumer("127.0.0.1:9092", group_id="audit") as consumer:
        consumer.subscribe(["clicks"])
        async for record in consumer:
            ...

    async with Consumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("clicks", 0)])
        records = await consumer.poll(timeout_ms=1000)

Records are fetched ahead in the background, within `prefetch.max.bytes`; `poll` takes from that
stock. Who decodes in bulk takes whole batches with `poll_batches`. One task may poll at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from types import TracebackType
from typing import Self

from tidemill.client.admin_types import OffsetSpec
from tidemill.client.classic_member import ClassicMember
from tidemill.client.cluster import Cluster
from tidemill.client.commits import Commits, OnCommit, step_back
from tidemill.client.connection import Connector, connect_tcp
from tidemill.client.consumer_types import ConsumerRecord, RawBatch
from tidemill.client.errors import ClosedError, RequestTimeoutError
from tidemill.client.fetcher import Fetcher
from tidemill.client.group_offsets import OUTSIDER, OffsetAndMetadata
from tidemill.client.heartbeat_member import HeartbeatMember
from tidemill.client.interceptors import ConsumerInterceptor, run_on_consume
from tidemill.client.member import GroupMember, RebalanceListener
from tidemill.client.positions import PartitionState
from tidemill.client.reader import Reader, Take, let_others_work
from tidemill.client.settings import ConsumerSettings, parse
from tidemill.client.topic_questions import TopicQuestions
from tidemill.clock import Clock
from tidemill.types import TopicPartition

ITERATION_WAIT_MS = 1_000
CLOSE_TIMEOUT_MS = 30_000


class Consumer(TopicQuestions):
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
        super().__init__(self._cluster, self.settings.isolation_level)
        self._clock = self._cluster.clock
        self._interceptors: Sequence[ConsumerInterceptor] = tuple(self.settings.interceptors)
        self._fetcher: Fetcher | None = None
        self._member: GroupMember | None = None
        self._commits: Commits | None = None
        self._reading: tuple[list[ConsumerRecord], int] | None = None
        self._reader: Reader | None = None
        self._news = asyncio.Event()

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        await self._cluster.start()
        self._fetcher = Fetcher(self.settings, self._cluster, self._news.set)
        self._fetcher.start()
        self._reader = Reader(self.settings, self._fetcher)
        if self.settings.group_id:
            self._commits = Commits(self.settings, self._cluster)

    async def close(self) -> None:
        """Commit what was read (if that is automatic), leave the group, end all work."""
        await self._close(commit=True)

    async def _close(self, *, commit: bool) -> None:
        try:
            if self._fetcher is not None:
                await self._end_group(commit=commit)
        finally:
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
        # After an error nobody knows how much of the last poll was done, except when iterating.
        await self._close(commit=kind is None or self._reading is not None)

    # --- what to read ----------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; those assigned before keep their positions.

        A new one starts where the group has committed, or else where `auto.offset.reset` says,
        unless it is sought first.
        """
        fetcher = self._running()
        if self._member is not None:
            raise ValueError("this consumer has subscribed; `unsubscribe` before you assign")
        before = set(fetcher.states)
        fetcher.assign(TopicPartition(*partition) for partition in partitions)
        self._reading_from().follow_assignment()
        if self._commits is not None:
            for state in fetcher.states.values():
                state.awaits_start = state.position is None and state.partition not in before

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or those whose names match, together with the rest of the group.

        A second call changes what is wanted. The `listener` is told, inside `poll`, of partitions
        that come and go.
        """
        self._running()
        wanted = [topics] if isinstance(topics, str) else list(topics)
        if not self.settings.group_id:
            raise ValueError("to subscribe, a consumer needs a `group.id`")
        if bool(wanted) == (pattern is not None):
            raise ValueError("subscribe to topics or to a pattern, one of the two")
        if self._member is not None:
            self._member.resubscribe(wanted, pattern, listener)
            return
        if self._running().states:
            raise ValueError(
                "this consumer has assigned partitions; assign none before subscribing"
            )
        kind = HeartbeatMember if self.settings.group_protocol == "consumer" else ClassicMember
        self._member = kind(
            self.settings, self._cluster, _GroupHost(self), wanted, pattern, listener
        )
        if self._commits is not None:
            self._commits.speak_for(self._member.identity, self.assignment)
        self._member.start()

    async def unsubscribe(self) -> None:
        """Leave the group; nothing is read until the next `subscribe` or `assign`."""
        await self._end_group(commit=True)

    def subscription(self) -> set[str]:
        """The topics that were named in `subscribe`."""
        return set(self._member.topics) if self._member is not None else set()

    def assignment(self) -> set[TopicPartition]:
        return set(self._running().states)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from this offset."""
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}; see seek_to_beginning")
        self._reading_from().move(self._state(partition), lambda state: state.seek(offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read from the first record there is, of these partitions or of all."""
        for state in self._states(partitions):
            self._reading_from().move(state, lambda state: state.seek_to(OffsetSpec.EARLIEST))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read what comes from now on, of these partitions or of all."""
        for state in self._states(partitions):
            self._reading_from().move(state, lambda state: state.seek_to(OffsetSpec.LATEST))

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
                    self._reading_from().raise_error_of(state)
                    self._news.clear()
                    await self._find_starts()
                    if state.position is None:
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

    # --- offsets of the group --------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit these offsets (of the next record to read), or all that was read so far."""
        await self._grouped().commit(self._to_commit(offsets))

    def commit_soon(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """Like `commit` in the background; `on_commit` hears of the outcome."""
        self._grouped().commit_soon(self._to_commit(offsets), on_commit)

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, of these partitions or of all assigned."""
        wanted = [TopicPartition(*p) for p in partitions] or list(self._running().states)
        return await self._grouped().committed(wanted)

    def _grouped(self) -> Commits:
        self._running()
        if self._commits is None:
            raise ValueError("offsets belong to a group: give the consumer a `group.id`")
        return self._commits

    def _to_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._committable()
        return {
            TopicPartition(*tp): OffsetAndMetadata(at) if isinstance(at, int) else at
            for tp, at in offsets.items()
        }

    def _committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where the user is done: what was polled, but not what is being iterated over."""
        found = {
            state.partition: OffsetAndMetadata(
                state.position, leader_epoch=state.position_epoch, topic_id=state.topic_id
            )
            for state in self._running().states.values()
            if state.position is not None
        }
        if self._reading is not None:
            step_back(found, *self._reading)
        return found

    def _change_assignment(
        self,
        partitions: set[TopicPartition],
        starts: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Read exactly these from now on: the group says so."""
        fetcher = self._running()
        fetcher.assign(sorted(partitions))
        self._reading_from().follow_assignment()
        for partition, start in starts.items():
            self._reading_from().move(
                fetcher.states[partition], partial(_seek_to_start, start=start)
            )

    async def _attend(self) -> None:
        """What belongs to the group at the beginning of a poll."""
        if self._member is not None:
            await self._member.attend()
        await self._find_starts()
        if self._commits is not None and self.settings.enable_auto_commit:
            self._commits.commit_if_due(self._committable)

    async def _find_starts(self) -> None:
        """Begin partitions that were assigned by hand where the group left off."""
        waiting = {s.partition: s for s in self._running().states.values() if s.awaits_start}
        if not waiting or self._commits is None:
            return
        found = await self._commits.committed(waiting)
        for partition, state in waiting.items():
            start = found.get(partition)
            if not state.awaits_start:
                continue  # Sought meanwhile.
            state.awaits_start = False
            if start is not None:
                self._reading_from().move(state, partial(_seek_to_start, start=start))
        self._running().wake()

    async def _end_group(self, *, commit: bool) -> None:
        """Commit, leave, and forget the assignment."""
        member, self._member = self._member, None
        commits = self._commits
        try:
            if commits is not None:
                await self._finish_commits(commits, commit=commit)
        finally:
            self._reading = None
            if member is not None:
                await member.close()
                self._change_assignment(set(), {})
            if commits is not None:
                await commits.close()
                commits.speak_for(lambda: OUTSIDER)

    async def _finish_commits(self, commits: Commits, *, commit: bool) -> None:
        """Who has left the group cannot commit: what was asked for has to be done before."""
        offsets = self._committable() if commit and self.settings.enable_auto_commit else {}
        if offsets:
            last = commits.commit(offsets, timeout_ms=CLOSE_TIMEOUT_MS)
            await asyncio.gather(last, return_exceptions=True)
        await commits.drain(CLOSE_TIMEOUT_MS)

    # --- reading ---------------------------------------------------------------------------------

    async def poll(
        self, max_records: int | None = None, timeout_ms: float = 0
    ) -> list[ConsumerRecord]:
        """Records that are there, else the first to come within the timeout; [] if none came.

        Raises the error of a partition that cannot be read; the others go on with the next call.
        """
        reader = self._reading_from()
        limit = self.settings.max_poll_records if max_records is None else max_records
        records: list[ConsumerRecord] = []

        def take(state: PartitionState) -> bool:
            reader.take_records(state, records, limit - len(records))
            return len(records) < limit

        await self._gather(take, records, timeout_ms)
        if self._interceptors:
            records = self._intercepted(records)
        reader.handed_out()
        return records

    def _intercepted(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        try:
            return run_on_consume(self._interceptors, records)
        except BaseException:
            self._reading_from().put_back()
            raise

    async def poll_batches(
        self, max_bytes: int | None = None, timeout_ms: float = 0
    ) -> list[RawBatch]:
        """Whole record batches, checked but not decoded, for who decodes in bulk."""
        reader = self._reading_from()
        limit = self.settings.fetch_max_bytes if max_bytes is None else max_bytes
        batches: list[RawBatch] = []
        taken_bytes = 0

        def take(state: PartitionState) -> bool:
            nonlocal taken_bytes
            taken_bytes += reader.take_batches(state, batches, limit - taken_bytes)
            return taken_bytes < limit

        await self._gather(take, batches, timeout_ms)
        reader.handed_out()
        return batches

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Each record as it comes, until the consumer is closed."""
        while self._fetcher is not None:
            records = await self.poll(timeout_ms=ITERATION_WAIT_MS)
            for index, record in enumerate(records):
                self._note_reading(records, index)
                yield record
            self._note_reading(records, len(records))

    def _note_reading(self, records: list[ConsumerRecord], index: int) -> None:
        """An iteration is at this record of a poll: what comes from here on is not done."""
        self._reading = (records, index)

    async def _gather(self, take: Take, taken: Sequence[object], timeout_ms: float) -> None:
        """Go round the partitions until `take` has enough; wait if there was nothing at all."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._reading = None
        while True:
            self._news.clear()
            if self._commits is not None:
                await self._attend()
            taken_bytes = self._reading_from().go_round(take, taken)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if taken or left_ms <= 0:
                await self._hand_out(taken_bytes)
                return
            try:
                async with asyncio.timeout(min(left_ms, self._attends_every_ms) / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue  # One last look, a commit, or a sign of life to the group.

    @property
    def _attends_every_ms(self) -> float:
        """How long a poll may wait in one go: who waits in it has not stopped polling."""
        every_ms = inf if self._member is None else self.settings.max_poll_interval_ms / 2
        if self._commits is not None and self.settings.enable_auto_commit:
            every_ms = min(every_ms, self._commits.look_again_ms())
        return every_ms

    async def _hand_out(self, taken_bytes: int) -> None:
        try:
            await let_others_work(taken_bytes)
        except asyncio.CancelledError:
            # The caller will not see what was taken, so it counts neither as read nor as done.
            if self._fetcher is not None:
                self._reading_from().put_back()
            raise

    # --- inside ----------------------------------------------------------------------------------

    def _running(self) -> Fetcher:
        if self._fetcher is None:
            raise ClosedError("this consumer is not running; use it inside `async with`")
        return self._fetcher

    def _reading_from(self) -> Reader:
        self._running()
        assert self._reader is not None
        return self._reader

    def _ready(self) -> Cluster:
        self._running()
        return self._cluster

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._running().states.get(TopicPartition(*partition))
        if state is None:
            raise ValueError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return state

    def _states(self, partitions: Sequence[TopicPartition]) -> list[PartitionState]:
        if not partitions:
            return list(self._running().states.values())
        return [self._state(partition) for partition in partitions]


def _seek_to_start(state: PartitionState, *, start: OffsetAndMetadata) -> None:
    state.seek(start.offset, start.leader_epoch)


class _GroupHost:
    """What a group member may do to its consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self.change_assignment = consumer._change_assignment
        self.committable = consumer._committable
        self.commit = consumer._grouped().commit
        self.drain = consumer._grouped().drain
        self.wake = consumer._news.set
