"""What can go wrong with a disk, sorted by what the broker must do about it.

All of them answer a request with KAFKA_STORAGE_ERROR and a sentence. They differ in what follows:
a full disk or a lack of descriptors ends when the cause ends; after anything else the content of
the page cache is unknown, so the log directory goes offline and is never written again (rule E1).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import ApiError, ErrorCode


class DiskError(ApiError):
    """A file operation failed; `takes_dir_offline` says whether its directory may still be used."""

    takes_dir_offline = True

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class DiskFailedError(DiskError):
    """The device or the file system refused: what is in the page cache is no longer known."""


class FileMissingError(DiskError):
    """A file that should exist does not."""


class DiskFullError(DiskError):
    """No space left, or less than the reserve: writes are refused until there is room again."""

    takes_dir_offline = False


class OutOfFilesError(DiskError):
    """The process or the machine has no file descriptor left."""

    takes_dir_offline = False


class DirOfflineError(DiskError):
    """The log directory failed earlier and is not used any more."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})


def disk_error(error: OSError, doing: str, path: str) -> DiskError:
    """The typed error for what the operating system said while `doing` something to `path`."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFullError(f"No space left while {doing} {path}: {reason}. Free some disk space.")
    if error.errno in _NO_FILES:
        return OutOfFilesError(
            f"Out of file descriptors while {doing} {path}: {reason}. Raise the open-file limit."
        )
    if error.errno == errno.ENOENT:
        return FileMissingError(f"{path} is missing ({doing} it): {reason}")
    return DiskFailedError(f"Disk failure while {doing} {path}: {reason}")


@contextmanager
def translating(doing: str, path: str) -> Iterator[None]:
    """Turn an `OSError` of the block into the `DiskError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, doing, path) from error
