"""Where each leader epoch began in a log, and the questions followers and clients ask about it.

Entries grow strictly in epoch and in start offset (rule D1). They come from elections and from the
epoch in each appended batch. A new entry is on disk before anything is appended under it (rule A7);
what a truncation removed is written down later, because loading truncates again. Threads that flush
write the file, too: each picture of the entries has a number and a temporary file of its own, and
one that is older than what is on disk does not take its place any more. Nor does one of a log that
is closed: its directory may be another's by now (rule A11).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from itertools import count, pairwise

from tidemill.storage.checkpoint import (
    LEADER_EPOCHS,
    BadCheckpointError,
    format_epochs,
    parse_epochs,
)
from tidemill.storage.files import Files, read_if_there

UNDEFINED = -1

_numbers = count(1)
"""Of all pictures of all logs: two that share a directory's name must not share a file's."""


class LeaderEpochCache:
    """Ordered (epoch, start offset) pairs of one log, backed by `leader-epoch-checkpoint`."""

    __slots__ = (
        "_aside",
        "_directory",
        "_epochs",
        "_files",
        "_is_closed",
        "_lock",
        "_starts",
        "_written",
        "latest",
    )

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = UNDEFINED
        self._lock = threading.Lock()
        self._written = self._aside = 0
        self._is_closed = False

    def load(self) -> None:
        """Read the checkpoint; a damaged one counts as empty, and recovery asks the batches."""
        path = f"{self._directory}/{LEADER_EPOCHS}"
        data = read_if_there(self._files, path)
        if data is None:
            return
        try:
            entries = parse_epochs(data)
        except BadCheckpointError:
            return
        if all(
            before[0] < after[0] and before[1] <= after[1] for before, after in pairwise(entries)
        ):
            for epoch, start in entries:
                self._put(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note, durably, that `epoch` begins at `start_offset`; older news is ignored."""
        if self.note(epoch, start_offset):
            self.persist()

    def note(self, epoch: int, start_offset: int) -> bool:
        """As `assign`, but only in memory; True when something changed."""
        if epoch < 0 or start_offset < 0 or epoch <= self.latest:
            return False
        self._put(epoch, start_offset)
        return True

    def persist(self) -> None:
        """Write the file durably; whatever was captured before this and not written is void."""
        self.prepare_persist()()

    def prepare_persist(self) -> Callable[[], None]:
        """The work of writing the entries as they are now; the result may run in any thread."""
        number, data = next(_numbers), format_epochs(self.entries)
        return lambda: self._write(number, data)

    def close(self) -> None:
        """Write nothing any more: the log has let go of its directory."""
        with self._lock:
            self._is_closed = True

    def _write(self, number: int, data: bytes) -> None:
        if self._is_closed:
            return
        path = self._temporary(number)
        self._files.unlink(path)
        self._files.write_at(path, 0, (data,))
        self._files.fdatasync(path)
        self._replace(number)
        # Also if a younger one is there: data flushed after this may rely on its name.
        self._files.fsync_dir(self._directory)

    def _replace(self, number: int) -> None:
        """Put the temporary file in its place, unless a younger one is there already."""
        path = self._temporary(number)
        with self._lock:
            if number < self._written or self._is_closed:
                self._files.unlink(path)
                return
            self._files.replace(path, f"{self._directory}/{LEADER_EPOCHS}")
            self._written = number

    def _temporary(self, number: int) -> str:
        return f"{self._directory}/{LEADER_EPOCHS}.{number}.tmp"

    def write_aside(self) -> None:
        """First half of `persist` for many logs at once: the new file, not yet in its place."""
        self._aside = next(_numbers)
        path = self._temporary(self._aside)
        self._files.unlink(path)
        self._files.write_at(path, 0, (format_epochs(self.entries),))

    def put_in_place(self) -> None:
        """Second half, after the first was made durable."""
        self._replace(self._aside)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and where it ends (rule D2)."""
        if epoch == UNDEFINED or not self._epochs or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        slot = bisect_right(self._epochs, epoch)
        if not slot:
            # Older than everything known: it ended where the first known one begins.
            return epoch, self._starts[0]
        return self._epochs[slot - 1], self._starts[slot]

    def epoch_for(self, offset: int) -> int:
        """The epoch under which the record at `offset` was written."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else UNDEFINED

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop epochs that begin at or after the end; True when something changed."""
        kept = len(self._starts)
        while kept and self._starts[kept - 1] >= end_offset:
            kept -= 1
        return self._keep(slice(0, kept))

    def truncate_epochs_after(self, epoch: int) -> bool:
        """Drop epochs above this one; True when something changed."""
        return self._keep(slice(0, bisect_right(self._epochs, epoch)))

    def truncate_from_start(self, start_offset: int) -> bool:
        """Drop epochs that ended before the start; the one it falls into begins there now."""
        slot = bisect_right(self._starts, start_offset)
        if not slot or self._starts[slot - 1] == start_offset:
            return self._keep(slice(max(0, slot - 1), None))
        self._starts[slot - 1] = start_offset
        self._keep(slice(slot - 1, None))
        return True

    def clear(self) -> None:
        self._keep(slice(0, 0))

    def _keep(self, part: slice) -> bool:
        before = len(self._epochs)
        self._epochs, self._starts = self._epochs[part], self._starts[part]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED
        return len(self._epochs) != before

    def _put(self, epoch: int, start_offset: int) -> None:
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
