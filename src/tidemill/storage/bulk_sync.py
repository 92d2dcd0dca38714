"""Making many logs durable at once, at start and at stop.

A flush per file is right for one log and hopeless for ten thousand: each is a round trip to the
disk. From a handful of logs on, one flush of the whole file system does it for all. What replaces a
file goes aside first, is flushed, and is then put in place, so a crash leaves the old or the new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.storage.epochs import LeaderEpochCache
from tidemill.storage.files import Files

LOGS_ONE_BY_ONE_MAX = 16


@dataclass(slots=True)
class Unsynced:
    """What one log has written, or must yet replace, without a flush so far."""

    directory: str
    epochs: LeaderEpochCache
    paths: list[str] = field(default_factory=list)
    names_changed: bool = False
    epochs_changed: bool = False

    @property
    def is_clean(self) -> bool:
        return not (self.paths or self.names_changed or self.epochs_changed)


def sync_logs(files: Files, log_dir: str, logs: Sequence[Unsynced]) -> None:
    """Make all of them durable; returns when a power cut could take nothing of them any more."""
    dirty = [log for log in logs if not log.is_clean]
    if len(dirty) <= LOGS_ONE_BY_ONE_MAX:
        for log in dirty:
            _sync_one(files, log)
        if any(log.names_changed for log in dirty):
            files.fsync_dir(log_dir)
        return
    replacing = [log for log in dirty if log.epochs_changed]
    for log in replacing:
        log.epochs.write_aside()
    files.sync_all(log_dir)
    for log in replacing:
        log.epochs.put_in_place()
    if replacing:
        files.sync_all(log_dir)


def _sync_one(files: Files, log: Unsynced) -> None:
    for path in log.paths:
        if files.exists(path):
            files.fdatasync(path)
    if log.epochs_changed:
        log.epochs.persist()
    if log.names_changed:
        files.fsync_dir(log.directory)
