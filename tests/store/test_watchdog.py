"""A thread that notices when the loop does not."""

from __future__ import annotations

import threading

from tests.timers.helpers import HandClock

from tidemill.store.watchdog import Watchdog


def test_a_loop_that_does_not_tick_is_noticed_once() -> None:
    """Rule A9: liveness is the loop's progress, not a thread's."""
    clock, stuck = HandClock(1_000), threading.Semaphore(0)
    dog = Watchdog(clock, 40, stuck.release)
    dog.start()
    clock.at_ms += 39
    assert not stuck.acquire(timeout=0.05)
    dog.tick()
    clock.at_ms += 39
    assert not stuck.acquire(timeout=0.05)
    clock.at_ms += 1
    assert stuck.acquire(timeout=5)
    assert not stuck.acquire(timeout=0.05)
    dog.join()


def test_a_stopped_watchdog_is_silent_and_gone() -> None:
    clock, stuck = HandClock(), threading.Semaphore(0)
    dog = Watchdog(clock, 40, stuck.release)
    dog.join()
    dog.start()
    dog.stop()
    dog.stop()
    dog.join()
    clock.at_ms += 1_000
    assert not stuck.acquire(blocking=False)
