"""Reads a coordinator's partition into its shard, a stretch at a time (rule J1).

The log is read and decoded off the loop; the records are replayed on it, some per turn, so that a
long log does not keep others from it. We write no transactions; a log that Apache Kafka wrote may
have some (`transactions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidemill.coordinators.result import CoordinatorRecord, DecodeRecord
from tidemill.coordinators.transactions import Dated, OpenTransactions, Stored
from tidemill.errors import ApiError, TidemillError
from tidemill.executor import Executor
from tidemill.storage.log import Log
from tidemill.storage.slice import LogSlice
from tidemill.wire.batch import BatchHeader, iter_headers
from tidemill.wire.control import read_marker
from tidemill.wire.records import iter_records

REPLAYED_PER_TURN = 2_000
"""Records that a load replays before it lets others have the loop."""
READ_BYTES_MIN = 1 << 16
RECORDS_BYTES_MAX = 64 << 20
"""The largest a compressed batch of an internal topic may become."""
EMPTY_READS_MAX = 10
"""How often in a row a file may be deleted under a read, since compaction has made another."""


class Loader:
    """One load, from the start of a log to its end; `done` is told once, with the error if any."""

    def __init__(
        self,
        log: Log,
        executor: Executor,
        call_soon: Callable[[Callable[[], object]], object],
        decode: DecodeRecord,
        *,
        buffer_bytes: int,
        replay: Callable[[CoordinatorRecord, int], None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        self._log = log
        self._executor = executor
        self._call_soon = call_soon
        self._decode = decode
        self._buffer_bytes = max(buffer_bytes, READ_BYTES_MIN)
        self._replay = replay
        self._done = done
        self._stopped = False
        self._empty_reads = 0
        self._open = OpenTransactions()

    def start(self) -> None:
        self._load_from(self._log.log_start_offset)

    def stop(self) -> None:
        """Nobody wants the rest: nothing is replayed any more, and `done` is not called."""
        self._stopped = True

    def _load_from(self, offset: int) -> None:
        if self._stopped:
            return
        end_offset = self._log.log_end_offset
        if offset >= end_offset:
            self._done(None)
            return
        try:
            found = self._log.read(offset, max_bytes=self._buffer_bytes, upper_offset=end_offset)
        except ApiError as error:
            self._done(error)
            return
        decode, still_open = self._decode, self._open
        self._executor.submit(lambda: _read(found, offset, decode, still_open), self._have_read)

    def _have_read(self, found: _Stretch | None, error: BaseException | None) -> None:
        if self._stopped:
            return
        if error is not None or found is None:
            self._done(error or TidemillError("the log was not read"))
            return
        self._empty_reads = 0 if found.is_more else self._empty_reads + 1
        if self._empty_reads > EMPTY_READS_MAX:
            self._done(TidemillError(f"the log cannot be read beyond offset {found.next_offset}"))
            return
        self._replay_some(iter(found.records), found.next_offset)

    def _replay_some(self, records: Iterator[Dated], next_offset: int) -> None:
        if self._stopped:
            return
        for _ in range(REPLAYED_PER_TURN):
            dated = next(records, None)
            if dated is None:
                self._call_soon(lambda: self._load_from(next_offset))
                return
            try:
                self._replay(*dated)
            except Exception as error:  # noqa: BLE001 - half a state is none
                self._done(error)
                return
        self._call_soon(lambda: self._replay_some(records, next_offset))


class _Stretch(NamedTuple):
    records: list[Dated]
    next_offset: int
    is_more: bool


def _read(
    found: LogSlice, offset: int, decode: DecodeRecord, still_open: OpenTransactions
) -> _Stretch:
    """Decode a stretch of the log; runs off the loop, one stretch after the other."""
    data = found.read_blocking()
    records: list[Dated] = []
    next_offset = offset
    for position, header in iter_headers(data):
        next_offset = header.next_offset
        if header.is_control:
            records += _ended(data, position, header, still_open)
            continue
        for record in iter_records(data, position, header, limit_bytes=RECORDS_BYTES_MAX):
            if record.key is not None and record.offset >= offset:
                key = bytes(record.key)
                typed = decode(key, None if record.value is None else bytes(record.value))
                if typed is None:
                    continue
                stored = Stored(record.offset, key, Dated(typed, record.timestamp))
                if header.is_transactional:
                    still_open.hold(header.producer_id, stored)
                else:
                    still_open.seen(stored)
                    records.append(stored.dated)
    return _Stretch(records, next_offset, is_more=next_offset > offset)


def _ended(
    data: bytes, position: int, header: BatchHeader, still_open: OpenTransactions
) -> list[Dated]:
    """What a control batch makes true; of a compacted one only the header is left."""
    if header.record_count == 0:
        return []
    marker = read_marker(data, position, header)
    if marker is None:
        return []
    return still_open.end(header.producer_id, is_commit=marker.is_commit)
