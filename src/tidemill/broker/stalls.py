"""Notices that the event loop stood still, and has the broker prove that it still may lead.

A beat on the broker's ticker comes late by as long as the loop stood still, be it for a defect, a
disk, a starved machine or a SIGSTOP. Long stalls are logged, and counted. After half of the
session's timeout others may be about to take this broker for dead, or have: it leads nothing until
the store has confirmed the session, by a write that fails in one that is over (rules A9 and 2.L).

Why half, and not a third. Whoever keeps a session alive does so every third of its timeout, so
that much passes between two signs of life anyway: at that limit one late beat would cost the
leadership, and the groups that go with it. After half, a sign of life is missing for certain, and
the timeout itself is not reached. ZooKeeper's watchdog (`store/watchdog.py`) ends the session at
the same moment from a thread of its own, for kazoo's threads would keep it while the loop hangs.

Until the first beat after a stall a few callbacks may have run. They can ack nothing that a
successor lacks: the high watermark moves by what every member of the ISR has fetched in this epoch,
and only they can be elected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidemill.clock import Clock
from tidemill.controller import tree
from tidemill.logs import Sparingly
from tidemill.store.base import Check, SessionExpired, Store, StoreError
from tidemill.timers import TimerHandle

log = logging.getLogger(__name__)

BEAT_MS = 250
STALL_MS = 1_000
"""Shorter ones are not worth a word: a large garbage collection, a busy machine."""
CONFIRM_RETRY_S = 0.2


class Stalls:
    """The beat of one broker, from `start` to `stop`."""

    def __init__(
        self,
        clock: Clock,
        schedule: Callable[[int, Callable[[], None]], TimerHandle],
        session_timeout_ms: Callable[[], int],
        store: Store,
        *,
        fence: Callable[[], object],
        confirmed: Callable[[], object],
    ) -> None:
        """`fence` has the broker lead nothing; `confirmed` says that its session has not ended."""
        self.count = 0
        """How often the loop stood still for `STALL_MS` or longer."""
        self.longest_ms = 0
        self._clock = clock
        self._schedule = schedule
        self._session_timeout_ms = session_timeout_ms
        self._store = store
        self._fence = fence
        self._confirmed = confirmed
        self._complaints = Sparingly(clock)
        self._due_ms = 0
        self._beat: TimerHandle | None = None
        self._confirming: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._due_ms = self._clock.monotonic_ms() + BEAT_MS
        self._beat = self._schedule(BEAT_MS, self._look)

    def stop(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if self._confirming is not None:
            self._confirming.cancel()

    def _look(self) -> None:
        late_ms = self._clock.monotonic_ms() - self._due_ms
        self.start()
        self.longest_ms = max(self.longest_ms, late_ms)
        is_long = 2 * late_ms >= self._session_timeout_ms()
        if late_ms >= STALL_MS or is_long:
            self.count += 1
            self._tell(late_ms, is_long)
        if is_long:
            self._prove()

    def _tell(self, late_ms: int, is_long: bool) -> None:
        held_back = "" if is_long else self._complaints.ask()
        if held_back is not None:
            log.warning(
                "the event loop stood still for %d ms%s%s",
                late_ms,
                ": nothing is led until the store confirms the session" if is_long else "",
                held_back,
            )

    def _prove(self) -> None:
        self._fence()
        if self._confirming is not None:
            self._confirming.cancel()
        self._confirming = asyncio.get_running_loop().create_task(self._confirm())

    async def _confirm(self) -> None:
        """Ask until there is an answer. One that the session is over everybody hears of."""
        while True:
            try:
                await self._store.multi([Check(tree.CLUSTER_ID)])
            except SessionExpired:
                return
            except StoreError as error:
                log.info("the session is not confirmed yet: %s", error)
                await asyncio.sleep(CONFIRM_RETRY_S)
            else:
                self._confirmed()
                return
