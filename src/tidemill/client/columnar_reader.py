"""`ColumnarReader`: ranges of a partition's offsets as Arrow columns; see `columnar`.

The loop's thread fetches ahead and checks what came, the caller's thread decodes; while it decodes
one handful of batches, the next is being taken from the stock. Leaders may move and brokers die
meanwhile: the fetcher finds its way, and the reader gives up only when nothing has come for
`default.api.timeout.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from tidemill.client.blocking_twin import Client, fast_loop
from tidemill.client.consumer import Consumer
from tidemill.client.consumer_types import RawBatch
from tidemill.client.errors import (
    ClientError,
    ClosedError,
    OffsetResetError,
    OffsetsLost,
    RequestTimeoutError,
)
from tidemill.client.fetched import corrupt
from tidemill.client.positions import PartitionState
from tidemill.client.settings import is_explicit
from tidemill.errors import WireError
from tidemill.types import TopicPartition
from tidemill.wire.columns import ColumnBatch, columns_of, use_numba

logger = logging.getLogger(__name__)

TAKE_BYTES = 4 * 1024 * 1024
"""How much is taken from the stock at a time."""

LOOK_MS = 1_000
"""How long to wait for news before looking at the time."""

_DEFAULTS: Mapping[str, object] = {
    "max_partition_fetch_bytes": 4 * 1024 * 1024,
    # One answer to decode and one under way: what waits for longer is no longer in the cache.
    "prefetch_max_bytes": 8 * 1024 * 1024,
}
_OWN: Mapping[str, object] = {
    "auto_offset_reset": "none",
    "group_id": "",
    "enable_auto_commit": False,
    "allow_auto_create_topics": False,
}
"""Whoever reads ranges neither belongs to a group nor goes anywhere by itself."""


class RangeConsumer(Consumer):
    """The asyncio side: whole batches of one range of one partition at a time."""

    _place: TopicPartition
    _start: int
    _end: int
    _taking: asyncio.Task[Any] | None = None

    async def begin(self, place: TopicPartition, start: int, end: int) -> None:
        """Read [start, end) of this partition, and nothing else, from now on."""
        if self._taking is not None:
            # Whoever still takes for the range before would take from this one.
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)
        self._place, self._start, self._end = place, start, end
        self.assign([place])
        self._state(place).fetch_until = end
        self.seek(place, start)

    async def next_batches(self) -> tuple[list[RawBatch], int]:
        """The next batches there are, and the offset after them; [] only at the range's end."""
        self._taking = asyncio.current_task()
        try:
            return await self._take_next()
        finally:
            self._taking = None

    async def _take_next(self) -> tuple[list[RawBatch], int]:
        limit_ms = self.settings.default_api_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        state = self._state(self._place)
        position = state.position or 0
        while True:
            try:
                batches = await self._take_some(state)
            except OffsetResetError as error:
                explained = await self._explained(error, position)
                is_late = self._clock.monotonic_ms() >= deadline_ms
                if explained is not error or position != self._start or is_late:
                    raise explained from error
                # Nothing was read yet, and who asked may know the topic that was made anew since.
                self.seek(self._place, position)
                await asyncio.sleep(self.settings.retry_backoff_ms / 1000)
                continue
            except ClientError as error:
                if not error.retriable or self._clock.monotonic_ms() >= deadline_ms:
                    raise
                await asyncio.sleep(self.settings.retry_backoff_ms / 1000)
                continue
            before, position = position, state.position or 0
            if batches or position >= self._end:
                return batches, position
            if position > before:
                deadline_ms = self._clock.monotonic_ms() + limit_ms
            elif self._clock.monotonic_ms() >= deadline_ms:
                raise self._nothing_came(state, position)

    async def _take_some(self, state: PartitionState) -> list[RawBatch]:
        """Batches to show; none after `LOOK_MS`, or when hidden ones have reached the end."""
        reader = self._reading_from()
        batches: list[RawBatch] = []
        worth_telling: list[int] = []

        def take(state: PartitionState) -> bool:
            try:
                reader.take_batches(state, batches, TAKE_BYTES)
            finally:  # What comes before a damaged batch is handed out first.
                if batches or (state.position or 0) >= self._end:
                    worth_telling.append(len(batches))
            return False

        await self._gather(take, worth_telling, LOOK_MS)
        reader.handed_out()
        return batches

    async def _explained(self, error: OffsetResetError, position: int) -> ClientError:
        """Whether the log has lost what is at `position`, or never had it."""
        earliest = (await self.beginning_offsets([self._place]))[self._place]
        return OffsetsLost(*self._place, position, earliest) if earliest > position else error

    def _nothing_came(self, state: PartitionState, position: int) -> ClientError:
        reason = self._cluster.view.errors.get(self._place.topic)
        if reason is not None:
            return reason  # The topic is not there, or not ours to read.
        known = "" if state.high_watermark is None else f", its end was {state.high_watermark}"
        return RequestTimeoutError(
            f"nothing came of {self._place} from offset {position} on"
            f" in default.api.timeout.ms={self.settings.default_api_timeout_ms}{known}"
        )


class ColumnarReader(Client[RangeConsumer]):
    """Reads ranges of offsets, one after the other; use it inside `with`.

    Args:
        bootstrap: brokers to ask first, "host:port,host:port" or a list of such.
        settings: see `ConsumerSettings`, in either spelling; those of groups and of
            `auto.offset.reset` have no meaning here and are left aside.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], *, settings: Mapping[str, object] | None = None
    ) -> None:
        given = dict(settings or {})
        chosen = {name: value for name, value in given.items() if not _is_own(name)}
        chosen |= {name: value for name, value in _DEFAULTS.items() if not is_explicit(given, name)}
        super().__init__(
            lambda: RangeConsumer(bootstrap, **chosen, **_OWN),  # type: ignore[arg-type]
            new_loop=fast_loop,
        )
        self._turn = 0
        self._ahead: Future[tuple[list[RawBatch], int]] | None = None

    def start(self) -> None:
        """Connect; fails at once if no broker can be reached."""
        compile_kernels()
        super().start()

    def close(self) -> None:
        """End the thread; whoever still iterates over a range gets `ClosedError`."""
        if self._ahead is not None:
            self._ahead.cancel()
        super().close()

    def read(
        self, topic: str, partition: int, start: int, end: int, *, headers: bool = False
    ) -> Iterator[ColumnBatch]:
        """The records of [start, end) in pieces of up to 10,000 rows; begins when iterated.

        Offsets without a visible record (compacted, aborted, markers) are passed over. Raises
        `OffsetsLost` where the log starts after what is to be read. One range is read at a time:
        beginning another one ends this one.
        """
        if start >= end:
            return
        place = TopicPartition(topic, partition)
        self._turn += 1
        turn = self._turn
        self._wait(self._running.begin(place, start, end))
        ahead = self._ahead = self._submit(self._next())
        position = start
        try:
            while position < end:
                batches, position = ahead.result()
                if position < end:
                    ahead = self._ahead = self._submit(self._next())
                for piece in self._decode(place, batches, start, end, headers):
                    yield piece
                    if turn != self._turn:
                        raise self._ended(place, turn)
        except CancelledError:
            raise self._ended(place, turn) from None
        finally:
            if self._loop is not None:
                ahead.cancel()
            if turn == self._turn:
                self._ahead = None  # It holds megabytes.

    async def _next(self) -> tuple[list[RawBatch], int]:
        return await self._running.next_batches()

    def _ended(self, place: TopicPartition, turn: int) -> Exception:
        """Why a range cannot be read to its end."""
        if turn != self._turn:
            return ValueError(f"another range is being read, {place} cannot go on")
        return ClosedError("this reader was closed")

    def _decode(
        self, place: TopicPartition, batches: list[RawBatch], start: int, end: int, headers: bool
    ) -> Iterator[ColumnBatch]:
        try:
            yield from columns_of(
                ((batch.header, batch.data) for batch in batches),
                first_offset=start,
                end_offset=end,
                headers=headers,
                limit_bytes=self._running.settings.max_batch_decompressed_bytes,
            )
        except WireError as error:
            raise corrupt(place, batches[0].header.base_offset, str(error)) from error


def compile_kernels() -> None:
    """Have what is done per record compiled, if numba is there."""
    try:
        use_numba()
    except ImportError:
        logger.warning("numba is not installed: columns are read and written slowly")


def _is_own(name: str) -> bool:
    return any(is_explicit({name: None}, own) for own in _OWN)
