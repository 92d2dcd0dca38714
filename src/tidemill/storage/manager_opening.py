"""What opening a log takes: what is noted of it, its files, and its place among the others.

`LogManager` (manager.py) decides which directories are opened, and as what.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tidemill.storage import checkpoint, recovery
from tidemill.storage.checkpoint_writer import CheckpointWriter
from tidemill.storage.disk_errors import DiskError, DiskFailedError
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.log_place import Place
from tidemill.storage.manager_upkeep import LogUpkeep
from tidemill.types import ZERO_TOPIC_ID, TopicPartition


class LogOpening(LogUpkeep):
    """Reads what a directory notes of its logs, and opens them."""

    @contextmanager
    def _opening(self, place: Place) -> Iterator[None]:
        """Any error takes the directory offline, even one that will end by itself.

        Some of its logs are not open then, or not durable as they are: it takes another start.
        """
        try:
            yield
        except DiskError as error:
            what = f"{place.dir.path} was not opened: {error.message}"
            if not error.takes_dir_offline:
                what += " Then start the broker again."
            place.dir.fail(DiskFailedError(what))

    def _read_checkpoints(self, place: Place) -> None:
        path = place.dir.path
        place.checkpoints = CheckpointWriter(self._files, path)
        found = place.checkpoints.read(
            checkpoint.RECOVERY_POINTS, checkpoint.LOG_STARTS, checkpoint.HIGH_WATERMARKS
        )
        place.recovery_points, place.log_starts, _ = found
        place.cleaner_checkpoint = CheckpointWriter(self._files, path)
        (place.cleaned,) = place.cleaner_checkpoint.read(checkpoint.CLEANER_OFFSETS)

    def _settle_checkpoints(self, place: Place) -> None:
        """Note of the logs how recovery left them; once it is known which ones lie here."""
        self._take_high_watermarks(place)
        self._write_recovery_points(place)
        self._bound_cleaned(place)

    def _take_high_watermarks(self, place: Place) -> None:
        """Believe what was noted of the logs that lie here, and only that (rule A11).

        A directory may still remember a deleted topic whose successor lies in another one.
        """
        assert place.checkpoints is not None  # The directory was opened.
        noted = place.checkpoints.on_disk(checkpoint.HIGH_WATERMARKS)
        for topic_partition, offset in noted.items():
            log = self.logs.get(topic_partition)
            if log is not None and log.dir is place.dir:
                self._high_watermarks[topic_partition] = offset

    def _bound_cleaned(self, place: Place) -> None:
        """What a cut took away is not clean, although a crash kept the cleaner from noting it.

        Appends would reach that offset again, and nobody would compact what they wrote.
        """
        beyond = {
            topic_partition: self.logs[topic_partition].log_end_offset
            for topic_partition, offset in place.cleaned.items()
            if topic_partition in self.logs and offset > self.logs[topic_partition].log_end_offset
        }
        if beyond:
            place.cleaned |= beyond
            self._cleaner_checkpoint(place)()

    def _load(
        self,
        place: Place,
        topic_partition: TopicPartition,
        directory: str,
        *,
        was_clean: bool,
        is_copy: bool = False,
        config: LogConfig | None = None,
    ) -> recovery.Loaded:
        """Open the files; nothing is noted of a copy, so all of it is looked at."""
        config = config or self._config_for(topic_partition)
        is_noted = topic_partition in place.recovery_points and not is_copy
        options = recovery.OpenOptions(
            was_clean=was_clean,
            recovery_point=place.recovery_points[topic_partition] if is_noted else 0,
            log_start_offset=0 if is_copy else place.log_starts.get(topic_partition, 0),
            allows_gaps=config.cleanup_compact and not is_noted,
            index_interval_bytes=config.index_interval_bytes,
            now_ms=self._clock.now_ms(),
        )
        return recovery.load(self._files, directory, options)

    def _log_of(
        self,
        place: Place,
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

    def _adopt(self, place: Place, log: Log) -> None:
        log.on_rolled = partial(self._rolled, log)
        log.on_recovery_point_lowered = partial(self._recovery_point_lowered, place, log)
        self.logs[log.topic_partition] = log
        place.log_count += 1
