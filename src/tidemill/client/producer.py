"""`Producer`: send records, with one await per record or with none.

    async with Producer("127.0.0.1:9092") as producer:
        metadata = await producer.send("clicks", b"...", key=b"user-7")   # delivered
        producer.send_soon("clicks", b"...")                              # queued
        await producer.flush()                                            # all delivered

Records wait in the `accumulator`, the `sender` takes them to the brokers. By default nothing is
acknowledged before all in-sync replicas have it, and a retry neither duplicates nor reorders.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Any, Self

from tidemill.client.accumulator import Accumulator
from tidemill.client.batches import Batch, Delivery
from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connector, connect_tcp
from tidemill.client.errors import ClientError, ClosedError, RequestTimeoutError, SettingsError
from tidemill.client.interceptors import (
    OutgoingRecord,
    ProducerInterceptor,
    run_on_delivery,
    run_on_send,
)
from tidemill.client.naming import IdentitySource, new_identity
from tidemill.client.producer_types import Headers, HeadersInput, RecordMetadata, as_headers
from tidemill.client.sender import Sender
from tidemill.client.sequences import WINDOW_BATCHES
from tidemill.client.settings import ProducerSettings, Serializer, is_explicit, parse
from tidemill.clock import Clock
from tidemill.executor import Executor, ThreadExecutor

logger = logging.getLogger(__name__)

UNSEEN_FAILURES_MAX = 100
COMPRESSION_THREADS = 2
TIMESTAMP_MS_MAX = 2**63 - 1
CLOSE_AFTER_ERROR_MS = 5_000
"""How long a block that was left by an error or a cancellation waits for what it had queued."""


class Producer:
    """Sends records; use it inside `async with`.

    Args:
        bootstrap: brokers to ask first, "host:port,host:port" or a list of such.
        settings: see `ProducerSettings`; `linger_ms=5` and `**{"linger.ms": 5}` both work.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        connector: Connector = connect_tcp,
        executor: Executor | None = None,
        **settings: object,
    ) -> None:
        self.settings = _checked(parse(ProducerSettings, settings, bootstrap), settings)
        self._cluster = Cluster(
            self.settings,
            clock=clock,
            random=random,
            connector=connector,
            auto_create_topics=True,
        )
        self._clock = self._cluster.clock
        # Whoever awaits one record at a time gains nothing from waiting for more to come.
        self._awaited_lingers = is_explicit(settings, "linger_ms")
        self._interceptors: Sequence[ProducerInterceptor] = tuple(self.settings.interceptors)
        self._plain = not (
            self._interceptors or self.settings.key_serializer or self.settings.value_serializer
        )
        self._executor = executor
        self._identity_source: IdentitySource = new_identity
        self._own_executor: ThreadExecutor | None = None
        self._unseen: deque[Batch] = deque(maxlen=UNSEEN_FAILURES_MAX)
        self._sender: Sender | None = None
        self._accumulator: Accumulator | None = None

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        await self._cluster.start()
        executor = self._executor
        if executor is None:
            loop = asyncio.get_running_loop()
            executor = self._own_executor = ThreadExecutor(
                loop.call_soon_threadsafe, threads=COMPRESSION_THREADS, name="tidemill-compress"
            )
        self._sender = Sender(
            self.settings, self._cluster, executor, self._unseen.append, self._identity_source
        )
        self._accumulator = Accumulator(
            self.settings, self._cluster, self._sender.ready, self._sender.outcomes.watch
        )
        self._sender.serve(self._accumulator)
        self._cluster.on_update(self._accumulator.update_routes)
        self._cluster.on_update(self._sender.metadata_changed)

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what is queued, for at most so long, then let go of everything.

        Without a timeout it waits as long as a record may take (`delivery.timeout.ms`).
        """
        if self._accumulator is None or self._sender is None:
            await self._cluster.close()
            return
        limit_ms = self.settings.delivery_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self.flush()
        except TimeoutError:
            logger.warning("producer closed with records undelivered")
        finally:
            await self._end()

    async def _end(self) -> None:
        accumulator, sender = self._accumulator, self._sender
        self._accumulator = self._sender = None
        if sender is not None:
            await sender.close()
        if accumulator is not None:
            accumulator.fail_all(RequestTimeoutError("the producer was closed", hint=""))
        await self._cluster.close()
        if self._own_executor is not None:
            self._own_executor.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
            return
        try:
            await self.close(CLOSE_AFTER_ERROR_MS)
        except ClientError as failure:
            # What went wrong inside the block is the news; this is only its consequence.
            logger.warning("producer closed with a failed record error=%s", failure)

    # --- sending ---------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersInput = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Deliver one record and say where it is.

        Waits for room when `buffer.memory` is taken. Many sends at a time share batches; a single
        one goes out at once unless `linger.ms` was set. Cancelling does not take the record back.
        """
        accumulator = self._running()
        record = self._prepare(topic, value, key, headers, partition, timestamp_ms)
        topic, value, key, pairs, partition, timestamp_ms = record
        size = accumulator.size_of(key, value, pairs)
        await accumulator.room_for(size)
        urgent = not self._awaited_lingers
        delivery = accumulator.add(topic, partition, timestamp_ms, key, value, pairs, size, urgent)
        self._report(delivery)
        return await delivery

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
        """Queue one record and return its `Delivery`, which may be awaited or ignored.

        Raises `BufferFullError` when `buffer.memory` is taken: `await wait_for_room()` then. A
        failure that nobody looks at is raised by the next `flush`, or when the producer closes.
        """
        accumulator = self._accumulator
        if accumulator is None:
            raise ClosedError("this producer is not running; use it inside `async with`")
        if self._plain and type(value) is bytes and (key is None or type(key) is bytes):
            pairs = as_headers(headers) if headers else ()
            timestamp_ms = self._time(timestamp_ms)
        else:
            record = self._prepare(topic, value, key, headers, partition, timestamp_ms)
            topic, value, key, pairs, partition, timestamp_ms = record
        size = accumulator.size_of(key, value, pairs)
        delivery = accumulator.add(topic, partition, timestamp_ms, key, value, pairs, size)
        if self._interceptors:
            self._report(delivery)
        return delivery

    def _prepare(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: HeadersInput,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[str, bytes | None, bytes | None, Headers, int | None, int]:
        """Run interceptors and serializers, and fill in the time."""
        if self._interceptors:
            record = OutgoingRecord(topic, value, key, headers, partition, timestamp_ms)
            record = run_on_send(self._interceptors, record)
            topic, value, key, headers, partition, timestamp_ms = record
        return (
            topic,
            _serialize("value", topic, value, self.settings.value_serializer),
            _serialize("key", topic, key, self.settings.key_serializer),
            as_headers(headers),
            partition,
            self._time(timestamp_ms),
        )

    def _time(self, timestamp_ms: int | None) -> int:
        """The record's time: the given one, or now."""
        if timestamp_ms is None:
            return self._clock.now_ms()
        if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            raise ValueError(f"a timestamp is milliseconds since 1970, not {timestamp_ms}")
        return timestamp_ms

    def _report(self, delivery: Delivery) -> None:
        if not self._interceptors:
            return

        def tell(done: Delivery) -> None:
            error = done.exception()
            metadata = done.result() if error is None else None
            run_on_delivery(self._interceptors, metadata, error)

        delivery.add_done_callback(tell)

    # --- waiting ---------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until every record sent so far is delivered or has failed.

        Raises the first failure that nobody looked at, so that `send_soon` loses nothing silently.
        """
        failed = await self._running().flush()
        unseen = [batch for batch in (*self._unseen, *failed) if not batch.observed]
        self._unseen.clear()
        for batch in unseen:
            batch.observed = True
        if unseen and unseen[0].error is not None:
            raise unseen[0].error

    async def wait_for_room(self) -> None:
        """Return when half of `buffer.memory` is free; the pause lets the sender work, too."""
        await asyncio.sleep(0)
        await self._running().room_for(self.settings.buffer_memory // 2)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not delivered yet."""
        return self._accumulator.used_bytes if self._accumulator is not None else 0

    @property
    def trouble(self) -> ClientError | None:
        """Why records are being sent again right now; None while all goes well."""
        return None if self._sender is None else self._sender.outcomes.trouble

    async def partitions_for(self, topic: str) -> list[int]:
        """The topic's partitions; waits for the topic for at most `max.block.ms`."""
        self._running()
        info = await self._cluster.topic(topic, self.settings.max_block_ms)
        return sorted(info.partitions)

    def _running(self) -> Accumulator:
        if self._accumulator is None:
            raise ClosedError("this producer is not running; use it inside `async with`")
        return self._accumulator


def _serialize(what: str, topic: str, value: Any, serializer: Serializer | None) -> bytes | None:
    if serializer is not None:
        value = serializer(topic, value)
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise TypeError(
        f"the {what} must be bytes, str or None, not {type(value).__name__};"
        f" give a `{what}_serializer` for anything else"
    )


def _checked(settings: ProducerSettings, given: dict[str, object]) -> ProducerSettings:
    """Refuse combinations that cannot keep what idempotence promises, as Kafka does."""
    if not settings.enable_idempotence:
        return settings
    conflicts = []
    if settings.acks not in ("all", "-1"):
        conflicts.append("acks=all")
    if settings.max_in_flight_requests_per_connection > WINDOW_BATCHES:
        conflicts.append(f"max.in.flight.requests.per.connection at most {WINDOW_BATCHES}")
    if settings.retries == 0:
        conflicts.append("retries above 0")
    if not conflicts:
        return settings
    if is_explicit(given, "enable_idempotence"):
        raise SettingsError(f"`enable.idempotence` needs {' and '.join(conflicts)}")
    return parse(
        ProducerSettings,
        {**given, "enable_idempotence": False},
        settings.bootstrap_servers or None,
    )
