"""Appends that are converted first: in order, each once, whatever happens to the others (G7)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from tests.storage.helpers import batch, new_log

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.conversion import AppendOutcome, Conversions, PendingAppend
from tidemill.storage.log import AppendInfo
from tidemill.storage.log_config import LogConfig
from tidemill.storage.validate import Validated
from tidemill.testing.clock import ManualClock
from tidemill.types import LeaderEpoch


class Later:
    """An executor whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]]
        self.waiting = []

    def submit(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]
    ) -> None:
        self.waiting.append((work, then))

    def close(self) -> None: ...

    def run_all(self) -> None:
        while self.waiting:
            work, then = self.waiting.pop(0)
            then(work(), None)


class Scene:
    """A log that recompresses what it is given."""

    def __init__(self) -> None:
        self.executor = Later()
        self.log = new_log(LogConfig(compression_type="gzip"))
        self.fails: set[int] = set()
        self.appended = 0
        self.outcomes: list[AppendOutcome] = []
        self.conversions = Conversions(self.log, ManualClock(), self.executor, self._append)

    def _append(self, pending: PendingAppend, validated: Validated) -> AppendInfo:
        self.appended += 1
        if self.appended in self.fails:
            raise RuntimeError("a bug")
        return self.log.append_as_leader(validated, leader_epoch=0)

    def queue(self, value: bytes) -> PendingAppend:
        pending = self.conversions.queue(batch(value), -1, LeaderEpoch(0))
        pending.then = self.outcomes.append
        return pending

    def offsets(self) -> list[int]:
        return [each.base_offset for each in self.outcomes if isinstance(each, AppendInfo)]


def test_who_hears_of_an_append_may_ask_for_the_next_at_once() -> None:
    scene = Scene()
    first = scene.queue(b"a")

    def ask_again(outcome: AppendOutcome) -> None:
        scene.outcomes.append(outcome)
        scene.queue(b"c")

    first.then = ask_again
    scene.queue(b"b")
    scene.executor.run_all()
    assert scene.offsets() == [0, 1, 2]
    assert scene.log.log_end_offset == 3
    assert not scene.conversions.queued


def test_a_failure_is_told_and_those_behind_it_go_on() -> None:
    scene = Scene()
    scene.fails = {1}
    scene.queue(b"a")
    scene.queue(b"b")
    scene.executor.run_all()
    failed = scene.outcomes[0]
    assert isinstance(failed, ApiError)
    assert failed.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert scene.offsets() == [0]


def test_what_a_refused_conversion_had_in_its_hands_goes_with_the_answer() -> None:
    """A hundred megabytes maybe, and the collector of a broker comes seldom."""
    scene = Scene()
    refused = ApiError(ErrorCode.INVALID_RECORD, "too large")
    left = weakref.ref(refused)
    gc.disable()
    try:
        scene.queue(b"a")
        _, then = scene.executor.waiting.pop()
        then(None, refused)
        assert scene.outcomes == [refused]
        scene.outcomes.clear()
        del refused
        assert left() is None
    finally:
        gc.enable()
