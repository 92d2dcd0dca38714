"""Running a command's coroutine: asyncio's loop, or the faster one where speed is the point; and
ending one in good order when it is told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

TERMINATED = 128 + signal.SIGTERM
"""The exit status of a process that SIGTERM ended."""


def run_async(coroutine: Coroutine[object, object, T], *, fast_loop: bool = False) -> T:
    """Run to the end. `fast_loop` asks for uvloop, whose import a short command would feel."""
    if not fast_loop:
        return asyncio.run(coroutine)
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(coroutine)


@contextmanager
def cleaned_up_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM cancels the task, so that what is open gets closed: a member leaves its
    group. The exit status is the usual one."""
    task, told = asyncio.current_task(), False

    def tell() -> None:
        nonlocal told
        told = True
        if task is not None:
            task.cancel()

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, tell)
    except (ValueError, RuntimeError, NotImplementedError):
        yield  # Only the main thread hears signals, and not on every system.
        return
    try:
        yield
    except asyncio.CancelledError:
        if told:
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
