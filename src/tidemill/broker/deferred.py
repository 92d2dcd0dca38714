"""An answer that comes later, without a task: completed by purgatory, delivered in the same turn.

`asyncio.Future` would do, but it delivers through the loop, one turn later, and costs more; on the
path of every long poll and every acks=all produce that is worth a small class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """One value, once. Whoever made it completes it; the connection listens, or gives up."""

    __slots__ = (
        "_error",
        "_has_value",
        "_listener",
        "_on_abandoned",
        "_on_error",
        "_value",
        "done",
        "held_bytes",
    )

    def __init__(
        self, on_abandoned: Callable[[], object] | None = None, *, held_bytes: int | None = None
    ) -> None:
        self.done = False
        self.held_bytes = held_bytes
        """How much memory the work takes until then, if whoever made it knows that."""
        self._has_value = False
        self._value: T
        self._error: Exception | None = None
        self._listener: Callable[[T], object] | None = None
        self._on_error: Callable[[Exception], object] | None = None
        self._on_abandoned = on_abandoned

    def complete(self, value: T) -> None:
        """Deliver the value; a second completion, or one after `abandon`, is ignored."""
        if self.done:
            return
        self.done = True
        self._on_abandoned = None
        if self._listener is None:
            self._value, self._has_value = value, True
        else:
            self._listener(value)

    def fail(self, error: Exception) -> None:
        """There will be no value: whoever was to make it failed."""
        if self.done:
            return
        self.done = True
        self._on_abandoned = None
        if self._on_error is None:
            self._error = error
        else:
            self._on_error(error)

    def listen(
        self,
        listener: Callable[[T], object],
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        """Have `listener` called with the value: at once if it is there, else when it comes."""
        if not self.done:
            self._listener = listener
            self._on_error = on_error
        elif self._has_value:
            listener(self._value)
        elif self._error is not None and on_error is not None:
            on_error(self._error)

    def abandon(self) -> None:
        """Nobody waits any more: the client has gone. The work itself may go on."""
        if self.done:
            return
        self.done = True
        self._listener = self._on_error = None
        if self._on_abandoned is not None:
            self._on_abandoned()
            self._on_abandoned = None
