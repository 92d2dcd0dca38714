"""The timers of one shard, and its work off the loop, by key: they end with it.

What a timer does may have to wait in line. Until it is its turn it can be cancelled or replaced as
if it were not due yet: a heartbeat that came before the session's end counts, even if it waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from tidemill.coordinators.result import Result, TimerKey
from tidemill.executor import Executor
from tidemill.timers import TimerHandle, TimingWheel

T = TypeVar("T")


class _Handle(Protocol):
    def cancel(self) -> object: ...


class _Work:
    """Work under way: it cannot be stopped, only what comes of it be left alone."""

    def cancel(self) -> None: ...


class _Timer:
    """What is to be done, and when."""

    __slots__ = ("callback", "handle")

    handle: TimerHandle

    def __init__(self, callback: Callable[[], Result[None]]) -> None:
        self.callback = callback

    def cancel(self) -> None:
        self.handle.cancel()


class ShardTimers:
    """The timers of one shard, by key: they end with it."""

    def __init__(
        self,
        wheel: TimingWheel,
        executor: Executor,
        fired: Callable[[Callable[[], Result[None]]], None],
    ) -> None:
        self._wheel = wheel
        self._executor = executor
        self._fired = fired
        self._handles: dict[TimerKey, _Handle] = {}
        self._closed = False

    def schedule(self, key: TimerKey, delay_ms: int, callback: Callable[[], Result[None]]) -> None:
        known = self._handles.get(key)
        if isinstance(known, _Timer) and known.handle.put_off(max(delay_ms, 0)):
            known.callback = callback
            return
        self.cancel(key)
        if self._closed:
            return

        def due() -> None:
            self._fired(in_turn)

        def in_turn() -> Result[None]:
            if self._handles.get(key) is not timer:
                return Result()
            del self._handles[key]
            return timer.callback()

        timer = self._handles[key] = _Timer(callback)
        timer.handle = self._wheel.schedule(max(delay_ms, 0), due)

    def compute(
        self, key: TimerKey, work: Callable[[], T], then: Callable[[T], Result[None]]
    ) -> None:
        self.cancel(key)
        if self._closed:
            return
        handle = self._handles[key] = _Work()

        def done(found: T | None, error: BaseException | None) -> None:
            def in_turn() -> Result[None]:
                if self._handles.get(key) is not handle:
                    return Result()
                del self._handles[key]
                if error is not None:
                    raise error
                return then(cast(T, found))

            self._fired(in_turn)

        self._executor.submit(work, done)

    def is_set(self, key: TimerKey) -> bool:
        return key in self._handles

    def is_computing(self, key: TimerKey) -> bool:
        return isinstance(self._handles.get(key), _Work)

    def cancel(self, key: TimerKey) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        self._closed = True
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
