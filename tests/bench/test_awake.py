"""The processes that keep cores awake: one a core, of the lowest class, and gone afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.awake import cores_awake


def _idle_children() -> list[int]:
    """The children of this process that run only when nobody else wants the core."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in map(int, children) if os.sched_getscheduler(pid) == os.SCHED_IDLE]


def test_each_core_is_kept_awake_for_as_long_as_the_block_takes() -> None:
    with cores_awake(60):
        kept = [os.sched_getaffinity(pid) for pid in _idle_children()]
        assert sorted(kept, key=min) == [{core} for core in sorted(os.sched_getaffinity(0))]
    assert _idle_children() == []


def test_nothing_stays_behind_when_the_block_fails() -> None:
    def fails() -> None:
        with cores_awake(60):
            assert _idle_children()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert _idle_children() == []
