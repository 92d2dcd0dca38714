"""How tasks end that will never run again: at once, and without a word."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

_CLOSE_ATTEMPTS_MAX = 100


def bury(task: asyncio.Task[Any]) -> None:
    """End the coroutine of a task that will never run again, whatever its `finally` blocks try.

    From the inside out: a coroutine that refuses to end must not be left to the collector.
    """
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for _ in range(_CLOSE_ATTEMPTS_MAX):
        inner = _innermost(coroutine)
        with contextlib.suppress(BaseException):
            inner.close()
            if inner is coroutine:
                return


def _innermost(coroutine: Any) -> Any:
    """The one that is awaited by all the others and awaits none that still lives."""
    awaited = getattr(coroutine, "cr_await", None)
    while inspect.iscoroutine(awaited) and awaited.cr_frame is not None:
        coroutine = awaited
        awaited = coroutine.cr_await
    return coroutine
