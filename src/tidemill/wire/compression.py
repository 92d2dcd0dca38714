"""The four codecs of record batches, each behind a decompressor that cannot be made to overflow.

Start at `compress` and `decompress`. A batch that arrives over the network may declare any size and
may be a bomb, so `decompress` never sizes a buffer by what the input claims: output grows in steps
as bytes really come out, and stops with `OutputLimitError` at the caller's limit. Input that ends
early, or goes on after its last frame, is a `WireError`, too.

Formats are the ones that Kafka's own clients write: one gzip member, xerial-framed snappy (raw
snappy, as librdkafka sends, is read as well), an lz4 frame of independent 64 KiB blocks, and zstd
frames. Several members or frames in a row are read as one stream.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import cramjam
import lz4.frame
import zstandard

from tidemill.errors import WireError

_fast_zlib: Any
try:  # About ten times the speed of zlib at compressing, three times at decompressing.
    from isal import isal_zlib as _fast_zlib
except ImportError:  # No wheel for this platform.
    _fast_zlib = None

Buffer = bytes | bytearray | memoryview

FRAMES_MAX: Final = 1024
"""Frames in one compressed input; clients write one, and each costs a fresh decoder."""

_STEP_BYTES: Final = 256 * 1024
_GZIP_WBITS: Final = 31
_ZLIB_ERRORS: Final[tuple[type[Exception], ...]] = (
    (zlib.error,) if _fast_zlib is None else (zlib.error, _fast_zlib.error)
)


class Codec(IntEnum):
    """How a batch's records are compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODECS: Final = tuple(Codec)


class OutputLimitError(WireError):
    """Decompressed data would be larger than the caller allows."""

    def __init__(self, codec: Codec, limit_bytes: int) -> None:
        super().__init__(
            f"{codec.name.lower()} data is larger than the limit of {limit_bytes} bytes "
            "when decompressed; send smaller batches or raise the limit"
        )


def codec_of(attributes: int) -> Codec:
    """The codec that a batch's or a message's attributes name."""
    try:
        return _CODECS[attributes & 0x07]  # A third of the cost of `Codec(...)`, on a hot path.
    except IndexError:
        raise WireError(f"unknown compression codec {attributes & 0x07}") from None


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` in `codec`'s format; `level` has the range of Kafka's `compression.<codec>.level`."""
    return _COMPRESSORS[codec](data, level)


def decompress(codec: Codec, data: Buffer, *, limit_bytes: int) -> bytes:
    """All of `data` decompressed, at most `limit_bytes` long; raises `WireError` otherwise."""
    return _DECOMPRESSORS[codec](data, limit_bytes)


def check_level(codec: Codec, level: int) -> None:
    """Raise `ValueError` unless Kafka accepts `level` for `codec`."""
    low, high = LEVELS.get(codec, (0, -1))
    allowed_default = codec is Codec.GZIP and level == -1
    if not (low <= level <= high or allowed_default):
        raise ValueError(
            f"{codec.name.lower()} has no compression level {level}; "
            + (f"use {low} to {high}" if low <= high else "it takes no level")
        )


LEVELS: Final = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
"""The levels that Kafka's settings allow; gzip's default is spelled -1 as well."""


# --- none ---------------------------------------------------------------------------------------


def _copy(data: Buffer, _level: int | None) -> bytes:
    return bytes(data)


def _copy_bounded(data: Buffer, limit_bytes: int) -> bytes:
    if len(data) > limit_bytes:
        raise OutputLimitError(Codec.NONE, limit_bytes)
    return bytes(data)


# --- gzip ---------------------------------------------------------------------------------------


def _gzip(data: Buffer, level: int | None) -> bytes:
    """The fast library up to level 6, the default; zlib where a better ratio was asked for.

    Its level 2 is 18 times as fast as zlib's level 6 and 6 % larger; its level 1 beats zlib's 3.
    """
    if level is None or level == -1:
        level = 6
    if _fast_zlib is None or level > 6:
        return zlib.compress(data, level, wbits=_GZIP_WBITS)
    compressed: bytes = _fast_zlib.compress(data, 1 if level <= 3 else 2, wbits=_GZIP_WBITS)
    return compressed


def _gunzip(data: Buffer, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest: Buffer = data
    for _ in range(FRAMES_MAX):
        part, rest = _gunzip_member(rest, limit_bytes - size)
        size += len(part)
        if size > limit_bytes:
            raise OutputLimitError(Codec.GZIP, limit_bytes)
        parts.append(part)
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise WireError(f"gzip data has more than {FRAMES_MAX} members")


def _gunzip_member(data: Buffer, limit_bytes: int) -> tuple[bytes, bytes]:
    """One member, cut off one byte above the limit, and the input that follows it."""
    member = (_fast_zlib or zlib).decompressobj(wbits=_GZIP_WBITS)
    try:
        part: bytes = member.decompress(data, limit_bytes + 1)
    except _ZLIB_ERRORS as error:
        raise WireError(f"gzip data is damaged: {error}") from None
    if not member.eof and len(part) <= limit_bytes:
        raise WireError("gzip data ends in the middle of a member")
    return part, member.unused_data


# --- snappy -------------------------------------------------------------------------------------

_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC: Final = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_RATIO_MAX: Final = 64
"""No snappy element makes more than 64 bytes; three input bytes are the fewest for that."""

_int32 = struct.Struct(">i")


def _snappy(data: Buffer, _level: int | None) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_int32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _unsnappy(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _unsnappy_block(view, limit_bytes, limit_bytes)
    parts: list[bytes] = []
    left_bytes = limit_bytes
    pos = 0
    while pos < len(view):
        if view[pos : pos + 8] == _XERIAL_MAGIC:  # The start, or another stream appended to it.
            pos = _skip(view, pos, len(_XERIAL_HEADER))
            continue
        start = _skip(view, pos, 4)
        pos = _skip(view, start, _int32.unpack_from(view, pos)[0])
        parts.append(_unsnappy_block(view[start:pos], left_bytes, limit_bytes))
        left_bytes -= len(parts[-1])
    return b"".join(parts)


def _skip(view: memoryview, pos: int, size: int) -> int:
    """The position `size` bytes on, which must lie inside the input."""
    if size < 0 or size > len(view) - pos:
        raise WireError(f"snappy data ends early: {size} bytes wanted, {len(view) - pos} left")
    return pos + size


def _unsnappy_block(block: memoryview, left_bytes: int, limit_bytes: int) -> bytes:
    """One raw snappy block; its declared size is checked before it is used to allocate."""
    try:
        declared = cramjam.snappy.decompress_raw_len(block)
        if declared > _SNAPPY_RATIO_MAX * len(block):
            raise WireError(f"snappy block of {len(block)} bytes declares {declared}")
        if declared > left_bytes:
            raise OutputLimitError(Codec.SNAPPY, limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(block)) if declared else _empty_block(block)
    except cramjam.DecompressionError as error:
        raise WireError(f"snappy data is damaged: {error}") from None


def _empty_block(block: memoryview) -> bytes:
    if bytes(block) != b"\x00":
        raise WireError("snappy block declares no bytes but has some")
    return b""


# --- lz4 ----------------------------------------------------------------------------------------

LZ4_DEFAULT_LEVEL: Final = 9
"""Kafka's default level is 9, and its Java client takes the *fast* compressor for that one."""


def _lz4(data: Buffer, level: int | None) -> bytes:
    fast = level is None or level == LZ4_DEFAULT_LEVEL
    compressed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if fast else min(max(level or 0, lz4.frame.COMPRESSIONLEVEL_MINHC), 16),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,  # Kafka's Java reader refuses linked blocks.
        store_size=False,
    )
    return compressed


def _unlz4(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = []
    pos = size = frames = 0
    while pos < len(view) or not frames:
        frames += 1
        if frames > FRAMES_MAX:
            raise WireError(f"lz4 data has more than {FRAMES_MAX} frames")
        pos, size = _unlz4_frame(view, pos, size, limit_bytes, parts)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unlz4_frame(
    view: memoryview, pos: int, size: int, limit_bytes: int, parts: list[bytes]
) -> tuple[int, int]:
    """Append one frame's output to `parts`; returns where it ends and the output's size so far."""
    context = lz4.frame.create_decompression_context()
    step_bytes = min(max(4 * len(view), 4096), _STEP_BYTES)
    finished = False
    while not finished:
        try:
            part, read, finished = lz4.frame.decompress_chunk(
                context, view[pos:], max_length=step_bytes
            )
        except RuntimeError as error:
            raise WireError(f"lz4 data is damaged: {error}") from None
        pos += read
        size += len(part)
        if size > limit_bytes:
            raise OutputLimitError(Codec.LZ4, limit_bytes)
        if part:
            parts.append(part)
        elif not finished and not read:
            raise WireError("lz4 data ends in the middle of a frame")
    return pos, size


# --- zstd ---------------------------------------------------------------------------------------

ZSTD_DEFAULT_LEVEL: Final = 3
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
_ZSTD_RLE: Final = 1
_ZSTD_RESERVED: Final = 3

_uint32_le = struct.Struct("<I")
_contexts = threading.local()  # A context is not safe to share, and costs 15 us to make.


def _zstd(data: Buffer, level: int | None) -> bytes:
    level = ZSTD_DEFAULT_LEVEL if level is None else level
    cached: tuple[int, Any] | None = getattr(_contexts, "compressor", None)
    if cached is None or cached[0] != level:
        cached = _contexts.compressor = (level, zstandard.ZstdCompressor(level=level))
    compressed: bytes = cached[1].compress(data)
    return compressed


def _unzstd(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    _check_zstd_frames(view)
    reader = _zstd_decompressor().stream_reader(view, read_across_frames=True)
    step_bytes = min(max(4 * len(view), 4096), _STEP_BYTES)
    parts: list[bytes] = []
    size = 0
    try:
        while part := reader.read(step_bytes):
            size += len(part)
            if size > limit_bytes:
                raise OutputLimitError(Codec.ZSTD, limit_bytes)
            parts.append(part)
    except zstandard.ZstdError as error:
        raise WireError(f"zstd data is damaged: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_decompressor() -> zstandard.ZstdDecompressor:
    decompressor: zstandard.ZstdDecompressor | None = getattr(_contexts, "decompressor", None)
    if decompressor is None:
        decompressor = _contexts.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def _check_zstd_frames(view: memoryview) -> None:
    """Walk the frames' block headers: the streaming reader takes a cut-off frame for the end."""
    pos = frames = 0
    try:
        while pos < len(view) or not frames:
            frames += 1
            if frames > FRAMES_MAX:
                raise WireError(f"zstd data has more than {FRAMES_MAX} frames")
            pos = _zstd_frame_end(view, pos)
    except (IndexError, struct.error, zstandard.ZstdError):
        raise WireError("zstd data ends early or is not zstd") from None
    if pos != len(view):
        raise WireError("zstd data ends in the middle of a frame")


def _zstd_frame_end(view: memoryview, pos: int) -> int:
    (magic,) = _uint32_le.unpack_from(view, pos)
    if magic in _ZSTD_SKIPPABLE:
        return pos + 8 + int(_uint32_le.unpack_from(view, pos + 4)[0])
    if magic != _ZSTD_MAGIC:
        raise WireError("zstd data has something else after its last frame")
    header = view[pos : pos + 18]
    has_checksum = zstandard.get_frame_parameters(header).has_checksum
    pos += zstandard.frame_header_size(header)
    is_last = False
    while not is_last:
        word = view[pos] | view[pos + 1] << 8 | view[pos + 2] << 16
        is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        if kind == _ZSTD_RESERVED or size > _ZSTD_BLOCK_BYTES_MAX:
            raise WireError("zstd data has an invalid block")
        pos += 3 + (1 if kind == _ZSTD_RLE else size)
    return pos + 4 * has_checksum


_COMPRESSORS: Final[dict[Codec, Callable[[Buffer, int | None], bytes]]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: Final[dict[Codec, Callable[[Buffer, int], bytes]]] = {
    Codec.NONE: _copy_bounded,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
