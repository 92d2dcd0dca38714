"""What a broker does by itself, now and then: checkpoints, retention, expiry.

Each job is a timer on the wheel that starts the work and, once that is done, itself again, so a
slow disk delays the next round and never piles rounds up. Work that touches disks runs in the
executor inside the storage layer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidemill.config import BrokerConfig
from tidemill.timers import TimerHandle, TimingWheel

log = logging.getLogger(__name__)

Job = Callable[[Callable[[], None]], None]
"""Starts a round and calls its argument when the round is over."""


class Housekeeping:
    """The recurring jobs of one broker."""

    def __init__(self, timers: TimingWheel, config: BrokerConfig) -> None:
        self._timers = timers
        self._config = config
        self._handles: dict[str, TimerHandle] = {}
        self._stopped = False

    def every(self, interval: str | int, name: str, job: Job) -> None:
        """Run `job` again and again, each time `interval` after the last round was over.

        The interval is in milliseconds, or the name of the setting that says them.
        """
        waiting = self._handles.get(name)
        if self._stopped or (waiting is not None and waiting.pending):
            return
        interval_ms = interval if isinstance(interval, int) else self._config.int(interval)
        self._handles[name] = self._timers.schedule(
            max(1, interval_ms), lambda: self._run(interval, name, job)
        )

    def _run(self, interval: str | int, name: str, job: Job) -> None:
        try:
            job(lambda: self.every(interval, name, job))
        except Exception:
            log.exception("%s failed; it is tried again later", name)
            self.every(interval, name, job)

    def stop(self) -> None:
        self._stopped = True
        for handle in self._handles.values():
            handle.cancel()
