"""Which of a log's oldest segments may go: too old, too many bytes, or below the log's start.

Pure judgement; `Log.delete_old_segments` acts on it. Nothing above the high watermark ever goes
(rule B12), and only a run of segments from the first one on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.storage.log_config import NO_LIMIT
from tidemill.storage.segment import Segment

if TYPE_CHECKING:
    from tidemill.storage.log import Log


def deletable(log: Log, now_ms: int, high_watermark: int) -> int:
    """How many segments, counted from the oldest, retention no longer keeps."""
    segments = log.segments
    excess_bytes = _excess_bytes(log)
    count = 0
    for slot, segment in enumerate(segments):
        is_active = slot + 1 == len(segments)
        end_offset = log.log_end_offset if is_active else segments[slot + 1].base_offset
        if end_offset > high_watermark or (is_active and not segment.size):
            break
        is_hidden = end_offset <= log.log_start_offset and not is_active
        is_excess = segment.size <= excess_bytes and not is_active
        if not (is_hidden or is_excess or _is_expired(log, segment, now_ms)):
            break
        excess_bytes -= segment.size
        count += 1
    return count


def _excess_bytes(log: Log) -> int:
    """By how much the log is larger than `retention.bytes`; -1 if that does not matter."""
    limit = log.config.retention_bytes
    if limit == NO_LIMIT or not log.config.cleanup_delete:
        return -1
    return log.size_bytes - limit


def _is_expired(log: Log, segment: Segment, now_ms: int) -> bool:
    limit = log.config.retention_ms
    if limit < 0 or not log.config.cleanup_delete:
        return False
    return now_ms - segment.retention_timestamp() > limit
