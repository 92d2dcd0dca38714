"""The aborted transactions of one segment, so that read_committed readers can skip their records.

Entries of `.txnindex` (big endian): version int16 = 0, producer id, first offset, last offset and
the last stable offset when the marker came, int64 each. An entry belongs to the segment that holds
the abort marker. Unlike the other indexes this one is data: it cannot be guessed when lost, so it
is flushed together with the log and rebuilt by recovery (rule H10).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemill.storage.files import Files
from tidemill.storage.index import changing, read_settled

ENTRY_BYTES = 34
_VERSION = 0
_entry = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """One transaction that ended in an abort marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers lie in one segment, in marker order."""

    __slots__ = ("_entries", "_files", "dirty", "is_new_file", "path")

    def __init__(self, files: Files, path: str, *, empty: bool = False) -> None:
        self._files = files
        self.path = path
        self.dirty = False
        self.is_new_file = False
        """Whether the file may have come into being since the last flush."""
        self._entries: list[AbortedTransaction] | None = [] if empty else None

    def entries(self) -> list[AbortedTransaction]:
        """All of them, from the file on first use, which may be a thread's."""
        entries = self._entries
        if entries is not None:
            return entries
        found = self._read()
        with changing:
            # Whoever was first may have changed them, and the file, since this one began to read.
            if self._entries is None:
                self._entries = found
            return self._entries

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction; one that is there already (a marker seen again) is not repeated."""
        entries = self.entries()
        if entries and aborted.last_offset <= entries[-1].last_offset:
            return
        data = _entry.pack(_VERSION, *aborted)
        self._files.write_at(self.path, len(entries) * ENTRY_BYTES, (data,))
        self.dirty = True
        self.is_new_file |= not entries
        entries.append(aborted)

    def reaches(self, offset: int) -> bool:
        """Whether one of the markers is at or after `offset`."""
        entries = self.entries()
        return bool(entries) and entries[-1].last_offset >= offset

    def touch(self) -> None:
        """Make the file, empty if there is nothing to say: it then replaces one that said more."""
        self._files.write_at(self.path, 0, (b"",))

    def truncate(self, offset: int) -> None:
        """Forget the transactions whose marker is at or after `offset`."""
        entries = self.entries()
        kept = [aborted for aborted in entries if aborted.last_offset < offset]
        if len(kept) == len(entries) and not self._has_torn_tail(len(kept)):
            return
        self._files.truncate(self.path, len(kept) * ENTRY_BYTES)
        self.dirty = True
        self._entries = kept

    def _has_torn_tail(self, count: int) -> bool:
        return self._files.exists(self.path) and self._files.size(self.path) > count * ENTRY_BYTES

    def _content(self, path: str) -> bytes:
        return self._files.read_file(path) if self._files.exists(path) else b""

    def _read(self) -> list[AbortedTransaction]:
        data = read_settled(self, self._content)
        entries: list[AbortedTransaction] = []
        for start in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
            version, *rest = _entry.unpack_from(data, start)
            aborted = AbortedTransaction(*rest)
            grows = not entries or aborted.last_offset > entries[-1].last_offset
            if version != _VERSION or aborted.first_offset > aborted.last_offset or not grows:
                break
            entries.append(aborted)
        return entries
