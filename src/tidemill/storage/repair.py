"""Making a damaged stretch of a closed segment whole again, with the batches of another replica.

Replicas hold the same batches, byte for byte, where no compaction has come in between. So what
another replica has of the damaged offsets either fits exactly between the sound bytes around them,
or it is not used at all. Afterwards the segment is checked as the scrub does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.storage.damage import Damage, DamageMap, SegmentFiles
from tidemill.storage.files import Files
from tidemill.storage.segment_check import SegmentCheck
from tidemill.wire.batch import HEADER_BYTES, crc_matches, iter_headers, read_header

REPAIR_BYTES_MAX = 8 << 20
"""A larger stretch is not repaired: it would be held in memory, and written in one turn."""
_STEP_BYTES = 1 << 20


class NoRepairError(ApiError):
    """What other replicas have cannot take the place of the damaged bytes; trying again is vain."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class SegmentRepair:
    """One damaged stretch: `survey`, then `take` until `is_complete`, then `write` and `verify`.

    `survey` and `verify` read the disk and belong into a thread; `write` is for the loop, after a
    look at whether the segment is still there.
    """

    def __init__(self, files: Files, segment: SegmentFiles, damage: Sequence[Damage]) -> None:
        """`damage` is all of the segment's; the first of it is to be repaired."""
        self._files = files
        self._segment = segment
        self._damage = damage
        self._position = damage[0].read_until
        self._end_position = -1
        self._end_offset = -1
        self._parts: list[bytes] = []
        self.next_offset = damage[0].first_offset
        """The first offset that is still to be taken from another replica."""

    def survey(self) -> None:
        """Find where sound batches begin again."""
        bad = [(one.start, one.end) for one in self._damage]
        _, position = DamageMap(self._files, self._segment, bad).after(self._damage[0].end)
        self._end_position = min(position, self._segment.size)
        self._end_offset = self._segment.end_offset
        if position < self._segment.size:
            data = self._files.pread(self._segment.log_path, position, HEADER_BYTES)
            self._end_offset = read_header(data).base_offset
        if self._size_bytes > REPAIR_BYTES_MAX:
            raise NoRepairError(
                f"{self._size_bytes} damaged bytes of {self._segment.log_path} are too many"
            )

    @property
    def _size_bytes(self) -> int:
        return self._end_position - self._position

    @property
    def is_complete(self) -> bool:
        return self.next_offset >= self._end_offset

    def take(self, records: bytes | memoryview) -> None:
        """Take in batches that another replica sent, from `next_offset` on."""
        before = self.next_offset
        try:
            for position, header in iter_headers(records):
                if header.next_offset <= self.next_offset:
                    continue
                if header.base_offset >= self._end_offset:
                    self.next_offset = self._end_offset
                    break
                if not crc_matches(records, position, header):
                    raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the copy fails its checksum, too")
                self._parts.append(bytes(records[position : position + header.size_bytes]))
                self.next_offset = header.next_offset
        except WireError as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if self.next_offset == before:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE, "the copy does not reach that far")
        if sum(map(len, self._parts)) > self._size_bytes:
            raise self._does_not_fit()

    def write(self) -> None:
        """Put the batches in the place of the damaged bytes, if they fit."""
        if sum(map(len, self._parts)) != self._size_bytes:
            raise self._does_not_fit()
        self._files.write_at(self._segment.log_path, self._position, self._parts)

    def _does_not_fit(self) -> NoRepairError:
        return NoRepairError(
            f"what another replica has does not fit into {self._segment.log_path}: one of the two "
            "was compacted since"
        )

    def verify(self) -> list[Damage]:
        """Make what was written durable, and look at the whole segment: what is still wrong."""
        self._files.fdatasync(self._segment.log_path)
        check = SegmentCheck(self._files, self._segment)
        while not check.is_done:
            check.step(_STEP_BYTES)
        return check.damage
