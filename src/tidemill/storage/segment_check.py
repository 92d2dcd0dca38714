"""Looking at every byte of one closed segment, a step at a time, in a thread that may block.

With a sidecar the bytes are compared with it. Without one, the batches are checked as recovery
would, and what is then known to be sound is summed up: the caller writes the sidecar from
`checksums`. Nothing here changes a file.
"""

from __future__ import annotations

import logging
from array import array

from tidemill.errors import WireError
from tidemill.storage.checksums import (
    INTERVAL_BYTES,
    READ_BYTES,
    BadChecksumsError,
    Checksums,
    read_sidecar,
    sums_of,
)
from tidemill.storage.damage import Damage, DamageMap, Range, SegmentFiles
from tidemill.storage.disk_errors import DiskFailedError, FileMissingError
from tidemill.storage.files import Files
from tidemill.storage.scan import LegacyLogError, scan_batches
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, read_header

_log = logging.getLogger(__name__)


class SegmentCheck:
    """One pass over one segment; `step` until `is_done`, then ask for `damage` or `checksums`."""

    def __init__(self, files: Files, segment: SegmentFiles) -> None:
        self._files = files
        self._segment = segment
        self._known: Checksums | None = None
        self._batches: _BatchCheck | None = None
        self._sums = array("I")
        self._bad: list[Range] = []
        self._position = 0
        self._end = -1
        self.damage: list[Damage] = []
        self.is_done = False

    @property
    def checksums(self) -> Checksums | None:
        """What to write as the sidecar; None when there is one, or when the segment is damaged."""
        if not self.is_done or self._known is not None or self.damage:
            return None
        return Checksums(self._end, INTERVAL_BYTES, self._sums)

    def step(self, length: int) -> int:
        """Look at up to `length` more bytes, rounded up to what is read at once; how many."""
        if self._end < 0:
            self._open()
        begin = self._position
        while self._position < self._end and self._position - begin < length:
            self._look(min(READ_BYTES, self._end - self._position))
        if self._position >= self._end:
            self._finish()
        return self._position - begin

    def _open(self) -> None:
        path = self._segment.checksums_path
        try:
            self._known = read_sidecar(self._files, path)
        except BadChecksumsError as error:
            _log.warning("%s is not usable and is made anew: %s", path, error)
        except FileMissingError:
            self._known = None
        self._end = self._files.size(self._segment.log_path)
        if self._known is None:
            self._batches = _BatchCheck(self._files, self._segment)

    def _look(self, length: int) -> None:
        position, path = self._position, self._segment.log_path
        try:
            data = self._read(path, position, length)
            self._judge(position, data)
        except DiskFailedError as error:
            _log.warning("%s cannot be read: %s", path, error)
            self._bad.append((position, position + length))
        self._position += length

    def _read(self, path: str, position: int, length: int) -> bytes | bytearray:
        """The bytes, from memory if they are there; what had to be fetched is not kept there."""
        data = self._files.pread_now(path, position, length)
        if data is None:
            data = self._files.pread(path, position, length)
            self._files.forget(path, position, length)
        return data

    def _judge(self, position: int, data: bytes | bytearray) -> None:
        if self._known is not None:
            self._bad += self._known.mismatches(position, data)
            return
        self._sums += sums_of(data)
        assert self._batches is not None
        self._batches.advance(position + len(data))

    def _finish(self) -> None:
        self.is_done = True
        if self._known is not None and self._known.size_bytes != self._end:
            sizes = (self._known.size_bytes, self._end)
            self._bad.append((min(sizes), max(sizes)))
        if self._batches is not None:
            self._bad += self._batches.bad
        if self._bad:
            self.damage = DamageMap(self._files, self._segment, self._bad).damage()


class _BatchCheck:
    """Batches as they should be: checksums right, offsets and leader epochs rising."""

    def __init__(self, files: Files, segment: SegmentFiles) -> None:
        self.bad: list[Range] = []
        self._files = files
        self._segment = segment
        self._position = 0
        self._next_offset = segment.base_offset
        self._epoch = -1
        self._is_legacy = False

    def advance(self, until: int) -> None:
        """Check the batches that begin before `until`."""
        while self._position < min(until, self._segment.size) and not self._is_legacy:
            try:
                self._run(until)
            except LegacyLogError:
                self._is_legacy = True  # Such messages have no batches to check.

    def _run(self, until: int) -> None:
        segment = self._segment
        scan = scan_batches(self._files, segment.log_path, self._position, segment.size)
        for batch in scan:
            if not self._follows(batch.header):
                break
            self._next_offset = batch.header.next_offset
            self._epoch = batch.header.partition_leader_epoch
            self._position = batch.position + batch.header.size_bytes
            if self._position >= until:
                return
        if self._position < segment.size:
            self._skip()

    def _follows(self, header: BatchHeader) -> bool:
        return (
            self._next_offset <= header.base_offset
            and header.last_offset < self._segment.end_offset
            and header.last_offset_delta >= 0
            and header.partition_leader_epoch >= self._epoch
        )

    def _skip(self) -> None:
        """Go on behind a bad batch, at the next one that the index and its own header agree on."""
        start = self._position
        end = min(start + self._size_at(start), self._segment.size)
        self.bad.append((start, end))
        damage = DamageMap(self._files, self._segment, [(start, end)])
        self._next_offset, self._position = damage.after(end)
        if self._position < self._segment.size:
            self._next_offset = self._segment.base_offset
        self._epoch = -1

    def _size_at(self, position: int) -> int:
        try:
            data = self._files.pread(self._segment.log_path, position, HEADER_BYTES)
            return read_header(data).size_bytes
        except WireError:
            return HEADER_BYTES
