"""All logs of a broker: opening them at start, making and deleting them, and the housekeeping.

One `LogManager` owns several log directories; a failed one does not stop the others. Whoever runs
the broker calls `start`, then now and then `flush_overdue` and `remove_doomed` (each second),
`write_checkpoints` (each few seconds) and `run_retention`, and `shutdown` at the end.

Files it does not know are left alone. So are directories that have the name of a partition but no
`partition.metadata`, until a topic asks for that very partition.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from uuid import UUID

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage import checkpoint, recovery
from tidemill.storage.bulk_sync import Unsynced, sync_logs
from tidemill.storage.disk_errors import DirOfflineError, DiskError, DiskFailedError
from tidemill.storage.files import make_dir
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.log_dir import LogDir
from tidemill.storage.log_place import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    MOVED_SUFFIX,
    STRAY_SUFFIX,
    DirDescription,
    DirInUseError,
    Place,
    check_identity,
    parse_directory_name,
)
from tidemill.storage.manager_base import HighWatermarks
from tidemill.storage.manager_opening import LogOpening
from tidemill.storage.scan import LegacyLogError
from tidemill.types import ZERO_TOPIC_ID, TopicId, TopicPartition

_log = logging.getLogger(__name__)


FILE_NAME_BYTES_MAX = 255

__all__ = [
    "DirDescription",
    "DirInUseError",
    "HighWatermarks",
    "LogManager",
    "parse_directory_name",
]


class LogManager(LogOpening):
    """The logs of all partitions on this broker."""

    # Starting

    def start(self) -> None:
        """Lock the directories and open every log in them; blocks until all are ready."""
        epochs: list[int | None] = []
        for place in self._places.values():
            with self._opening(place):
                epochs.append(self._open_place(place))
        self._settle_moves()
        for place in self._places.values():
            if not place.dir.is_offline:
                with self._opening(place):
                    self._settle_checkpoints(place)
        self._find_interrupted_moves()
        if all(place.dir.is_offline for place in self._places.values()):
            reasons = "; ".join(str(place.dir.failure) for place in self._places.values())
            raise DiskFailedError(f"No log directory can be used: {reasons}")
        if self.offline_dirs:
            self._missed = {
                topic_partition: topic_id
                for topic_partition, topic_id in self._expected.items()
                if not self._is_here(topic_partition, topic_id)
            }
        known = {epoch for epoch in epochs if epoch is not None}
        if len(known) == 1 and len(epochs) == len(self._places) and None not in epochs:
            self.previous_broker_epoch = known.pop()

    def _is_here(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Whether its log was found; one of a deleted topic of the same name is not it (A11)."""
        log = self.logs.get(topic_partition)
        return log is not None and log.topic_id in (ZERO_TOPIC_ID, topic_id)

    def _open_place(self, place: Place) -> int | None:
        """Open one directory; the broker epoch of its clean stop, None after a crash."""
        path = place.dir.path
        make_dir(self._files, path)
        place.lock = self._files.lock(f"{path}/{checkpoint.LOCK_FILE}")
        if place.lock is None:
            raise DirInUseError(
                f"{path} is in use by another process; stop it, or choose another log directory"
            )
        check_identity(self._files, self._random, place, self._cluster_id, self._node_id)
        broker_epoch = checkpoint.take_clean_shutdown(self._files, path)
        self._read_checkpoints(place)
        unsynced = [
            self._open_name(place, name, was_clean=broker_epoch is not None)
            for name in sorted(self._files.listdir(path))
        ]
        sync_logs(self._files, path, [one for one in unsynced if one is not None])
        return broker_epoch

    def _open_name(self, place: Place, name: str, *, was_clean: bool) -> Unsynced | None:
        """Open the log that a directory of this name holds, if it does hold one."""
        directory = f"{place.dir.path}/{name}"
        if name.endswith(DELETE_SUFFIX) and self._files.is_dir(directory):
            self._doomed_dirs.append((self._clock.now_ms(), directory))
            return None
        if name.endswith(FUTURE_SUFFIX) and self._files.is_dir(directory):
            self._futures.append((place, name))
            return None
        if name.endswith(MOVED_SUFFIX) and self._files.is_dir(directory):
            self._moved.append((place, name.removesuffix(MOVED_SUFFIX)))
            return None
        topic_partition = parse_directory_name(name)
        if topic_partition is None or not self._files.is_dir(directory):
            return None
        if not self._files.exists(f"{directory}/{checkpoint.PARTITION_METADATA}"):
            _log.warning("%s has no partition.metadata: it is left alone", directory)
            self._unclaimed[topic_partition] = place
            return None
        if topic_partition in self.logs and self._is_stray(place, topic_partition, directory):
            return None
        try:
            loaded = self._load(place, topic_partition, directory, was_clean=was_clean)
        except LegacyLogError as error:
            self.failed[topic_partition] = error
            return None
        self._adopt(place, self._log_of(place, topic_partition, directory, loaded))
        return loaded.unsynced

    def _is_stray(self, place: Place, topic_partition: TopicPartition, directory: str) -> bool:
        """Whether this second directory of a partition is of a deleted topic, and was kept aside.

        Such a log is left on a disk that was offline when its topic was deleted and made again. At
        most one of two topics is there now: the other's log gets out of its way (rule A11).
        """
        other = self.logs[topic_partition]
        topic_id = checkpoint.read_partition_metadata(self._files, directory) or ZERO_TOPIC_ID
        wanted = self._expected.get(topic_partition)
        both = {topic_id, other.topic_id}
        if len(both) == 1 or (ZERO_TOPIC_ID in both and wanted not in both):
            raise DirInUseError(f"{directory} and {other.directory} both hold {topic_partition}")
        if topic_id == wanted:
            with suppress(DiskError):  # Then that other directory has failed, not this one.
                self.set_aside(topic_partition)
            return False
        self._keep_aside(place, topic_partition, directory)
        return True

    # Partitions come and go

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
        if self._missed.get(topic_partition) == topic_id:
            raise DirOfflineError(
                f"{topic_partition} is in none of the log directories that could be opened; "
                f"it may be in one that could not: {', '.join(self.offline_dirs)}"
            )
        place = self._unclaimed.get(topic_partition) or self._emptiest()
        try:
            log = self._create_in(place, topic_partition, topic_id, config)
            self._unclaimed.pop(topic_partition, None)
            return log
        except DiskError as error:
            place.dir.fail(error)
            raise

    def _create_in(
        self, place: Place, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig
    ) -> Log:
        place.dir.check_online()
        place.dir.charge(0)
        self._forget_offsets(place, topic_partition)
        directory = f"{place.dir.path}/{topic_partition}"
        self._make_way(place, topic_partition, topic_id, directory)
        if self._files.exists(directory):
            loaded = self._claim(place, topic_partition, topic_id, directory, config)
        else:
            loaded = self._make(place, topic_partition, topic_id, directory)
        log = self._log_of(place, topic_partition, directory, loaded)
        log.reconfigure(config)
        log.topic_id = topic_id
        log.mark_new()
        self._adopt(place, log)
        return log

    def _forget_offsets(self, place: Place, topic_partition: TopicPartition) -> None:
        """A deleted topic of the same name left its offsets: they must not be believed again."""
        assert place.checkpoints is not None  # The directory was opened.
        was_captured = topic_partition in place.recovery_points
        place.copies.pop(topic_partition, None)
        for known in (place.recovery_points, place.log_starts, self._high_watermarks):
            known.pop(topic_partition, None)
        if was_captured or place.checkpoints.mentions(topic_partition):
            self._write_recovery_points(place)
        self._forget_cleaned(place, topic_partition)

    def _make_way(
        self, place: Place, topic_partition: TopicPartition, topic_id: TopicId, directory: str
    ) -> None:
        """What another topic left here, because it could not be renamed then, is renamed now.

        If it still cannot be, the new log is not made: it is not to get the records (rule A11).
        """
        owner = checkpoint.read_partition_metadata(self._files, directory)
        if owner in (None, ZERO_TOPIC_ID, topic_id):
            return
        self._keep_aside(place, topic_partition, directory)

    def _keep_aside(self, place: Place, topic_partition: TopicPartition, directory: str) -> None:
        kept = f"{place.dir.path}/{self._unique_name(topic_partition, STRAY_SUFFIX)}"
        self._files.replace(directory, kept)
        _log.warning("%s has data of another topic; it is kept in %s", topic_partition, kept)

    def _make(
        self, place: Place, topic_partition: TopicPartition, topic_id: TopicId, directory: str
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
        self,
        place: Place,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        directory: str,
        config: LogConfig,
    ) -> recovery.Loaded:
        """Take a directory whose identity a crash took away, but not somebody else's."""
        strange = [name for name in self._files.listdir(directory) if not recovery.is_ours(name)]
        if strange:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{directory} holds files that are not a log's ({strange[0]!r}); move it away",
            )
        try:
            loaded = self._load(place, topic_partition, directory, was_clean=False, config=config)
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

    def _emptiest(self) -> Place:
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
            _, copy = self.interrupted_moves.pop(topic_partition, ("", ""))
            if copy:
                self.drop_move(copy)  # Whatever gets this name next, the copy is not of it (A11).
        return log

    def _rename(self, log: Log, suffix: str) -> str:
        """Give the log's directory a name that no partition has; the new path."""
        path = f"{log.dir.path}/{self._unique_name(log.topic_partition, suffix)}"
        try:
            self._files.replace(log.directory, path)
        except DiskError as error:
            log.dir.fail(error)
            raise
        return path

    def _unique_name(self, topic_partition: TopicPartition, suffix: str) -> str:
        unique = UUID(int=self._random.getrandbits(128), version=4).hex
        ending = f".{unique}{suffix}"
        return str(topic_partition)[: FILE_NAME_BYTES_MAX - len(ending)] + ending

    # From one directory to another

    def begin_move(self, log: Log, path: str) -> str:
        """Make room for a copy of the log in another directory; where `open_move` finds it.

        From now on a restart knows of the move (`interrupted_moves`).
        """
        place = self._places[path]
        moved_name = f"{log.topic_partition}{MOVED_SUFFIX}"
        if len(moved_name.encode()) > FILE_NAME_BYTES_MAX:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{moved_name} is too long a name")
        place.dir.charge(0)
        directory = f"{path}/{self._unique_name(log.topic_partition, FUTURE_SUFFIX)}"
        self._files.mkdir(directory)
        self._write_identity(directory, log.topic_id)
        return directory

    def open_move(self, log: Log, path: str, directory: str) -> Log:
        """The copy, to be filled and to take the place of the log; it may hold something already.

        It blocks, and touches nothing that others use: it may run in a thread.
        """
        place, topic_partition = self._places[path], log.topic_partition
        loaded = self._load(place, topic_partition, directory, was_clean=False, is_copy=True)
        sync_logs(self._files, path, [loaded.unsynced])
        future = self._log_of(place, topic_partition, directory, loaded)
        future.reconfigure(log.config)
        future.topic_id = log.topic_id
        future.mark_new()
        return future

    def drop_move(self, directory: str) -> None:
        """The log is not moved after all; what was copied goes in the background."""
        doomed = directory.removesuffix(FUTURE_SUFFIX) + DELETE_SUFFIX
        with suppress(DiskError):
            self._files.replace(directory, doomed)
            self._doomed_dirs.append((self._clock.now_ms(), doomed))

    def _find_interrupted_moves(self) -> None:
        """Copies that were begun go on if they are of a log that is still there."""
        for place, name in self._futures:
            directory = f"{place.dir.path}/{name}"
            topic_partition = parse_directory_name(
                name.removesuffix(FUTURE_SUFFIX).rpartition(".")[0]
            )
            log = None if topic_partition is None else self.logs.get(topic_partition)
            topic_id = checkpoint.read_partition_metadata(self._files, directory)
            if (
                log is None
                or log.topic_id != topic_id
                or log.dir is place.dir
                or log.topic_partition in self.interrupted_moves
            ):
                self.drop_move(directory)
            else:
                self.interrupted_moves[log.topic_partition] = (place.dir.path, directory)
        self._futures.clear()

    def finish_move(self, log: Log, future: Log) -> Log:
        """Let a complete copy take the log's place; the log as it is from now on.

        It blocks until the copy is durable. A crash leaves one of the two: first the copy gets a
        name that says that it is complete, then the old one goes, then the copy gets its name.
        """
        topic_partition, place = log.topic_partition, self._places[future.dir.path]
        high_watermark = self._high_watermarks.get(topic_partition, 0)
        future.close()
        try:
            self._note_copy(place, future)
            self._name_complete(place, future)
        except DiskError:
            place.copies.pop(topic_partition, None)
            raise
        self.delete(topic_partition)
        self._high_watermarks[topic_partition] = high_watermark
        self._sync_names(log.dir)
        self._open_moved(place, str(topic_partition))
        del place.copies[topic_partition]
        moved_log = self.logs[topic_partition]
        moved_log.reconfigure(log.config)
        return moved_log

    def _note_copy(self, place: Place, future: Log) -> None:
        """Write down what a start must know of a copy, before it may be all there is of the log.

        What is noted here under this name may be of another topic, or older (rules A11 and E5).
        """
        offsets = (future.log_start_offset, future.log_end_offset)
        place.copies[future.topic_partition] = offsets
        self._write_recovery_points(place)
        self._forget_cleaned(place, future.topic_partition)

    def _name_complete(self, place: Place, future: Log) -> None:
        """Give a copy the name that says that it is complete, durably or not at all.

        While the log goes on, a start that does not find the log must not take the copy for it.
        """
        moved = f"{place.dir.path}/{future.topic_partition}{MOVED_SUFFIX}"
        self._files.replace(future.directory, moved)
        try:
            self._sync_names(place.dir)
        except DiskError:
            with suppress(DiskError):
                self._files.replace(moved, future.directory)
            raise

    def _sync_names(self, log_dir: LogDir) -> None:
        """Make a directory's names durable; one that fails at that is not used again (rule E1)."""
        try:
            self._files.fsync_dir(log_dir.path)
        except DiskError as error:
            log_dir.fail(error)
            raise

    def _open_moved(self, place: Place, name: str) -> None:
        final = f"{place.dir.path}/{name}"
        self._files.replace(final + MOVED_SUFFIX, final)
        self._sync_names(place.dir)
        unsynced = self._open_name(place, name, was_clean=True)
        if unsynced is not None:
            sync_logs(self._files, place.dir.path, [unsynced])

    def _settle_moves(self) -> None:
        """A crash came in the middle of a move: what was left of the two is the log."""
        for place, name in self._moved:
            topic_partition = parse_directory_name(name)
            log = None if topic_partition is None else self.logs.get(topic_partition)
            if place.dir.is_offline:
                continue
            if topic_partition is None or (log is not None and not log.dir.is_offline):
                doomed = f"{place.dir.path}/{name}{MOVED_SUFFIX}"
                self._doomed_dirs.append((self._clock.now_ms(), doomed))
                continue
            if log is not None:
                # A start that can use both directories will settle it, and has to know of it.
                start = place.log_starts.get(topic_partition, 0)
                end = place.recovery_points.get(topic_partition, 0)
                place.copies[topic_partition] = (start, end)
                continue
            with self._opening(place):
                self._open_moved(place, name)
        self._moved.clear()

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

    def _close_place(self, place: Place, broker_epoch: int) -> None:
        logs = [log for log in self.logs.values() if log.dir is place.dir and not log.is_closed]
        if not place.dir.is_offline:
            sync_logs(self._files, place.dir.path, [log.write_down() for log in logs])
        for log in logs:
            log.finish_close()
        if place.dir.is_offline or place.checkpoints is None:
            return
        self._write_recovery_points(place)
        checkpoint.write_clean_shutdown(self._files, place.dir.path, broker_epoch)
