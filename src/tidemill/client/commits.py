"""Committing what a consumer has read: now, soon, or by itself every few seconds.

Automatic commits happen at the beginning of a poll and cover what earlier polls returned: calling
`poll` again says that those records are done. So a crash repeats records and never skips any.

All commits stand in one queue, in the order in which they were asked for: the broker hears of an
older one never after a newer one. Who waited while the group moved on commits only what is still
assigned to us: the rest may have another owner by now, who is further.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tidemill.client import group_offsets
from tidemill.client.admin_types import Results
from tidemill.client.cluster import Cluster
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError, CommitFailedError, RequestTimeoutError
from tidemill.client.group_coordinator import GroupCoordinator
from tidemill.client.group_offsets import OUTSIDER, Identity, OffsetAndMetadata
from tidemill.client.settings import ConsumerSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

STALE_RETRIES_MAX = 10
STALE_PAUSE_MS = 100
PENDING_MAX = 1_000
LOOK_AGAIN_MS_MIN = 100

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


@dataclass(slots=True)
class _Order:
    """One commit that was asked for, and who asked."""

    offsets: Offsets
    identity: Identity
    on_commit: OnCommit | None = None
    insists: bool = False
    """Somebody waits for it: an epoch that is out of date is worth another try."""
    deadline_ms: float | None = None


class Commits:
    """All commits of one consumer; later ones never overtake earlier ones."""

    def __init__(self, settings: ConsumerSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = cluster.clock
        self._coordinator = GroupCoordinator(cluster, settings.group_id)
        self._identity: Callable[[], Identity] = lambda: OUTSIDER
        self._assigned: Callable[[], Collection[TopicPartition]] = frozenset
        self._last: asyncio.Task[Exception | None] | None = None
        self._pending: set[asyncio.Task[Exception | None]] = set()
        self._next_auto_ms = self._clock.monotonic_ms() + settings.auto_commit_interval_ms
        self._last_auto: Offsets = {}

    def speak_for(
        self,
        identity: Callable[[], Identity],
        assigned: Callable[[], Collection[TopicPartition]] = frozenset,
    ) -> None:
        """Commit as this member from now on, which has been assigned these partitions."""
        self._identity = identity
        self._assigned = assigned

    async def drain(self, timeout_ms: float) -> None:
        """Wait for what is under way, but not for ever."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while self._pending and (left_ms := deadline_ms - self._clock.monotonic_ms()) > 0:
            await asyncio.wait(self._pending, timeout=left_ms / 1000)

    async def close(self) -> None:
        """Give up what is still under way."""
        pending = list(self._pending)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    # --- asking for commits ----------------------------------------------------------------------

    async def commit(self, offsets: Offsets, *, timeout_ms: float | None = None) -> None:
        """Commit and wait; raises if any partition was refused.

        Who stops waiting stops nothing, except that with a timeout it is not begun after that.
        """
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        order = _Order(offsets, self._identity(), insists=True, deadline_ms=deadline_ms)
        self._check_room()
        self._last_auto = {}
        task = self._enqueue(order)
        limit_s = None if timeout_ms is None else timeout_ms / 1000
        done, _ = await asyncio.wait([task], timeout=limit_s)
        error = task.result() if done and not task.cancelled() else _too_late()
        if error is not None:
            raise error

    def commit_soon(self, offsets: Offsets, on_commit: OnCommit | None = None) -> None:
        """Commit in the background, after what was committed before."""
        self._check_room()
        self._last_auto = {}
        self._enqueue(_Order(offsets, self._identity(), on_commit))

    def _check_room(self) -> None:
        if len(self._pending) >= PENDING_MAX:
            raise ClientError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{PENDING_MAX} commits are under way already",
                hint="commit less often, or await `commit`",
            )

    # --- one after the other ---------------------------------------------------------------------

    def _enqueue(self, order: _Order) -> asyncio.Task[Exception | None]:
        """Its place is fixed now, whenever its task gets to run."""
        task = asyncio.get_running_loop().create_task(self._in_turn(order, self._last))
        self._last = task
        self._pending.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Exception | None]) -> None:
        self._pending.discard(task)
        if self._last is task:
            self._last = None

    async def _in_turn(
        self, order: _Order, before: asyncio.Task[Exception | None] | None
    ) -> Exception | None:
        """The error, if it was not committed; whoever asked is told before the next one begins."""
        error: Exception | None = None
        try:
            if before is not None:
                await asyncio.wait([before])
            await self._commit(order)
        except asyncio.CancelledError:
            self._tell(order, _too_late())
            raise
        except Exception as failure:  # noqa: BLE001 - handed to whoever asked, whatever it is
            error = failure
        self._tell(order, error)
        return error

    def _tell(self, order: _Order, error: Exception | None) -> None:
        if order.on_commit is None:
            return
        if error is not None and not isinstance(error, ClientError):
            error = ClientError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the commit failed: {error!r}")
        try:
            order.on_commit(order.offsets, error)
        except Exception:
            logger.exception("callback of a commit failed group=%s", self._settings.group_id)

    async def _commit(self, order: _Order) -> None:
        attempts = STALE_RETRIES_MAX if order.insists else 0
        while True:
            identity, offsets = self._still_ours(order)
            try:
                await self._send(order, offsets, identity)
                break
            except ClientError as error:
                if error.code is ErrorCode.STALE_MEMBER_EPOCH and attempts > 0:
                    # A heartbeat has moved us on meanwhile, or is about to.
                    attempts -= 1
                    await asyncio.sleep(STALE_PAUSE_MS / 1000)
                    continue
                if error.code in _MOVED_ON:
                    raise CommitFailedError(error.code, self._settings.group_id) from error
                raise
        if len(offsets) < len(order.offsets):
            raise CommitFailedError(ErrorCode.STALE_MEMBER_EPOCH, self._settings.group_id)

    def _still_ours(self, order: _Order) -> tuple[Identity, Offsets]:
        """Who we are by now, and what of the offsets we may still commit as such."""
        identity = self._identity()
        if identity == order.identity:
            return identity, order.offsets
        assigned = self._assigned()
        return identity, {tp: at for tp, at in order.offsets.items() if tp in assigned}

    async def _send(self, order: _Order, offsets: Offsets, identity: Identity) -> None:
        left_ms = None
        if order.deadline_ms is not None:
            left_ms = order.deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise _too_late()
        results: Results[TopicPartition, None] = await group_offsets.commit(
            self._coordinator, offsets, identity, timeout_ms=left_ms
        )
        results.raise_first()

    # --- committing by itself --------------------------------------------------------------------

    def commit_if_due(self, committable: Callable[[], Offsets]) -> None:
        """The automatic commit, when its time has come."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_auto_ms or self._pending:
            return
        self._next_auto_ms = now_ms + self._settings.auto_commit_interval_ms
        offsets = committable()
        if offsets and offsets != self._last_auto:
            self.commit_soon(offsets, self._forget_failed)
            self._last_auto = offsets

    def look_again_ms(self) -> float:
        """How long a poll may wait before `commit_if_due` is to be asked again.

        Who waits for new records has done with the old ones: a crash is not to repeat them only
        because no new ones came. It is a while even if each poll is to commit, since a commit that
        is under way says nothing when it ends.
        """
        left_ms = self._next_auto_ms - self._clock.monotonic_ms()
        return max(LOOK_AGAIN_MS_MIN, left_ms)

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


def step_back(found: Offsets, records: list[ConsumerRecord], index: int) -> None:
    """Of these records, those from the index on are not done."""
    epochs = {TopicPartition(r.topic, r.partition): r.leader_epoch for r in records[:index]}
    for record in reversed(records[index:]):
        partition = TopicPartition(record.topic, record.partition)
        if partition in found:
            found[partition] = found[partition]._replace(
                offset=record.offset, leader_epoch=epochs.get(partition, -1)
            )


def _too_late() -> RequestTimeoutError:
    return RequestTimeoutError("the offsets were not committed in time")
