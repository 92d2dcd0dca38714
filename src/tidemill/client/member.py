"""A consumer's membership in a group: what the classic and the newer protocol have in common.

A member works in the background: it joins, heartbeats, and learns what it is assigned. Whatever
touches the records that the user reads happens inside `poll` instead, because only there is it
known that the user is done with what earlier polls returned: giving partitions up (after committing
them), taking partitions up, and calling the listener. The background hands such work over with
`_in_poll` and waits; `attend`, which every poll calls, does it.

A user who does not poll for `max.poll.interval.ms` is taken for stuck: the member leaves.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol

from tidemill.client import group_offsets
from tidemill.client.cluster import Cluster
from tidemill.client.errors import ClientError
from tidemill.client.group_coordinator import GroupCoordinator
from tidemill.client.group_offsets import Identity, OffsetAndMetadata
from tidemill.client.settings import ConsumerSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

LEAVE_TIMEOUT_MS = 5_000
REVOKE_COMMIT_TIMEOUT_MS = 5_000


class RebalanceListener(Protocol):
    """Told of what comes and goes; each method may be a coroutine. All are called inside `poll`.

    `on_revoked` comes while the partitions are still ours: commit there what matters. `on_lost`
    comes when they are gone already and somebody else may have them.
    """

    def on_assigned(self, partitions: set[TopicPartition]) -> Awaitable[None] | None: ...
    def on_revoked(self, partitions: set[TopicPartition]) -> Awaitable[None] | None: ...
    def on_lost(self, partitions: set[TopicPartition]) -> Awaitable[None] | None: ...


class Host(Protocol):
    """What a member needs of its consumer."""

    def change_assignment(
        self,
        partitions: set[TopicPartition],
        starts: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Read exactly these; those with a start begin there."""
        ...

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where the user is done."""
        ...

    async def commit(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], *, timeout_ms: float | None = None
    ) -> None:
        """Commit after all that was committed before."""
        ...

    async def drain(self, timeout_ms: float) -> None:
        """Wait for commits that are under way."""
        ...

    def wake(self) -> None:
        """A poll that waits has something to attend to."""
        ...


class _Work:
    """Something to be done inside the next poll, and whoever waits for it."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self.run = run
        self.task: asyncio.Task[None] | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class GroupMember(ABC):
    """One membership, from `subscribe` to `close`."""

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        host: Host,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        self.coordinator = GroupCoordinator(cluster, settings.group_id)
        self.assignment: set[TopicPartition] = set()
        self.topics = frozenset(topics)
        self.pattern = pattern
        self._listener = listener
        self._settings = settings
        self._cluster = cluster
        self._clock = cluster.clock
        self._host = host
        self._work: deque[_Work] = deque()
        self._failure: Exception | None = None
        self._failed_at: TracebackType | None = None
        self._lost = False
        self._last_poll_ms = self._clock.monotonic_ms()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    # --- what the consumer calls -----------------------------------------------------------------

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._guard(work)) for work in self._background()]

    def resubscribe(
        self,
        topics: Iterable[str],
        pattern: str | None,
        listener: RebalanceListener | None,
    ) -> None:
        """Want something else from now on; who has failed with what he wanted tries anew."""
        self.topics = frozenset(topics)
        self.pattern = pattern
        self._listener = listener
        self._changed.set()
        if self._failure is not None:
            self._failure = self._failed_at = None
            self._lost = True
            self.start()

    async def attend(self) -> None:
        """Called by every poll: do what waits for it; raises what has ended the membership."""
        self._last_poll_ms = self._clock.monotonic_ms()
        while self._work:
            work = self._work[0]
            if work.task is None:
                work.task = asyncio.get_running_loop().create_task(_awaited(work.run()))
            try:
                # A poll that is cancelled leaves the work to the next one, not half done.
                await asyncio.shield(work.task)
            finally:
                if work.task.done():
                    self._finish(work)
            self._last_poll_ms = self._clock.monotonic_ms()
        if self._failure is not None:
            # Every poll says so: a consumer that reads nothing must not look like an idle one.
            raise self._failure.with_traceback(self._failed_at)

    def _finish(self, work: _Work) -> None:
        """Tell whoever waits; a broker's refusal is for both, the rest is the user's own affair."""
        if self._work and self._work[0] is work:
            self._work.popleft()
        if work.task is None or work.done.done():
            return
        error = None if work.task.cancelled() else work.task.exception()
        if isinstance(error, ClientError):
            work.done.set_exception(error)
            work.done.exception()  # The waiting task may be gone; the user has it anyway.
        else:
            work.done.set_result(None)

    async def close(self) -> None:
        """Stop the background work, hand the partitions back and leave the group."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        begun = [work.task for work in self._work if work.task is not None]
        await asyncio.gather(*begun, return_exceptions=True)
        self._work.clear()
        try:
            if self.assignment:
                await self._give_up(set(self.assignment), commit=False)
        finally:
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                    await self._leave()
            except (ClientError, TimeoutError):
                pass  # The session timeout will tell the coordinator.

    # --- what each protocol does -----------------------------------------------------------------

    @abstractmethod
    def identity(self) -> Identity:
        """Who we are to the coordinator, for commits."""

    @abstractmethod
    def _background(self) -> list[Callable[[], Awaitable[None]]]:
        """The coroutines that run as long as the membership."""

    @abstractmethod
    async def _leave(self) -> None:
        """Tell the coordinator that we go."""

    # --- shared parts ----------------------------------------------------------------------------

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """What ends the background is raised by the polls that follow."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the user must hear of it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Nobody heartbeats any more: what we have will be another's, so the next poll loses it."""
        self._failure, self._failed_at = error, error.__traceback__
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._work = deque(work for work in self._work if work.task is not None)
        self._work.append(_Work(self._lose_everything))
        self._host.wake()

    async def _in_poll(self, run: Callable[[], Awaitable[None]]) -> None:
        """Have this done by the next poll, and wait for it; what it raises goes to the user."""
        work = _Work(run)
        self._work.append(work)
        self._host.wake()
        await work.done

    @property
    def _polls_too_late(self) -> bool:
        waited_ms = self._clock.monotonic_ms() - self._last_poll_ms
        return self._work_is_idle and waited_ms > self._settings.max_poll_interval_ms

    @property
    def _work_is_idle(self) -> bool:
        """A listener that is at work counts as polling."""
        return not self._work or self._work[0].task is None

    async def _take_up(self, partitions: set[TopicPartition]) -> None:
        """Begin with what is new, where the group left off; runs inside poll."""
        added = partitions - self.assignment
        found = await group_offsets.fetch(
            self.coordinator,
            added,
            require_stable=self._settings.isolation_level == "read_committed",
        )
        starts = {tp: at for tp, at in found.raise_first().items() if at is not None}
        self.assignment = set(partitions)
        self._host.change_assignment(self.assignment, starts)
        if self._listener is not None:
            await _awaited(self._listener.on_assigned(added))

    async def _give_up(
        self, partitions: set[TopicPartition], *, commit: bool = True, lost: bool = False
    ) -> None:
        """Let go of partitions; runs inside poll. What was processed is committed first."""
        if commit and not lost and self._settings.enable_auto_commit:
            await self._commit_quietly(partitions)
        try:
            if self._listener is not None:
                tell = self._listener.on_lost if lost else self._listener.on_revoked
                await _awaited(tell(set(partitions)))
            if not lost:
                # Afterwards the partitions may have another owner, and it would be too late.
                await self._host.drain(REVOKE_COMMIT_TIMEOUT_MS)
        finally:
            self.assignment -= partitions
            self._host.change_assignment(self.assignment, {})

    async def _commit_quietly(self, partitions: set[TopicPartition]) -> None:
        """Commit as far as possible; what fails is read again by whoever comes after us."""
        done = {tp: at for tp, at in self._host.committable().items() if tp in partitions}
        try:
            await self._host.commit(done, timeout_ms=REVOKE_COMMIT_TIMEOUT_MS)
        except ClientError:
            return

    async def _lose_everything(self) -> None:
        if self.assignment:
            await self._give_up(set(self.assignment), lost=True)

    async def _names(self) -> frozenset[str]:
        """The topics that we want: those named, or those that match among all there are."""
        if self.pattern is None:
            return self.topics
        compiled = re.compile(self.pattern)
        answer = await self._cluster.fetch_metadata(None)
        return frozenset(
            topic.name
            for topic in answer.topics
            if topic.name and not topic.is_internal and compiled.fullmatch(topic.name)
        )

    async def _back_off(self, failures: int) -> None:
        await asyncio.sleep(self._cluster.retry_backoff.delay_ms(failures) / 1000)


async def _awaited(result: Any) -> None:
    """A listener's method may be a coroutine function or a plain one."""
    if inspect.isawaitable(result):
        await result


FATAL = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
"""Errors that trying again would not mend: the user has to change something."""
