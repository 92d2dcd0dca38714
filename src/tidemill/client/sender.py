"""The producer's network half: takes due batches from the queues and gets them to their leaders.

There is no task per partition or broker: an event - a batch became due, an answer came, a backoff
ended, metadata changed - puts queues into their leader's line and schedules one `_pump` for the end
of the loop's turn. Per broker at most `max.in.flight` requests are under way; each carries at most
one batch per partition, as the protocol wants.

Order and exactly-once within a partition are the business of `sequences`; what to do with each kind
of failure is decided in `_settle`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tidemill.client.accumulator import Accumulator, PartitionQueue
from tidemill.client.batches import Batch
from tidemill.client.cluster import MAIN, Cluster
from tidemill.client.connection import Connection
from tidemill.client.deadlines import Deadlines
from tidemill.client.errors import ClientError, RequestTimeoutError, UnreachableError, failure_of
from tidemill.client.sequences import FORGOTTEN, Identity
from tidemill.client.settings import INT32_MAX, ProducerSettings
from tidemill.client.splitting import split
from tidemill.errors import ErrorCode
from tidemill.executor import Executor
from tidemill.types import ZERO_TOPIC_ID, TopicPartition
from tidemill.wire.compression import Codec
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse

COMPRESS_INLINE_BYTES = 64 * 1024
"""Compressing more than this would hold up the loop, so it goes to the executor."""

_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_LAST_VERSION_BY_NAME = 12
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

Sent = list[tuple[PartitionQueue, Batch]]
Names = dict[UUID, str]
"""The topics of a request by their ids: newer versions answer without names."""


class _Broker:
    """One leader: the queues in line for it and the requests under way."""

    __slots__ = ("connecting", "in_flight", "line", "node_id", "throttled_until_ms")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.line: deque[PartitionQueue] = deque()
        self.in_flight = 0
        self.throttled_until_ms = 0
        self.connecting: asyncio.Task[None] | None = None


class Sender:
    """One per producer; `accumulator` is set right after construction, the two need each other."""

    accumulator: Accumulator

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        executor: Executor,
        on_failure: Callable[[Batch], None],
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = cluster.clock
        self._executor = executor
        self._on_failure = on_failure
        self._acks = _ACKS[settings.acks]
        self._idempotent = settings.enable_idempotence
        self._codec = Codec[settings.compression_type.upper()]
        self._level = _level(settings)
        # Without numbers a repeated batch could overtake: then only one may be on its way.
        self._one_at_a_time = settings.max_in_flight_requests_per_connection == 1
        self._identity = Identity()
        self._brokers: dict[int, _Broker] = {}
        self._homeless: list[PartitionQueue] = []
        self._nameless: list[PartitionQueue] = []
        self._deadlines = Deadlines(cluster.clock, settings.delivery_timeout_ms, self._run_out)
        self._pump_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking_identity = False
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.trouble: ClientError | None = None
        """Why the latest batch that came back must be sent again; None while all goes well."""

    # --- events ----------------------------------------------------------------------------------

    def ready(self, queue: PartitionQueue) -> None:
        """This queue may have something to send."""
        if queue.queued or not queue.is_due:
            return
        queue.queued = True
        leader = self._cluster.view.leader(*queue.partition)
        if leader is None:
            self._homeless.append(queue)
            self._cluster.refresh_soon()
        else:
            self._broker(leader.leader).line.append(queue)
            self._schedule_pump()

    def metadata_changed(self) -> None:
        """Leaders may have moved: everyone lines up again."""
        moved, self._homeless = self._homeless, []
        for broker in self._brokers.values():
            moved += broker.line
            broker.line.clear()
        for queue in moved:
            queue.queued = False
            self.ready(queue)

    async def close(self) -> None:
        self._closed = True
        self._deadlines.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _broker(self, node_id: int) -> _Broker:
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = _Broker(node_id)
        return broker

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the pump --------------------------------------------------------------------------------

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._closed:
            return
        for broker in list(self._brokers.values()):
            if broker.line and broker.throttled_until_ms <= self._clock.monotonic_ms():
                self._drain(broker)

    def _drain(self, broker: _Broker) -> None:
        connection = self._cluster.open_connection(broker.node_id, MAIN)
        if connection is None:
            if broker.connecting is None:
                broker.connecting = self._spawn(self._connect(broker))
            return
        while broker.line and broker.in_flight < self._in_flight_max:
            if not connection.is_writable:
                connection.when_writable(self._schedule_pump)
                return
            sent = self._collect(broker)
            if not sent or not self._send(broker, connection, sent):
                return

    @property
    def watch(self) -> Callable[[PartitionQueue, Batch], None]:
        """To be told of each batch that is opened: it fails if it is not delivered in time."""
        return self._deadlines.watch

    @property
    def _in_flight_max(self) -> int:
        return self._settings.max_in_flight_requests_per_connection

    async def _connect(self, broker: _Broker) -> None:
        attempt = self._loop.create_task(self._cluster.connection(broker.node_id, MAIN))
        pause_s = self._settings.retry_backoff_max_ms / 1000
        try:
            while not (await asyncio.wait([attempt], timeout=pause_s))[0]:
                # A machine that is stuck lets us connect and says nothing: the leader may move.
                self._cluster.refresh_soon()
            await attempt
        except ClientError:
            # The leader may be elsewhere by now. The next attempt has its own growing pause.
            self._cluster.refresh_soon()
            await asyncio.sleep(self._settings.reconnect_backoff_ms / 1000)
        finally:
            attempt.cancel()
            broker.connecting = None
        self._schedule_pump()

    def _collect(self, broker: _Broker) -> Sent:
        """Batches for one request: at most one per queue in line, within the request's size."""
        sent: Sent = []
        total = 0
        while broker.line:
            queue = broker.line.popleft()
            queue.queued = False
            batch = self._sendable(queue)
            if batch is None:
                continue
            total += batch.size_bytes
            if sent and total > self._settings.max_request_size:
                queue.queued = True
                broker.line.appendleft(queue)
                break
            sent.append((queue, queue.take()))
            if self._idempotent:
                queue.sequences.sent(batch)
            else:
                queue.sequences.in_flight.append(batch)
        for queue, _ in sent:
            self.ready(queue)
        return sent

    def _sendable(self, queue: PartitionQueue) -> Batch | None:
        """The queue's first batch if it may go out now; an event puts the queue in line again."""
        if not queue.is_due or queue.backing_off or queue.preparing:
            return None
        batch = queue.batches[0]
        sequences = queue.sequences
        if not self._idempotent:
            if self._one_at_a_time and sequences.in_flight:
                return None
        else:
            if not sequences.may_send(batch):
                return None
            if not sequences.prepare(self._identity, queue.batches):
                queue.queued = True
                self._nameless.append(queue)
                self._ask_identity()
                return None
        return batch if self._compressed(queue, batch) else None

    def _compressed(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether the batch can be built at once; a big one is compressed elsewhere first."""
        builder = batch.builder
        inline = self._codec is Codec.NONE or batch.size_bytes <= COMPRESS_INLINE_BYTES
        if inline or builder is None or batch.attempts or batch.compressed:
            return True
        batch.closed = True
        if queue.open is batch:
            queue.open = None
        queue.preparing = True

        def done(_: object, error: BaseException | None) -> None:
            queue.preparing = False
            batch.compressed = True  # If it failed, building it again reports why.
            self.ready(queue)

        self._executor.submit(lambda: builder.build(codec=self._codec, level=self._level), done)
        return False

    # --- sending ---------------------------------------------------------------------------------

    def _send(self, broker: _Broker, connection: Connection, sent: Sent) -> bool:
        """Write one request; False if the connection went away under us."""
        try:
            request, names = self._request(sent)
            max_version = _LAST_VERSION_BY_NAME if ZERO_TOPIC_ID in names else None
            if self._acks == 0:
                connection.send_blind(request, max_version=max_version)
                self._settle_unacknowledged(sent)
                return True
            future = connection.send(request, max_version=max_version)
        except ClientError as error:
            self._settle_all(sent, error, maybe_written=False)
            return False
        broker.in_flight += 1
        future.add_done_callback(lambda done: self._answered(broker, sent, names, done))
        return True

    def _request(self, sent: Sent) -> tuple[ProduceRequest, Names]:
        topics: dict[str, TopicProduceData] = {}
        names: Names = {}
        for queue, batch in sent:
            batch.attempts += 1
            name, index = queue.partition
            topic = topics.get(name)
            if topic is None:
                info = self._cluster.view.topics.get(name)
                topic_id = info.topic_id if info is not None else ZERO_TOPIC_ID
                names[topic_id] = name
                topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id)
            records = self._build(queue, batch)
            topic.partition_data.append(PartitionProduceData(index=index, records=records))
        request = ProduceRequest(
            transactional_id=None,
            acks=self._acks,
            timeout_ms=self._settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        return request, names

    def _build(self, queue: PartitionQueue, batch: Batch) -> bytes:
        assert batch.builder is not None
        if not self._idempotent:
            return batch.builder.build(codec=self._codec, level=self._level)
        return batch.builder.build(
            codec=self._codec,
            level=self._level,
            producer_id=queue.sequences.producer_id,
            producer_epoch=queue.sequences.epoch,
            base_sequence=batch.base_sequence,
        )

    def _ask_identity(self) -> None:
        if not self._asking_identity:
            self._asking_identity = True
            self._spawn(self._fetch_identity())

    async def _fetch_identity(self) -> None:
        """Get a producer id, however often that must be asked; a refusal fails what waits."""
        failures = 0
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX)
        try:
            while not self._identity.known:
                try:
                    answer: InitProducerIdResponse = await self._cluster.call_any(request)
                    if answer.error_code:
                        raise failure_of("the request for a producer id", answer.error_code)
                    self._identity.assign(answer.producer_id, answer.producer_epoch)
                except ClientError as error:
                    if not error.retriable:
                        self._refuse_all(error)
                        return
                    self.trouble = error
                    failures += 1
                    await asyncio.sleep(self._cluster.retry_backoff.delay_ms(failures) / 1000)
        finally:
            self._asking_identity = False
        for queue in self._take_nameless():
            self.ready(queue)

    def _take_nameless(self) -> list[PartitionQueue]:
        waiting, self._nameless = self._nameless, []
        for queue in waiting:
            queue.queued = False
        return waiting

    def _refuse_all(self, error: ClientError) -> None:
        for queue in self._take_nameless():
            while queue.batches:
                self._give_up(queue, queue.take(), error)

    # --- answers ---------------------------------------------------------------------------------

    def _answered(
        self, broker: _Broker, sent: Sent, names: Names, future: asyncio.Future[Any]
    ) -> None:
        broker.in_flight -= 1
        if self._closed or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, ClientError):
            self._settle_all(sent, error, maybe_written=True)
        elif error is not None:
            failure = UnreachableError(f"the answer could not be read: {error}")
            self._settle_all(sent, failure, maybe_written=True)
        else:
            answer: ProduceResponse = future.result()
            if answer.throttle_time_ms > 0:
                self._throttle(broker, answer.throttle_time_ms)
            self._read_answer(sent, names, answer)
        self._schedule_pump()

    def _throttle(self, broker: _Broker, pause_ms: int) -> None:
        """The broker asks us to hold back: it would only let the next requests wait."""
        broker.throttled_until_ms = self._clock.monotonic_ms() + pause_ms
        self._loop.call_later(pause_ms / 1000 + 0.001, self._schedule_pump)

    def _read_answer(self, sent: Sent, names: Names, answer: ProduceResponse) -> None:
        found = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), entry.index): entry
            for topic in answer.responses
            for entry in topic.partition_responses
        }
        for queue, batch in sent:
            self._settle_one(queue, batch, found.get(queue.partition))
            self.ready(queue)

    def _settle_one(
        self, queue: PartitionQueue, batch: Batch, result: PartitionProduceResponse | None
    ) -> None:
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
            subject, said = str(queue.partition), result.error_message
            self._settle(queue, batch, failure_of(subject, result.error_code, said), False)

    def _settle_all(self, sent: Sent, error: ClientError, *, maybe_written: bool) -> None:
        for queue, batch in sent:
            self._settle(queue, batch, error, maybe_written)
            self.ready(queue)

    def _settle_unacknowledged(self, sent: Sent) -> None:
        for queue, batch in sent:
            queue.sequences.returned(batch)
            self.accumulator.finish(batch, None)
            self.ready(queue)

    def _settle(
        self, queue: PartitionQueue, batch: Batch, error: ClientError, maybe_written: bool
    ) -> None:
        """Decide what becomes of a batch that was not acknowledged."""
        sequences = queue.sequences
        sequences.returned(batch)
        batch.maybe_written |= maybe_written
        if error.code in _STALE_METADATA:
            self._cluster.refresh_soon()
        if batch.finished:
            return  # It ran out of time while it was on its way.
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
            self._give_up(queue, batch, error)

    def _send_again(self, queue: PartitionQueue, batch: Batch, error: ClientError) -> None:
        if batch.attempts > self._settings.retries:
            self._give_up(queue, batch, error)
            return
        self.trouble = batch.refusal = error
        queue.put_back(batch)
        if not queue.backing_off:
            queue.backing_off = True
            delay_ms = self._cluster.retry_backoff.delay_ms(batch.attempts)
            self._loop.call_later(delay_ms / 1000, self._end_backoff, queue)

    def _end_backoff(self, queue: PartitionQueue) -> None:
        queue.backing_off = False
        self.ready(queue)

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        """The broker takes smaller batches only: send the halves, under the same numbers."""
        parts = split(batch)
        for _, part in parts:
            queue.put_back(part)
            self._deadlines.watch(queue, part)
        self.accumulator.replace(batch, parts)

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: ClientError) -> None:
        if self._idempotent:
            queue.sequences.gave_up(batch)
        self.accumulator.finish(batch, error)
        if not batch.observed:
            self._on_failure(batch)

    # --- time -------------------------------------------------------------------------------------

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
        self._give_up(queue, batch, error)
        self.ready(queue)


def _level(settings: ProducerSettings) -> int | None:
    """The level for the chosen codec; None is the codec's own default."""
    levels = {
        "gzip": None if settings.compression_gzip_level < 0 else settings.compression_gzip_level,
        "lz4": settings.compression_lz4_level,
        "zstd": settings.compression_zstd_level,
    }
    return levels.get(settings.compression_type)
