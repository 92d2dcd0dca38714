"""Committing what a consumer has read: now, soon, or by itself every few seconds.

Automatic commits happen at the beginning of a poll and cover what earlier polls returned: calling
`poll` again says that those records are done. So a crash repeats records and never skips any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tidemill.client import group_offsets
from tidemill.client.admin_types import Results
from tidemill.client.cluster import Cluster
from tidemill.client.errors import ClientError, CommitFailedError
from tidemill.client.group_coordinator import GroupCoordinator
from tidemill.client.group_offsets import OUTSIDER, Identity, OffsetAndMetadata
from tidemill.client.settings import ConsumerSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

STALE_RETRIES_MAX = 10
STALE_PAUSE_MS = 100
PENDING_MAX = 1_000

Offsets = dict[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, ClientError | None], None]
"""Called with what was to be committed, and the error if it was not."""

_MOVED_ON = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


class Commits:
    """All commits of one consumer; later ones never overtake earlier ones."""

    def __init__(self, settings: ConsumerSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._coordinator = GroupCoordinator(cluster, settings.group_id)
        self._identity: Callable[[], Identity] = lambda: OUTSIDER
        self._turn = asyncio.Lock()
        self._pending: set[asyncio.Task[None]] = set()
        self._next_auto_ms = cluster.clock.monotonic_ms() + settings.auto_commit_interval_ms
        self._last_auto: Offsets = {}

    def speak_for(self, identity: Callable[[], Identity]) -> None:
        """Commit as this member from now on."""
        self._identity = identity

    async def close(self) -> None:
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def commit(self, offsets: Offsets) -> None:
        """Commit and wait; raises if any partition was refused."""
        async with self._turn:
            results = await self._commit(offsets)
        results.raise_first()

    async def _commit(self, offsets: Offsets) -> Results[TopicPartition, None]:
        for attempt in range(STALE_RETRIES_MAX + 1):
            try:
                return await group_offsets.commit(self._coordinator, offsets, self._identity())
            except ClientError as error:
                stale = error.code is ErrorCode.STALE_MEMBER_EPOCH
                if stale and attempt < STALE_RETRIES_MAX:
                    # A heartbeat has moved us on meanwhile, or is about to.
                    await asyncio.sleep(STALE_PAUSE_MS / 1000)
                    continue
                if error.code in _MOVED_ON:
                    raise CommitFailedError(error.code, self._settings.group_id) from error
                raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def commit_soon(self, offsets: Offsets, on_commit: OnCommit | None = None) -> None:
        """Commit in the background, after what was committed before."""
        if len(self._pending) >= PENDING_MAX:
            raise ClientError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{PENDING_MAX} commits are under way already",
                hint="commit less often, or await `commit`",
            )
        task = asyncio.get_running_loop().create_task(self._tell(offsets, on_commit))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _tell(self, offsets: Offsets, on_commit: OnCommit | None) -> None:
        error: ClientError | None = None
        try:
            await self.commit(offsets)
        except ClientError as failure:
            error = failure
        if on_commit is not None:
            on_commit(offsets, error)

    def commit_if_due(self, committable: Callable[[], Offsets]) -> None:
        """The automatic commit, when its time has come."""
        now_ms = self._cluster.clock.monotonic_ms()
        if now_ms < self._next_auto_ms or self._turn.locked():
            return
        self._next_auto_ms = now_ms + self._settings.auto_commit_interval_ms
        offsets = committable()
        if offsets and offsets != self._last_auto:
            self._last_auto = offsets
            self.commit_soon(offsets, self._forget_failed)

    def _forget_failed(self, offsets: Offsets, error: ClientError | None) -> None:
        if error is not None:
            self._last_auto = {}

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found = await group_offsets.fetch(
            self._coordinator,
            partitions,
            require_stable=self._settings.isolation_level == "read_committed",
        )
        return found.raise_first()
