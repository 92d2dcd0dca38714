"""Producer ids for idempotent producers: taken from blocks that the controller hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Block = tuple[int, int]
"""The first id of a block, and how many it has."""


class ProducerIds:
    """The rest of this broker's block; each id is given out once in the life of the cluster."""

    def __init__(self, allocate: Callable[[], Awaitable[Block]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._refill: asyncio.Lock | None = None

    def take(self) -> int | None:
        """The next id, or None when the block is used up."""
        if self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1

    async def next(self) -> int:
        """The next id; gets another block if it must, one at a time."""
        if self._refill is None:
            self._refill = asyncio.Lock()
        async with self._refill:
            taken = self.take()
            while taken is None:
                start, count = await self._allocate()
                self._next, self._end = start, start + count
                taken = self.take()
        return taken
