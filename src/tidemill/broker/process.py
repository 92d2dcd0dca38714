"""The process around a broker: its file limit, its event loop, its garbage collector."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Callable

_GC_THRESHOLD = 50_000


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: connections and segments need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def calm_garbage_collector() -> None:
    """What start-up made stays: leave it out of every later collection, and collect more rarely.

    Requests make no cycles, so reference counting frees them; each full collection that is not
    run is a pause that the slowest percentile does not see.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(_GC_THRESHOLD, 20, 100)


def half_of_file_limit() -> int:
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
