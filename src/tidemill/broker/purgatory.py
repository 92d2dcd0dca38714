"""Requests that wait: for data to arrive, for records to be committed, or for their time to be up.

A `Waiter` watches partitions. When a watched partition moves (its high watermark advances, it
loses its leadership, it goes away) the waiter is asked whether it is satisfied; when its time is up
it is told to answer with what there is. Every timeout lives on the one timing wheel, and a
partition that nobody watches costs an append nothing but a look into a dictionary.

Followers' fetches wait for appends, which nobody else can see yet. They are kept apart, so that an
append does not wake consumers and producers in vain.

Partitions report from inside their own state changes, so waiters are woken through the loop, never
in the middle of an append (rule B11); a burst of appends wakes each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tidemill.replication.partition import Partition
from tidemill.timers import TimerHandle, TimingWheel


class Waiter(Protocol):
    """A request that waits for partitions to move."""

    def moved(self, partition: Partition) -> bool:
        """One watched partition moved; True once the request can be answered."""
        ...

    def finish(self) -> None:
        """Answer now: the wait is over, by satisfaction or by time."""
        ...

    def fail(self, error: Exception) -> None:
        """One of the above raised: tell the client that its request failed."""
        ...


class Wait:
    """One waiter under watch; `cancel` ends the watch without an answer."""

    __slots__ = ("_purgatory", "_timer", "is_over", "is_replica", "partitions", "waiter")

    def __init__(
        self,
        purgatory: Purgatory,
        waiter: Waiter,
        partitions: tuple[Partition, ...],
        is_replica: bool,
    ) -> None:
        self._purgatory = purgatory
        self.waiter = waiter
        self.partitions = partitions
        self.is_replica = is_replica
        self.is_over = False
        self._timer: TimerHandle | None = None

    def start(self, timers: TimingWheel, timeout_ms: int) -> None:
        self._timer = timers.schedule(timeout_ms, self.end)

    def end(self) -> None:
        """Stop watching and have the waiter answer."""
        if self.is_over:
            return
        self.cancel()
        try:
            self.waiter.finish()
        except Exception as error:  # noqa: BLE001 - the waiter is told, and the others go on
            self.waiter.fail(error)

    def moved(self, partition: Partition) -> None:
        """Ask the waiter whether this move was what it waited for."""
        try:
            is_satisfied = self.waiter.moved(partition)
        except Exception as error:  # noqa: BLE001 - the waiter is told, and the others go on
            self.cancel()
            self.waiter.fail(error)
        else:
            if is_satisfied:
                self.end()

    def cancel(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._purgatory.forget(self)


Waits = dict[Partition, dict[Wait, None]]


class Purgatory:
    """Who waits for which partition."""

    def __init__(
        self, timers: TimingWheel, call_soon: Callable[[Callable[[], object]], object]
    ) -> None:
        self._timers = timers
        self._call_soon = call_soon
        self._waits: Waits = {}
        self._replica_waits: Waits = {}
        self._moved: dict[Partition, None] = {}
        self._appended: dict[Partition, None] = {}
        self._ends_replica_waits = False
        self._wake_is_due = False

    def __len__(self) -> int:
        """How many (request, partition) pairs are watched."""
        return sum(
            len(waits)
            for registry in (self._waits, self._replica_waits)
            for waits in registry.values()
        )

    def watch(
        self,
        waiter: Waiter,
        partitions: Iterable[Partition],
        timeout_ms: int,
        *,
        is_replica: bool = False,
    ) -> Wait:
        """Watch `partitions` for `waiter`, for at most `timeout_ms`.

        A follower's fetch (`is_replica`) is woken by appends, too.
        """
        wait = Wait(self, waiter, tuple(partitions), is_replica)
        registry = self._replica_waits if is_replica else self._waits
        for partition in wait.partitions:
            registry.setdefault(partition, {})[wait] = None
        wait.start(self._timers, timeout_ms)
        return wait

    def partition_moved(self, partition: Partition) -> None:
        """Called by a partition when what can be read or acked from it has changed."""
        if partition in self._waits or partition in self._replica_waits:
            self._moved[partition] = None
            self._wake_soon()

    def partition_appended(self, partition: Partition) -> None:
        """Called by a leader when it has records that its followers have not."""
        if partition in self._replica_waits:
            self._appended[partition] = None
            self._wake_soon()

    def partition_led(self, partition: Partition) -> None:
        """Called when this broker comes to lead a partition with followers.

        Their fetches that wait here do not name it yet: they are answered, so that the next ones
        do, and producers need not wait until a quiet follower asks again.
        """
        if self._replica_waits:
            self._ends_replica_waits = True
            self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._wake_is_due:
            self._wake_is_due = True
            self._call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_is_due = False
        moved, self._moved = self._moved, {}
        appended, self._appended = self._appended, {}
        for partition in moved:
            _wake_those(self._waits, partition)
        if self._ends_replica_waits:
            self._ends_replica_waits = False
            for wait in {wait: None for waits in self._replica_waits.values() for wait in waits}:
                wait.end()
            return
        for partition in moved | appended:
            _wake_those(self._replica_waits, partition)

    def forget(self, wait: Wait) -> None:
        registry = self._replica_waits if wait.is_replica else self._waits
        for partition in wait.partitions:
            waits = registry.get(partition)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del registry[partition]


def _wake_those(registry: Waits, partition: Partition) -> None:
    for wait in list(registry.get(partition, ())):
        if not wait.is_over:
            wait.moved(partition)
