"""Ask several one after the other, without waiting long for one that may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def first_of(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    expected: type[Exception] | tuple[type[Exception], ...],
    step_ms: float,
) -> T:
    """The first success. The next attempt begins when one failed as expected, or after `step_ms`.

    Raises an `ExceptionGroup` when all failed, or when some did and the rest says nothing for
    `step_ms` more: those that failed may be worth another try. What is not expected ends the whole
    at once. Attempts that are not needed any more are cancelled.
    """
    left = list(attempts)
    running: list[asyncio.Task[T]] = []
    failures: list[Exception] = []
    try:
        while left or running:
            if left:
                running.append(asyncio.ensure_future(_awaited(left.pop(0))))
            done, _ = await asyncio.wait(
                running,
                timeout=step_ms / 1000 if left or failures else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not (done or left):
                break
            ended = [task for task in running if task in done]
            running = [task for task in running if task not in done]
            for task in ended:
                try:
                    return task.result()
                except expected as failure:
                    failures.append(failure)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    raise ExceptionGroup("every attempt failed", failures)


async def _awaited(attempt: Callable[[], Awaitable[T]]) -> T:
    return await attempt()
