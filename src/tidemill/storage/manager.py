"""All logs of a broker: opening them at start, making and deleting them, and the housekeeping.

One `LogManager` owns several log directories; a failed one does not stop the others. Whoever runs
the broker calls `start`, then now and then `flush_overdue` and `remove_doomed` (each second),
`write_checkpoints` (each few seconds) and `run_retention`, and `shutdown` at the end.

Files it does not know are left alone. So are directories that have the name of a partition but no
`partition.metadata`, until a topic asks for that very partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.executor import Executor
from tidemill.logs import Sparingly
from tidemill.storage import checkpoint, recovery
from tidemill.storage.bulk_sync import Unsynced, sync_logs
from tidemill.storage.checkpoint import DirIdentity
from tidemill.storage.checkpoint_writer import CheckpointWriter
from tidemill.storage.disk_errors import DirOfflineError, DiskError, DiskFailedError
from tidemill.storage.files import FileLock, Files, make_dir
from tidemill.storage.flusher import Flusher
from tidemill.storage.log import Log
from tidemill.storage.log_config import FOREVER_MS, LogConfig
from tidemill.storage.log_dir import RESERVE_BYTES, LogDir
from tidemill.storage.scan import LegacyLogError
from tidemill.storage.segment import Segment
from tidemill.types import ZERO_TOPIC_ID, TopicId, TopicPartition

_log = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
"""Kafka's endings for directories of deleted partitions, and of those that nobody knows."""
FILE_NAME_BYTES_MAX = 255
UNFLUSHED_BYTES_MAX = 64 << 20
"""More than this is flushed in the background under any policy: it bounds a recovery."""
UNSAVED_BYTES_MAX = 1 << 20
SAVES_PER_CHECKPOINT_MAX = 64
RETENTION_STEP_LOGS = 100

HighWatermarks = Mapping[TopicPartition, int]


class DirInUseError(TidemillError):
    """Another process has locked the log directory, or it belongs to another broker."""


@dataclass(frozen=True, slots=True)
class DirDescription:
    """What DescribeLogDirs tells about one directory."""

    path: str
    error: DiskError | None
    total_bytes: int
    usable_bytes: int
    log_sizes: Mapping[TopicPartition, int]


@dataclass(slots=True)
class _Place:
    """A log directory with what belongs to it alone."""

    dir: LogDir
    flusher: Flusher
    lock: FileLock | None = None
    checkpoints: CheckpointWriter | None = None
    log_count: int = 0
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)


class LogManager:
    """The logs of all partitions on this broker."""

    def __init__(
        self,
        dirs: Sequence[str],
        *,
        files: Files,
        clock: Clock,
        random: Random,
        executor: Executor,
        config_for: Callable[[TopicPartition], LogConfig] | None = None,
        cluster_id: str = "",
        node_id: int = 0,
        flush_executor: Callable[[str], Executor] | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        producer_expiration_ms: int = 86_400_000,
        on_dir_failure: Callable[[str, list[TopicPartition]], None] | None = None,
    ) -> None:
        """`flush_executor(path)` gives each directory its own threads for fdatasync."""
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
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._doomed_dirs: list[tuple[int, str]] = []
        self._unclaimed: dict[TopicPartition, _Place] = {}
        """Directories that have a partition's name and do not say whose they are."""
        self._places: dict[str, _Place] = {}
        for path in dirs:
            log_dir = LogDir(
                path,
                files,
                complaints=Sparingly(clock),
                reserve_bytes=reserve_bytes,
                on_failure=self._on_dir_failure,
            )
            flusher = Flusher(flush_executor(path) if flush_executor else executor)
            self._places[path] = _Place(log_dir, flusher)

    # Starting

    def start(self) -> None:
        """Lock the directories and open every log in them; blocks until all are ready."""
        epochs: list[int | None] = []
        for place in self._places.values():
            try:
                epochs.append(self._open_place(place))
            except DiskError as error:
                place.dir.fail(error)
        if all(place.dir.is_offline for place in self._places.values()):
            reasons = "; ".join(str(place.dir.failure) for place in self._places.values())
            raise DiskFailedError(f"No log directory can be used: {reasons}")
        known = {epoch for epoch in epochs if epoch is not None}
        if len(known) == 1 and len(epochs) == len(self._places) and None not in epochs:
            self.previous_broker_epoch = known.pop()

    def _open_place(self, place: _Place) -> int | None:
        """Open one directory; the broker epoch of its clean stop, None after a crash."""
        path = place.dir.path
        make_dir(self._files, path)
        place.lock = self._files.lock(f"{path}/{checkpoint.LOCK_FILE}")
        if place.lock is None:
            raise DirInUseError(
                f"{path} is in use by another process; stop it, or choose another log directory"
            )
        self._check_identity(place)
        place.checkpoints = CheckpointWriter(self._files, path)
        broker_epoch = checkpoint.take_clean_shutdown(self._files, path)
        place.recovery_points = checkpoint.read_offsets(
            self._files, path, checkpoint.RECOVERY_POINTS
        )
        place.log_starts = checkpoint.read_offsets(self._files, path, checkpoint.LOG_STARTS)
        self._high_watermarks |= checkpoint.read_offsets(
            self._files, path, checkpoint.HIGH_WATERMARKS
        )
        unsynced = [
            self._open_name(place, name, was_clean=broker_epoch is not None)
            for name in sorted(self._files.listdir(path))
        ]
        sync_logs(self._files, path, [one for one in unsynced if one is not None])
        if broker_epoch is None:
            self._write_recovery_points(place)
        return broker_epoch

    def _check_identity(self, place: _Place) -> None:
        path = place.dir.path
        identity = checkpoint.read_identity(self._files, path)
        if identity is None:
            directory_id = UUID(int=self._random.getrandbits(128), version=4)
            identity = DirIdentity(self._cluster_id, self._node_id, directory_id)
            checkpoint.write_identity(self._files, path, identity)
        if self._cluster_id and identity.cluster_id != self._cluster_id:
            raise DirInUseError(
                f"{path} belongs to cluster {identity.cluster_id}, this broker to "
                f"{self._cluster_id}; use another log directory, or the right cluster"
            )
        if identity.node_id != self._node_id:
            raise DirInUseError(
                f"{path} belongs to node {identity.node_id}, this broker is {self._node_id}"
            )
        place.dir.directory_id = identity.directory_id

    def _open_name(self, place: _Place, name: str, *, was_clean: bool) -> Unsynced | None:
        """Open the log that a directory of this name holds, if it does hold one."""
        directory = f"{place.dir.path}/{name}"
        if name.endswith(DELETE_SUFFIX) and self._files.is_dir(directory):
            self._doomed_dirs.append((self._clock.now_ms(), directory))
            return None
        topic_partition = parse_directory_name(name)
        if topic_partition is None or not self._files.is_dir(directory):
            return None
        if not self._files.exists(f"{directory}/{checkpoint.PARTITION_METADATA}"):
            _log.warning("%s has no partition.metadata: it is left alone", directory)
            self._unclaimed[topic_partition] = place
            return None
        if topic_partition in self.logs:
            other = self.logs[topic_partition].directory
            raise DirInUseError(f"{directory} and {other} both hold {topic_partition}")
        try:
            loaded = self._load(place, topic_partition, directory, was_clean=was_clean)
        except LegacyLogError as error:
            self.failed[topic_partition] = error
            return None
        self._adopt(place, self._log_of(place, topic_partition, directory, loaded))
        return loaded.unsynced

    def _load(
        self, place: _Place, topic_partition: TopicPartition, directory: str, *, was_clean: bool
    ) -> recovery.Loaded:
        config = self._config_for(topic_partition)
        options = recovery.OpenOptions(
            was_clean=was_clean,
            recovery_point=place.recovery_points.get(topic_partition, 0),
            log_start_offset=place.log_starts.get(topic_partition, 0),
            allows_gaps=config.cleanup_compact,
            index_interval_bytes=config.index_interval_bytes,
            now_ms=self._clock.now_ms(),
        )
        return recovery.load(self._files, directory, options)

    def _log_of(
        self,
        place: _Place,
        topic_partition: TopicPartition,
        directory: str,
        loaded: recovery.Loaded,
    ) -> Log:
        return Log(
            place.dir,
            self._files,
            self._clock,
            self._random,
            topic_partition=topic_partition,
            topic_id=checkpoint.read_partition_metadata(self._files, directory) or ZERO_TOPIC_ID,
            config=self._config_for(topic_partition),
            directory=directory,
            loaded=loaded,
        )

    def _adopt(self, place: _Place, log: Log) -> None:
        log.on_rolled = place.flusher.request
        log.on_recovery_point_lowered = lambda _: self._write_recovery_points(place)
        self.logs[log.topic_partition] = log
        place.log_count += 1

    # Partitions come and go

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self.logs.get(topic_partition)

    def flusher_of(self, log: Log) -> Flusher:
        return self._places[log.dir.path].flusher

    def request_flush(
        self, log: Log, on_flushed: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """Make what the log holds now durable; `on_flushed(error or None)` comes after."""
        self._places[log.dir.path].flusher.request(log, on_flushed)

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark that the last checkpoint noted; 0 if none (rule B7)."""
        return self._high_watermarks.get(topic_partition, 0)

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log:
        """The partition's log, made in the directory with the fewest if it is not there yet.

        Nothing is flushed here: the first flush makes the new names durable together with data.
        An existing log of another topic id is the caller's to judge (rule A11).
        """
        existing = self.logs.get(topic_partition)
        if existing is not None:
            self._give_identity(existing, topic_id)
            existing.reconfigure(config)
            return existing
        if topic_partition in self.failed:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failed[topic_partition]))
        place = self._unclaimed.get(topic_partition) or self._emptiest()
        try:
            log = self._create_in(place, topic_partition, topic_id, config)
            self._unclaimed.pop(topic_partition, None)
            return log
        except DiskError as error:
            place.dir.fail(error)
            raise

    def _create_in(
        self, place: _Place, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig
    ) -> Log:
        place.dir.charge(0)
        if place.recovery_points.pop(topic_partition, 0) or place.log_starts.pop(
            topic_partition, 0
        ):
            # A deleted topic of the same name left its offsets: they must not be believed again.
            self._write_recovery_points(place)
        self._high_watermarks.pop(topic_partition, None)
        directory = f"{place.dir.path}/{topic_partition}"
        if self._files.exists(directory):
            loaded = self._claim(place, topic_partition, topic_id, directory)
        else:
            loaded = self._make(place, topic_partition, topic_id, directory)
        log = self._log_of(place, topic_partition, directory, loaded)
        log.reconfigure(config)
        log.topic_id = topic_id
        log.mark_new()
        self._adopt(place, log)
        return log

    def _make(
        self, place: _Place, topic_partition: TopicPartition, topic_id: TopicId, directory: str
    ) -> recovery.Loaded:
        """A directory with an empty log in it, or none at all."""
        self._files.mkdir(directory)
        try:
            self._write_identity(directory, topic_id)
            return self._load(place, topic_partition, directory, was_clean=True)
        except DiskError:
            with suppress(DiskError):
                self._remove_dir(directory)
            raise

    def _claim(
        self, place: _Place, topic_partition: TopicPartition, topic_id: TopicId, directory: str
    ) -> recovery.Loaded:
        """Take a directory whose identity a crash took away, but not somebody else's."""
        strange = [name for name in self._files.listdir(directory) if not recovery.is_ours(name)]
        if strange:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{directory} holds files that are not a log's ({strange[0]!r}); move it away",
            )
        try:
            loaded = self._load(place, topic_partition, directory, was_clean=False)
        except LegacyLogError as error:
            self.failed[topic_partition] = error
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._write_identity(directory, topic_id)
        sync_logs(self._files, place.dir.path, [loaded.unsynced])
        return loaded

    def _write_identity(self, directory: str, topic_id: TopicId) -> None:
        data = checkpoint.format_partition_metadata(topic_id)
        self._files.write_at(f"{directory}/{checkpoint.PARTITION_METADATA}", 0, (data,))

    def _give_identity(self, log: Log, topic_id: TopicId) -> None:
        """A directory that does not say whose it is becomes this topic's."""
        if log.topic_id == ZERO_TOPIC_ID and topic_id != ZERO_TOPIC_ID:
            checkpoint.write_partition_metadata(self._files, log.directory, topic_id)
            log.topic_id = topic_id

    def _emptiest(self) -> _Place:
        online = [place for place in self._places.values() if not place.dir.is_offline]
        if not online:
            raise DirOfflineError("every log directory is offline")
        return min(online, key=lambda place: place.log_count)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Forget the partition at once; its files go later, in the background."""
        log = self._forget(topic_partition)
        if log is None or log.dir.is_offline:
            return
        doomed = self._rename(log, DELETE_SUFFIX)
        due_ms = self._clock.now_ms() + log.config.file_delete_delay_ms
        self._doomed_dirs.append((due_ms, doomed))

    def set_aside(self, topic_partition: TopicPartition) -> str | None:
        """Keep the files of a log that belongs to nobody here under a name that says so."""
        log = self._forget(topic_partition)
        if log is None or log.dir.is_offline:
            return None
        return self._rename(log, STRAY_SUFFIX)

    def _forget(self, topic_partition: TopicPartition) -> Log | None:
        log = self.logs.pop(topic_partition, None)
        if log is not None:
            self._places[log.dir.path].log_count -= 1
            log.abandon()
            self._high_watermarks.pop(topic_partition, None)
        return log

    def _rename(self, log: Log, suffix: str) -> str:
        """Give the log's directory a name that no partition has; the new path."""
        unique = UUID(int=self._random.getrandbits(128), version=4).hex
        ending = f".{unique}{suffix}"
        name = str(log.topic_partition)[: FILE_NAME_BYTES_MAX - len(ending)] + ending
        path = f"{log.dir.path}/{name}"
        try:
            self._files.replace(log.directory, path)
        except DiskError as error:
            log.dir.fail(error)
            raise
        return path

    # Housekeeping

    def flush_overdue(self) -> None:
        """Request a flush for the logs whose `flush.ms` has passed."""
        now_ms = self._clock.monotonic_ms()
        for log in self.logs.values():
            if log.config.flush_ms == FOREVER_MS or log.flushed_offset == log.log_end_offset:
                continue
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                self.request_flush(log)

    def run_retention(self, high_watermarks: HighWatermarks) -> int:
        """Delete what retention no longer keeps, in all logs; how many segments."""
        return sum(self.retention_steps(high_watermarks))

    def retention_steps(self, high_watermarks: HighWatermarks) -> Iterator[int]:
        """As `run_retention`, some logs at a time, so that the loop can serve in between."""
        self.remove_doomed()
        logs = list(self.logs.values())
        for start in range(0, len(logs), RETENTION_STEP_LOGS):
            count = 0
            for log in logs[start : start + RETENTION_STEP_LOGS]:
                if not log.is_closed and not log.dir.is_offline:
                    count += self._retain(log, high_watermarks)
            yield count

    def _retain(self, log: Log, high_watermarks: HighWatermarks) -> int:
        now_ms = self._clock.now_ms()
        log.expire_producers(now_ms, self.producer_expiration_ms)
        log.release_memory()
        high_watermark = high_watermarks.get(log.topic_partition, log.log_start_offset)
        try:
            return log.delete_old_segments(now_ms, high_watermark)
        except DiskError:
            return 0  # The log has told its directory; the next run tries again if it may.

    def remove_doomed(self) -> None:
        """Hand deleted files whose `file.delete.delay.ms` has passed to the executor."""
        now_ms = self._clock.now_ms()
        segments: list[Segment] = []
        for log in self.logs.values():
            if log.doomed:
                segments += log.take_doomed(now_ms)
        dirs = [path for due_ms, path in self._doomed_dirs if due_ms <= now_ms]
        self._doomed_dirs = [(due, path) for due, path in self._doomed_dirs if due > now_ms]
        if segments or dirs:
            self._executor.submit(lambda: self._remove_files(segments, dirs), _ignore)

    def _remove_files(self, segments: list[Segment], dirs: list[str]) -> None:
        for segment in segments:
            segment.delete_files()
        for path in dirs:
            self._remove_dir(path)

    def _remove_dir(self, path: str) -> None:
        for name in self._files.listdir(path):
            self._files.unlink(f"{path}/{name}")
        self._files.rmdir(path)

    def write_checkpoints(
        self, high_watermarks: HighWatermarks, then: Callable[[], None] | None = None
    ) -> None:
        """Note recovery points, log starts and high watermarks, off the loop (rule B7)."""
        self._note_high_watermarks(high_watermarks)
        self._bound_recovery()
        for place in self._places.values():
            if place.dir.is_offline or place.checkpoints is None:
                continue
            place.dir.forget_allowance()
            work = place.checkpoints.prepare(self._checkpoint_offsets(place))
            self._executor.submit(work, self._checkpoint_done(place, then))

    def _checkpoint_done(
        self, place: _Place, then: Callable[[], None] | None
    ) -> Callable[[None, BaseException | None], None]:
        def done(_: None, error: BaseException | None) -> None:
            if isinstance(error, DiskError):
                place.dir.fail(error)
            if then is not None:
                then()

        return done

    def _note_high_watermarks(self, high_watermarks: HighWatermarks) -> None:
        """Partitions that nobody leads right now keep what they had."""
        if high_watermarks.keys() <= self.logs.keys():
            self._high_watermarks.update(high_watermarks)
            return
        for topic_partition, offset in high_watermarks.items():
            if topic_partition in self.logs:
                self._high_watermarks[topic_partition] = offset

    def _checkpoint_offsets(self, place: _Place) -> dict[str, dict[TopicPartition, int]]:
        """What each checkpoint file is to say, captured in one go: this runs on the loop."""
        recovery_points: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        watermarks: dict[TopicPartition, int] = {}
        watermark_of, here = self._high_watermarks.get, place.dir
        for topic_partition, log in self.logs.items():
            if log.dir is not here:
                continue
            recovery_points[topic_partition] = log.flushed_offset
            watermarks[topic_partition] = watermark_of(topic_partition, 0)
            if log.log_start_offset and log.log_start_offset > log.segments[0].base_offset:
                starts[topic_partition] = log.log_start_offset
        place.recovery_points, place.log_starts = dict(recovery_points), dict(starts)
        return {
            checkpoint.RECOVERY_POINTS: recovery_points,
            checkpoint.LOG_STARTS: starts,
            checkpoint.HIGH_WATERMARKS: watermarks,
        }

    def _write_recovery_points(self, place: _Place) -> None:
        """Write the checkpoints now: an offset that went down must not be believed any more."""
        if place.checkpoints is not None:
            place.checkpoints.prepare(self._checkpoint_offsets(place))()

    def _bound_recovery(self) -> None:
        """Keep the tail that a crash would make us read short, whatever the flush policy."""
        growing: list[tuple[int, Log]] = []
        for log in self.logs.values():
            if log.dir.is_offline:
                continue
            if log.unsaved_bytes > UNSAVED_BYTES_MAX:
                growing.append((log.unsaved_bytes, log))
        growing.sort(key=lambda pair: -pair[0])
        for size, log in growing[:SAVES_PER_CHECKPOINT_MAX]:
            if log.config.flush_policy == "ack" or size > UNFLUSHED_BYTES_MAX:
                self._save(log)

    def _save(self, log: Log) -> None:
        finish = log.begin_save()

        def flushed(error: BaseException | None) -> None:
            if error is None:
                # Without it recovery has more to read, no more: the next checkpoint tries again.
                with suppress(DiskError):
                    finish()

        self.request_flush(log, flushed)

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

    def _describe(self, place: _Place) -> DirDescription:
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

    # Stopping

    def shutdown(self, high_watermarks: HighWatermarks, *, broker_epoch: int = -1) -> None:
        """Flush and close everything; the clean-shutdown marker is the very last (rule E3)."""
        self._note_high_watermarks(high_watermarks)
        for place in self._places.values():
            try:
                self._close_place(place, broker_epoch)
            except DiskError as error:
                place.dir.fail(error)
            if place.lock is not None:
                place.lock.release()
                place.lock = None

    def _close_place(self, place: _Place, broker_epoch: int) -> None:
        logs = [log for log in self.logs.values() if log.dir is place.dir and not log.is_closed]
        if not place.dir.is_offline:
            sync_logs(self._files, place.dir.path, [log.write_down() for log in logs])
        for log in logs:
            log.finish_close()
        if place.dir.is_offline or place.checkpoints is None:
            return
        self._write_recovery_points(place)
        checkpoint.write_clean_shutdown(self._files, place.dir.path, broker_epoch)


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose log a directory of this name holds; None for anything else."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isdigit() or name == "__cluster_metadata-0":
        return None
    return TopicPartition(topic, int(number))


def _ignore(_: object, error: BaseException | None) -> None:
    """A file that could not be removed is tried again after the next start."""
