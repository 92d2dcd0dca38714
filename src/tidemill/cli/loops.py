"""Running a command's coroutine: asyncio's loop, or the faster one where speed is the point."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


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
