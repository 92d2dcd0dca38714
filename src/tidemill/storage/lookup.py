"""Finding records by their time: the time index, then the offset index, then the records.

These run in an executor where the disk may have to be asked: they work on a picture of the log that
does not change under them, and only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.damage import Damage
from tidemill.storage.epochs import LeaderEpochCache
from tidemill.storage.files import Files
from tidemill.storage.scan import walk_headers
from tidemill.storage.segment import Segment
from tidemill.storage.validate import DECOMPRESSED_BYTES_MAX
from tidemill.wire.batch import BatchHeader
from tidemill.wire.record_checks import RecordStamp, iter_stamps


class TimestampedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


class LogView(NamedTuple):
    """A log as it was when somebody began to look something up."""

    files: Files
    segments: list[Segment]
    epochs: LeaderEpochCache
    log_start_offset: int
    log_end_offset: int
    damage: list[Damage]
    cuts: int

    @property
    def is_stale(self) -> bool:
        """Whether a file was replaced or cut under a lookup: its answer is not to be trusted."""
        return _cuts(self.segments) != self.cuts or any(one.is_gone for one in self.segments)


def view_of(
    files: Files,
    segments: list[Segment],
    epochs: LeaderEpochCache,
    log_start_offset: int,
    log_end_offset: int,
    damage: list[Damage],
) -> LogView:
    """A log as it is now; a thread may ask for this while the loop is cutting the log."""
    found = list(segments)
    cuts = _cuts(found)
    return LogView(files, found, epochs, log_start_offset, log_end_offset, damage, cuts)


def _cuts(segments: list[Segment]) -> int:
    return sum(segment.cuts for segment in segments)


def first_not_older(view: LogView, timestamp: int) -> TimestampedOffset | None:
    """The first record at or after the log's start with at least this timestamp."""
    for segment in view.segments:
        if segment.largest_timestamp().timestamp < timestamp:
            continue
        found = _first_in_segment(view, segment, timestamp)
        if found is not None:
            return _answer(view, found)
    return None


def latest(view: LogView) -> TimestampedOffset | None:
    """The first of the records with the largest timestamp."""
    times = [segment.largest_timestamp().timestamp for segment in view.segments]
    largest = max(times)
    if largest < 0 or view.log_start_offset == view.log_end_offset:
        return None
    found = first_not_older(view, largest)
    if found is not None:
        return found
    # The record that the index knows is hidden below the log's start: look at what is left.
    return _latest_by_scan(view)


def _first_in_segment(view: LogView, segment: Segment, timestamp: int) -> RecordStamp | None:
    start_offset = max(view.log_start_offset, segment.base_offset)
    indexed_offset = segment.base_offset + segment.time_index.floor(timestamp)
    offset = max(indexed_offset, start_offset)
    start = segment.indexed(view.files.pread).by_offset(offset).position
    for position, header in _sound_headers(view, segment, start):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in _stamps(view, segment, position, header):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record
    return None


def _sound_headers(
    view: LogView, segment: Segment, start: int
) -> Iterator[tuple[int, BatchHeader]]:
    """The batches from `start` on; it is an error to need one behind damaged bytes."""
    ahead = [
        damage
        for damage in view.damage
        if damage.base_offset == segment.base_offset and damage.end > start
    ]
    end = max(start, ahead[0].read_until) if ahead else segment.size
    yield from walk_headers(view.files.pread, segment.log_path, start, end)
    if ahead:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{segment.log_path} is damaged: {ahead[0]}")


def _latest_by_scan(view: LogView) -> TimestampedOffset | None:
    best: RecordStamp | None = None
    for segment in view.segments:
        start = segment.locate(view.log_start_offset, view.files.pread)
        for position, header in _sound_headers(view, segment, start):
            if best is not None and header.max_timestamp <= best.timestamp:
                continue
            for record in _stamps(view, segment, position, header):
                visible = record.offset >= view.log_start_offset
                if visible and (best is None or record.timestamp > best.timestamp):
                    best = record
    return None if best is None else _answer(view, best)


def _stamps(
    view: LogView, segment: Segment, position: int, header: BatchHeader
) -> Iterator[RecordStamp]:
    """The records of a batch one by one: nobody has looked into it since it was produced."""
    data = view.files.pread(segment.log_path, position, header.size_bytes)
    return iter_stamps(data, 0, header, limit_bytes=DECOMPRESSED_BYTES_MAX)


def _answer(view: LogView, record: RecordStamp) -> TimestampedOffset:
    return TimestampedOffset(record.offset, record.timestamp, view.epochs.epoch_for(record.offset))
