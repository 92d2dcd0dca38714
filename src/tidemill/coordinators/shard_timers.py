"""The timers of one shard, by key: they end with it."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.coordinators.result import Result
from tidemill.timers import TimerHandle, TimingWheel


class ShardTimers:
    """The timers of one shard, by key: they end with it."""

    def __init__(
        self, wheel: TimingWheel, fired: Callable[[Callable[[], Result[None]]], None]
    ) -> None:
        self._wheel = wheel
        self._fired = fired
        self._handles: dict[str, TimerHandle] = {}
        self._closed = False

    def schedule(self, key: str, delay_ms: int, callback: Callable[[], Result[None]]) -> None:
        self.cancel(key)
        if self._closed:
            return

        def due() -> None:
            self._handles.pop(key, None)
            self._fired(callback)

        self._handles[key] = self._wheel.schedule(max(delay_ms, 0), due)

    def cancel(self, key: str) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        self._closed = True
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
