"""Moves replicas from one log directory of this broker to another (KIP-113), while they serve.

The log is copied in the background, a chunk at a time, as a follower would copy it, and flushed off
the loop while it fills. When little is left, and little unflushed, the rest is copied and the copy
takes the log's place, durably, within one turn of the loop: nobody can append in between.

The copy's directory is there from the request on, so a restart finds the moves that were under way
(`Moves.resume`) and goes on with what was copied, as far as that agrees with the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.executor import Executor
from tidemill.replication.alignment import after_divergence, diverging
from tidemill.replication.copying import ReplicaCopy, whole_batches
from tidemill.replication.offload import in_thread
from tidemill.replication.partition import Partition
from tidemill.replication.throttle import UNLIMITED, Throttle
from tidemill.storage.log import Log
from tidemill.storage.manager import LogManager
from tidemill.storage.slice import LogSlice
from tidemill.types import TopicPartition

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
REST_BYTES_MAX = 1 << 20
"""What is copied, and at most as much again flushed, in the turn in which the copy takes over."""
FLUSH_BYTES = 32 << 20
"""After so much a copy is flushed: a disk that gets all of it at once is slow for others, too."""
MOVES_MAX = 10_000


@dataclass(slots=True)
class Move:
    """One replica on its way; `future` is what there is of it in the other directory."""

    partition: Partition
    path: str
    directory: str
    cuts: int
    """How often the log had been cut when the copy began, or was found."""
    found_end: int
    """Where the log ended then: what the copy has beyond that is not of this log."""
    future: Log | None = None
    unflushed_bytes: int = 0
    """What was copied since the last flush of the copy."""

    @property
    def lag(self) -> int:
        """How many offsets are still to be copied."""
        end = self.future.log_end_offset if self.future is not None else 0
        return max(0, self.partition.log.log_end_offset - end)


class Moves:
    """The moves of one broker, one after the other."""

    def __init__(
        self,
        logs: LogManager,
        executor: Executor,
        clock: Clock,
        on_switched: Callable[[Partition], object],
        on_lost: Callable[[list[TopicPartition]], object],
        rate: Callable[[], int] = lambda: UNLIMITED,
    ) -> None:
        """`on_switched` is told when a partition has another log, `on_lost` when the last steps of
        a move failed, so that it has none before the next start; `rate` is in bytes per second."""
        self._logs = logs
        self._executor = executor
        self._on_switched = on_switched
        self._on_lost = on_lost
        self._throttle = Throttle(clock, rate)
        self._moves: dict[Partition, Move] = {}
        self._current: Move | None = None
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> list[Move]:
        return list(self._moves.values())

    def move(self, partition: Partition, path: str) -> None:
        """Have the replica moved there; one that was to go elsewhere goes here instead."""
        self.check_place(path)
        if partition.is_offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the replica's directory is offline")
        under_way = self._moves.get(partition)
        if under_way is not None and under_way.path == path:
            return
        self._cancel(partition)
        if partition.log.dir.path == path:
            return
        if len(self._moves) >= MOVES_MAX:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "too many replicas are being moved")
        self._begin(partition, path, self._logs.begin_move(partition.log, path))

    def check_place(self, path: str) -> None:
        """Raise unless this broker has such a directory, and can write to it."""
        places = {each.path: each for each in self._logs.dirs}
        if path not in places:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"this broker has no log directory {path}")
        if places[path].is_offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline")

    def resume(self, partition: Partition) -> None:
        """Go on with a move that a restart interrupted; before anything happens to the log."""
        found = self._logs.interrupted_moves.pop(partition.topic_partition, None)
        if found is not None:
            path, directory = found
            log.info("%s: its move to %s goes on", partition.topic_partition, path)
            self._begin(partition, path, directory)

    def _begin(self, partition: Partition, path: str, directory: str) -> None:
        source = partition.log
        self._moves[partition] = Move(
            partition, path, directory, source.cuts, source.log_end_offset
        )
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def _cancel(self, partition: Partition) -> None:
        move = self._moves.pop(partition, None)
        if move is not None and move is not self._current:
            self._logs.drop_move(move.directory)

    async def close(self) -> None:
        """Stop copying; the copies stay for the next start."""
        self._is_closed = True
        self._moves.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while self._moves:
            move = self._current = next(iter(self._moves.values()))
            try:
                await self._run(move)
            except TidemillError as error:
                name = move.partition.topic_partition
                log.error("%s was not moved to %s: %s", name, move.path, error)
            except Exception:
                log.exception("moving %s failed", move.partition.topic_partition)
            finally:
                self._current = None
                if self._moves.get(move.partition) is move:
                    del self._moves[move.partition]
                self._check_log(move.partition)

    def _check_log(self, partition: Partition) -> None:
        """A move that failed when the old log had been let go of leaves none to serve (rule E1)."""
        is_over = self._is_closed or partition.is_gone or partition.is_offline
        if partition.log.is_closed and not is_over:
            self._on_lost([partition.topic_partition])

    async def _run(self, move: Move) -> None:
        is_done = False
        try:
            source = move.partition.log
            opening = partial(self._logs.open_move, source, move.path, move.directory)
            future = move.future = await in_thread(self._executor, opening)
            _align(move, source, future)
            while not is_done and self._is_wanted(move):
                is_done = await self._copy_or_switch(move, future)
        finally:
            if not is_done:
                if move.future is not None:
                    move.future.abandon()
                if not self._is_closed:
                    self._logs.drop_move(move.directory)

    def _is_wanted(self, move: Move) -> bool:
        partition = move.partition
        if partition.is_gone or partition.is_offline:
            return False
        return self._moves.get(partition) is move

    async def _copy_or_switch(self, move: Move, future: Log) -> bool:
        """One chunk, or the end: True when the copy has taken the log's place."""
        source = move.partition.log
        if source.cuts != move.cuts or source.log_start_offset > future.log_end_offset:
            # It was cut, or has lost its beginning: what was copied may not be in it any more.
            move.cuts = source.cuts
            future.truncate_fully_and_start_at(source.log_start_offset)
        is_nearly_done = self._rest_bytes(source, future) <= REST_BYTES_MAX
        if move.unflushed_bytes > (REST_BYTES_MAX if is_nearly_done else FLUSH_BYTES):
            await self._flush(move, future)
            return False  # The log may have grown meanwhile.
        if is_nearly_done:
            self._switch(move.partition, source, future)
            return True
        if wait_ms := self._throttle.wait_ms():
            await asyncio.sleep(wait_ms / 1000)
            return False
        found = _slice_of(source, future.log_end_offset, CHUNK_BYTES)
        records = await in_thread(self._executor, found.read_blocking)
        if records and source.cuts == move.cuts:
            _take(source, future, records)
            move.unflushed_bytes += len(records)
            self._throttle.take(len(records))
        return False

    async def _flush(self, move: Move, future: Log) -> None:
        """Make durable what was copied; raises if that fails (rule E1)."""
        flushed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def then(error: BaseException | None) -> None:
            if not flushed.done():  # Whoever waited may have been cancelled.
                flushed.set_result(error)

        self._logs.request_flush(future, then)
        error = await flushed
        if error is not None:
            raise error
        move.unflushed_bytes = 0

    def _rest_bytes(self, source: Log, future: Log) -> int:
        if future.log_end_offset == source.log_end_offset:
            return 0
        if future.log_end_offset < source.segments[-1].base_offset:
            return REST_BYTES_MAX + 1  # There is a whole segment more.
        # All of it: with a limit it would end before the batch that does not fit any more.
        return _slice_of(source, future.log_end_offset, source.segments[-1].size).size_bytes

    def _switch(self, partition: Partition, source: Log, future: Log) -> None:
        """Copy the rest and let the copy take over, in one turn of the loop."""
        while future.log_end_offset < source.log_end_offset:
            chunk = _slice_of(source, future.log_end_offset, CHUNK_BYTES)
            _take(source, future, chunk.read_blocking())
        for epoch, start in source.leader_epochs.entries:
            if epoch > future.leader_epochs.latest:
                future.leader_epochs.assign(epoch, start)
        future.advance_log_start(source.log_start_offset)
        partition.switch_log(self._logs.finish_move(source, future))
        self._on_switched(partition)
        log.info("%s was moved to %s", partition.topic_partition, future.dir.path)


def _align(move: Move, source: Log, future: Log) -> None:
    """Cut off of a copy that was found what the log does not have; both know their epochs."""
    if source.cuts != move.cuts:
        return  # Nobody can tell any more: the copying begins anew.
    if future.log_end_offset > move.found_end:
        future.truncate_to(max(move.found_end, future.log_start_offset))
    try:
        while (
            left := diverging(source, future.log_end_offset, future.leader_epochs.latest)
        ) is not None:
            cut = after_divergence(future, *left)
            if cut is None or cut.offset <= future.log_start_offset:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
            future.truncate_to(cut.offset)
    except ApiError:
        future.truncate_fully_and_start_at(source.log_start_offset)


def _take(source: Log, future: Log, records: bytes) -> None:
    """Append to the copy as a follower does: the log may begin in the middle of the first batch."""
    found = whole_batches(future, memoryview(records), source.leader_epochs.latest)
    if found is None:
        where = f"{source.topic_partition} from offset {future.log_end_offset} on"
        raise ApiError(ErrorCode.INVALID_RECORD, f"there is nothing to copy of {where}")
    ReplicaCopy(future, 0).append(found)


def _slice_of(source: Log, offset: int, max_bytes: int) -> LogSlice:
    return source.read(offset, max_bytes=max_bytes, upper_offset=source.log_end_offset)
