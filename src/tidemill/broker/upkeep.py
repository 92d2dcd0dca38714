"""What a running broker does by itself: the jobs that `housekeeping.py` runs again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidemill.broker.housekeeping import Housekeeping
from tidemill.storage.scrub import Scrubber, ScrubLimits

if TYPE_CHECKING:
    from tidemill.broker.context import Broker
    from tidemill.storage.cleaner import LogCleaner
    from tidemill.storage.files import Files

log = logging.getLogger(__name__)

FLUSH_CHECK_MS = 1_000
REMOVAL_CHECK_MS = 1_000
SCRUB_CHECK_MS = 1_000


class Upkeep:
    """The recurring jobs of a broker, from `start` to `stop`."""

    def __init__(self, broker: Broker, files: Files, cleaner: LogCleaner) -> None:
        self.scrubber = Scrubber(
            broker.logs,
            files,
            broker.clock,
            broker.executor,
            broker.timers.schedule,
            self._scrub_limits,
            on_damage=broker.replicas.damaged,
        )
        self._broker = broker
        self._cleaner = cleaner
        self._housekeeping = Housekeeping(broker.timers, broker.config)
        self._moving: asyncio.Task[int] | None = None

    def start(self) -> None:
        every = self._housekeeping.every
        every("replica.high.watermark.checkpoint.interval.ms", "checkpoint", self._checkpoint)
        every("log.retention.check.interval.ms", "retention", self._retention)
        every(FLUSH_CHECK_MS, "flush", self._flush_overdue)
        every("offsets.retention.check.interval.ms", "offsets expiry", self._expire_offsets)
        every(REMOVAL_CHECK_MS, "removal of deleted files", self._remove_deleted)
        every("log.cleaner.backoff.ms", "compaction", self._cleaner.run)
        every(SCRUB_CHECK_MS, "scrub", self.scrubber.run_if_due)
        imbalance_s = self._broker.config.int("leader.imbalance.check.interval.seconds")
        every(1_000 * imbalance_s, "preferred leaders", self._move_leaders_back)

    def stop(self) -> None:
        self.scrubber.stop()
        self._cleaner.stop()
        self._housekeeping.stop()

    def _scrub_limits(self) -> ScrubLimits:
        config = self._broker.config
        return ScrubLimits(
            config.int("log.scrub.bytes.per.second"), config.int("log.scrub.interval.ms")
        )

    def _checkpoint(self, done: Callable[[], None]) -> None:
        marks = self._broker.replicas.high_watermarks()
        self._broker.logs.write_checkpoints(marks, then=done)

    def _retention(self, done: Callable[[], None]) -> None:
        marks = self._broker.replicas.high_watermarks()
        self._step_by_step(self._broker.logs.retention_steps(marks), done)

    def _expire_offsets(self, done: Callable[[], None]) -> None:
        self._step_by_step(self._broker.groups.expiry(), done)

    def _step_by_step(self, steps: Iterator[object], done: Callable[[], None]) -> None:
        """A little per turn of the loop: ten thousand logs must not be felt by anybody."""
        over = object()

        def step() -> None:
            if next(steps, over) is over:
                done()
            else:
                self._broker.timers.schedule(1, step)

        step()

    def _flush_overdue(self, done: Callable[[], None]) -> None:
        self._broker.logs.flush_overdue()
        done()

    def _remove_deleted(self, done: Callable[[], None]) -> None:
        self._broker.logs.remove_doomed()
        done()

    def _move_leaders_back(self, done: Callable[[], None]) -> None:
        """Leadership returns to the preferred replicas, if this broker is to see to that."""
        controller = self._broker.controller
        if not (controller.active and self._broker.config.bool("auto.leader.rebalance.enable")):
            done()
            return
        self._moving = asyncio.get_running_loop().create_task(controller.move_leaders_back())
        self._moving.add_done_callback(lambda moved: self._moved_back(moved, done))

    def _moved_back(self, moved: asyncio.Task[int], done: Callable[[], None]) -> None:
        error = None if moved.cancelled() else moved.exception()
        if error is not None:
            log.warning("leaders were not moved back: %s", error)
        done()
