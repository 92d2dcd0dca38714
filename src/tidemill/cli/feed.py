"""Delimited input without stalling the event loop: stdin or files, in bounded pieces.

A daemon thread reads, so that Ctrl-C ends the command even while a terminal has nothing to say
(a thread of the loop's own pool would be waited for).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO

from tidemill.cli.exits import CommandError

CHUNK_BYTES = 256 * 1024
CHUNKS_AHEAD_MAX = 8
MESSAGE_BYTES_MAX = 128 * 1024 * 1024


async def messages(paths: Sequence[str], delimiter: bytes) -> AsyncIterator[list[bytes]]:
    """The messages of the files (or of stdin) in lists; the last may lack its delimiter."""
    rest = b""
    async for chunk in chunks(paths):
        *whole, rest = (rest + chunk).split(delimiter)
        if len(rest) > MESSAGE_BYTES_MAX:
            raise CommandError(
                f"no {delimiter!r} within {MESSAGE_BYTES_MAX} bytes of input; "
                "is the delimiter right?"
            )
        if whole:
            yield whole
    if rest:
        yield [rest]


async def chunks(paths: Sequence[str]) -> AsyncIterator[bytes]:
    """The bytes of the files, or of stdin when there are none."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD_MAX)

    def deliver(item: bytes | BaseException | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        try:
            for path in paths or ("-",):
                with _opened(path) as stream:
                    while data := _read_some(stream):
                        room.acquire()
                        deliver(data)
            deliver(None)
        except (OSError, ValueError) as error:
            deliver(error)
        except RuntimeError:
            return  # The loop closed between our look and our call: nobody listens any more.

    threading.Thread(target=read, name="tidemill-input", daemon=True).start()
    while (item := await queue.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        room.release()
        yield item


def _opened(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
    """A file, or stdin for `-`, which stays open."""
    return contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb")


def _read_some(stream: BinaryIO) -> bytes:
    read1 = getattr(stream, "read1", None)
    data: bytes = read1(CHUNK_BYTES) if read1 is not None else stream.read(CHUNK_BYTES)
    return data
