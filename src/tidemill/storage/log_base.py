"""What every part of a log leans on: its fields, its segments, and how a new segment begins.

`Log` (log.py) is put together from layers, each in a file of its own: the state and rolling here,
flushing and closing in `log_durable.py`, appending in `log_append.py`, what is known of damage in
`log_damage.py`. Reading, truncation and retention are in `log.py` itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode
from tidemill.storage import recovery
from tidemill.storage.checkpoint import PARTITION_METADATA
from tidemill.storage.damage import Damage
from tidemill.storage.disk_errors import DiskError, DiskFailedError
from tidemill.storage.epochs import LeaderEpochCache
from tidemill.storage.files import Files
from tidemill.storage.flusher import FlushJob
from tidemill.storage.index import TIME_ENTRY_BYTES
from tidemill.storage.log_config import LogConfig
from tidemill.storage.log_dir import LogDir
from tidemill.storage.producer_snapshot import format_snapshot, snapshot_path
from tidemill.storage.producer_state import ProducerStates
from tidemill.storage.segment import RELATIVE_OFFSET_MAX, Segment
from tidemill.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from tidemill.storage.log_replace import Swap

log = logging.getLogger(__name__)


class LogBase:
    """One partition's segments and what is known about them."""

    __slots__ = (
        "_bases",
        "_clock",
        "_cuts",
        "_deletions",
        "_epochs_pending",
        "_files",
        "_flush_jobs",
        "_is_new",
        "_jitter_ms",
        "_random",
        "_saved_bytes",
        "_segments",
        "_snapshots",
        "_swap",
        "_unsynced_paths",
        "config",
        "damage",
        "dir",
        "directory",
        "doomed",
        "epochs_dirty",
        "flushed_offset",
        "is_closed",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_recovery_point_lowered",
        "on_rolled",
        "producers",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        log_dir: LogDir,
        files: Files,
        clock: Clock,
        random: Random,
        *,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        directory: str,
        loaded: recovery.Loaded,
    ) -> None:
        self.dir = log_dir
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.flushed_offset = loaded.flushed_offset
        self.leader_epochs: LeaderEpochCache = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self.doomed: list[tuple[int, Segment]] = []
        """Renamed segments, with the time from which their files may go."""
        self.damage: list[Damage] = loaded.damage
        """What the scrub or the start found wrong in segments, in order; see `log_damage.py`."""
        self.epochs_dirty = False
        self.is_closed = False
        self.last_flush_ms = clock.monotonic_ms()
        self.on_rolled: Callable[[], None] | None = None
        self.on_recovery_point_lowered: Callable[[], None] | None = None
        self._files = files
        self._clock = clock
        self._random = random
        self._segments: list[Segment] = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._snapshots: set[int] = loaded.snapshots
        self._unsynced_paths: list[str] = []
        self._cuts = 0
        self._deletions = 0
        self._swap: Swap | None = None
        self._epochs_pending = False
        self._is_new = False
        self._flush_jobs: list[FlushJob] = []
        is_saved = self.log_end_offset in loaded.snapshots
        self._saved_bytes = self._active.size if is_saved else 0
        self._jitter_ms = self._new_jitter()

    def __repr__(self) -> str:
        return f"<Log {self.topic_partition} [{self.log_start_offset}, {self.log_end_offset})>"

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments in order of their base offsets; the last one is active."""
        return self._segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def mark_new(self) -> None:
        """The directory was just made: the first flush makes its name durable, too."""
        self._is_new = True
        self._active.name_is_durable = False
        self._unsynced_paths.append(f"{self.directory}/{PARTITION_METADATA}")
        self._reserve_space()

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config
        self._jitter_ms = self._new_jitter()

    def _check_usable(self) -> None:
        if self.dir.failure is not None:
            self.dir.check_online()
        if self.is_closed:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is closed")

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run file work whose failure may take the directory offline."""
        try:
            work()
        except DiskError as error:
            self.dir.fail(error)
            raise

    def _unbroken(self, work: Callable[[], None]) -> None:
        """Run what must not stop half way: memory and files would no longer agree.

        So whatever stops it takes the directory offline, a defect of ours included; the next start
        goes by the files.
        """
        try:
            work()
        except Exception as error:
            if not isinstance(error, DiskError):
                log.exception("a change of %s broke off", self.directory)
            why = error.message if isinstance(error, DiskError) else repr(error)
            torn = DiskFailedError(f"{self.directory} was left half changed: {why}")
            self.dir.fail(torn)
            raise torn from error

    def _doom(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Rename the files of segments that the log lets go of; they are removed some time later,
        when nobody reads them any more. The caller holds `renaming`."""
        due_ms = now_ms + self.config.file_delete_delay_ms
        for segment in segments:
            self._deletions += 1
            segment.mark_deleted(self._deletions)
            self.doomed.append((due_ms, segment))

    # Rolling

    def _must_roll(self, segment: Segment, size: int, last_offset: int, max_timestamp: int) -> bool:
        config = self.config
        if segment.size + size > config.segment_bytes:
            return True
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            return True  # Offsets in the indexes are 32-bit distances from the base (rule E9).
        if self._is_too_old(segment, max_timestamp):
            return True
        entries_max = config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        if segment.size < entries_max * config.index_interval_bytes:
            return False
        return segment.index_is_full(config.segment_index_bytes)

    def _is_too_old(self, segment: Segment, max_timestamp: int) -> bool:
        limit_ms = self.config.roll_ms - self._jitter_ms
        first = segment.first_timestamp
        if first is None:
            first = segment.rolling_timestamp()
        if first >= 0 and max_timestamp >= 0:
            return max_timestamp - first > limit_ms
        return self._clock.now_ms() - segment.created_ms > limit_ms

    def _new_jitter(self) -> int:
        """Spread the rolls of many partitions over time."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._random.randrange(jitter_ms) if jitter_ms > 0 else 0

    def roll(self) -> None:
        """Close the active segment and begin a new one at the log's end."""
        self._check_usable()
        if self._active.size:
            self._guarded(lambda: self._roll(self.log_end_offset))

    def _roll(self, offset: int) -> None:
        """Go on in a new segment from `offset` on; up to there the log has nothing any more."""
        self._active.seal()
        self._unsynced_paths += self._active.index_paths()
        self._write_snapshot(offset, format_snapshot(self.producers.active()))
        segment = Segment(
            self._files, self.directory, offset, size=-1, created_ms=self._clock.now_ms()
        )
        if self.config.preallocate:
            # What the old segment did not use goes back, and the new one gets all it may need.
            self._files.truncate(self._active.log_path, self._active.size)
        try:
            segment.create()
        except DiskError:
            # The old one may go on growing: no start must find its successor there already.
            self._unbroken(lambda: self._take_back(segment))
            raise
        self._segments.append(segment)
        self._bases.append(offset)
        self.log_end_offset = offset
        self._reserve_space()
        self._saved_bytes = 0
        self._jitter_ms = self._new_jitter()
        if self.on_rolled is not None:
            self.on_rolled()

    def _take_back(self, segment: Segment) -> None:
        self._files.unlink(segment.log_path)
        self._files.fsync_dir(self.directory)

    def _reserve_space(self) -> None:
        if self.config.preallocate:
            self._files.reserve(self._active.log_path, self.config.segment_bytes)

    def _write_snapshot(self, offset: int, data: bytes) -> None:
        """Save the producers' state; the next flush makes it durable."""
        path = snapshot_path(self.directory, offset)
        temporary = path + ".tmp"
        self._files.unlink(temporary)
        self._files.write_at(temporary, 0, (data,))
        self._files.replace(temporary, path)
        self._snapshots.add(offset)
        self._unsynced_paths.append(path)

    def _forget_snapshots(self, stale: set[int]) -> None:
        for offset in stale:
            self._files.unlink(snapshot_path(self.directory, offset))
        self._snapshots -= stale
