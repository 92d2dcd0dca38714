"""What every part of the log manager leans on: the logs, their directories, their checkpoints.

`LogManager` (manager.py) opens, makes and deletes logs; `manager_upkeep.py` does the housekeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.executor import Executor
from tidemill.logs import Sparingly
from tidemill.storage import checkpoint
from tidemill.storage.damage import Damage
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.files import Files
from tidemill.storage.flusher import Flusher
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.log_dir import RESERVE_BYTES, LogDir
from tidemill.storage.log_place import DirDescription, Place
from tidemill.storage.sealer import Sealer
from tidemill.types import TopicId, TopicPartition

HighWatermarks = Mapping[TopicPartition, int]


class ManagedLogs:
    """The logs of a broker by partition, and the directories they lie in."""

    def __init__(
        self,
        dirs: Sequence[str],
        *,
        files: Files,
        clock: Clock,
        random: Random,
        executor: Executor,
        config_for: Callable[[TopicPartition], LogConfig] | None = None,
        expected: Mapping[TopicPartition, TopicId] | None = None,
        cluster_id: str = "",
        node_id: int = 0,
        flush_executor: Callable[[str], Executor] | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        producer_expiration_ms: int = 86_400_000,
        on_dir_failure: Callable[[str, list[TopicPartition]], None] | None = None,
    ) -> None:
        """`flush_executor(path)` gives each directory its own threads for fdatasync.

        `expected` are the partitions that should be found. One that is not, while a directory
        cannot be opened, is not made anew: its records are there, and nowhere else perhaps.
        """
        self.logs: dict[TopicPartition, Log] = {}
        self.failed: dict[TopicPartition, TidemillError] = {}
        """Partitions whose directory is there but cannot be served, and why."""
        self.previous_broker_epoch = -1
        """The broker epoch of the last clean stop; -1 after a crash (rule F3)."""
        self.on_dir_failure = on_dir_failure
        self.producer_expiration_ms = producer_expiration_ms
        self._files = files
        self._clock = clock
        self._random = random
        self._executor = executor
        self._config_for = config_for or (lambda _: LogConfig())
        self._expected = expected or {}
        self._missed: Mapping[TopicPartition, TopicId] = {}
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._doomed_dirs: list[tuple[int, str]] = []
        self._moved: list[tuple[Place, str]] = []
        """Copies that were complete when the broker died, by their partition's name."""
        self._futures: list[tuple[Place, str]] = []
        """Copies that were not, by the name of their directory."""
        self.interrupted_moves: dict[TopicPartition, tuple[str, str]] = {}
        """Moves that were under way when the broker stopped: to which log directory, and where in
        it the copy is. Whoever takes one on removes it here."""
        self._unclaimed: dict[TopicPartition, Place] = {}
        """Directories that have a partition's name and do not say whose they are."""
        self._places: dict[str, Place] = {}
        for path in dirs:
            log_dir = LogDir(
                path,
                files,
                complaints=Sparingly(clock),
                reserve_bytes=reserve_bytes,
                on_failure=self._on_dir_failure,
            )
            flusher = Flusher(flush_executor(path) if flush_executor else executor)
            self._places[path] = Place(log_dir, flusher)
        self.sealer = Sealer(files, executor, self.request_flush)

    @property
    def files(self) -> Files:
        return self._files

    # Logs

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self.logs.get(topic_partition)

    def flusher_of(self, log: Log) -> Flusher:
        return self._places[log.dir.path].flusher

    def request_flush(
        self, log: Log, on_flushed: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """Make what the log holds now durable; `on_flushed(error or None)` comes after."""
        self._places[log.dir.path].flusher.request(log, on_flushed)

    def _rolled(self, log: Log) -> None:
        """A segment was closed: make it durable, and then write down what its bytes are."""
        closed = log.segments[-2]

        def flushed(error: BaseException | None) -> None:
            if error is None:
                self.sealer.seal(log, closed)

        self.request_flush(log, flushed)

    @property
    def damaged(self) -> dict[TopicPartition, list[Damage]]:
        """The partitions of which the scrub found bytes that are wrong, and which (rule E2)."""
        return {log.topic_partition: log.damage for log in self.logs.values() if log.damage}

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark that the last checkpoint noted; 0 if none (rule B7)."""
        return self._high_watermarks.get(topic_partition, 0)

    # Checkpoints

    def _note_high_watermarks(self, high_watermarks: HighWatermarks) -> None:
        """Partitions that nobody leads right now keep what they had."""
        if high_watermarks.keys() <= self.logs.keys():
            self._high_watermarks.update(high_watermarks)
            return
        for topic_partition, offset in high_watermarks.items():
            if topic_partition in self.logs:
                self._high_watermarks[topic_partition] = offset

    def _checkpoint_offsets(self, place: Place) -> dict[str, dict[TopicPartition, int]]:
        """What each checkpoint file is to say, captured in one go: this runs on the loop."""
        recovery_points: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        watermarks: dict[TopicPartition, int] = {}
        watermark_of, here = self._high_watermarks.get, place.dir
        for topic_partition, (start, end) in place.copies.items():
            recovery_points[topic_partition] = end
            watermarks[topic_partition] = watermark_of(topic_partition, 0)
            if start:
                starts[topic_partition] = start
        for topic_partition, log in self.logs.items():
            if log.dir is not here:
                continue
            recovery_points[topic_partition] = log.flushed_offset
            watermarks[topic_partition] = watermark_of(topic_partition, 0)
            if log.log_start_offset:
                # Also where a segment begins: those before it may come back with a power cut.
                starts[topic_partition] = log.log_start_offset
        place.recovery_points, place.log_starts = dict(recovery_points), dict(starts)
        return {
            checkpoint.RECOVERY_POINTS: recovery_points,
            checkpoint.LOG_STARTS: starts,
            checkpoint.HIGH_WATERMARKS: watermarks,
        }

    def _write_recovery_points(self, place: Place) -> None:
        """Write the checkpoints now: an offset that went down must not be believed any more."""
        if place.checkpoints is not None:
            place.checkpoints.prepare(self._checkpoint_offsets(place))()

    def cleaned_offset(self, log: Log) -> int | None:
        """Where the last compaction of the log ended; None if there was none."""
        return self._places[log.dir.path].cleaned.get(log.topic_partition)

    def note_cleaned(self, log: Log, offset: int) -> Callable[[], None]:
        """Remember how far the log is compacted; the result writes it down, in any thread."""
        place = self._places[log.dir.path]
        place.cleaned[log.topic_partition] = offset
        return self._cleaner_checkpoint(place)

    def _cleaner_checkpoint(self, place: Place) -> Callable[[], None]:
        known = {tp: offset for tp, offset in place.cleaned.items() if tp in self.logs}
        assert place.cleaner_checkpoint is not None  # The directory was opened.
        return place.cleaner_checkpoint.prepare({checkpoint.CLEANER_OFFSETS: known})

    def _forget_cleaned(self, place: Place, topic_partition: TopicPartition) -> None:
        """What was compacted here under this name was another log."""
        offset = place.cleaned.pop(topic_partition, None)
        if offset is None:
            return
        try:
            self._cleaner_checkpoint(place)()
        except DiskError:
            place.cleaned[topic_partition] = offset  # The file still says so: try again next time.
            raise

    def prepare_recovery_point(self, log: Log, offset: int) -> Callable[[], None] | None:
        """The work of noting that the log is durable up to `offset`; None if that is known."""
        place = self._places[log.dir.path]
        if place.checkpoints is None:
            return None
        # Not what was captured last: that may not have been written yet, or not at all.
        noted = place.checkpoints.on_disk(checkpoint.RECOVERY_POINTS)
        if noted.get(log.topic_partition, 0) >= offset:
            return None
        return place.checkpoints.prepare(self._checkpoint_offsets(place))

    def _recovery_point_lowered(self, place: Place, log: Log) -> None:
        """A truncation must be known before anything is appended after it."""
        self._write_recovery_points(place)
        if place.cleaned.get(log.topic_partition, 0) > log.log_end_offset:
            self.note_cleaned(log, log.log_end_offset)()

    # Directories

    @property
    def offline_dirs(self) -> list[str]:
        return [path for path, place in self._places.items() if place.dir.is_offline]

    @property
    def dirs(self) -> list[LogDir]:
        return [place.dir for place in self._places.values()]

    def _on_dir_failure(self, log_dir: LogDir, error: DiskError) -> None:
        lost = [log.topic_partition for log in self.logs.values() if log.dir is log_dir]
        if self.on_dir_failure is not None:
            self.on_dir_failure(log_dir.path, lost)

    def describe_dirs(self) -> list[DirDescription]:
        return [self._describe(place) for place in self._places.values()]

    def _describe(self, place: Place) -> DirDescription:
        sizes = {
            log.topic_partition: log.size_bytes
            for log in self.logs.values()
            if log.dir is place.dir
        }
        if place.dir.failure is not None:
            return DirDescription(place.dir.path, place.dir.failure, -1, -1, sizes)
        try:
            space = place.dir.space()
        except DiskError as error:
            return DirDescription(place.dir.path, error, -1, -1, sizes)
        return DirDescription(place.dir.path, None, space.total_bytes, space.free_bytes, sizes)
