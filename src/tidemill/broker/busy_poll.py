"""Stays awake for the next request while it is sure to come at once.

A loop that has nothing to do sleeps until a socket wakes it. On a core that went idle meanwhile
that takes tens of microseconds, as long as a small request takes in all. So once requests come in
quick succession the loop looks again and again instead, for `socket.busy.poll.us` at most, by a
callback that asks for the next turn.

It must not take processor time from those who need it:

* it begins after `ENOUGH` waits in a row that were short, so slow traffic never pays for it;
* having looked in vain it wants `ENOUGH_AGAIN` of them, so that each request pays for a few
  microseconds of that at most;
* where a turn took so long that somebody else must have had the core, or the loop had other work,
  it stops just so: on a full machine it is clients that need the core, to send.
"""

from __future__ import annotations

from collections.abc import Callable

ENOUGH = 8
ENOUGH_AGAIN = 32
CROWDED_US = 50
"""A turn of the loop that finds nothing takes a few microseconds."""


class BusyPoll:
    """What one broker's loop does while it has nothing to do; all its connections report to it."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        now_us: Callable[[], int],
        limit_us: int = 0,
    ) -> None:
        self.limit_us = limit_us
        """How long to look for the next request; 0 is off. May change at any time."""
        self.is_polling = False
        self._call_soon = call_soon
        self._now_us = now_us
        self._confidence = 0
        self._served_us = 0
        self._looked_us = 0

    def served(self) -> None:
        """Requests have come, and their answers have gone: whoever sent them may send the next.

        Whoever still waits for an answer will not; and if it is a thread that has to find it, that
        thread wants the interpreter, which a loop that looks again and again hardly gives away.
        """
        limit_us = self.limit_us
        if not limit_us:
            return
        now_us = self._now_us()
        # Whoever slept was woken late: a wait is short if it might have been, without that.
        if self.is_polling or now_us - self._served_us <= 2 * limit_us:
            self._confidence = min(self._confidence + 1, ENOUGH)
        self._served_us = self._looked_us = now_us
        if self._confidence >= ENOUGH and not self.is_polling:
            self.is_polling = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """The loop has looked at its sockets since the last time; is it to do so once more?"""
        now_us = self._now_us()
        is_crowded = now_us - self._looked_us > CROWDED_US
        if is_crowded or now_us - self._served_us >= self.limit_us:
            self.is_polling = False
            self._confidence = ENOUGH - ENOUGH_AGAIN
        else:
            self._looked_us = now_us
            self._call_soon(self._look)
