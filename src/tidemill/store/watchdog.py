"""Notices that the event loop hangs, from a thread that does not.

A session that other threads keep alive says nothing about the loop, which does the work: a stuck
broker would hold its offices for ever. The loop calls `tick`; when it has not done so for the
limit, `on_stuck` is called, once, on the watchdog's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidemill.clock import Clock

_LOOKS_PER_LIMIT = 8


class Watchdog:
    """Watches one loop from `start` to `stop`."""

    def __init__(self, clock: Clock, limit_ms: int, on_stuck: Callable[[], None]) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._on_stuck = on_stuck
        self._ticked_ms = clock.monotonic_ms()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tidemill-watchdog", daemon=True)

    @property
    def tick_interval_ms(self) -> int:
        """How often the loop should tick, so that one late tick is no alarm."""
        return max(self._limit_ms // _LOOKS_PER_LIMIT, 1)

    def start(self) -> None:
        self._ticked_ms = self._clock.monotonic_ms()
        self._thread.start()

    def tick(self) -> None:
        """The loop makes progress."""
        self._ticked_ms = self._clock.monotonic_ms()

    def stop(self) -> None:
        """Look no more. It may be called from anywhere, `on_stuck` included, and again."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the thread to end, unless it is the one that asks."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self.tick_interval_ms / 1000):
            if self._clock.monotonic_ms() - self._ticked_ms >= self._limit_ms:
                self._stopped.set()
                self._on_stuck()
