"""Tells the controller of replicas that this broker cannot use: a disk failed or is full, a log is
damaged.

What is reported while no controller answers is kept, and told again until one knows (the
`ReplicaReports` of replication).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from tidemill.errors import TidemillError
from tidemill.image import ReplicaTrouble
from tidemill.types import TopicPartition

log = logging.getLogger(__name__)

RETRY_S = 1.0


class Reports:
    """The reports of one broker."""

    def __init__(
        self, tell: Callable[[Iterable[TopicPartition], ReplicaTrouble], Awaitable[None]]
    ) -> None:
        """`tell` brings a report to the controller, wherever that is."""
        self._tell = tell
        self._lost: dict[TopicPartition, ReplicaTrouble] = {}
        self._task: asyncio.Task[None] | None = None

    def report(self, partitions: Sequence[TopicPartition], trouble: ReplicaTrouble) -> None:
        """Have these replicas taken out of their in-sync sets, and others elected."""
        self._lost.update((each, trouble) for each in partitions)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while self._lost:
            trouble = next(iter(self._lost.values()))
            lost = {each: why for each, why in self._lost.items() if why is trouble}
            for each in lost:
                del self._lost[each]
            try:
                await self._tell(lost, trouble)
            except TidemillError as error:
                log.warning("%d lost replicas are reported again soon: %s", len(lost), error)
                self._lost = {**lost, **self._lost}
                await asyncio.sleep(RETRY_S)
