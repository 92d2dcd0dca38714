"""Waiting for what comes true by itself: until it does, or far longer than it ever takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

LONG_S = 30.0
LOOK_EVERY_S = 0.05


def eventually(
    fact: Callable[[], object], what: str = "what was waited for", *, within_s: float = LONG_S
) -> None:
    """Wait until it holds; say what did not otherwise."""
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(LOOK_EVERY_S)


async def eventually_async(
    fact: Callable[[], Awaitable[object]],
    what: str = "what was waited for",
    *,
    within_s: float = LONG_S,
) -> None:
    """The same of something that has to be awaited."""
    deadline = time.monotonic() + within_s
    while not await fact():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        await asyncio.sleep(LOOK_EVERY_S)
