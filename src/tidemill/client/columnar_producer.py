"""`ColumnarProducer`: Arrow columns into topics, idempotent; see `columnar`.

The caller's thread chooses partitions and encodes whole batches; the loop's thread numbers them,
compresses, sends and repeats them, exactly as it does with the batches of single records. At most
`buffer.memory` bytes are under way: `send` waits for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidemill.client.batches import Delivery
from tidemill.client.blocking_twin import Client, fast_loop
from tidemill.client.columnar_reader import compile_kernels
from tidemill.client.errors import ClientError
from tidemill.client.naming import IdentitySource, new_identity
from tidemill.client.producer import Producer
from tidemill.client.settings import is_explicit
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.column_encoder import OutgoingColumns, partition_of_keys, rows_by_partition
from tidemill.wire.records import BatchBuilder

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

HAND_OVER_BYTES = 1024 * 1024
"""So much is encoded before the loop's thread is told: its turn costs as much as 200 records."""

REQUEST_OVERHEAD_BYTES = 1024
"""What a request with one batch has besides the batch: more than any topic's name needs."""

NO_PARTITION = -1

_DEFAULTS: Mapping[str, object] = {
    "batch_size": 512 * 1024,
    "buffer_memory": 64 * 1024 * 1024,
}

Placed = list[tuple[int, BatchBuilder]]
"""Batches with their partitions."""


class BatchProducer(Producer):
    """The asyncio side: sends batches that were encoded elsewhere."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        identity_source: IdentitySource,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(bootstrap, **settings)
        self._identity_source = identity_source

    def known_partitions(self, topic: str) -> int:
        """How many partitions the topic has, as far as is known now; 0 if nothing is."""
        info = self._cluster.view.topics.get(topic)
        return len(info.partitions) if info is not None else 0

    async def send_batches(self, topic: str, batches: Placed) -> list[Delivery]:
        """Queue the batches in order, as room comes; each delivery is of a batch's last record."""
        accumulator = self._running()
        await self._cluster.topic(topic, self.settings.max_block_ms)
        deliveries = []
        for partition, batch in batches:
            await accumulator.room_for(batch.size_bytes)
            deliveries.append(accumulator.add_encoded(topic, partition, batch))
        return deliveries

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def any_number(self, below: int) -> int:
        return self._cluster.random.randrange(below)


class ColumnarProducer(Client[BatchProducer]):
    """Sends columns of records; use it inside `with`.

    Args:
        bootstrap: brokers to ask first, "host:port,host:port" or a list of such.
        settings: see `ProducerSettings`, in either spelling. `batch.size` is 512 KiB unless set.
        identity_source: where the producer's id comes from.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        settings: Mapping[str, object] | None = None,
        identity_source: IdentitySource = new_identity,
    ) -> None:
        given = dict(settings or {})
        chosen = given | {n: value for n, value in _DEFAULTS.items() if not is_explicit(given, n)}
        super().__init__(
            lambda: BatchProducer(bootstrap, identity_source, chosen), new_loop=fast_loop
        )
        self._under_way: deque[tuple[TopicPartition, Delivery]] = deque()
        self._last_offsets: dict[TopicPartition, int] = {}
        self._failure: ClientError | None = None
        self._rotation: dict[str, int] = {}

    def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        compile_kernels()
        super().start()

    def send(
        self,
        topic: str,
        partitions: NDArray[np.int32] | None,
        keys: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        headers: pa.ListArray | None = None,
        timestamps_ms: NDArray[np.int64] | None = None,
    ) -> None:
        """Queue these records: many at a time, since each call makes batches of its own.

        A record goes to the partition that is given for it. Where none is (None, or -1 in a row)
        its key decides as in Kafka's clients; records without a key fill one batch after the other,
        and the batches go to the partitions in turn. Without timestamps, all have the present time.
        Raises what an earlier batch has failed with; everything is delivered when `flush` returns.
        """
        self._raise_failure()
        columns = self._columns(keys, values, headers, timestamps_ms)
        if not columns.row_count:
            return
        partition_count = self._partition_count(topic)
        chosen = _choose_partitions(partitions, keys, columns.row_count, partition_count)
        placed: Placed = []
        size_bytes = 0
        for partition, rows in rows_by_partition(chosen, partition_count + 1):
            for batch in columns.builders(rows, self._batch_bytes):
                self._check_size(batch)
                turn = partition if partition < partition_count else self._next_turn(topic)
                placed.append((turn % partition_count, batch))
                size_bytes += batch.size_bytes
                if size_bytes >= HAND_OVER_BYTES:
                    self._hand_over(topic, placed)
                    placed, size_bytes = [], 0
        if placed:
            self._hand_over(topic, placed)

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until everything is delivered: the last offset of each partition written to.

        These are the offsets since the flush before. Raises the first failure, if there was any.
        """
        self._wait(_settled([delivery for _, delivery in self._under_way]))
        self._note_finished()
        self._raise_failure()
        offsets, self._last_offsets = self._last_offsets, {}
        return offsets

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not delivered yet."""
        return self._running.buffered_bytes

    # --- inside ----------------------------------------------------------------------------------

    def _columns(
        self,
        keys: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        headers: pa.ListArray | None,
        timestamps_ms: NDArray[np.int64] | None,
    ) -> OutgoingColumns:
        import numpy

        if timestamps_ms is None:
            row_count = max((len(c) for c in (keys, values, headers) if c is not None), default=0)
            timestamps_ms = numpy.full(row_count, self._running.now_ms(), numpy.int64)
        return OutgoingColumns(keys, values, headers, timestamps_ms)

    @property
    def _batch_bytes(self) -> int:
        settings = self._running.settings
        return min(settings.batch_size, settings.max_request_size - REQUEST_OVERHEAD_BYTES)

    def _check_size(self, batch: BatchBuilder) -> None:
        settings = self._running.settings
        limit = min(settings.max_request_size, settings.buffer_memory)
        if batch.size_bytes > limit:
            raise ClientError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {batch.size_bytes - HEADER_BYTES} bytes does not fit into"
                f" max.request.size={settings.max_request_size}"
                f" and buffer.memory={settings.buffer_memory}",
            )

    def _partition_count(self, topic: str) -> int:
        known = self._running.known_partitions(topic)
        return known or len(self._wait(self._running.partitions_for(topic)))

    def _next_turn(self, topic: str) -> int:
        """Whose turn it is to get a batch of records without keys."""
        turn = self._rotation.get(topic)
        if turn is None:
            turn = self._running.any_number(1 << 16)
        self._rotation[topic] = turn + 1
        return turn

    def _hand_over(self, topic: str, placed: Placed) -> None:
        deliveries = self._wait(self._running.send_batches(topic, placed))
        for (partition, _), delivery in zip(placed, deliveries, strict=True):
            self._under_way.append((TopicPartition(topic, partition), delivery))
        self._note_finished()

    def _note_finished(self) -> None:
        """Take what is settled off the list, in order: an offset, or the first failure."""
        while self._under_way and self._under_way[0][1].done():
            partition, delivery = self._under_way.popleft()
            error = delivery.exception()
            if error is None:
                last = max(delivery.result().offset, self._last_offsets.get(partition, -1))
                self._last_offsets[partition] = last
            elif self._failure is None:
                self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _choose_partitions(
    given: NDArray[np.int32] | None,
    keys: pa.BinaryArray | None,
    row_count: int,
    partition_count: int,
) -> NDArray[np.int32]:
    """A partition for each row; `partition_count` itself stands for "any"."""
    import numpy

    if given is None:
        chosen = numpy.full(row_count, NO_PARTITION, numpy.int32)
    else:
        chosen = numpy.array(given, numpy.int32)
        wrong = chosen[(chosen < NO_PARTITION) | (chosen >= partition_count)]
        if len(chosen) != row_count or len(wrong):
            raise ClientError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{len(chosen)} partitions for {row_count} records, from"
                f" {chosen.min(initial=0)} to {chosen.max(initial=0)},"
                f" but the topic has 0 to {partition_count - 1}",
            )
    is_free = chosen == NO_PARTITION
    if keys is not None and is_free.any():
        chosen[is_free] = partition_of_keys(keys, partition_count)[is_free]
        is_free = chosen == NO_PARTITION
    # With a single partition there is no choice, and rows with and without keys stay in order.
    chosen[is_free] = partition_count if partition_count > 1 else 0
    return chosen


async def _settled(deliveries: list[Delivery]) -> None:
    """Wait for the outcomes, whatever they are: they are looked at later."""
    for delivery in deliveries:
        with suppress(ClientError):
            await delivery
