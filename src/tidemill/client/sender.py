"""The producer's network half: takes due batches from the queues and gets them to their leaders.

There is no task per partition or broker: an event - a batch became due, an answer came, a backoff
ended, metadata changed - puts queues into their leader's line and schedules one `_pump` for the end
of the loop's turn. Per broker at most `max.in.flight` requests are under way; each carries at most
one batch per partition, as the protocol wants. `outcomes` decides what an answer means.

A broker that does not answer is given `request.timeout.ms`, as in Kafka's own client. But a broker
that hangs is soon replaced, and nothing tells us: so while an answer is late, the others are asked
who leads, and once that is somebody else, the old leader is not waited for any longer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from tidemill.client.accumulator import Accumulator, PartitionQueue
from tidemill.client.batches import Batch
from tidemill.client.cluster import MAIN, Cluster
from tidemill.client.connection import STUCK_MS, Connection
from tidemill.client.errors import ClientError, UnreachableError
from tidemill.client.naming import IdentitySource, Naming
from tidemill.client.outcomes import Outcomes
from tidemill.client.produce_requests import Packed, Packer, Sent
from tidemill.client.settings import ProducerSettings
from tidemill.errors import ErrorCode
from tidemill.executor import Executor
from tidemill.wire.messages.produce import ProduceResponse


class _Broker:
    """One leader: the queues in line for it and the requests under way."""

    __slots__ = ("connecting", "connection", "line", "node_id", "throttled_until_ms", "under_way")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.line: deque[PartitionQueue] = deque()
        self.under_way: dict[asyncio.Future[Any], Sent] = {}
        """What each unanswered request carries."""
        self.connection: Connection | None = None
        """Where they were sent; the cluster does not name a broker any longer once it is dead."""
        self.throttled_until_ms = 0
        self.connecting: asyncio.Task[None] | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether its answers are late."""
        return bool(self.under_way) and self.connection is not None and self.connection.is_stuck


class Sender:
    """One per producer; `serve` gives it its accumulator."""

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        executor: Executor,
        on_failure: Callable[[Batch], None],
        identity_source: IdentitySource,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = cluster.clock
        self._packer = Packer(settings, cluster, executor)
        self.outcomes = Outcomes(settings, cluster, self.ready, on_failure)
        self._naming = Naming(cluster, self.outcomes, self.ready, identity_source)
        self._idempotent = settings.enable_idempotence
        self._in_flight_max = settings.max_in_flight_requests_per_connection
        # Without numbers a repeated batch could overtake: then only one may be on its way.
        self._one_at_a_time = self._in_flight_max == 1
        self._brokers: dict[int, _Broker] = {}
        self._homeless: list[PartitionQueue] = []
        self._pump_scheduled = False
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def serve(self, accumulator: Accumulator) -> None:
        """Take batches from here; the two need each other."""
        self.outcomes.accumulator = accumulator

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
        for broker in self._brokers.values():
            if broker.is_stuck and self._is_deposed(broker):
                self._leave(broker)

    async def close(self) -> None:
        self._closed = True
        self.outcomes.close()
        await self._naming.close()
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _broker(self, node_id: int) -> _Broker:
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = _Broker(node_id)
        return broker

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
                broker.connecting = self._loop.create_task(self._connect(broker))
                self._tasks[broker.connecting] = None
                broker.connecting.add_done_callback(self._tasks.pop)
            return
        while broker.line and len(broker.under_way) < self._in_flight_max:
            if not connection.is_writable:
                connection.when_writable(self._schedule_pump)
                return
            sent = self._collect(broker)
            if not sent or not self._send(broker, connection, sent):
                return

    async def _connect(self, broker: _Broker) -> None:
        try:
            self._watch_for_stuck()
            await self._cluster.connection(broker.node_id, MAIN)
        except ClientError:
            # The leader may be elsewhere by now. The next attempt has its own growing pause.
            self._cluster.refresh_soon()
            await asyncio.sleep(self._settings.reconnect_backoff_ms / 1000)
        finally:
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
            if self.outcomes.gives_up_adrift(queue):
                return self._sendable(queue)
            if not sequences.prepare(self._naming.identity, queue.batches):
                self._naming.hold(queue)
                return None
        return batch if self._packer.compressed(queue, batch, self.ready) else None

    # --- requests and answers --------------------------------------------------------------------

    def _send(self, broker: _Broker, connection: Connection, sent: Sent) -> bool:
        """Write one request; False if the connection went away under us."""
        packed = self._packed(sent)
        if packed is None:
            return True
        try:
            if self._packer.acks == 0:
                connection.send_blind(packed.request, max_version=packed.max_version)
                self.outcomes.settle_unacknowledged(sent)
                return True
            future = connection.send(packed.request, max_version=packed.max_version)
        except ClientError as error:
            self.outcomes.settle_all(sent, error, maybe_written=False)
            return False
        broker.connection = connection
        broker.under_way[future] = sent
        self._watch_for_stuck()
        future.add_done_callback(lambda done: self._answered(broker, packed, done))
        return True

    def _packed(self, sent: Sent) -> Packed | None:
        """The request for these batches; None if they cannot be one, which fails them alone."""
        try:
            return self._packer.pack(sent)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other batches must go on
            failure = ClientError(
                ErrorCode.INVALID_RECORD, f"the records cannot be encoded: {error!r}", hint=""
            )
            self.outcomes.settle_all(sent, failure, maybe_written=False)
            return None

    def _answered(self, broker: _Broker, packed: Packed, future: asyncio.Future[Any]) -> None:
        del broker.under_way[future]
        if self._closed or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, ClientError):
            self.outcomes.settle_all(packed.sent, error, maybe_written=True)
        elif error is not None:
            failure = UnreachableError(f"the answer could not be read: {error}")
            self.outcomes.settle_all(packed.sent, failure, maybe_written=True)
        else:
            answer: ProduceResponse = future.result()
            if answer.throttle_time_ms > 0:
                self._throttle(broker, answer.throttle_time_ms)
            found = packed.results(answer)
            for queue, batch in packed.sent:
                self.outcomes.settle_one(queue, batch, found.get(queue.partition))
        self._schedule_pump()

    def _throttle(self, broker: _Broker, pause_ms: int) -> None:
        """The broker asks us to hold back: it would only let the next requests wait."""
        broker.throttled_until_ms = self._clock.monotonic_ms() + pause_ms
        self._loop.call_later(pause_ms / 1000 + 0.001, self._schedule_pump)

    # --- brokers that do not answer --------------------------------------------------------------

    def _watch_for_stuck(self) -> None:
        if self._stuck_timer is None and not self._closed:
            self._stuck_timer = self._loop.call_later(STUCK_MS / 1000, self._look_for_stuck)

    def _look_for_stuck(self) -> None:
        """Ask the others who leads while somebody keeps us waiting, if only with a connection."""
        self._stuck_timer = None
        brokers = self._brokers.values()
        connecting = any(broker.connecting is not None for broker in brokers)
        if connecting or any(broker.is_stuck for broker in brokers):
            self._cluster.refresh_soon()
        if connecting or any(broker.under_way for broker in brokers):
            self._watch_for_stuck()

    def _is_deposed(self, broker: _Broker) -> bool:
        """Whether nothing that waits for this broker's answer is led by it any longer."""
        leaders = [
            self._cluster.view.leader(*queue.partition)
            for sent in broker.under_way.values()
            for queue, _ in sent
        ]
        return not any(found is not None and found.leader == broker.node_id for found in leaders)

    def _leave(self, broker: _Broker) -> None:
        connection = broker.connection
        if connection is not None:
            where = connection.address
            connection.close(UnreachableError(f"{where} is silent and leads no longer", hint=""))
