"""The consumer's network half: keeps every assigned partition stocked with fetched batches.

One task per broker asks it, in a fetch session, for all partitions it leads whose stock is low; one
task looks up positions that are not known and checks those whose leader changed. Both only change
`PartitionState`s; `Consumer` takes records from them and is woken through `on_news`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tidemill.client.admin_types import ListedOffset, OffsetSpec
from tidemill.client.cluster import Cluster
from tidemill.client.connection import STUCK_MS, Connection
from tidemill.client.errors import (
    ClientError,
    LogTruncatedError,
    OffsetResetError,
    UnsupportedError,
    failure_of,
)
from tidemill.client.fetch_session import (
    CLOSE_EPOCH,
    SESSION_ERRORS,
    FetchSession,
    Wanted,
    fetch_request,
)
from tidemill.client.fetched import split_batches, unreadable
from tidemill.client.offset_reset import spec_of
from tidemill.client.offsets import end_of_epochs, list_offsets
from tidemill.client.positions import PartitionState
from tidemill.client.settings import ConsumerSettings
from tidemill.errors import ErrorCode, WireError
from tidemill.types import ZERO_TOPIC_ID, TopicPartition
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData

CHANNEL = "fetch"
BUSY_WAIT_MS = 20
"""How long a broker may wait while partitions with full stock are left out of the request."""

_LAST_VERSION_BY_NAME = 12
_FIND_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

Asked = dict[TopicPartition, tuple[PartitionState, int]]
"""The partitions of a request, each with the generation it was asked in."""


class _BrokerLoop:
    """What belongs to one broker: its session, its task, and the bell that wakes it."""

    __slots__ = ("bell", "session", "task")

    def __init__(self) -> None:
        self.session = FetchSession()
        self.bell = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Fetcher:
    """All fetching of one consumer."""

    def __init__(
        self, settings: ConsumerSettings, cluster: Cluster, on_news: Callable[[], None]
    ) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.buffered_bytes = 0
        self._settings = settings
        self._cluster = cluster
        self._on_news = on_news
        self._committed_only = settings.isolation_level == "read_committed"
        self._brokers: dict[int, _BrokerLoop] = {}
        self._by_broker: dict[int, list[PartitionState]] = {}
        self._resolver: asyncio.Task[None] | None = None
        self._resolver_bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        cluster.on_update(self.metadata_changed)

    @property
    def reset_spec(self) -> OffsetSpec | None:
        """Where to go without a position; None means to report it."""
        return spec_of(self._settings.auto_offset_reset, self._cluster.clock.now_ms())

    def start(self) -> None:
        self._resolver = self._loop.create_task(self._resolve_forever())

    async def close(self) -> None:
        tasks = [loop.task for loop in self._brokers.values() if loop.task is not None]
        if self._resolver is not None:
            tasks.append(self._resolver)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node_id, loop in self._brokers.items():
            connection = self._cluster.open_connection(node_id, CHANNEL)
            if connection is not None and loop.session.is_open:
                _close_session(connection, loop.session)

    # --- changes from outside --------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Keep what stays assigned as it is, forget the rest, and begin with what is new."""
        before, self.states = self.states, {}
        for partition in dict.fromkeys(partitions):
            state = before.pop(partition, None)
            self.states[partition] = state or PartitionState(partition, self.reset_spec)
        for state in before.values():
            state.refetch()  # Voids what is on its way to it.
        self.buffered_bytes = sum(state.buffered_bytes for state in self.states.values())
        wanted = {partition.topic for partition in self.states}
        for topic in {partition.topic for partition in before} - wanted:
            self._cluster.untrack(topic)
        for topic in wanted:
            self._cluster.track(topic)
        self.metadata_changed()

    def metadata_changed(self) -> None:
        """Sort partitions by who is to be asked, and check positions under a new leader."""
        self._by_broker = {}
        for state in self.states.values():
            self._follow_topic(state)
            info = self._cluster.view.leader(*state.partition)
            if info is None:
                self._cluster.refresh_soon()  # It is new to us, or between two leaders.
                continue
            node_id = info.leader
            if state.read_from is not None and state.read_from in self._cluster.view.nodes:
                node_id = state.read_from
            state.move_to(node_id)
            self._by_broker.setdefault(node_id, []).append(state)
            if info.leader_epoch > state.checked_epoch:
                state.validating = state.fetch_epoch >= 0 and state.position is not None
                if not state.validating:
                    state.checked_epoch = info.leader_epoch
        for node_id in self._by_broker:
            self._ensure_loop(node_id)
        self.wake()

    def _follow_topic(self, state: PartitionState) -> None:
        """Start afresh in a topic that was deleted and made again."""
        topic = self._cluster.view.topics.get(state.partition.topic)
        if topic is None or not state.adopt(topic.topic_id):
            return
        self.consumed(state.buffered_bytes)
        state.begin_anew(self.reset_spec, ask_group=bool(self._settings.group_id))
        self._on_news()

    def wake(self) -> None:
        """Something changed: stocks were taken, a partition was sought, paused or resumed."""
        for loop in self._brokers.values():
            loop.bell.set()
        if any(state.position is None or state.validating for state in self.states.values()):
            self._resolver_bell.set()

    def consumed(self, size_bytes: int) -> None:
        """So many bytes left the stock."""
        self.buffered_bytes -= size_bytes

    def _ensure_loop(self, node_id: int) -> None:
        loop = self._brokers.get(node_id)
        if loop is None:
            loop = self._brokers[node_id] = _BrokerLoop()
        if loop.task is None or loop.task.done():
            loop.task = self._loop.create_task(self._fetch_forever(node_id, loop))

    # --- one broker ------------------------------------------------------------------------------

    async def _fetch_forever(self, node_id: int, loop: _BrokerLoop) -> None:
        failures = 0
        connection: Connection | None = None
        while node_id in self._by_broker:
            asked, wanted = self._choose(node_id)
            if not wanted and not failures:
                loop.bell.clear()
                await loop.bell.wait()
                continue
            try:
                latest = await self._cluster.connection(node_id, CHANNEL)
                if latest is not connection:
                    connection = latest
                    loop.session.reset()
                await self._fetch_once(connection, loop.session, asked, wanted, node_id)
                failures = 0
            except ClientError as error:
                loop.session.reset()
                failures += 1
                self._report_if_final(asked, error)
                self._cluster.refresh_soon()
                await asyncio.sleep(self._cluster.retry_backoff.delay_ms(failures) / 1000)
            finally:
                for state, _ in asked.values():
                    if state.asked_of == node_id:
                        state.asked_of = None

    def _report_if_final(self, asked: Asked, error: ClientError) -> None:
        if not error.retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
            for state, _ in asked.values():
                state.error = error
            self._on_news()

    @property
    def _ahead_bytes(self) -> int:
        """How much of one partition may be in stock before it is asked for again: a fair share."""
        share = self._settings.prefetch_max_bytes // (2 * len(self.states) or 1)
        return max(share, self._settings.max_partition_fetch_bytes, 1)

    def _choose(self, node_id: int) -> tuple[Asked, dict[TopicPartition, Wanted]]:
        """The partitions to ask this broker for now, marked as asked for."""
        asked: Asked = {}
        wanted: dict[TopicPartition, Wanted] = {}
        if self.buffered_bytes >= self._settings.prefetch_max_bytes:
            return asked, wanted
        limit = self._ahead_bytes
        view = self._cluster.view
        for state in self._by_broker.get(node_id, ()):
            if not state.can_fetch(limit):
                continue
            topic = view.topics.get(state.partition.topic)
            info = view.leader(*state.partition)
            if topic is None or info is None:
                continue
            state.asked_of = node_id
            asked[state.partition] = (state, state.generation)
            wanted[state.partition] = Wanted(
                topic.topic_id,
                state.fetch_offset,
                info.leader_epoch,
                self._settings.max_partition_fetch_bytes,
            )
        return asked, wanted

    async def _fetch_once(
        self,
        connection: Connection,
        session: FetchSession,
        asked: Asked,
        wanted: dict[TopicPartition, Wanted],
        node_id: int,
    ) -> None:
        plan = session.plan(wanted)
        left_out = len(self._by_broker.get(node_id, ())) > len(wanted)
        by_name = any(want.topic_id == ZERO_TOPIC_ID for want in wanted.values())
        settings = self._settings
        wait_ms = settings.fetch_max_wait_ms
        if left_out and self.buffered_bytes:
            wait_ms = min(wait_ms, BUSY_WAIT_MS)
        with self._asking_others_after(wait_ms + STUCK_MS):
            answer: FetchResponse = await connection.request(
                fetch_request(plan, settings, wait_ms),
                timeout_ms=settings.request_timeout_ms + wait_ms,
                max_version=_LAST_VERSION_BY_NAME if by_name else None,
            )
        if answer.error_code:
            session.reset()
            if answer.error_code not in SESSION_ERRORS:
                raise failure_of(f"the fetch from {connection.address}", answer.error_code)
            return
        session.accept(answer.session_id)
        self._read_answer(answer, asked, {w.topic_id: p.topic for p, w in wanted.items()}, node_id)
        if answer.throttle_time_ms > 0:
            await asyncio.sleep(answer.throttle_time_ms / 1000)

    @contextmanager
    def _asking_others_after(self, late_ms: float) -> Iterator[None]:
        """While an answer is late, ask who leads: a leader that hangs is soon replaced, and nothing
        else would tell us."""

        timer: asyncio.TimerHandle

        def ask() -> None:
            nonlocal timer
            self._cluster.refresh_soon()
            timer = self._loop.call_later(STUCK_MS / 1000, ask)

        timer = self._loop.call_later(late_ms / 1000, ask)
        try:
            yield
        finally:
            timer.cancel()

    # --- answers ---------------------------------------------------------------------------------

    def _read_answer(
        self, answer: FetchResponse, asked: Asked, names: dict[Any, str], node_id: int
    ) -> None:
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                entry = asked.get(TopicPartition(name, data.partition_index))
                if entry is None or entry[0].generation != entry[1]:
                    continue  # Forgotten, or sought elsewhere meanwhile.
                if data.error_code:
                    self._read_error(entry[0], data, node_id)
                else:
                    self._read_data(entry[0], data)
        self._on_news()

    def _read_data(self, state: PartitionState, data: PartitionData) -> None:
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.read_from = data.preferred_read_replica
            self._loop.call_soon(self.metadata_changed)
            return
        try:
            batches = split_batches(
                data.records, data.aborted_transactions, committed_only=self._committed_only
            )
        except WireError as error:
            state.error = unreadable(state.partition, error)
            return
        if data.records and not batches:
            state.error = ClientError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch of {state.partition} at offset {state.fetch_offset} is larger than"
                f" max.partition.fetch.bytes={self._settings.max_partition_fetch_bytes}",
            )
        self.buffered_bytes += state.add(batches)

    def _read_error(self, state: PartitionState, data: PartitionData, node_id: int) -> None:
        error = failure_of(str(state.partition), data.error_code)
        if state.read_from == node_id:
            # A follower could not serve us: the leader can say more.
            state.read_from = None
            self._loop.call_soon(self.metadata_changed)
        elif error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(state)
        elif error.code in _FIND_LEADER:
            self._cluster.refresh_soon()
            self._back_off(state)
        else:
            state.error = error

    def _out_of_range(self, state: PartitionState) -> None:
        """First hand out what was fetched; then see whether the log was cut; else start over."""
        if state.batches:
            state.stalled = True
        elif state.fetch_epoch >= 0:
            state.validating = state.suspect = True
            self._resolver_bell.set()
        else:
            self._start_over(state)

    def _start_over(self, state: PartitionState) -> None:
        spec = self.reset_spec
        if spec is None:
            state.error = OffsetResetError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{state.partition} has no offset {state.position}"
                f" (its log starts at {state.log_start_offset})",
            )
        else:
            state.seek_to(spec)
            self._resolver_bell.set()

    def _back_off(self, state: PartitionState) -> None:
        def end() -> None:
            state.backing_off = False
            self.wake()

        if not state.backing_off:
            state.backing_off = True
            self._loop.call_later(self._cluster.retry_backoff.delay_ms(1) / 1000, end)

    # --- looking up and checking positions -------------------------------------------------------

    async def _resolve_forever(self) -> None:
        while True:
            self._resolver_bell.clear()
            lost = [
                state
                for state in self.states.values()
                if state.position is None and state.error is None and not state.awaits_start
            ]
            self._report_unset([state for state in lost if state.reset_to is None])
            try:
                await self._find_positions([s for s in lost if s.reset_to is not None])
                await self._check_positions([s for s in self.states.values() if s.validating])
            except ClientError as error:
                await self._pause_after(error)
                continue
            await self._resolver_bell.wait()

    async def _pause_after(self, error: ClientError) -> None:
        """No broker could be asked; unless that can change, say so and wait to be rung."""
        if error.retriable:
            await asyncio.sleep(self._cluster.retry_backoff.delay_ms(2) / 1000)
            return
        for state in self.states.values():
            if state.position is None:
                state.error = error
        self._on_news()
        await self._resolver_bell.wait()

    def _report_unset(self, states: list[PartitionState]) -> None:
        for state in states:
            state.error = OffsetResetError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{state.partition} has no position and auto.offset.reset says not to choose one",
                hint="seek before the first poll, or set `auto.offset.reset`",
            )
        if states:
            self._on_news()

    async def _find_positions(self, states: list[PartitionState]) -> None:
        asked = {state.partition: (state, state.generation) for state in states}
        if not asked:
            return
        specs = {s.partition: s.reset_to for s in states if s.reset_to is not None}
        found = await list_offsets(
            self._cluster, specs, isolation_level=self._settings.isolation_level
        )
        for partition, result in found.items():
            state, generation = asked[partition]
            if state.generation == generation:
                self._found(state, result)
        self._on_news()
        self.wake()

    def _found(self, state: PartitionState, result: ListedOffset | ClientError) -> None:
        if isinstance(result, ClientError):
            state.error = result
        elif result.offset < 0 and (state.reset_to or 0) >= 0:
            state.seek_to(OffsetSpec.LATEST)  # Nothing is as young as was asked for.
        else:
            state.seek(max(result.offset, 0), -1)
            info = self._cluster.view.leader(*state.partition)
            state.checked_epoch = info.leader_epoch if info is not None else -1

    async def _check_positions(self, states: list[PartitionState]) -> None:
        """Ask new leaders where our epoch ended: if before our position, the log was cut."""
        asked = {state.partition: (state, state.generation) for state in states}
        if not asked:
            return
        epochs = {state.partition: state.fetch_epoch for state in states}
        found = await end_of_epochs(self._cluster, epochs)
        for partition, result in found.items():
            state, generation = asked[partition]
            if state.generation != generation or not state.validating:
                continue
            state.validating = False
            info = self._cluster.view.leader(*partition)
            state.checked_epoch = info.leader_epoch if info is not None else -1
            if isinstance(result, UnsupportedError):
                result = (-1, -1)  # An old broker cannot say: then nothing was cut as far as known.
            if isinstance(result, ClientError):
                state.error = result
            elif 0 <= result[1] < state.fetch_offset:
                self._truncated(state, *result)
            elif state.suspect:
                self._start_over(state)
            state.suspect = False
        self._on_news()
        self.wake()

    def _truncated(self, state: PartitionState, epoch: int, end_offset: int) -> None:
        before = state.buffered_bytes
        position = state.position
        read_beyond = state.cut_at(end_offset)
        self.buffered_bytes -= before - state.buffered_bytes
        if not read_beyond:
            return
        if self.reset_spec is None:
            state.error = LogTruncatedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{state.partition} was cut at offset {end_offset}, we had read to {position}",
                hint="seek to where you want to go on",
            )
        else:
            state.seek(end_offset, epoch)


def _close_session(connection: Connection, session: FetchSession) -> None:
    """Tell the broker that it may forget us; it is only a courtesy."""
    request = FetchRequest(max_wait_ms=0, session_id=session.session_id, session_epoch=CLOSE_EPOCH)
    try:
        connection.send(request)
    except ClientError:
        return
