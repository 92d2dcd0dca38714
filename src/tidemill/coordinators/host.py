"""One partition of an internal topic, coordinated here: its shard, and the writing for it.

Offset commits come in thousands and depend on nothing but the member's right to commit. They are
gathered into one batch (`gather`): those of one turn of the loop, or of as many milliseconds as
`append_linger_ms` says. Whatever else is written or asked meanwhile comes after them.

The topic is compacted, so a large batch is checked record by record, off the loop, and is in the
log later (`PendingAppend`). What a group of ten thousand topics writes is even encoded off the
loop, and replayed a record per turn. There is never more than one such write: a decision that was
made before it is replayed would be made on a state that is about to change. Requests, timers,
clean-ups and gathered commits that come meanwhile wait in line, in their order.

What raises anything but an answer has left a state that nobody can vouch for (rule 2.L): whoever
asked is told, and the shard is given up and loaded again, as if it had come from another broker.

Start at `Host.run`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from tidemill.coordinators.commitment import WAITING_MAX
from tidemill.coordinators.gathering import Gathering
from tidemill.coordinators.loading import Loader
from tidemill.coordinators.machinery import Machinery
from tidemill.coordinators.result import (
    CoordinatorRecord,
    RecordFormat,
    Result,
    Settled,
    Timers,
)
from tidemill.coordinators.shard_timers import ShardTimers
from tidemill.coordinators.writing import S, Write, Writing
from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.partition import Partition
from tidemill.timers import TimerHandle

log = logging.getLogger(__name__)

LOAD_RETRY_MS = 1_000
LOAD_RETRY_MS_MAX = 60_000
"""How long a load that failed is left alone, at first and at last: the wait doubles each time."""

R = TypeVar("R")


class _Turn(NamedTuple):
    """Something that may write, and waits in line while an append is under way."""

    take: Callable[[], None]
    fail: Callable[[ErrorCode], object]
    gathers: bool = False
    """Whether it only adds to the gathered commits, so that those need not be written first."""


class Host(Writing[S]):
    """One shard, the partition under it, and the answers that wait for it."""

    def __init__(
        self,
        partition: Partition,
        machinery: Machinery,
        make_shard: Callable[[Timers], S],
        records: RecordFormat,
        broke: Callable[[Host[S]], object],
    ) -> None:
        """`broke` is told when the state is of no use any more; the host is closed then."""
        super().__init__(partition, machinery, records)
        self.is_active = False
        self.why_not = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._make_shard = make_shard
        self._broke = broke
        self._begin_empty()
        self._loader: Loader | None = None
        self._load_retry: TimerHandle | None = None
        self._load_retry_ms = LOAD_RETRY_MS
        self._active_since_ms = 0
        self._gathering = Gathering(machinery, self._gathered_due)
        self._line: deque[_Turn] = deque()
        self._line_moves = False
        self._line_rests = False

    def _begin_empty(self) -> None:
        wheel, executor = self._machinery.timers, self._machinery.executor
        self._timers = ShardTimers(wheel, executor, self._timer_fired)
        self.shard: S = self._make_shard(self._timers)

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
        self._active_since_ms = self._machinery.clock.monotonic_ms()
        self.write_steps(self.shard.on_loaded())

    def _load_failed(self, error: BaseException) -> None:
        """Nobody is served from half a state; but descriptors come back, and logs move."""
        name, delay_ms = self.partition.topic_partition, self._load_retry_ms
        log.error("%s cannot be loaded, next try in %d ms", name, delay_ms, exc_info=error)
        self._timers.close()
        self._begin_empty()
        self._load_later()

    def _load_later(self) -> None:
        self.why_not = ErrorCode.COORDINATOR_NOT_AVAILABLE
        delay_ms = self._load_retry_ms
        self._load_retry_ms = min(2 * delay_ms, LOAD_RETRY_MS_MAX)
        self._load_retry = self._machinery.timers.schedule(delay_ms, self._load_again)

    def _load_again(self) -> None:
        if self.keeps_up():  # Else it is about to be closed.
            self.load()

    def load_instead_of(self, broken: Host[S]) -> None:
        """Load after a while, a longer one if that one had not served for long."""
        served_ms = self._machinery.clock.monotonic_ms() - broken._active_since_ms
        if served_ms < LOAD_RETRY_MS_MAX:
            self._load_retry_ms = broken._load_retry_ms
        self._load_later()

    def _break(self, error: BaseException) -> None:
        """What a step has half done nobody can take back: what was decided since is forgotten."""
        name = self.partition.topic_partition
        log.error("a step of %s failed: it is loaded again", name, exc_info=error)
        if not self._closed:
            self.close(ErrorCode.NOT_COORDINATOR)
            self._broke(self)

    def _break_for(
        self, fail: Callable[[ErrorCode, str | None], object], error: BaseException
    ) -> None:
        try:
            fail(ErrorCode.UNKNOWN_SERVER_ERROR, None)
        finally:
            self._break(error)

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
        except Exception as error:  # noqa: BLE001 - whatever it was, an answer is waited for
            self._break_for(fail, error)
            return

        def settle(code: ErrorCode) -> None:
            try:
                if result.then is not None:
                    result.then(code)
                if code is ErrorCode.NONE:
                    reply(result.response)
                else:
                    fail(code, None)
            except Exception as error:  # noqa: BLE001 - the others behind it are told, too
                self._break_for(fail, error)

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
        try:
            result = next(steps, None)
        except Exception as error:  # noqa: BLE001 - what it was about to tidy is not as it should be
            self._break(error)
            return
        if result is None:
            return
        self._write(result, self._settled_by(result))
        if self._closed:
            return
        self._line.appendleft(_Turn(lambda: self._take_step(steps), _nobody_waits))
        self._line_rests = True
        self._machinery.call_soon(self._rested)

    def _rested(self) -> None:
        self._line_rests = False
        self._move_line()

    def _timer_fired(self, callback: Callable[[], Result[None]]) -> None:
        def take() -> None:
            try:
                result = callback()
            except Exception as error:  # noqa: BLE001 - the timer is gone, and nobody would set it
                self._break(error)
            else:
                self._write(result, self._settled_by(result))

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

    def _gather(self, records: list[CoordinatorRecord], settle: Settled) -> None:
        encoded = self._encode(records, settle)
        if encoded is None:
            return
        if not self._gathering.has_room_for(encoded):
            self._write_gathered()
        if self._closed:  # That write has failed in a way that nobody foresaw.
            settle(ErrorCode.NOT_COORDINATOR)
            return
        self._gathering.add(records, encoded, settle)

    def _gathered_due(self) -> None:
        if self._gathering:
            self._in_turn(_Turn(_already_written, _nobody_waits))

    def _write_gathered(self) -> None:
        """Write what is gathered, unless that has to wait: then whoever asked waits, too."""
        if not self._gathering or self._closed or self._pending is not None:
            return
        gathered = self._gathering.take()
        self._append(gathered.encoded, Write(gathered.records, gathered.settle))

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
        tell: list[Callable[[ErrorCode], object]] = [self._waiting.close]
        if self._pending is not None:
            tell.append(self._pending.settle)
        if self._gathering:
            tell.append(self._gathering.take().settle)
        line, self._line = self._line, deque()
        tell += [turn.fail for turn in line]
        for told in (*tell, self.shard.on_unloaded):
            try:
                told(error)
            except Exception:
                log.exception("somebody was not told of the end of %s", self.partition)

    def _settled_by(self, result: Result[None]) -> Settled:
        def settle(code: ErrorCode) -> None:
            if result.then is None:
                if code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
                    log.warning("a change of the coordinator's own was not written: %s", code.name)
                return
            try:
                result.then(code)
            except Exception as error:  # noqa: BLE001 - the others behind it are told
                self._break(error)

        return settle


def _nobody_waits(error: ErrorCode) -> None:
    """A timer or a clean-up that cannot run any more: the next coordinator does it."""


def _already_written() -> None:
    """The turn of the gathered commits: they were written before it was taken."""
