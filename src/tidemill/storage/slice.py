"""A piece of one segment to send to a reader: whole batches, exactly as they are stored.

Finding and reading it needs no disk when the bytes are in the page cache, which is the usual case.
Otherwise `read_now` says None and the caller runs `read_blocking` in an executor, so cold data
never stalls the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TypeVar

from tidemill.errors import WireError
from tidemill.storage.disk_errors import FileMissingError
from tidemill.storage.files import Files
from tidemill.storage.scan import Read, WouldBlockError, walk_headers
from tidemill.storage.segment import Segment
from tidemill.wire.batch import HEADER_BYTES, read_header

T = TypeVar("T")

SOUGHT_BYTES_MAX = 2 * 1024 * 1024
"""What one holds at most that has to be looked for on the disk first: nobody can tell yet how much
it is, so whoever reads it may do that at once."""

NAMES_MAX = 2
"""A segment's file is renamed once, when retention or compaction lets go of it, and then goes."""


class LogSlice:
    """The batches of `segment` from the one with `offset` on, below `upper_offset`."""

    __slots__ = (
        "_at_least_one",
        "_cuts",
        "_end",
        "_end_position",
        "_files",
        "_has_more",
        "_max_bytes",
        "_offset",
        "_segment",
        "_start",
        "_upper_offset",
    )

    def __init__(
        self,
        files: Files,
        segment: Segment,
        offset: int,
        *,
        upper_offset: int | None,
        max_bytes: int,
        at_least_one: bool,
        end_position: int | None = None,
    ) -> None:
        """`upper_offset` None means that all of the segment, or up to a position, may be read.

        A segment that grows needs one of the two: where to stop may be found out later, in a
        thread, and it must be where the segment ended when the reader was let in.
        """
        self._files = files
        self._segment = segment
        self._offset = offset
        self._upper_offset = upper_offset
        self._end_position = end_position
        self._max_bytes = max_bytes
        self._at_least_one = at_least_one
        self._cuts = segment.cuts
        self._start = -1
        self._end = -1
        self._has_more = False
        if not segment.size:
            self._start = self._end = 0  # Compaction may leave nothing of a segment.
        elif self._is_cheap():
            try:
                self._resolve(files.pread_now)
            except WouldBlockError:
                self._start = -1
        if self._start < 0:
            self._max_bytes = min(max_bytes, SOUGHT_BYTES_MAX)
            self._has_more = segment.size > self._max_bytes

    def _is_cheap(self) -> bool:
        known = self._segment.knows_without_disk
        return known(self._offset) and (self._upper_offset is None or known(self._upper_offset))

    @property
    def size_bytes(self) -> int:
        """How much it holds; what it holds at most while the disk has not been asked."""
        if self._start < 0:
            return min(self._max_bytes, self._segment.size)
        return self._end - self._start

    @property
    def is_resolved(self) -> bool:
        """Whether `size_bytes` is exact."""
        return self._start >= 0

    def falls_short_of(self, wanted_bytes: int) -> bool:
        """Whether it is at its own limit, and not at that of a reader who wants so much.

        Nothing at all is what a reader gets who is held up.
        """
        return self._has_more and self._max_bytes < wanted_bytes and self.size_bytes > 0

    def pieces(self, max_bytes: int) -> list[LogSlice]:
        """What a resolved one holds, in order and so much at a time; they need not be batches."""
        return [
            self._piece(start, min(start + max_bytes, self._end))
            for start in range(self._start, self._end, max_bytes)
        ]

    def _piece(self, start: int, end: int) -> LogSlice:
        piece = copy(self)
        piece._start = start
        piece._end = end
        return piece

    @property
    def is_empty(self) -> bool:
        return self._start == self._end and self._start >= 0

    def read_now(self) -> bytes | bytearray | None:
        """The bytes, or None when they would have to come from the disk; none after a cut."""
        if self._start < 0:
            return None
        if self._start == self._end or self._is_cut():
            return b""
        length = self._end - self._start
        return self._files.pread_now(self._segment.log_path, self._start, length)

    def read_blocking(self) -> bytes:
        """The bytes, waiting for the disk; for a thread of an executor.

        None after a cut, nor when the file has been deleted meanwhile: whoever asks again learns
        from the log whether the offset is gone, or has been compacted into another file.
        """
        return self._in_its_file(self._read) or b""

    def resolve_blocking(self) -> None:
        """Find out where the bytes are, waiting for the disk; it is empty where they would be none.

        In a thread, too. Then `size_bytes` is exact, and the bytes can be read while they are sent.
        """
        if self._start < 0 and self._in_its_file(self._find) is None:
            self._start = self._end = 0

    def _in_its_file(self, work: Callable[[str], T]) -> T | None:
        """What came of work on the file, under whatever name that has; None if there is none."""
        segment, start, end = self._segment, self._start, self._end
        for _ in range(NAMES_MAX):
            path = segment.log_path
            try:
                found = work(path)
            except (FileMissingError, WireError) as error:
                if self._is_cut():
                    return None
                if path == segment.settled_log_path():
                    if segment.is_gone and isinstance(error, FileMissingError):
                        return None
                    raise
            else:
                if self._is_cut():
                    return None
                if path == segment.settled_log_path():
                    return found
            # The file was renamed meanwhile, and another may have its old name: look again.
            self._start, self._end = start, end
        return None

    def _is_cut(self) -> bool:
        """Whether its bytes may be others by now, which need not begin or end with a batch.

        Only a reader above the high watermark meets that; it finds nothing, and asks again.
        """
        segment = self._segment
        return segment.cuts != self._cuts and (self._end < 0 or segment.lowest_cut < self._end)

    def _find(self, path: str) -> bool:
        self._resolve(self._files.pread)
        return True

    def _read(self, path: str) -> bytes:
        if self._start < 0:
            self._find(path)
        return self._files.pread(path, self._start, self._end - self._start)

    def _resolve(self, read: Read) -> None:
        segment = self._segment
        start = segment.locate(self._offset, read)
        end = segment.size
        if self._end_position is not None:
            end = min(end, self._end_position)
        if self._upper_offset is not None:
            end = min(end, segment.locate(self._upper_offset, read))
        end = max(start, end)
        self._has_more = end - start > self._max_bytes
        if self._has_more:
            end = self._cut(read, start, end)
        self._end = end
        self._start = start

    def _cut(self, read: Read, start: int, end: int) -> int:
        """Where to stop so that whole batches fit: at an indexed one, or after the first."""
        boundary = self._segment.indexed(read).by_position(start + self._max_bytes).position
        if boundary > start:
            return boundary
        path = self._segment.log_path
        last_end = start
        for position, header in walk_headers(read, path, start, start + self._max_bytes):
            last_end = position + header.size_bytes
        if last_end > start or not self._at_least_one:
            return last_end
        data = read(path, start, HEADER_BYTES)
        if data is None:
            raise WouldBlockError(path)
        return min(start + read_header(data).size_bytes, end)


def empty_slice(files: Files, segment: Segment, offset: int) -> LogSlice:
    """Nothing to read at `offset`."""
    nothing = LogSlice.__new__(LogSlice)
    nothing._files = files
    nothing._segment = segment
    nothing._offset = offset
    nothing._cuts = segment.cuts
    nothing._has_more = False
    nothing._start = nothing._end = 0
    return nothing
