"""Notices batches that were not delivered in time: one timer for all of them.

All batches have the same time to live, so the order in which they were opened is the order in which
they run out, and looking at the first is enough.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidemill.client.accumulator import PartitionQueue
from tidemill.client.batches import Batch
from tidemill.clock import Clock


class Deadlines:
    """Calls `on_late(queue, batch)` for each watched batch that is unfinished after its time."""

    def __init__(
        self, clock: Clock, limit_ms: int, on_late: Callable[[PartitionQueue, Batch], None]
    ) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._on_late = on_late
        self._by_age: deque[tuple[PartitionQueue, Batch]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def watch(self, queue: PartitionQueue, batch: Batch) -> None:
        self._by_age.append((queue, batch))
        if self._timer is None:
            self._schedule()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = None
        while self._by_age and self._by_age[0][1].finished:
            self._by_age.popleft()
        if self._by_age and not self._closed:
            left_ms = self._by_age[0][1].born_ms + self._limit_ms - self._clock.monotonic_ms()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(left_ms, 0) / 1000 + 0.001, self._look)

    def _look(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - self._limit_ms
        while self._by_age:
            queue, batch = self._by_age[0]
            if not batch.finished and batch.born_ms > oldest_ms:
                break
            self._by_age.popleft()
            if not batch.finished:
                self._on_late(queue, batch)
        self._schedule()
