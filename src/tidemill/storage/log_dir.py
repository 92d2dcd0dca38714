"""One log directory: whether it may be used, how much room is left, and who flushes it.

A directory that failed once stays offline until the broker restarts (rule E1). Writes stop before
the file system is full (rule E8): a reserve stays for checkpoints, deletions and the metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from tidemill.logs import Sparingly
from tidemill.storage.disk_errors import DirOfflineError, DiskError, DiskFullError
from tidemill.storage.files import Files, Space

log = logging.getLogger(__name__)

RESERVE_BYTES = 64 << 20
RESERVE_SHARE = 20
"""A reserve nobody asked for is at most a twentieth of the file system: small ones can be used."""

_CHECK_EVERY_BYTES = 16 << 20
"""Free space is looked up again after this much was written."""


class LogDir:
    """The state that all logs of one directory share."""

    __slots__ = (
        "_allowance_bytes",
        "_complaints",
        "_files",
        "_on_failure",
        "_reserve_bytes",
        "_reserve_is_wanted",
        "directory_id",
        "failure",
        "path",
    )

    def __init__(
        self,
        path: str,
        files: Files,
        *,
        complaints: Sparingly,
        reserve_bytes: int = RESERVE_BYTES,
        on_failure: Callable[[LogDir, DiskError], None] | None = None,
        directory_id: UUID | None = None,
    ) -> None:
        self.path = path
        self.directory_id = directory_id or UUID(int=0)
        self.failure: DiskError | None = None
        self._files = files
        self._complaints = complaints
        self._on_failure = on_failure
        self._reserve_bytes = reserve_bytes
        self._reserve_is_wanted = False
        self._allowance_bytes = 0

    @property
    def is_offline(self) -> bool:
        return self.failure is not None

    def check_online(self) -> None:
        if self.failure is not None:
            raise DirOfflineError(f"{self.path} is offline: {self.failure.message}")

    def fail(self, error: DiskError) -> None:
        """Take the directory out of use, once, if the error is of the kind that demands it.

        Other errors end by themselves when their cause does; the log has a line of them a minute.
        """
        if self.failure is not None:
            return
        if not error.takes_dir_offline:
            self._complain(error)
            return
        self.failure = error
        if self._on_failure is not None:
            self._on_failure(self, error)

    def _complain(self, error: DiskError) -> None:
        held_back = self._complaints.ask()
        if held_back is None:
            return
        try:
            free = f"{self.space().free_bytes} bytes"
        except DiskError:
            free = "unknown"
        log.error(
            "log directory %s refuses writes, free space: %s: %s%s",
            self.path, free, error.message, held_back,
        )  # fmt: skip

    def charge(self, size: int) -> None:
        """Ask for room for `size` bytes; refused when that would eat into the reserve."""
        self._allowance_bytes -= size
        if self._allowance_bytes < 0:
            self._renew(size)

    def _renew(self, size: int) -> None:
        space = self.space()
        spare = space.free_bytes - self._reserve(space)
        if spare < size:
            self._allowance_bytes = 0
            raise DiskFullError(
                f"{self.path} has {space.free_bytes} bytes left, of which "
                f"{self._reserve(space)} are kept in reserve. Free some disk space."
            )
        self._allowance_bytes = min(spare, _CHECK_EVERY_BYTES) - size

    def forget_allowance(self) -> None:
        """Look at the disk again with the next write: somebody else may have filled it."""
        self._allowance_bytes = 0

    def keep_in_reserve(self, size: int, *, is_wanted: bool) -> None:
        """Keep `size` bytes free from the next write on; all of them if somebody set it so."""
        self._reserve_bytes = size
        self._reserve_is_wanted = is_wanted
        self.forget_allowance()

    def _reserve(self, space: Space) -> int:
        if self._reserve_is_wanted:
            return self._reserve_bytes
        return min(self._reserve_bytes, space.total_bytes // RESERVE_SHARE)

    def space(self) -> Space:
        return self._files.space(self.path)
