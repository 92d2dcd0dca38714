"""One partition of an internal topic, coordinated here: its shard, and the writing for it.

Offset commits come in thousands and depend on nothing but the member's right to commit. They are
gathered into one batch (`gather`): those of one turn of the loop, or of as many milliseconds as
`append_linger_ms` says. Whatever else is written or asked meanwhile comes after them.

The topic is compacted, so a large batch is checked record by record, off the loop, and is in the
log later (`PendingAppend`). What a group of ten thousand topics writes is even encoded off the
loop, and replayed a record per turn. There is never more than one such write: a decision that was
made before it is replayed would be made on a state that is about to change. Requests, timers,
clean-ups and gathered commits that come meanwhile wait in line, in their order.

Start at `Host.run`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidemill.coordinators.commitment import WAITING_MAX, Commitment
from tidemill.coordinators.loading import Loader
from tidemill.coordinators.machinery import Machinery
from tidemill.coordinators.result import (
    CoordinatorRecord,
    Encoded,
    RecordFormat,
    Result,
    Settled,
    Timers,
)
from tidemill.coordinators.shard_timers import ShardTimers
from tidemill.coordinators.write_errors import coordinator_error
from tidemill.errors import ApiError, ErrorCode
from tidemill.invariant import invariant
from tidemill.replication.partition import ACKS_ALL, Partition, PendingAppend
from tidemill.storage.log import AppendInfo
from tidemill.timers import TimerHandle
from tidemill.wire.compression import Codec
from tidemill.wire.records import BatchBuilder

log = logging.getLogger(__name__)

GATHERED_BYTES_MAX = 256 << 10
LOAD_RETRY_MS = 1_000
LOAD_RETRY_MS_MAX = 60_000
"""How long a load that failed is left alone, at first and at last: the wait doubles each time."""

R = TypeVar("R")


class Shard(Protocol):
    """The state of one partition, as the runtime sees it."""

    def replay(self, record: CoordinatorRecord, written_ms: int) -> None: ...

    def on_loaded(self) -> Iterator[Result[None]]: ...

    def on_unloaded(self, error: ErrorCode) -> None: ...


S = TypeVar("S", bound=Shard)


class _Gathered(NamedTuple):
    records: list[CoordinatorRecord]
    settle: Settled


class _Write(NamedTuple):
    """Records that are about to be in the log."""

    replayed: list[CoordinatorRecord]
    settle: Settled
    is_large: bool = False


class _Turn(NamedTuple):
    """Something that may write, and waits in line while an append is under way."""

    take: Callable[[], None]
    fail: Callable[[ErrorCode], object]
    gathers: bool = False
    """Whether it only adds to the gathered commits, so that those need not be written first."""


class Host(Generic[S]):
    """One shard, the partition under it, and the answers that wait for it."""

    def __init__(
        self,
        partition: Partition,
        machinery: Machinery,
        make_shard: Callable[[Timers], S],
        records: RecordFormat,
    ) -> None:
        self.partition = partition
        self.is_active = False
        self.why_not = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._epoch = partition.leader_epoch
        self._machinery = machinery
        self._records = records
        self._make_shard = make_shard
        self._begin_empty()
        self._loader: Loader | None = None
        self._load_retry: TimerHandle | None = None
        self._load_retry_ms = LOAD_RETRY_MS
        self._waiting = Commitment(machinery.clock, machinery.timers)
        self._wake_is_due = False
        self._gathered: list[_Gathered] = []
        self._gathered_encoded: list[Encoded] = []
        self._gathered_bytes = 0
        self._lingers: TimerHandle | None = None
        self._pending: _Write | None = None
        self._line: deque[_Turn] = deque()
        self._line_moves = False
        self._line_rests = False
        self._closed = False

    def _begin_empty(self) -> None:
        wheel, executor = self._machinery.timers, self._machinery.executor
        self._timers = ShardTimers(wheel, executor, self._timer_fired)
        self.shard: S = self._make_shard(self._timers)

    def keeps_up(self) -> bool:
        """Whether this broker has led the partition ever since the shard was loaded.

        A change that leaves the leader in place, as when replicas are added, raises the epoch, too,
        by one: it is noted. After more than one, somebody else may have led in between.
        """
        partition = self.partition
        if not partition.is_leader or not 0 <= partition.leader_epoch - self._epoch <= 1:
            return False
        self._epoch = partition.leader_epoch
        return True

    def load(self) -> None:
        machinery = self._machinery
        self.why_not = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._loader = Loader(
            self.partition.log,
            machinery.executor,
            machinery.call_soon,
            self._records.decode,
            buffer_bytes=machinery.settings.load_buffer_bytes,
            replay=self.shard.replay,
            done=self._loaded,
        )
        self._loader.start()

    def _loaded(self, error: BaseException | None) -> None:
        self._loader = None
        if error is not None:
            self._load_failed(error)
            return
        self.is_active = True
        self.write_steps(self.shard.on_loaded())

    def _load_failed(self, error: BaseException) -> None:
        """Nobody is served from half a state; but descriptors come back, and logs move."""
        self.why_not = ErrorCode.COORDINATOR_NOT_AVAILABLE
        delay_ms = self._load_retry_ms
        self._load_retry_ms = min(2 * delay_ms, LOAD_RETRY_MS_MAX)
        self._load_retry = self._machinery.timers.schedule(delay_ms, self._load_again)
        name = self.partition.topic_partition
        log.error("%s cannot be loaded, next try in %d ms", name, delay_ms, exc_info=error)
        self._timers.close()
        self._begin_empty()

    def _load_again(self) -> None:
        if self.keeps_up():  # Else it is about to be closed.
            self.load()

    # Requests.

    def run(
        self,
        operation: Callable[[S], Result[R]],
        reply: Callable[[R | None], object],
        fail: Callable[[ErrorCode, str | None], object],
        gather: bool,
    ) -> None:
        if self._may_go(gathers=gather):
            self._operate(operation, reply, fail, gather)
        elif len(self._line) >= WAITING_MAX:
            fail(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        else:
            self._wait_in_line(
                _Turn(
                    lambda: self._operate(operation, reply, fail, gather),
                    lambda code: fail(code, None),
                    gather,
                )
            )

    def _operate(
        self,
        operation: Callable[[S], Result[R]],
        reply: Callable[[R | None], object],
        fail: Callable[[ErrorCode, str | None], object],
        gather: bool,
    ) -> None:
        try:
            result = operation(self.shard)
        except ApiError as error:
            fail(error.code, error.message)
            return

        def settle(code: ErrorCode) -> None:
            if result.then is not None:
                result.then(code)
            if code is ErrorCode.NONE:
                reply(result.response)
            else:
                fail(code, None)

        may_linger = gather and self._machinery.settings.append_linger_ms != 0
        if may_linger and result.records and result.then is None:
            self._gather(result.records, settle)
        else:
            self._write(result, settle)

    def write_steps(self, steps: Iterator[Result[None]]) -> None:
        """Write results for which nobody waits, each in a turn of the loop of its own.

        Other partitions go on in between; whatever this one is asked comes after the last.
        """
        self._in_turn(_Turn(lambda: self._take_step(steps), _nobody_waits))

    def _take_step(self, steps: Iterator[Result[None]]) -> None:
        result = next(steps, None)
        if result is None:
            return
        self._write(result, _settled_by(result))
        self._line.appendleft(_Turn(lambda: self._take_step(steps), _nobody_waits))
        self._line_rests = True
        self._machinery.call_soon(self._rested)

    def _rested(self) -> None:
        self._line_rests = False
        self._move_line()

    def _timer_fired(self, callback: Callable[[], Result[None]]) -> None:
        def take() -> None:
            result = callback()
            self._write(result, _settled_by(result))

        self._in_turn(_Turn(take, _nobody_waits))

    # The line behind an append that is under way.

    def _in_turn(self, turn: _Turn) -> None:
        if self._may_go(gathers=turn.gathers):
            turn.take()
        else:
            self._wait_in_line(turn)

    def _may_go(self, *, gathers: bool) -> bool:
        return not self._line and self._is_clear(gathers=gathers)

    def _is_clear(self, *, gathers: bool) -> bool:
        """Whether everything decided so far is replayed; what is gathered is written for that."""
        if not gathers:
            self._write_gathered()
        return self._pending is None and not self._line_rests and not self._closed

    def _wait_in_line(self, turn: _Turn) -> None:
        if self._closed:
            turn.fail(self.why_not)
            return
        self._line.append(turn)
        self._move_line()

    def _move_line(self) -> None:
        if self._line_moves:
            return
        self._line_moves = True
        try:
            while self._line and self._is_clear(gathers=self._line[0].gathers):
                self._line.popleft().take()
        finally:
            self._line_moves = False

    # Writing.

    def _write(self, result: Result[R], settle: Settled) -> None:
        if not result.records:
            self._settle_when_committed(self.partition.log.log_end_offset, settle)
            return
        write = _Write(result.records if result.replays else [], settle, result.is_large)
        if result.is_large:
            self._encode_aside(result.records, write)
        else:
            self._append([self._records.encode(record) for record in result.records], write)

    def _gather(self, records: list[CoordinatorRecord], settle: Settled) -> None:
        encoded = [self._records.encode(record) for record in records]
        size_bytes = sum(len(key) + len(value or b"") for key, value in encoded)
        if self._gathered_bytes + size_bytes > GATHERED_BYTES_MAX:
            self._write_gathered()
        if not self._gathered:
            self._write_gathered_soon()
        self._gathered.append(_Gathered(records, settle))
        self._gathered_encoded += encoded
        self._gathered_bytes += size_bytes

    def _write_gathered_soon(self) -> None:
        linger_ms = self._machinery.settings.append_linger_ms
        if linger_ms > 0:
            self._lingers = self._machinery.timers.schedule(linger_ms, self._gathered_due)
        else:
            self._machinery.call_soon(self._gathered_due)

    def _gathered_due(self) -> None:
        if self._gathered:
            self._in_turn(_Turn(_already_written, _nobody_waits))

    def _write_gathered(self) -> None:
        """Write what is gathered, unless that has to wait: then whoever asked waits, too."""
        gathered, encoded = self._gathered, self._gathered_encoded
        if not gathered or self._closed or self._pending is not None:
            return
        self._gathered, self._gathered_encoded, self._gathered_bytes = [], [], 0
        if self._lingers is not None:
            self._lingers.cancel()
            self._lingers = None

        def settle(code: ErrorCode) -> None:
            for each in gathered:
                each.settle(code)

        replayed = [record for each in gathered for record in each.records]
        self._append(encoded, _Write(replayed, settle))

    def _encode_aside(self, records: list[CoordinatorRecord], write: _Write) -> None:
        invariant(self._pending is None, "a write overtakes another", where=self.partition)
        self._pending = write
        now_ms, codec = self._machinery.clock.now_ms(), self._machinery.settings.codec

        def encode() -> bytes:
            return _build([self._records.encode(record) for record in records], now_ms, codec)

        def encoded(batch: bytes | None, error: BaseException | None) -> None:
            if self._closed:
                return
            with self._write_goes_on():
                if batch is None:
                    log.error("records cannot be encoded", exc_info=error)
                    write.settle(ErrorCode.UNKNOWN_SERVER_ERROR)
                else:
                    self._append_batch(batch, write)

        self._machinery.executor.submit(encode, encoded)

    @contextmanager
    def _write_goes_on(self) -> Iterator[None]:
        """The write under way is done or takes its next step; after the last the line moves."""
        self._pending = None
        try:
            yield
        finally:
            self._move_line()

    def _append(self, encoded: list[Encoded], write: _Write) -> None:
        now_ms, codec = self._machinery.clock.now_ms(), self._machinery.settings.codec
        self._append_batch(_build(encoded, now_ms, codec), write)

    def _append_batch(self, batch: bytes, write: _Write) -> None:
        invariant(self._pending is None, "a write overtakes another", where=self.partition)
        try:
            if not self.keeps_up():
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            info = self.partition.append(batch, required_acks=ACKS_ALL)
        except ApiError as error:
            write.settle(coordinator_error(error.code))
            return
        if isinstance(info, PendingAppend):
            self._pending = write
            # In a turn of its own: who waits in line may append, which a partition that is just
            # about to tell of an append does not expect.
            call_soon = self._machinery.call_soon
            info.then = lambda outcome: call_soon(lambda: self._appended_late(outcome, write))
        else:
            self._appended(info, write)

    def _appended_late(self, outcome: AppendInfo | ApiError, write: _Write) -> None:
        """The batch is in the log, or refused: whoever came meanwhile has waited."""
        if self._closed:
            return
        with self._write_goes_on():
            if isinstance(outcome, ApiError):
                write.settle(coordinator_error(outcome.code))
            else:
                self._appended(outcome, write)

    def _appended(self, info: AppendInfo, write: _Write) -> None:
        now_ms = self._machinery.clock.now_ms()
        if write.is_large:
            self._replay_by_turns(iter(write.replayed), now_ms, info, write)
            return
        for record in write.replayed:
            self.shard.replay(record, now_ms)
        self._settle_when_committed(info.last_offset + 1, write.settle)

    def _replay_by_turns(
        self, records: Iterator[CoordinatorRecord], now_ms: int, info: AppendInfo, write: _Write
    ) -> None:
        """Replay one record, and let others have the loop before the next."""
        if self._closed:
            return
        record = next(records, None)
        if record is not None:
            self._pending = write
            self.shard.replay(record, now_ms)
            self._machinery.call_soon(lambda: self._replay_by_turns(records, now_ms, info, write))
            return
        with self._write_goes_on():
            self._settle_when_committed(info.last_offset + 1, write.settle)

    # Commitment.

    def _settle_when_committed(self, end_offset: int, settle: Settled) -> None:
        timeout_ms = self._machinery.settings.commit_timeout_ms
        committed = self.partition.high_watermark
        self._waiting.settle_at(end_offset, committed, settle, timeout_ms=timeout_ms)

    def wake(self) -> None:
        """Have what is committed answered, in a later turn of the loop (rule B11)."""
        if self._waiting and not self._wake_is_due:
            self._wake_is_due = True
            self._machinery.call_soon(self._settle_committed)

    def _settle_committed(self) -> None:
        self._wake_is_due = False
        self._waiting.settle_up_to(self.partition.high_watermark)

    def close(self, error: ErrorCode) -> None:
        """Drop the shard; everybody who waits is sent elsewhere."""
        if self._closed:
            return
        self._closed = True
        self.is_active = False
        self.why_not = error
        self._timers.close()
        if self._loader is not None:
            self._loader.stop()
        if self._load_retry is not None:
            self._load_retry.cancel()
        if self._lingers is not None:
            self._lingers.cancel()
        self._waiting.close(error)
        if self._pending is not None:
            self._pending.settle(error)
        gathered, self._gathered = self._gathered, []
        for one in gathered:
            one.settle(error)
        line, self._line = self._line, deque()
        for turn in line:
            turn.fail(error)
        self.shard.on_unloaded(error)


def _nobody_waits(error: ErrorCode) -> None:
    """A timer or a clean-up that cannot run any more: the next coordinator does it."""


def _already_written() -> None:
    """The turn of the gathered commits: they were written before it was taken."""


def _build(encoded: list[Encoded], now_ms: int, codec: Codec) -> bytes:
    builder = BatchBuilder()
    for key, value in encoded:
        builder.append(now_ms, key, value, ())
    return builder.build(codec=codec)


def _settled_by(result: Result[None]) -> Settled:
    def settle(code: ErrorCode) -> None:
        if result.then is not None:
            result.then(code)
        elif code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            log.warning("a change of the coordinator's own was not written: %s", code.name)

    return settle
