"""The way past wrong bytes in what was durable before a start.

A batch below the recovery point was flushed: if it cannot be read now, the disk has changed it, and
no crash has torn it. What follows it is as good as ever, so recovery notes the damage and goes on
with the next batch whose checksum is right (rule E2) instead of cutting the log there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidemill.errors import WireError
from tidemill.storage.damage import Damage
from tidemill.storage.files import Files
from tidemill.storage.segment import Segment
from tidemill.wire.batch import HEADER_BYTES, MAGIC_POS, BatchHeader, crc_matches, read_header

CHUNK_BYTES = 1 << 20
CHECKSUMS_TRIED_MAX = 1000
_OFFSET_BYTES = 8


def damage_ahead(
    files: Files, segment: Segment, offset: int, whole_size: int, recovery_point: int
) -> Damage | None:
    """What is wrong where the segment now ends, at `offset`; None if no durable batch follows.

    The damage ends where the next sound batch begins, at the latest the one that begins at the
    recovery point: what lies behind that may be torn.
    """
    start, tried = segment.size, 0
    for position in _candidates(files, segment, offset, whole_size, recovery_point):
        header = _header_at(files, segment.log_path, position)
        if header is None or not offset < header.base_offset <= recovery_point:
            continue
        if header.last_offset_delta < 0 or position + header.size_bytes > whole_size:
            continue
        tried += 1
        if crc_matches(files.pread(segment.log_path, position, header.size_bytes), 0, header):
            base, found = segment.base_offset, header.base_offset
            return Damage(base, start, position, start, offset, found)
        if tried == CHECKSUMS_TRIED_MAX:
            break
    return None


def _candidates(
    files: Files, segment: Segment, offset: int, whole_size: int, recovery_point: int
) -> Iterator[int]:
    """Where the next batch may begin: where the damaged one says that it ends, or anywhere."""
    start = segment.size
    damaged = _header_at(files, segment.log_path, start)
    if damaged is not None:
        yield start + damaged.size_bytes
    looks_like = _pattern(offset, recovery_point)
    for chunk_start in range(start + 1, whole_size, CHUNK_BYTES):
        length = min(CHUNK_BYTES + MAGIC_POS, whole_size - chunk_start)
        chunk = files.pread(segment.log_path, chunk_start, length)
        for match in looks_like.finditer(chunk):
            yield chunk_start + match.start()


def _pattern(first: int, last: int) -> re.Pattern[bytes]:
    """What every batch between two offsets has in common: their leading bytes and the magic."""
    low, high = first.to_bytes(_OFFSET_BYTES), last.to_bytes(_OFFSET_BYTES)
    common = 0
    while common < _OFFSET_BYTES and low[common] == high[common]:
        common += 1
    between = MAGIC_POS - common
    return re.compile(b"(?=%s.{%d}\x02)" % (re.escape(low[:common]), between), re.DOTALL)


def _header_at(files: Files, path: str, position: int) -> BatchHeader | None:
    data = files.pread(path, position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    try:
        return read_header(data)
    except WireError:
        return None
