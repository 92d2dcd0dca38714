"""The receive side of one connection: bytes in, whole frames out, no more memory than was sent.

A connection without a frame under way has no buffer of its own: it receives into one scratch
buffer that all connections of the loop share, and its requests are handled straight from there.
Only the beginning of an unfinished frame is copied, into a buffer that grows with the bytes that
arrive and never because of the size that was declared.

So a frame handed out is borrowed: its bytes are good until `advance`, that is until the handler
returns. A handler that goes on afterwards copies what it keeps.
"""

from __future__ import annotations

import struct

from tidemill.broker.request_memory import SMALL_FRAME_BYTES

SIZE_BYTES = 4
_FIRST_BUFFER_BYTES = 4 * 1024
_EXACT_FROM_BYTES = 256 * 1024
"""From this frame size on, nothing behind the frame is read with it: moving it would cost more
than the system call that reads it later."""

_unpack_size = struct.Struct(">i").unpack_from


class Scratch:
    """The buffer that the connections of one loop share; a call to `recv` and the handling of what
    it brought never overlap with another connection's."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SMALL_FRAME_BYTES))


class ReceiveBuffer:
    """Received bytes of one connection that are not handled yet: `view[start:end]`."""

    __slots__ = ("_scratch", "end", "start", "view")

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch.view
        self.view = scratch.view
        self.start = 0
        self.end = 0

    @property
    def is_own(self) -> bool:
        """Whether the connection holds a buffer of its own."""
        return self.view is not self._scratch

    @property
    def own_bytes(self) -> int:
        return 0 if self.view is self._scratch else len(self.view)

    @property
    def is_empty(self) -> bool:
        return self.start == self.end

    def writable(self) -> memoryview:
        """Where the next bytes go; empty only while the buffer waits to grow."""
        view, end = self.view, self.end
        if end == 0:
            return view
        frame_bytes = self.frame_bytes()
        if frame_bytes is not None and frame_bytes >= _EXACT_FROM_BYTES:
            return view[end : min(len(view), self.start + frame_bytes)]
        return view[end:]

    def frame_bytes(self) -> int | None:
        """The length of the first frame with its size field, once that has arrived."""
        if self.end - self.start < SIZE_BYTES:
            return None
        size: int = _unpack_size(self.view, self.start)[0]
        return SIZE_BYTES + size

    def make_own(self) -> None:
        """Copy what the scratch buffer holds: it is about to be somebody else's."""
        if self.is_own:
            return
        held_bytes = self.end - self.start
        self._move_to(max(_FIRST_BUFFER_BYTES, 2 * held_bytes), held_bytes)

    @property
    def is_full(self) -> bool:
        """Whether the unfinished frame needs more room before another byte can be read."""
        return self.end - self.start == len(self.view)

    def compact(self) -> None:
        """Move the unfinished frame to the front, if its end would not fit behind it."""
        frame_bytes = self.frame_bytes() or SIZE_BYTES
        if self.start == 0 or self.start + frame_bytes <= len(self.view):
            return
        held_bytes = self.end - self.start
        # Overlapping ranges of one memoryview are moved correctly: it is memmove underneath.
        self.view[:held_bytes] = self.view[self.start : self.end]
        self.start, self.end = 0, held_bytes

    def grown_bytes(self) -> int:
        """The size to grow to: twice what is there, at most what the frame needs."""
        frame_bytes = self.frame_bytes() or _FIRST_BUFFER_BYTES
        return min(frame_bytes, 2 * len(self.view))

    def grow(self) -> None:
        self._move_to(self.grown_bytes(), self.end - self.start)

    def drop(self) -> None:
        """Give the own buffer away; the next bytes go into the shared one."""
        self.view = self._scratch
        self.start = self.end = 0

    def rewind(self) -> None:
        """Everything is handled: start again at the front."""
        self.start = self.end = 0

    def _move_to(self, capacity_bytes: int, held_bytes: int) -> None:
        view = memoryview(bytearray(capacity_bytes))
        view[:held_bytes] = self.view[self.start : self.end]
        self.view = view
        self.start, self.end = 0, held_bytes
