"""Runs coordinators over the partitions of an internal topic: one shard of state per partition.

A request on a shard goes: decide (`operation`), append the records, replay them, answer once they
are committed. Nothing happens in between, so a decision is never made on a state that is about to
change. An append that fails changes nothing. Answers without records wait, too, for what was
appended before them: nobody is told of a state that a fail-over could take back.

A partition that this broker comes to lead is loaded first (rule J1): its log is read and decoded
off the loop, and replayed in small steps. Until then requests get COORDINATOR_LOAD_IN_PROGRESS. On
losing the leadership the shard is dropped at once.

Offset commits come in thousands and depend on nothing but the member's right to commit; those of
one turn of the loop are gathered into one batch (`gather`).

Groups use this today; the coordinator of transactions will be another kind of shard.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidemill.clock import Clock
from tidemill.coordinators.records import decode_record, encode_record
from tidemill.coordinators.result import CoordinatorRecord, Result, Settled, Timers
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.executor import Executor
from tidemill.replication.partition import ACKS_ALL, Partition, PendingAppend
from tidemill.storage.log import AppendInfo
from tidemill.storage.slice import LogSlice
from tidemill.timers import TimerHandle, TimingWheel
from tidemill.wire.batch import iter_headers
from tidemill.wire.compression import Codec
from tidemill.wire.records import BatchBuilder, iter_records

log = logging.getLogger(__name__)

REPLAYED_PER_TURN = 2_000
"""Records that a load replays before it lets others have the loop."""
LOAD_BYTES_MIN = 1 << 16
RECORDS_BYTES_MAX = 64 << 20
"""The largest a compressed batch of an internal topic may become."""
GATHERED_BYTES_MAX = 256 << 10
WAITING_MAX = 100_000
"""Answers that may wait for one partition; more would mean that nothing is committed any more."""

R = TypeVar("R")


class Shard(Protocol):
    """The state of one partition, as the runtime sees it."""

    def replay(self, record: CoordinatorRecord) -> None: ...

    def on_loaded(self) -> Iterator[Result[None]]: ...

    def on_unloaded(self, error: ErrorCode) -> None: ...


S = TypeVar("S", bound=Shard)
Encoded = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """How the internal topic is written and read."""

    load_buffer_bytes: int = 5 << 20
    commit_timeout_ms: int = 5_000
    codec: Codec = Codec.NONE


@dataclass(frozen=True, slots=True)
class Machinery:
    """What the runtime needs of the broker."""

    clock: Clock
    timers: TimingWheel
    executor: Executor
    call_soon: Callable[[Callable[[], object]], object]
    settings: Callable[[], RuntimeSettings]


class Runtime(Generic[S]):
    """The shards of the partitions that this broker leads."""

    def __init__(self, machinery: Machinery, make_shard: Callable[[Timers], S]) -> None:
        self._machinery = machinery
        self._make_shard = make_shard
        self._hosts: dict[int, Host[S]] = {}

    def follow(self, partitions: dict[int, Partition]) -> None:
        """Coordinate exactly these partitions from now on."""
        for index, host in list(self._hosts.items()):
            if partitions.get(index) is not host.partition or not host.is_current:
                del self._hosts[index]
                host.close(ErrorCode.NOT_COORDINATOR)
        for index, partition in partitions.items():
            if index not in self._hosts and partition.is_leader:
                host = Host(partition, self._machinery, self._make_shard)
                self._hosts[index] = host
                host.load()

    def partition_moved(self, partition: Partition) -> None:
        """Something was committed, or the leadership is lost."""
        host = self._hosts.get(partition.topic_partition.partition)
        if host is None or host.partition is not partition:
            return
        if not host.is_current:
            del self._hosts[partition.topic_partition.partition]
            self._machinery.call_soon(lambda: host.close(ErrorCode.NOT_COORDINATOR))
        else:
            host.wake()

    def run(
        self,
        index: int,
        operation: Callable[[S], Result[R]],
        reply: Callable[[R | None], object],
        fail: Callable[[ErrorCode, str | None], object],
        *,
        gather: bool = False,
    ) -> None:
        """Run an operation on a shard; `reply` or `fail` is called once, now or later."""
        host = self._hosts.get(index)
        if host is None:
            fail(ErrorCode.NOT_COORDINATOR, None)
        elif not host.is_active:
            fail(host.why_not, None)
        else:
            host.run(operation, reply, fail, gather)

    def steps(self, index: int, make_steps: Callable[[S], Iterator[Result[None]]]) -> None:
        """Write what a clean-up yields, if the shard is here."""
        host = self._hosts.get(index)
        if host is not None and host.is_active:
            host.write_steps(make_steps(host.shard))

    def indexes(self) -> list[int]:
        return list(self._hosts)

    def state_of(self, index: int) -> ErrorCode:
        """NONE for a shard that serves, else what its clients are told."""
        host = self._hosts.get(index)
        if host is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if host.is_active else host.why_not

    def close(self) -> None:
        for host in self._hosts.values():
            host.close(ErrorCode.NOT_COORDINATOR)
        self._hosts.clear()


class _Waiting(NamedTuple):
    end_offset: int
    deadline_ms: int
    settle: Settled


class _Gathered(NamedTuple):
    records: list[CoordinatorRecord]
    settle: Settled


class Host(Generic[S]):
    """One shard, the partition under it, and the answers that wait for it."""

    def __init__(
        self, partition: Partition, machinery: Machinery, make_shard: Callable[[Timers], S]
    ) -> None:
        self.partition = partition
        self.is_active = False
        self.why_not = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._epoch = partition.leader_epoch
        self._machinery = machinery
        self._timers = _ShardTimers(machinery.timers, self._timer_fired)
        self.shard: S = make_shard(self._timers)
        self._waiting: deque[_Waiting] = deque()
        self._deadline: TimerHandle | None = None
        self._wake_is_due = False
        self._gathered: list[_Gathered] = []
        self._gathered_encoded: list[Encoded] = []
        self._gathered_bytes = 0
        self._blocked_by: PendingAppend | None = None
        self._blocked: deque[Callable[[], None]] = deque()
        self._closed = False

    @property
    def is_current(self) -> bool:
        """Whether this broker leads the partition, in the epoch in which the shard was loaded."""
        partition = self.partition
        return partition.is_leader and partition.leader_epoch == self._epoch

    # Loading.

    def load(self) -> None:
        self._load_from(self.partition.log.log_start_offset)

    def _load_from(self, offset: int) -> None:
        if self._closed:
            return
        stored = self.partition.log
        if offset >= stored.log_end_offset:
            self._loaded()
            return
        limit = max(self._machinery.settings().load_buffer_bytes, LOAD_BYTES_MIN)
        try:
            found = stored.read(offset, max_bytes=limit, upper_offset=stored.log_end_offset)
        except ApiError as error:
            self._load_failed(error)
            return
        self._machinery.executor.submit(lambda: _read(found, offset), self._have_read)

    def _have_read(self, found: _Read | None, error: BaseException | None) -> None:
        if self._closed:
            return
        if error is not None or found is None:
            self._load_failed(error)
            return
        self._replay_some(iter(found.records), found.next_offset)

    def _replay_some(self, records: Iterator[CoordinatorRecord], next_offset: int) -> None:
        if self._closed:
            return
        for _ in range(REPLAYED_PER_TURN):
            record = next(records, None)
            if record is None:
                self._machinery.call_soon(lambda: self._load_from(next_offset))
                return
            self.shard.replay(record)
        self._machinery.call_soon(lambda: self._replay_some(records, next_offset))

    def _loaded(self) -> None:
        self.is_active = True
        self.write_steps(self.shard.on_loaded())

    def _load_failed(self, error: BaseException | None) -> None:
        self.why_not = ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.error("%s cannot be loaded", self.partition.topic_partition, exc_info=error)

    # Requests.

    def run(
        self,
        operation: Callable[[S], Result[R]],
        reply: Callable[[R | None], object],
        fail: Callable[[ErrorCode, str | None], object],
        gather: bool,
    ) -> None:
        if self._blocked_by is not None:
            self._wait_in_line(lambda: self.run(operation, reply, fail, gather), fail)
            return
        if not gather:
            self._write_gathered()
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

        if gather and result.records and result.then is None:
            self._gather(result.records, settle)
        else:
            self._write(result, settle)

    def _wait_in_line(
        self, again: Callable[[], None], fail: Callable[[ErrorCode, str | None], object]
    ) -> None:
        if len(self._blocked) >= WAITING_MAX:
            fail(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        else:
            self._blocked.append(again)

    def write_steps(self, steps: Iterator[Result[None]]) -> None:
        """Write results for which nobody waits."""
        for result in steps:
            self._write_gathered()
            self._write(result, _settled_by(result))

    def _timer_fired(self, callback: Callable[[], Result[None]]) -> None:
        if self._closed:
            return
        if self._blocked_by is not None:
            self._blocked.append(lambda: self._timer_fired(callback))
            return
        self._write_gathered()
        result = callback()
        self._write(result, _settled_by(result))

    # Writing.

    def _write(self, result: Result[R], settle: Settled) -> None:
        if not result.records:
            self._settle_when_committed(self.partition.log.log_end_offset, settle)
            return
        replayed = result.records if result.replays else []
        self._append([encode_record(record) for record in result.records], replayed, settle)

    def _gather(self, records: list[CoordinatorRecord], settle: Settled) -> None:
        encoded = [encode_record(record) for record in records]
        size_bytes = sum(len(key) + len(value or b"") for key, value in encoded)
        if self._gathered_bytes + size_bytes > GATHERED_BYTES_MAX:
            self._write_gathered()
        if not self._gathered:
            self._machinery.call_soon(self._write_gathered)
        self._gathered.append(_Gathered(records, settle))
        self._gathered_encoded += encoded
        self._gathered_bytes += size_bytes

    def _write_gathered(self) -> None:
        gathered, encoded = self._gathered, self._gathered_encoded
        if not gathered or self._closed:
            return
        self._gathered, self._gathered_encoded, self._gathered_bytes = [], [], 0

        def settle(code: ErrorCode) -> None:
            for each in gathered:
                each.settle(code)

        self._append(encoded, [record for each in gathered for record in each.records], settle)

    def _append(
        self, encoded: list[Encoded], replayed: list[CoordinatorRecord], settle: Settled
    ) -> None:
        batch = _build(encoded, self._machinery.clock.now_ms(), self._machinery.settings().codec)
        try:
            if not self.is_current:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            info = self.partition.append(batch, required_acks=ACKS_ALL)
        except ApiError as error:
            settle(coordinator_error(error.code))
            return
        if isinstance(info, PendingAppend):
            self._blocked_by = info
            info.then = lambda outcome: self._appended_late(outcome, replayed, settle)
        else:
            self._appended(info, replayed, settle)

    def _appended_late(
        self, outcome: AppendInfo | ApiError, replayed: list[CoordinatorRecord], settle: Settled
    ) -> None:
        """The topic's own codec was slow: whoever came meanwhile has waited."""
        self._blocked_by = None
        if isinstance(outcome, ApiError):
            settle(coordinator_error(outcome.code))
        elif not self._closed:
            self._appended(outcome, replayed, settle)
        while self._blocked and self._blocked_by is None:
            self._blocked.popleft()()

    def _appended(
        self, info: AppendInfo, replayed: list[CoordinatorRecord], settle: Settled
    ) -> None:
        for record in replayed:
            self.shard.replay(record)
        self._settle_when_committed(info.last_offset + 1, settle)

    # Commitment.

    def _settle_when_committed(self, end_offset: int, settle: Settled) -> None:
        if self.partition.high_watermark >= end_offset and not self._waiting:
            settle(ErrorCode.NONE)
            return
        if len(self._waiting) >= WAITING_MAX:
            settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        timeout_ms = self._machinery.settings().commit_timeout_ms
        deadline_ms = self._machinery.clock.monotonic_ms() + timeout_ms
        self._waiting.append(_Waiting(end_offset, deadline_ms, settle))
        if self._deadline is None:
            self._deadline = self._machinery.timers.schedule(timeout_ms, self._overdue)

    def wake(self) -> None:
        """Have what is committed answered, in a later turn of the loop (rule B11)."""
        if self._waiting and not self._wake_is_due:
            self._wake_is_due = True
            self._machinery.call_soon(self._settle_committed)

    def _settle_committed(self) -> None:
        self._wake_is_due = False
        committed = self.partition.high_watermark
        while self._waiting and self._waiting[0].end_offset <= committed:
            self._waiting.popleft().settle(ErrorCode.NONE)

    def _overdue(self) -> None:
        """The oldest answer has waited long enough; its records may still be committed later."""
        self._deadline = None
        now_ms = self._machinery.clock.monotonic_ms()
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            self._waiting.popleft().settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._waiting:
            delay_ms = self._waiting[0].deadline_ms - now_ms
            self._deadline = self._machinery.timers.schedule(delay_ms, self._overdue)

    def close(self, error: ErrorCode) -> None:
        """Drop the shard; everybody who waits is sent elsewhere."""
        if self._closed:
            return
        self._closed = True
        self.is_active = False
        self.why_not = error
        self._timers.close()
        if self._deadline is not None:
            self._deadline.cancel()
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.settle(error)
        gathered, self._gathered = self._gathered, []
        for one in gathered:
            one.settle(error)
        self.shard.on_unloaded(error)


class _ShardTimers:
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


class _Read(NamedTuple):
    records: list[CoordinatorRecord]
    next_offset: int


def _read(found: LogSlice, offset: int) -> _Read:
    """Decode a stretch of the log; runs off the loop."""
    data = found.read_blocking()
    records = []
    next_offset = offset
    for position, header in iter_headers(data):
        next_offset = header.next_offset
        if header.is_control:
            continue
        for record in iter_records(data, position, header, limit_bytes=RECORDS_BYTES_MAX):
            if record.key is not None and record.offset >= offset:
                value = None if record.value is None else bytes(record.value)
                typed = decode_record(bytes(record.key), value)
                if typed is not None:
                    records.append(typed)
    if next_offset == offset:
        raise TidemillError(f"the log cannot be read beyond offset {offset}")
    return _Read(records, next_offset)


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


_NOT_AVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})


def coordinator_error(code: ErrorCode) -> ErrorCode:
    """What a group's client is told when its coordinator cannot write."""
    if code in _NOT_AVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in _MOVED:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR
