"""The sidecar of a closed segment, `<base>.checksums`: one CRC-32C for each piece of its bytes.

A batch's own CRC does not cover its base offset, length, leader epoch and magic byte, so a flipped
bit there is invisible to it (rule E2). The sidecar covers every byte of the `.log` file, in pieces
of `INTERVAL_BYTES`, so that damage has an address. It is written once, when the segment is closed;
whoever changes a closed segment's bytes drops it first. A segment without one, from Kafka or from
before, is nothing wrong: the next scrub makes it.

Format (big endian): "TMSC", version int16, spare int16, interval bytes int32, covered bytes int64,
one uint32 for each interval, and a CRC-32C of all that stands before it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.errors import TidemillError
from tidemill.storage.files import Buffer, Files
from tidemill.wire.batch import crc32c

CHECKSUMS = ".checksums"
INTERVAL_BYTES = 16 * 1024
READ_BYTES = 1 << 20
"""How much of a segment is in memory at a time; a multiple of every interval."""

_MAGIC = b"TMSC"
_VERSION = 1
_head = struct.Struct(">4sHHIQ")
_trailer = struct.Struct(">I")
_INTERVAL_MIN, _INTERVAL_MAX = 512, READ_BYTES
_COVERED_BYTES_MAX = 1 << 32
"""Positions in a segment are 31 bits wide; more is nonsense in a damaged file."""


class BadChecksumsError(TidemillError):
    """A sidecar that is torn, damaged or of an unknown version: it says nothing of its segment."""


class Checksums(NamedTuple):
    """What a closed segment's bytes were when it was closed."""

    size_bytes: int
    interval_bytes: int
    sums: array[int]

    def mismatches(self, position: int, data: Buffer) -> Iterator[tuple[int, int]]:
        """The byte ranges of `data` that are not as they were; it begins an interval."""
        step = self.interval_bytes
        slot = position // step
        for found in sums_of(data, step):
            if slot >= len(self.sums) or found != self.sums[slot]:
                yield slot * step, min((slot + 1) * step, position + len(data))
            slot += 1


def sums_of(data: Buffer, interval_bytes: int = INTERVAL_BYTES) -> array[int]:
    """The checksum of each interval of the bytes; the last one may be short."""
    view = memoryview(data)
    return array(
        "I",
        (
            crc32c(view[start : start + interval_bytes])
            for start in range(0, len(data), interval_bytes)
        ),
    )


def compute(files: Files, log_path: str) -> Checksums:
    """Read a whole segment and sum it up; blocks, in bounded memory."""
    sums, position = array("I"), 0
    while data := files.pread(log_path, position, READ_BYTES):
        sums += sums_of(data)
        position += len(data)
    return Checksums(position, INTERVAL_BYTES, sums)


def format_checksums(checksums: Checksums) -> bytes:
    head = _head.pack(_MAGIC, _VERSION, 0, checksums.interval_bytes, checksums.size_bytes)
    body = head + _swapped(checksums.sums).tobytes()
    return body + _trailer.pack(crc32c(body))


def parse_checksums(data: bytes) -> Checksums:
    """The sidecar's content; raises `BadChecksumsError` for anything that is not one, whole."""
    if len(data) < _head.size + _trailer.size:
        raise BadChecksumsError(f"{len(data)} bytes are too few for checksums")
    body = data[: -_trailer.size]
    if crc32c(body) != _trailer.unpack(data[-_trailer.size :])[0]:
        raise BadChecksumsError("the checksums do not match their own checksum")
    magic, version, _, interval, size = _head.unpack_from(body)
    if magic != _MAGIC or version != _VERSION:
        raise BadChecksumsError(f"not checksums of version {_VERSION}")
    sums = array("I")
    sums.frombytes(body[_head.size :][: (len(body) - _head.size) // 4 * 4])
    is_whole = (
        _INTERVAL_MIN <= interval <= _INTERVAL_MAX
        and READ_BYTES % interval == 0
        and size <= _COVERED_BYTES_MAX
        and len(body) - _head.size == 4 * -(-size // interval)
    )
    if not is_whole:
        raise BadChecksumsError(f"{len(sums)} checksums of {interval} bytes each for {size} bytes")
    return Checksums(size, interval, _swapped(sums))


def _swapped(sums: array[int]) -> array[int]:
    """From the machine's byte order to the file's, and back."""
    swapped = array("I", sums)
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped


def read_sidecar(files: Files, path: str) -> Checksums | None:
    """The sidecar's checksums; None when there is no such file."""
    if not files.exists(path):
        return None
    return parse_checksums(files.read_file(path))


def write_sidecar(files: Files, log_path: str, sidecar_path: str) -> None:
    """Sum up a file of batches and write the sidecar, durable but for its name; blocks.

    The log must be durable already, and the caller flushes the directory (rule E5).
    """
    data = format_checksums(compute(files, log_path))
    temporary = sidecar_path + ".tmp"
    files.unlink(temporary)
    files.write_at(temporary, 0, (data,))
    files.fdatasync(temporary)
    files.replace(temporary, sidecar_path)


def drop_sidecar(files: Files, stem: str) -> None:
    """Forget the checksums of the segment whose files begin with `stem`, before it changes."""
    files.unlink(stem + CHECKSUMS)
