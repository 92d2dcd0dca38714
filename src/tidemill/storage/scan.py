"""Walking the batches of a segment file: headers only for lookups, whole batches for recovery.

Nothing here trusts the file: a length that cannot be true ends the walk, so no walk runs for ever
(rule E10) and none reads more than one chunk or one batch at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidemill.errors import TidemillError, WireError
from tidemill.storage.files import Files
from tidemill.wire.batch import (
    HEADER_BYTES,
    LENGTH_POS,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POS,
    BatchHeader,
    crc_matches,
    read_header,
)

HEADER_CHUNK_BYTES = 8 * 1024
SCAN_CHUNK_BYTES = 1 << 20
_LEGACY_LENGTH_MIN = 14

Read = Callable[[str, int, int], bytes | bytearray | None]
"""(path, position, length) -> bytes, or None when that would block."""


class WouldBlockError(Exception):
    """The bytes are not in memory; ask again from a thread that may wait for the disk."""


def walk_headers(read: Read, path: str, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch that lies wholly in [start, end) of the file.

    Raises `WouldBlockError` when `read` says so and `CorruptBatchError` at bytes that are no batch.
    """
    position = chunk_start = start
    chunk: bytes | bytearray = b""
    while position + HEADER_BYTES <= end:
        if position + HEADER_BYTES > chunk_start + len(chunk):
            more = read(path, position, min(HEADER_CHUNK_BYTES, end - position))
            if more is None:
                raise WouldBlockError(path)
            if len(more) < HEADER_BYTES:
                return
            chunk_start, chunk = position, more
        header = read_header(chunk, position - chunk_start)
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


class LegacyLogError(TidemillError):
    """The log holds message sets of format v0 or v1, which must not be mistaken for damage."""


class ScannedBatch(NamedTuple):
    """A whole batch in a buffer that is only valid until the next one is asked for."""

    position: int
    header: BatchHeader
    buffer: memoryview
    buffer_pos: int


def scan_batches(
    files: Files, path: str, start: int, end: int, *, chunk_bytes: int = SCAN_CHUNK_BYTES
) -> Iterator[ScannedBatch]:
    """Each whole batch from `start` whose CRC is right; ends before the first that is not.

    The caller learns where the good part ends from the last batch it was given.
    """
    position, chunk_start, chunk = start, start, memoryview(b"")
    while position + HEADER_BYTES <= end:
        if position + HEADER_BYTES > chunk_start + len(chunk):
            chunk_start, chunk = position, _chunk(files, path, position, end, chunk_bytes)
        try:
            header = read_header(chunk, position - chunk_start)
        except WireError:
            break
        size = header.size_bytes
        if position + size > end:
            break
        if position + size > chunk_start + len(chunk):
            wanted = max(size, chunk_bytes)
            chunk_start, chunk = position, _chunk(files, path, position, end, wanted)
        if not crc_matches(chunk, position - chunk_start, header):
            break
        yield ScannedBatch(position, header, chunk, position - chunk_start)
        position += size
    _refuse_legacy(files, path, position, end)


def _chunk(files: Files, path: str, position: int, end: int, length: int) -> memoryview:
    return memoryview(files.pread(path, position, min(length, end - position)))


def _refuse_legacy(files: Files, path: str, position: int, end: int) -> None:
    """Raise if a sound v0/v1 message stands here; zeros and torn bytes are just the log's end."""
    head = files.pread(path, position, LOG_OVERHEAD_BYTES)
    length = int.from_bytes(head[LENGTH_POS:], signed=True)
    if length < _LEGACY_LENGTH_MIN or position + LOG_OVERHEAD_BYTES + length > end:
        return
    message = files.pread(path, position + LOG_OVERHEAD_BYTES, length)
    crc_bytes = MAGIC_POS - LOG_OVERHEAD_BYTES
    if message[crc_bytes] < MAGIC and zlib.crc32(message[crc_bytes:]) == int.from_bytes(
        message[:crc_bytes]
    ):
        raise LegacyLogError(
            f"{path} holds messages of an old format (v0 or v1); "
            "convert the directory with `tidemill log import` first"
        )
