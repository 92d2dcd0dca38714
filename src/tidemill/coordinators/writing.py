"""How what a shard decides gets into its log, is replayed, and is known to be committed.

A write is under way from when its records are encoded until they are replayed: mostly that is one
step, but large ones are encoded, compressed and checked off the loop. `host.py` says whose turn it
is, and lets nothing else be decided meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidemill.coordinators.commitment import Commitment
from tidemill.coordinators.gathering import bytes_of
from tidemill.coordinators.machinery import Machinery
from tidemill.coordinators.result import (
    CoordinatorRecord,
    Encoded,
    RecordFormat,
    Result,
    Settled,
)
from tidemill.coordinators.write_errors import coordinator_error
from tidemill.errors import ApiError, ErrorCode
from tidemill.invariant import invariant
from tidemill.replication.partition import ACKS_ALL, Partition, PendingAppend
from tidemill.storage.log import AppendInfo
from tidemill.wire.compression import Codec
from tidemill.wire.records import BatchBuilder

log = logging.getLogger(__name__)

COMPRESSED_AT_ONCE_MAX_BYTES = 64 << 10
"""What is compressed on the loop; more is compressed off it."""

R = TypeVar("R")


class Shard(Protocol):
    """The state of one partition, as the runtime sees it."""

    def replay(self, record: CoordinatorRecord, written_ms: int) -> None: ...

    def on_loaded(self) -> Iterator[Result[None]]: ...

    def on_unloaded(self, error: ErrorCode) -> None: ...


S = TypeVar("S", bound=Shard)


class Write(NamedTuple):
    """Records that are about to be in the log."""

    replayed: list[CoordinatorRecord]
    settle: Settled
    is_large: bool = False
    written: Callable[[], None] | None = None


class Writing(Generic[S]):
    """One shard, the partition under it, and the write that is under way."""

    shard: S

    def __init__(self, partition: Partition, machinery: Machinery, records: RecordFormat) -> None:
        self.partition = partition
        self._epoch = partition.leader_epoch
        self._machinery = machinery
        self._records = records
        self._waiting = Commitment(machinery.clock, machinery.timers)
        self._wake_is_due = False
        self._pending: Write | None = None
        self._closed = False

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

    def _move_line(self) -> None:
        """The write under way is done: whoever waits for that has his turn."""
        raise NotImplementedError

    def _break(self, error: BaseException) -> None:
        """The state is not what the log says any more."""
        raise NotImplementedError

    # From a decision to the log.

    def _write(self, result: Result[R], settle: Settled) -> None:
        if not result.records:
            self._settle_when_committed(self.partition.log.log_end_offset, settle)
            return
        replayed = result.records if result.replays else []
        write = Write(replayed, settle, result.is_large, result.written)
        if result.is_large:
            self._build_aside(lambda: self._encoded(result.records), write)
        elif (encoded := self._encode(result.records, settle)) is not None:
            self._append(encoded, write)

    def _encode(self, records: list[CoordinatorRecord], settle: Settled) -> list[Encoded] | None:
        """None if they cannot be encoded: then nothing is written, and nothing has changed."""
        try:
            return self._encoded(records)
        except Exception as error:  # noqa: BLE001 - the request is answered
            _refuse_records(error, settle)
            return None

    def _encoded(self, records: list[CoordinatorRecord]) -> list[Encoded]:
        return [self._records.encode(record) for record in records]

    def _build_aside(self, encode: Callable[[], list[Encoded]], write: Write) -> None:
        """Encode, compress, or both, off the loop; the write is under way from now on."""
        invariant(self._pending is None, "a write overtakes another", where=self.partition)
        self._pending = write
        now_ms, codec = self._machinery.clock.now_ms(), self._machinery.settings.codec

        def built(batch: bytes | None, error: BaseException | None) -> None:
            if self._closed:
                return
            with self._write_goes_on():
                if batch is None:
                    _refuse_records(error, write.settle)
                else:
                    self._append_batch(batch, write)

        self._machinery.executor.submit(lambda: _build(encode(), now_ms, codec), built)

    @contextmanager
    def _write_goes_on(self) -> Iterator[None]:
        """The write under way is done or takes its next step; after the last the line moves."""
        self._pending = None
        try:
            yield
        finally:
            self._move_line()

    def _append(self, encoded: list[Encoded], write: Write) -> None:
        now_ms, codec = self._machinery.clock.now_ms(), self._machinery.settings.codec
        if codec is not Codec.NONE and bytes_of(encoded) > COMPRESSED_AT_ONCE_MAX_BYTES:
            self._build_aside(lambda: encoded, write)
        else:
            self._append_batch(_build(encoded, now_ms, codec), write)

    def _append_batch(self, batch: bytes, write: Write) -> None:
        invariant(self._pending is None, "a write overtakes another", where=self.partition)
        try:
            if not self.keeps_up():
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            info = self.partition.append(batch, required_acks=ACKS_ALL)
        except ApiError as error:
            write.settle(coordinator_error(error.code))
            return
        except Exception as error:  # noqa: BLE001 - it may be in the log, or not
            self._break_in(write, error)
            return
        if isinstance(info, PendingAppend):
            self._pending = write
            # In a turn of its own: who waits in line may append, which a partition that is just
            # about to tell of an append does not expect.
            call_soon = self._machinery.call_soon
            info.then = lambda outcome: call_soon(lambda: self._appended_late(outcome, write))
        else:
            self._appended(info, write)

    def _appended_late(self, outcome: AppendInfo | ApiError, write: Write) -> None:
        """The batch is in the log, or refused: whoever came meanwhile has waited."""
        if self._closed:
            return
        with self._write_goes_on():
            if isinstance(outcome, ApiError):
                write.settle(coordinator_error(outcome.code))
            else:
                self._appended(outcome, write)

    def _appended(self, info: AppendInfo, write: Write) -> None:
        now_ms = self._machinery.clock.now_ms()
        if write.is_large:
            self._replay_by_turns(iter(write.replayed), now_ms, info, write)
            return
        try:
            for record in write.replayed:
                self.shard.replay(record, now_ms)
        except Exception as error:  # noqa: BLE001 - the state is not what the log says
            self._break_in(write, error)
            return
        self._replayed(info, write)

    def _replayed(self, info: AppendInfo, write: Write) -> None:
        if write.written is not None:
            write.written()
        self._settle_when_committed(info.last_offset + 1, write.settle)

    def _break_in(self, write: Write, error: BaseException) -> None:
        self._pending = None
        write.settle(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._break(error)

    def _replay_by_turns(
        self, records: Iterator[CoordinatorRecord], now_ms: int, info: AppendInfo, write: Write
    ) -> None:
        """Replay one record, and let others have the loop before the next."""
        if self._closed:
            return
        record = next(records, None)
        if record is not None:
            self._pending = write
            try:
                self.shard.replay(record, now_ms)
            except Exception as error:  # noqa: BLE001 - the state is not what the log says
                self._break_in(write, error)
                return
            self._machinery.call_soon(lambda: self._replay_by_turns(records, now_ms, info, write))
            return
        with self._write_goes_on():
            self._replayed(info, write)

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


def _build(encoded: list[Encoded], now_ms: int, codec: Codec) -> bytes:
    builder = BatchBuilder()
    for key, value in encoded:
        builder.append(now_ms, key, value, ())
    return builder.build(codec=codec)


def _refuse_records(error: BaseException | None, settle: Settled) -> None:
    log.error("records cannot be encoded", exc_info=error)
    settle(ErrorCode.UNKNOWN_SERVER_ERROR)
