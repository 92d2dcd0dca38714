"""Looking at every record of a batch without making anything of it.

`iter_stamps` walks the records and gives offset, time and whether there is a key;
`validate_records` is what a broker runs where it must know that each record is sound. Both read
every length and refuse what `tidemill.wire.records.iter_records` refuses, but keys, values and
headers are only stepped over: a hundred kilobytes may inflate to fifty million headers, which as
objects would fill gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidemill.errors import ErrorCode
from tidemill.wire.batch import BatchHeader, Buffer, InvalidRecordError, TimestampType
from tidemill.wire.records import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    read_length,
    read_varint,
    read_varlong,
    records_body,
)

PROBLEMS_MAX: Final = 10_000
"""Records of one batch whose problems are told one by one; the others are only counted."""


class RecordStamp(NamedTuple):
    """What a record is found by."""

    offset: int
    timestamp: int
    has_key: bool


def iter_stamps(
    buf: Buffer, pos: int, header: BatchHeader, *, limit_bytes: int
) -> Iterator[RecordStamp]:
    """Each record of the batch at `pos`; decompression stops at `limit_bytes` with an error."""
    body = records_body(buf, pos, header, limit_bytes=limit_bytes)
    append_time = None
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        append_time = header.max_timestamp
    return _walk(body, header, append_time)


def _walk(body: bytes, header: BatchHeader, append_time: int | None) -> Iterator[RecordStamp]:
    """The inner loop; a length that leads beyond the end is noticed by the next look."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_delta, size, pos = header.last_offset_delta, len(body), 0
    new, cls = tuple.__new__, RecordStamp
    try:
        for _ in range(header.record_count):
            length, pos = read_length(body, pos)
            end = pos + length
            if end > size:
                raise InvalidRecordError(f"record at byte {pos} ends after its batch")
            pos += 1  # The record's own attributes are unused.
            if (byte := body[pos]) < 0x80:
                pos += 1
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            else:
                delta, pos = read_varlong(body, pos)
                timestamp = base_timestamp + delta
            if (byte := body[pos]) < 0x80:
                pos += 1
                delta = (byte >> 1) ^ -(byte & 1)
            else:
                delta, pos = read_varint(body, pos)
            if not 0 <= delta <= last_delta:
                raise InvalidRecordError(f"record's offset delta {delta} is outside its batch")
            has_key = body[pos] != 1  # -1, null
            pos = _skip(body, pos)
            pos = _skip(body, pos)
            pos = pos + 1 if body[pos] == 0 else _skip_headers(body, pos, end)
            if pos != end:
                raise InvalidRecordError(f"record ends at byte {pos} instead of {end}")
            if append_time is not None:
                timestamp = append_time
            elif not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
                raise InvalidRecordError("record's timestamp is out of range")
            yield new(cls, (base_offset + delta, timestamp, has_key))
    except IndexError:
        raise InvalidRecordError("record batch ends in the middle of a record") from None
    if pos != size:
        raise InvalidRecordError(f"record batch has {size - pos} bytes after its last record")


def _skip(body: bytes, pos: int) -> int:
    """The position after a key or a value, null or not."""
    if body[pos] == 1:
        return pos + 1
    length, pos = read_length(body, pos)
    return pos + length


def _skip_headers(body: bytes, pos: int, end: int) -> int:
    """The position after a record's headers; their lengths are all that is looked at."""
    count, pos = read_length(body, pos)
    if count > (end - pos) // 2:
        raise InvalidRecordError(f"record declares {count} headers in {end - pos} bytes")
    for _ in range(count):
        if (byte := body[pos]) & 0x81 == 0:
            pos += 1 + (byte >> 1)
        else:
            length, pos = read_length(body, pos)
            pos += length
        if (byte := body[pos]) & 0x81 == 0:
            pos += 1 + (byte >> 1)
        elif byte == 1:
            pos += 1
        else:
            length, pos = read_length(body, pos)
            pos += length
    return pos


# --- validating ---------------------------------------------------------------------------------


class RecordProblem(NamedTuple):
    """Why one record of a batch is refused; `code` is INVALID_RECORD or INVALID_TIMESTAMP."""

    record_index: int
    code: ErrorCode
    message: str


class RecordsSummary(NamedTuple):
    """What a full look at a batch's records found; of its problems, the first ones."""

    record_count: int
    max_timestamp: int
    max_timestamp_offset: int
    problem_count: int
    problems: tuple[RecordProblem, ...]


class _Problems:
    """Counts all of them and keeps the first."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[RecordProblem] = []

    def note(self, index: int, code: ErrorCode, message: str) -> None:
        self.count += 1
        if len(self.kept) < PROBLEMS_MAX:
            self.kept.append(RecordProblem(index, code, message))


def validate_records(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    limit_bytes: int,
    require_keys: bool = False,
    timestamp_min: int | None = None,
    timestamp_max: int | None = None,
) -> RecordsSummary:
    """Look at every record; the batch as a whole must be sound, single records may have problems.

    Raises `InvalidRecordError` where the records contradict the header: their number, or offsets
    that do not rise one by one. `problems` holds what a producer did wrong record by record.
    """
    if header.record_count != header.last_offset_delta + 1 or header.record_count < 1:
        raise InvalidRecordError(
            f"batch counts {header.record_count} records but spans "
            f"{header.last_offset_delta + 1} offsets"
        )
    low = TIMESTAMP_MIN if timestamp_min is None else timestamp_min
    high = TIMESTAMP_MAX if timestamp_max is None else timestamp_max
    problems = _Problems()
    latest, latest_offset = TIMESTAMP_MIN, -1
    stamps = iter_stamps(buf, pos, header, limit_bytes=limit_bytes)
    for index, (offset, timestamp, has_key) in enumerate(stamps):
        if offset - header.base_offset != index:
            raise InvalidRecordError(
                f"record {index} has offset delta {offset - header.base_offset}"
            )
        if timestamp > latest:
            latest, latest_offset = timestamp, offset
        if require_keys and not has_key:
            problems.note(index, ErrorCode.INVALID_RECORD, _KEYLESS)
        if not low <= timestamp <= high:
            message = _outside(offset, timestamp, low, high)
            problems.note(index, ErrorCode.INVALID_TIMESTAMP, message)
    return RecordsSummary(
        header.record_count, latest, latest_offset, problems.count, tuple(problems.kept)
    )


_KEYLESS: Final = "Compacted topic cannot accept message without key."


def _outside(offset: int, timestamp: int, low: int, high: int) -> str:
    return (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. "
        f"The timestamp should be within [{low}, {high}]"
    )
