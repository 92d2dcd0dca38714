"""Appending to a log, as its leader or as a follower.

`append_as_leader` is the hot path: one header per batch, one vectored write per request, no work
per record. Memory follows the file: nothing is taken in before it is written (rule G4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.invariant import invariant
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.files import Buffer
from tidemill.storage.log_durable import DurableLog
from tidemill.storage.producer_state import BatchMeta
from tidemill.storage.segment import RELATIVE_OFFSET_MAX
from tidemill.storage.validate import Validated
from tidemill.wire.batch import (
    CONTROL_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC_POS,
    BatchHeader,
    crc_matches,
    iter_headers,
    read_header,
)
from tidemill.wire.control import read_marker

_stamp = struct.Struct(">qii")
"""Base offset, length, leader epoch: what the leader assigns stands in front of the magic byte."""


class AppendInfo(NamedTuple):
    """Where an append ended up."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool
    """The same batch was appended before; the offsets are those of that time."""
    flush_due: bool
    """`flush.messages` is reached: the answer waits for a flush, as under `flush.policy=ack`."""


class AppendableLog(DurableLog):
    """A log that takes batches."""

    __slots__ = ()

    def append_as_leader(
        self, records: Validated | Buffer, *, leader_epoch: int, producer_check: bool = True
    ) -> AppendInfo:
        """Append batches under the next offsets; they are stamped on the way to the file.

        A batch that its producer sent before is not written again (rule G2). Nothing is kept in
        memory that is not in the file: state changes only after the write (rule G4).
        """
        self._check_usable()
        if isinstance(records, Validated):
            data, headers, append_time_ms = records.records, records.headers, records.append_time_ms
        else:
            data, headers, append_time_ms = records, _headers_of(records), -1
        if producer_check and headers[0].producer_id >= 0:
            repeated = self.producers.check(headers[0])
            if repeated is not None:
                return self._duplicate(repeated)
        base_offset = offset = self.log_end_offset
        view = memoryview(data)
        parts: list[Buffer] = []
        position = 0
        for header in headers:
            length = header.batch_length
            end = position + length + LOG_OVERHEAD_BYTES
            parts.append(_stamp.pack(offset, length, leader_epoch))
            parts.append(view[position + MAGIC_POS : end])
            offset += header.last_offset_delta + 1
            position = end
        if leader_epoch > self.leader_epochs.latest:
            self.begin_epoch(leader_epoch)
        self._write(parts, position, base_offset, offset - 1, headers[-1].max_timestamp)
        self._take_in(view, headers, base_offset)
        return AppendInfo(
            base_offset,
            offset - 1,
            append_time_ms,
            self.log_start_offset,
            False,
            offset - self.flushed_offset >= self.config.flush_messages,
        )

    def repeat_of(self, records: Buffer | None, refusal: ApiError) -> AppendInfo | None:
        """Where a batch is that is refused today, but was taken when it first came (rule G2).

        A setting may have changed since, as when a topic is sealed. Who never got the first answer
        would take the refusal for "not written", and write the records elsewhere once more.
        """
        if not records or refusal.code is ErrorCode.CORRUPT_MESSAGE:
            return None
        try:
            header = read_header(records)
            if header.producer_id < 0 or len(records) != header.batch_length + LOG_OVERHEAD_BYTES:
                return None
            repeated = self.producers.check(header)
        except (ApiError, WireError):
            return None
        return None if repeated is None else self._duplicate(repeated)

    def begin_epoch(self, epoch: int) -> None:
        """A leader epoch begins at the log's end. The next flush writes it down before any data.

        So it is durable before a record of that epoch is (rule A7), and taking over ten thousand
        partitions costs no flush each. `leader_epochs.assign` is the form that does not wait.
        """
        self._epochs_pending |= self.leader_epochs.note(epoch, self.log_end_offset)

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Append batches as the leader wrote them; a partial one at the end is left out."""
        self._check_usable()
        headers = _headers_of(records)
        self._check_copied(records, headers)
        view = memoryview(records)
        for run in _runs(headers):
            size = sum(header.size_bytes for header in run)
            self._note_epochs(run)
            last = run[-1]
            self._write(
                (view[:size],), size, run[0].base_offset, last.last_offset, last.max_timestamp
            )
            self._take_in(view, run, None)
            view = view[size:]
        flush_due = self.log_end_offset - self.flushed_offset >= self.config.flush_messages
        first_offset, last_offset = headers[0].base_offset, headers[-1].last_offset
        return AppendInfo(first_offset, last_offset, -1, self.log_start_offset, False, flush_due)

    def _check_copied(self, records: Buffer, headers: Sequence[BatchHeader]) -> None:
        """What comes from a leader must go on where this log ends (rules D6 and E2).

        Compaction leaves gaps in the leader's log, and they outlive a change of the policy.
        """
        expected, position = self.log_end_offset, 0
        for header in headers:
            invariant(
                header.base_offset >= expected,
                "a fetched batch does not follow the log's end",
                partition=str(self.topic_partition),
                expected=expected,
                base_offset=header.base_offset,
            )
            if not crc_matches(records, position, header):
                raise self._corrupt(header, "fails its checksum")
            if header.attributes & CONTROL_BIT:
                self._check_marker(records, position, header)
            expected = header.next_offset
            position += header.size_bytes

    def _check_marker(self, records: Buffer, position: int, header: BatchHeader) -> None:
        """Once it is written, it is too late to find out that nobody can read it."""
        try:
            read_marker(records, position, header)
        except WireError as error:
            raise self._corrupt(header, f"holds no control record: {error}") from error

    def _corrupt(self, header: BatchHeader, what: str) -> ApiError:
        message = f"the batch at offset {header.base_offset} of {self.topic_partition} {what}"
        return ApiError(ErrorCode.CORRUPT_MESSAGE, message)

    def _note_epochs(self, headers: Sequence[BatchHeader]) -> None:
        latest = self.leader_epochs.latest
        for header in headers:
            if header.partition_leader_epoch > latest:
                latest = header.partition_leader_epoch
                self._epochs_pending |= self.leader_epochs.note(latest, header.base_offset)

    def _write(
        self,
        parts: Sequence[Buffer],
        size: int,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
    ) -> None:
        """Put the bytes into the active segment, or into a new one when that is full."""
        try:
            self.dir.charge(size)
            segment = self._active
            if segment.size and self._must_roll(segment, size, last_offset, max_timestamp):
                self._roll(self.log_end_offset)
                segment = self._active
            if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
                # The gap in front of it is too wide: no segment that begins at the log's end can
                # hold these offsets (rule E9).
                self._roll(first_offset)
                segment = self._active
            segment.write(parts)
        except DiskError as error:
            self.dir.fail(error)
            path = self._active.log_path
            if path not in self._unsynced_paths:
                # What the file got of it was cut off again. A crash must not bring that back, and
                # no flush would look at this segment any more once the next one has begun.
                self._unsynced_paths.append(path)
            raise

    def _take_in(
        self, view: memoryview, headers: Sequence[BatchHeader], base_offset: int | None
    ) -> None:
        """Bring indexes, producers and the log's end up to what was just written.

        `base_offset` is None for batches that carry their own offsets.
        """
        self._unbroken(lambda: self._note_all(view, headers, base_offset))

    def _note_all(
        self, view: memoryview, headers: Sequence[BatchHeader], base_offset: int | None
    ) -> None:
        segment, position = self._active, 0
        offset = self.log_end_offset if base_offset is None else base_offset
        interval_bytes = self.config.index_interval_bytes
        producers = self.producers
        for header in headers:
            if base_offset is None:
                offset = header.base_offset
            size = header.batch_length + LOG_OVERHEAD_BYTES
            last_offset = offset + header.last_offset_delta
            segment.note_batch(offset, last_offset, size, header.max_timestamp, interval_bytes)
            if header.attributes & CONTROL_BIT:
                self._take_in_marker(view, position, header, offset)
            else:
                producers.apply(header, offset)
            offset = last_offset + 1
            position += size
        self.log_end_offset = offset

    def _take_in_marker(
        self, view: memoryview, position: int, header: BatchHeader, offset: int
    ) -> None:
        marker = read_marker(view, position, header)
        if marker is None:
            return
        completed = self.producers.apply_marker(header, offset, marker)
        if completed is not None and completed.is_aborted:
            self._active.txn_index.append(self.producers.aborted_entry(completed))

    def _duplicate(self, batch: BatchMeta) -> AppendInfo:
        flush_due = (
            batch.last_offset >= self.flushed_offset
            and self.log_end_offset - self.flushed_offset >= self.config.flush_messages
        )
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp,
            self.log_start_offset,
            True,
            flush_due,
        )


def _runs(headers: Sequence[BatchHeader]) -> Iterator[Sequence[BatchHeader]]:
    """The batches in as few runs as possible that one segment can hold each (rule E9)."""
    begin = 0
    for slot, header in enumerate(headers):
        if header.last_offset - headers[begin].base_offset > RELATIVE_OFFSET_MAX:
            yield headers[begin:slot]
            begin = slot
    yield headers[begin:]


def _headers_of(records: Buffer) -> tuple[BatchHeader, ...]:
    try:
        headers = tuple(header for _, header in iter_headers(records))
    except WireError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if not headers:
        raise ApiError(ErrorCode.INVALID_RECORD, "no whole record batch to append")
    return headers
