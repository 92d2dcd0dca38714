"""The process around a broker: its file limit, its event loop, its garbage collector, its host."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

_GC_THRESHOLD = 50_000
_FILES_MAX = 2**20
"""Where no limit is set: what Linux lets a process open (`fs.nr_open`)."""


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: connections and segments need them.

    Not every system takes what it names as its hard limit; a broker can do with fewer files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s", soft, error)


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


def cores() -> int:
    """How many processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Not every system can say.
        return os.cpu_count() or 1


def half_of_file_limit() -> int:
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files_max == resource.RLIM_INFINITY:
        files_max = _FILES_MAX
    return max(16, files_max // 2)


def machine_name(host: str) -> str:
    """The name to tell clients for a listener on all interfaces."""
    return socket.getfqdn() if host in ("", "0.0.0.0", "::") else host
