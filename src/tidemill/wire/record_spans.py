"""Where the records of a batch lie, and their keys, without decoding the rest.

Compaction decides by key and offset alone and copies what it keeps byte by byte, so it looks at the
front of each record only. This is an inner loop: the short cases of a varint are written out.
`iter_spans` walks an uncompressed body; `rebased` rewrites one record
for a batch whose base timestamp has changed, which is all that a delete horizon does to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.wire.batch import BatchHeader, InvalidRecordError
from tidemill.wire.records import encode_varint


class RecordSpan(NamedTuple):
    """One record in a body: [start, end), its timestamp's bytes, and what compaction asks for."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool
    start: int
    timestamp_start: int
    timestamp_end: int
    end: int


def iter_spans(body: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Each record of the body in order; `InvalidRecordError` where it contradicts itself."""
    size, pos, last_delta = len(body), 0, header.last_offset_delta
    new, cls = tuple.__new__, RecordSpan
    try:
        for _ in range(header.record_count):
            start = pos
            if (byte := body[pos]) & 0x81 == 0x80 and (high := body[pos + 1]) < 0x80:
                pos += 2
                end = pos + ((byte & 0x7F | high << 7) >> 1)
            else:
                length, pos = _zigzag(body, pos)
                end = pos + length
            if not pos < end <= size:
                raise InvalidRecordError(f"record at byte {start} ends outside its batch")
            timestamp_start = pos + 1  # After the record's own attributes, which are unused.
            if (byte := body[timestamp_start]) < 0x80:
                timestamp_end = timestamp_start + 1
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
            else:
                timestamp_delta, timestamp_end = _zigzag(body, timestamp_start)
            if (byte := body[timestamp_end]) < 0x80:
                pos = timestamp_end + 1
                offset_delta = (byte >> 1) ^ -(byte & 1)
            elif (high := body[timestamp_end + 1]) < 0x80 and not byte & 1:
                pos = timestamp_end + 2
                offset_delta = (byte & 0x7F | high << 7) >> 1
            else:
                offset_delta, pos = _zigzag(body, timestamp_end)
            if not 0 <= offset_delta <= last_delta:
                raise InvalidRecordError(f"record's offset delta {offset_delta} is outside")
            key: bytes | None
            if (byte := body[pos]) & 0x81 == 0:  # Up to 63 bytes
                pos += 1
                key = body[pos : (pos := pos + (byte >> 1))]
            else:
                length, pos = _zigzag(body, pos)
                key = body[pos : (pos := pos + length)] if length >= 0 else None
            has_value = body[pos] != 1  # A length of -1 is null.
            if pos >= end:
                raise InvalidRecordError(f"record's key ends at byte {pos}, after the record")
            pos = end
            yield new(
                cls,
                (
                    offset_delta,
                    timestamp_delta,
                    key,
                    has_value,
                    start,
                    timestamp_start,
                    timestamp_end,
                    end,
                ),
            )
    except IndexError:
        raise InvalidRecordError("record batch ends in the middle of a record") from None
    if pos != size:
        raise InvalidRecordError(f"record batch has {size - pos} bytes after its last record")


def rebased(body: bytes, span: RecordSpan, timestamp_delta: int) -> bytes:
    """The record with another timestamp delta; nothing else about it changes."""
    content = b"".join(
        (
            body[span.timestamp_start - 1 : span.timestamp_start],
            encode_varint(timestamp_delta),
            body[span.timestamp_end : span.end],
        )
    )
    return encode_varint(len(content)) + content


def _zigzag(body: bytes, pos: int) -> tuple[int, int]:
    """A signed varint of up to 64 bits and the position after it."""
    byte = body[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    encoded, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = body[pos]
        encoded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (encoded >> 1) ^ -(encoded & 1), pos + 1
        shift += 7
        if shift >= 70:
            raise InvalidRecordError("varint is longer than 64 bits")
