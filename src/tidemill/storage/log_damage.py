"""What is known of a log's closed segments byte by byte, and how to live with damage in them.

A damaged log keeps serving what is sound and keeps taking appends: it may be the only replica. A
read that would need damaged bytes is answered with CORRUPT_MESSAGE, as Kafka answers for a batch
that it cannot read, and names the next offset that can be had (rule E2). Replication gets the
damaged offsets from another replica and puts them in their place (`repair.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.checksums import Checksums, format_checksums
from tidemill.storage.damage import Damage, SegmentFiles
from tidemill.storage.log_append import AppendableLog
from tidemill.storage.repair import SegmentRepair
from tidemill.storage.segment import Segment


class CheckedLog(AppendableLog):
    """A log whose closed segments are looked at from time to time."""

    __slots__ = ()

    @property
    def closed_segments(self) -> Sequence[Segment]:
        return self._segments[:-1]

    def closed_files(self, segment: Segment) -> SegmentFiles:
        """What a thread needs to look at one of the closed segments."""
        slot = self._segments.index(segment)
        return segment.as_files(self._bases[slot + 1])

    def watch(self, segment: Segment) -> Callable[[], bool]:
        """Ask the result later: is it still a closed segment of this log, with the same bytes?"""
        cuts = self._cuts

        def is_unchanged() -> bool:
            is_here = segment in self._segments[:-1]
            return is_here and self._cuts == cuts and not (self.is_closed or self.dir.is_offline)

        return is_unchanged

    def write_checksums(self, segment: Segment, checksums: Checksums) -> None:
        """Put the sidecar beside a closed segment; the next flush makes it durable (rule E5)."""
        self._guarded(lambda: self._write_sidecar(segment.checksums_path, checksums))

    def _write_sidecar(self, path: str, checksums: Checksums) -> None:
        temporary = path + ".tmp"
        self._files.unlink(temporary)
        self._files.write_at(temporary, 0, (format_checksums(checksums),))
        self._files.replace(temporary, path)
        self._unsynced_paths.append(path)

    def note_damage(self, segment: Segment, found: Sequence[Damage]) -> bool:
        """Take what a look at one segment has found; True if that is news."""
        base = segment.base_offset
        before = [damage for damage in self.damage if damage.base_offset == base]
        others = [damage for damage in self.damage if damage.base_offset != base]
        self.damage = sorted([*others, *found], key=lambda damage: damage.first_offset)
        return before != list(found)

    def damaged_segment(self) -> tuple[Segment, SegmentRepair] | None:
        """The first segment in which something is wrong, and the way to repair it there."""
        for segment in self.closed_segments:
            base = segment.base_offset
            found = [damage for damage in self.damage if damage.base_offset == base]
            if found:
                return segment, SegmentRepair(self._files, self.closed_files(segment), found)
        return None

    def _forget_damage(self, start_offset: int, end_offset: int) -> None:
        """Records outside these bounds are gone, and so is what was wrong with them."""
        self.damage = [
            replace(damage, next_offset=min(damage.next_offset, end_offset))
            for damage in self.damage
            if damage.next_offset > start_offset and damage.first_offset < end_offset
        ]

    def _damage_ahead(self, offset: int, upper_offset: int, segment: Segment) -> int | None:
        """Where in the segment a read from `offset` must stop; raises if it cannot even begin."""
        for damage in self.damage:
            if damage.next_offset <= offset:
                continue
            if damage.first_offset <= offset:
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"offset {offset} of {self.topic_partition} is damaged on disk ({damage}); "
                    f"the next one that can be read is {damage.next_offset}",
                )
            is_near = damage.base_offset == segment.base_offset
            return damage.read_until if is_near and damage.first_offset < upper_offset else None
        return None
