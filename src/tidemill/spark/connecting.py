"""A first connection that outlasts a broker's restart.

A client that runs survives brokers that come and go; one that starts fails at once if nobody is
there. For a person at a terminal that is right. A query that happens to start a task in that moment
should rather wait as long as it would for any other answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tidemill.client.blocking_twin import Client
from tidemill.client.errors import UnreachableError
from tidemill.clock import Clock, SystemClock

RETRY_PAUSE_MS: Final = 200

C = TypeVar("C", bound=Client[Any])


def started(
    make: Callable[[], C],
    limit_ms: int,
    *,
    clock: Clock | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> C:
    """A client that has found its brokers; tries for so long."""
    now_ms = (clock or SystemClock()).monotonic_ms
    deadline_ms = now_ms() + limit_ms
    while True:
        client = make()
        try:
            client.start()
        except UnreachableError:
            if now_ms() + RETRY_PAUSE_MS >= deadline_ms:
                raise
            pause(RETRY_PAUSE_MS / 1000)
        else:
            return client
