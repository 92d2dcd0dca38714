"""Which log to compact, how much of it, and which of its segments together.

Pure judgement over logs as they are now, made on the loop; `cleaner_run.py` acts on it. Nothing
from the active segment on, nothing above the high watermark or the last stable offset, and nothing
younger than `min.compaction.lag.ms` is ever touched (rule I1).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.storage.cleaner_filter import LastRecord, last_records
from tidemill.storage.log import Log
from tidemill.storage.log_config import FOREVER_MS, LogConfig
from tidemill.storage.segment import RELATIVE_OFFSET_MAX, Segment
from tidemill.storage.txn_index import AbortedTransaction

_log = logging.getLogger(__name__)

SEGMENTS_PER_GROUP_MAX = 64
"""Replacing a group renames its files in one turn of the loop: more would be felt."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A log that might be compacted, and how much that is worth."""

    log: Log
    first_dirty_offset: int
    upper_offset: int
    """The first offset of the first segment that may not be touched."""
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool
    """A record has waited longer than `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_worth_it(self) -> bool:
        if self.is_overdue and self.cleanable_bytes:
            return True
        return self.dirty_ratio > self.log.config.min_cleanable_ratio


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a pass over one log needs to know; it does not look at the log itself again."""

    directory: str
    config: LogConfig
    segments: tuple[Segment, ...]
    """The log's closed segments below `upper_offset`, from the first one on."""
    first_dirty_offset: int
    upper_offset: int
    aborted: tuple[AbortedTransaction, ...]
    producers: dict[int, LastRecord]
    now_ms: int
    cuts: int


def assess(log: Log, cleaned_offset: int | None, high_watermark: int, now_ms: int) -> Candidate:
    """How dirty the log is; `cleaned_offset` is where the last pass ended."""
    first_dirty = _first_dirty_offset(log, cleaned_offset)
    upper_slot = _upper_slot(log, first_dirty, high_watermark, now_ms)
    upper_offset = log.segments[upper_slot].base_offset
    below = log.segments[:upper_slot]
    dirty_slot = max(0, sum(segment.base_offset <= first_dirty for segment in below) - 1)
    dirty = below[dirty_slot:] if first_dirty < upper_offset else []
    return Candidate(
        log,
        first_dirty,
        max(first_dirty, upper_offset),
        sum(segment.size for segment in below if segment.base_offset < first_dirty),
        sum(segment.size for segment in dirty),
        _is_overdue(log.config, dirty, now_ms),
    )


def plan(candidate: Candidate, now_ms: int) -> Plan:
    """Capture what the pass needs of the log, so that it can run in a thread."""
    log, upper = candidate.log, candidate.upper_offset
    segments = tuple(segment for segment in log.segments[:-1] if segment.base_offset < upper)
    return Plan(
        log.directory,
        log.config,
        segments,
        candidate.first_dirty_offset,
        upper,
        tuple(log.aborted_transactions(segments[0].base_offset, upper)),
        last_records(log.producers.active()),
        now_ms,
        log.cuts,
    )


def _first_dirty_offset(log: Log, cleaned_offset: int | None) -> int:
    """Where the last pass ended; the log's start if that cannot be true (rule I6)."""
    start = log.log_start_offset
    if cleaned_offset is None or cleaned_offset < start:
        return start
    if cleaned_offset > log.log_end_offset:
        _log.warning(
            "%s was compacted up to offset %d but ends at %d: all of it is compacted again",
            log.topic_partition, cleaned_offset, log.log_end_offset,
        )  # fmt: skip
        return start
    return cleaned_offset


def _upper_slot(log: Log, first_dirty: int, high_watermark: int, now_ms: int) -> int:
    """The first segment that may not be touched; the active one at the latest."""
    segments = log.segments
    stable = min(log.last_stable_offset(high_watermark), high_watermark, log.flushed_offset)
    lag_ms = log.config.min_compaction_lag_ms
    for slot in range(len(segments) - 1):
        end_offset = segments[slot + 1].base_offset
        if end_offset > stable:
            return slot
        is_dirty = lag_ms > 0 and end_offset > first_dirty
        if is_dirty and segments[slot].largest_timestamp().timestamp > now_ms - lag_ms:
            return slot
    return len(segments) - 1


def _is_overdue(config: LogConfig, dirty: Sequence[Segment], now_ms: int) -> bool:
    """Whether `max.compaction.lag.ms` has passed for the oldest of the segments."""
    if config.max_compaction_lag_ms == FOREVER_MS:
        return False
    times = [time for segment in dirty if (time := segment.rolling_timestamp()) > 0]
    return min(times, default=now_ms) < now_ms - config.max_compaction_lag_ms


def groups(plan: Plan, end_offset: int) -> list[list[Segment]]:
    """The segments to compact into one each, in order: as many as fit one segment's limits.

    Without that, a log of small updates would become thousands of tiny segments.
    """
    segments = [segment for segment in plan.segments if segment.base_offset < end_offset]
    ends = [segment.base_offset for segment in segments[1:]] + [plan.upper_offset]
    found: list[list[Segment]] = []
    room = _Room(plan.config)
    for segment, end in zip(segments, ends, strict=True):
        if found and room.takes(found[-1], segment, end):
            found[-1].append(segment)
        else:
            room = _Room(plan.config)
            room.takes([], segment, end)
            found.append([segment])
    return found


class _Room:
    """What a group has left of a segment's limits: bytes, index entries, offsets of 32 bits."""

    def __init__(self, config: LogConfig) -> None:
        self._log_bytes = config.segment_bytes
        self._index_bytes = config.segment_index_bytes
        self._time_index_bytes = config.segment_index_bytes

    def takes(self, group: Sequence[Segment], segment: Segment, end_offset: int) -> bool:
        """Count the segment in, if there is room for it."""
        if len(group) >= SEGMENTS_PER_GROUP_MAX:
            return False
        log_bytes = self._log_bytes - segment.size
        index_bytes = self._index_bytes - segment.offset_index.size_bytes()
        time_index_bytes = self._time_index_bytes - segment.time_index.size_bytes()
        first = group[0].base_offset if group else segment.base_offset
        if group and (
            min(log_bytes, index_bytes, time_index_bytes) < 0
            or end_offset - 1 - first > RELATIVE_OFFSET_MAX
        ):
            return False
        self._log_bytes, self._index_bytes = log_bytes, index_bytes
        self._time_index_bytes = time_index_bytes
        return True
