"""The receive side of a client's connection: bytes in, whole answers out.

Small answers arrive in a buffer that the connection keeps, and are copied out of it. A large one
gets a buffer of its own, of which it is the only content, so that what was fetched is written once
by the kernel and then belongs to whoever asked. That buffer is as large as the last large answer
was and grows with the bytes that arrive, never because of the size that was declared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tidemill.errors import WireError

SCRATCH_BYTES = 64 * 1024
GROWTH = 4
"""By how much a buffer that is full grows: a third of a large answer is copied, at the worst."""

_SIZE = struct.Struct(">i")
_ANSWER_BYTES_MIN = 4


class Answers:
    """Received bytes that are no whole answer yet: `view[start:end]`."""

    __slots__ = ("_end", "_latest_bytes", "_max_bytes", "_scratch", "_start", "_view")

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the most that one answer may declare."""
        self._max_bytes = max_bytes
        self._latest_bytes = 0
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._view = self._scratch
        self._start = 0
        self._end = 0

    def writable(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._view[self._end :]

    def take(self, count: int) -> Iterator[memoryview]:
        """So many bytes have come: the answers that are whole by now, without their sizes.

        All of them are to be taken before more bytes come. Raises `WireError` for a size that no
        answer has.
        """
        self._end += count
        while (frame_bytes := self._frame_bytes()) <= self._end - self._start:
            yield self._cut(frame_bytes)
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + frame_bytes > len(self._view):
            self._make_room(frame_bytes)

    def _frame_bytes(self) -> int:
        """The length of the first answer with its size, or of the size itself while that lacks."""
        if self._end - self._start < _SIZE.size:
            return _SIZE.size
        size: int = _SIZE.unpack_from(self._view, self._start)[0]
        if not _ANSWER_BYTES_MIN <= size <= self._max_bytes:
            raise WireError(f"it declares {size} bytes")
        return _SIZE.size + size

    def _cut(self, frame_bytes: int) -> memoryview:
        view, begin = self._view, self._start + _SIZE.size
        self._start += frame_bytes
        if view is self._scratch:
            return memoryview(bytes(view[begin : self._start]))
        # The buffer was made for this answer alone, and is its own from now on.
        self._latest_bytes = frame_bytes
        self._view = self._scratch
        self._start = self._end = 0
        return view[begin:frame_bytes].toreadonly()

    def _make_room(self, frame_bytes: int) -> None:
        held = self._view[self._start : self._end]
        if frame_bytes <= SCRATCH_BYTES:
            # Overlapping ranges of one memoryview are moved correctly: it is memmove underneath.
            self._scratch[: len(held)] = held
        elif self._end - self._start < len(self._view) and self._view is not self._scratch:
            return
        else:
            likely_bytes = max(GROWTH * max(SCRATCH_BYTES, len(held)), self._latest_bytes)
            wanted_bytes = min(frame_bytes, likely_bytes)
            self._view = memoryview(bytearray(wanted_bytes))
            self._view[: len(held)] = held
        self._start, self._end = 0, len(held)
