"""Replacing segments of a log by a compacted one, so that a crash at any step can be recovered.

The order (rule I5), which `recovery.py` finishes or drops:

1. the new segment is written under names that end in `.cleaned`, and flushed;
2. its indexes are renamed to `.swap`, and that is flushed, too: so far, a crash drops everything;
3. its log file is renamed to `.swap` and flushed. From here on the replacement is decided;
4. the old files are renamed to `.deleted`, the new ones get their final names, the log file last.

Steps 1 and 2 and the flushes are somebody else's, in a thread; `begin_swap` and `finish_swap` run
on the loop, where readers and truncations are: nobody ever sees half of a replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.storage.files import Files
from tidemill.storage.index import renaming
from tidemill.storage.log_append import AppendableLog
from tidemill.storage.segment import CLEANED, LOG, SEGMENT_SUFFIXES, SWAP, Segment, offset_name


class Swap(NamedTuple):
    """A compacted segment and those it takes the place of."""

    cleaned: Segment
    replaced: Sequence[Segment]


class ReplaceableLog(AppendableLog):
    """A log whose closed segments can be replaced."""

    __slots__ = ()

    @property
    def cuts(self) -> int:
        """How often the log was truncated: what was planned before the last time is void."""
        return self._cuts

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Whether these segments are all still there, side by side, and none is the active one."""
        slot = self._slot_of(segments)
        return slot is not None and slot + len(segments) < len(self._segments)

    def begin_swap(self, swap: Swap) -> bool:
        """Decide for the replacement; False if the log has changed, and then nothing is done.

        A flush of the directory has to follow before `finish_swap`.
        """
        if self.is_closed or self.dir.is_offline or not self.holds(swap.replaced):
            return False
        self._guarded(lambda: swap.cleaned.rename_log(SWAP))
        self._swap = swap
        return True

    @property
    def pending_swap(self) -> Swap | None:
        return self._swap

    def finish_swap(self) -> bool:
        """Let the new segment take its place; False if a truncation has dropped it meanwhile."""
        swap, self._swap = self._swap, None
        if swap is None or self.is_closed or self.dir.is_offline:
            return False
        self._unbroken(lambda: self._replace(swap))
        return True

    def abandon_swap(self) -> None:
        """What `begin_swap` decided cannot be carried out now: the old segments stay.

        At once: retention and truncations must not find it pending, nor a restart its files.
        """
        if self.is_closed or self.dir.is_offline:
            self._swap = None
        else:
            self._guarded(self._drop_swap)

    def _replace(self, swap: Swap) -> None:
        slot = self._slot_of(swap.replaced)
        assert slot is not None  # Whatever takes segments away drops a pending swap first.
        with renaming:
            self._doom(swap.replaced, self._clock.now_ms())
            swap.cleaned.rename_indexes("")
            swap.cleaned.rename_log("")
            swap.cleaned.name_is_durable = True
            self._segments[slot : slot + len(swap.replaced)] = [swap.cleaned]
            self._bases[slot : slot + len(swap.replaced)] = [swap.cleaned.base_offset]
        gone = {segment.base_offset for segment in swap.replaced} - {swap.cleaned.base_offset}
        self._forget_snapshots(gone & self._snapshots)

    def _drop_swap(self) -> None:
        """A truncation or a deletion comes in between: what was decided must not be done."""
        swap, self._swap = self._swap, None
        if swap is not None:
            discard_cleaned(self._files, self.directory, swap.cleaned)

    def _slot_of(self, segments: Sequence[Segment]) -> int | None:
        try:
            slot = self._segments.index(segments[0])
        except ValueError:
            return None
        return slot if self._segments[slot : slot + len(segments)] == list(segments) else None


def discard_cleaned(files: Files, directory: str, cleaned: Segment) -> None:
    """Remove what there is of a segment that did not become one; its log file goes first, for
    indexes without it mean nothing to recovery."""
    stem = f"{directory}/{offset_name(cleaned.base_offset)}"
    for kind in (LOG, *SEGMENT_SUFFIXES):
        for suffix in (SWAP, CLEANED):
            files.unlink(stem + kind + suffix)
