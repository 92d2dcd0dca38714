"""Tables that streams are joined with are read again, and a failure of that ends nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tidemill.spark.pipeline.lookup_table import LookupTable
from tidemill.testing.clock import ManualClock


class Frame:
    """Counts what is done with it; fails while it is told to."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failure: Exception | None = None

    def persist(self) -> None:
        self.done.append("persist")

    def unpersist(self) -> None:
        self.done.append("unpersist")

    def count(self) -> int:
        if self.failure is not None:
            raise self.failure
        self.done.append("count")
        return 0


def test_a_refresh_that_fails_is_told_and_tried_again_a_period_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    frame: Any = Frame()
    clock = ManualClock()
    table = LookupTable("users", frame, 1_000, clock)
    table.refresh_if_due()
    assert frame.done == ["persist", "count"]
    frame.failure = RuntimeError("no broker")
    clock.advance(1_000)
    with caplog.at_level(logging.WARNING):
        table.refresh_if_due()
        table.refresh_if_due()
    assert caplog.messages == ["table users was not read again: no broker"]
    assert frame.done[-1] == "persist"  # So the next micro-batch fills the cache.
    frame.failure = None
    clock.advance(1_000)
    table.refresh_if_due()
    assert frame.done[-3:] == ["unpersist", "persist", "count"]


def test_a_table_that_cannot_be_read_at_first_is_a_failure() -> None:
    frame: Any = Frame()
    frame.failure = RuntimeError("no broker")
    with pytest.raises(RuntimeError, match="no broker"):
        LookupTable("users", frame, 1_000, ManualClock())
