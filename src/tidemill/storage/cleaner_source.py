"""Reading the segments that a pass compacts, without believing them.

A compacted segment gets checksums of its own, so whatever compaction takes for true is true from
then on. A batch's CRC does not cover its offset, length and leader epoch. Therefore all bytes that
are read are compared with the segment's sidecar on their way, and each batch has to follow the one
before it (rules E2 and I6). Nothing is swapped in before all of its sources are known to be sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.errors import TidemillError
from tidemill.storage.checksums import BadChecksumsError, Checksums, read_sidecar
from tidemill.storage.damage import Damage
from tidemill.storage.disk_errors import FileMissingError
from tidemill.storage.files import Files
from tidemill.storage.scan import ScannedBatch, scan_batches
from tidemill.storage.segment import Segment
from tidemill.wire.batch import BatchHeader, CorruptBatchError, crc32c


class SuspectSegmentError(CorruptBatchError):
    """Something in the segment is not as it was written; a closer look will tell what."""

    def __init__(self, segment: Segment, end_offset: int, position: int) -> None:
        super().__init__(f"{segment.log_path} has a damaged batch at byte {position}")
        self.segment = segment
        self.end_offset = end_offset


class DamagedSegmentError(TidemillError):
    """The closer look has found wrong bytes in the segment."""

    def __init__(self, segment: Segment, found: Sequence[Damage]) -> None:
        super().__init__(f"{segment.log_path} is damaged at {', '.join(map(str, found[:3]))}")
        self.segment = segment
        self.found = found


def sound_batches(
    files: Files, segment: Segment, end_offset: int, start: int, *, chunk_bytes: int
) -> Iterator[ScannedBatch]:
    """The segment's batches from the one at `start` on, up to the first that is not sound."""
    position, end = start, segment.size
    order = _Order(segment.base_offset, end_offset)
    sums = _RunningSums(files, segment, start)
    scan = scan_batches(files, segment.log_path, start, end, chunk_bytes=chunk_bytes)
    for batch in scan if sums.cover(end) else ():
        size = batch.header.size_bytes
        data = batch.buffer[batch.buffer_pos : batch.buffer_pos + size]
        if not order.takes(batch.header) or not sums.take(data):
            break
        position = batch.position + size
        yield batch
    if position != end or not sums.end():
        raise SuspectSegmentError(segment, end_offset, position)


class _Order:
    """Offsets rise and stay within the segment; leader epochs do not fall."""

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self._next_offset = base_offset
        self._end_offset = end_offset
        self._epoch = -1

    def takes(self, header: BatchHeader) -> bool:
        follows = (
            self._next_offset <= header.base_offset <= header.last_offset < self._end_offset
            and header.partition_leader_epoch >= self._epoch
        )
        self._next_offset, self._epoch = header.next_offset, header.partition_leader_epoch
        return follows


class _RunningSums:
    """Compares the bytes of a segment with its sidecar, in whatever portions they come."""

    def __init__(self, files: Files, segment: Segment, start: int) -> None:
        self._known = _known_sums(files, segment.checksums_path)
        self._sum = self._summed_bytes = self._slot = 0
        if self._known is not None:
            step = self._known.interval_bytes
            self._slot = start // step
            self.take(memoryview(files.pread(segment.log_path, start - start % step, start % step)))

    def cover(self, size_bytes: int) -> bool:
        """Whether the sidecar, if there is one, is about a segment of this size."""
        return self._known is None or self._known.size_bytes == size_bytes

    def take(self, data: memoryview) -> bool:
        """Whether these bytes, the next ones, are as they were, as far as that can be said yet."""
        if self._known is None:
            return True
        step = self._known.interval_bytes
        while data:
            part = data[: step - self._summed_bytes]
            data = data[len(part) :]
            self._sum = crc32c(part, self._sum)
            self._summed_bytes += len(part)
            if self._summed_bytes == step and not self.end():
                return False
        return True

    def end(self) -> bool:
        """Whether the interval that ends here is as it was."""
        if self._known is None or not self._summed_bytes:
            return True
        sums = self._known.sums
        is_right = self._slot < len(sums) and sums[self._slot] == self._sum
        self._sum = self._summed_bytes = 0
        self._slot += 1
        return is_right


def _known_sums(files: Files, path: str) -> Checksums | None:
    try:
        return read_sidecar(files, path)
    except (BadChecksumsError, FileMissingError):
        return None  # It says nothing of the segment; the scrub makes a new one.
