"""Processes of processes: those that may outlive the one that was stopped, for moments or more."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_ENDED = "ZX"
"""States of a process that does nothing any more."""
_LOOK_EVERY_S = 0.05


def descendants(pid: int) -> frozenset[int]:
    """The processes that one has started, and those have, as far as this system tells (Linux)."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        status = _status_of(int(folder.name))
        if status is not None:
            parents[int(folder.name)] = int(status[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return frozenset(found)


def see_ended(pids: Iterable[int], limit_s: float) -> bool:
    """Wait for the end of processes that are not our children; after the limit they are killed.

    One that has ended and is not yet buried by whoever inherited it counts as ended.
    """
    left = set(pids)
    for is_last in (False, True):
        deadline = time.monotonic() + limit_s
        while left := {pid for pid in left if (_status_of(pid) or _ENDED)[0] not in _ENDED}:
            if time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_EVERY_S)
        for pid in () if is_last else left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return not left


def _status_of(pid: int) -> list[str] | None:
    """Its state, its parent and so on; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # The name in brackets may hold anything.
