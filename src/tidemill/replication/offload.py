"""Awaiting what an executor does: for tasks of replication, which read disks now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidemill.executor import Executor

T = TypeVar("T")


async def in_thread(executor: Executor, work: Callable[[], T]) -> T:
    """The result of `work`, done elsewhere; raises what it raised."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def then(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # Whoever waited was cancelled.
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    executor.submit(work, then)
    return await done
