"""How long to wait before trying again: exponential, bounded, and never in step with others."""

from __future__ import annotations

from random import Random

JITTER = 0.2


class Backoff:
    """Delays that double from `initial_ms` to `maximum_ms`, each a fifth up or down."""

    __slots__ = ("_initial_ms", "_maximum_ms", "_random")

    def __init__(self, initial_ms: float, maximum_ms: float, random: Random) -> None:
        self._initial_ms = initial_ms
        self._maximum_ms = max(initial_ms, maximum_ms)
        self._random = random

    def delay_ms(self, failures: int) -> float:
        """The pause after so many failures in a row; the first one counts as 1."""
        doublings = min(max(failures - 1, 0), 30)
        delay = min(self._initial_ms * 2.0**doublings, self._maximum_ms)
        return delay * self._random.uniform(1 - JITTER, 1 + JITTER)
