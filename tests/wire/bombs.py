"""Small batches that would become large: in bytes, in headers, or in records.

They are sound in form - length, checksum, count - so that whoever wants to look inside has to. The
content is squeezed while it is made, piece by piece: a test that makes one stays small itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import lz4.frame
import zstandard

from tidemill.wire.batch import BatchHeader, pack_batch
from tidemill.wire.compression import Codec, compress
from tidemill.wire.records import encode_varint

MB: Final = 1_000_000
_NULL: Final = encode_varint(-1)


def sealed(
    body: bytes, *, codec: Codec = Codec.NONE, record_count: int = 1, timestamp: int = 0
) -> bytes:
    """A batch with a header that fits this (compressed) body."""
    header = BatchHeader(
        0, 0, -1, 2, 0, codec, record_count - 1, timestamp, timestamp, -1, -1, -1, record_count
    )
    return pack_batch(header, body)


def zeros_bomb(codec: Codec, size_bytes: int, *, timestamp: int = 0) -> bytes:
    """One record with that many zeros for a value."""
    front = b"\0\0\0" + encode_varint(1) + b"k" + encode_varint(size_bytes)
    length = encode_varint(len(front) + size_bytes + 1)
    pieces = [length + front, *[bytes(MB)] * (size_bytes // MB), bytes(size_bytes % MB + 1)]
    return sealed(squeezed(codec, pieces), codec=codec, timestamp=timestamp)


def headers_bomb(codec: Codec, count: int, *, timestamp: int = 0) -> bytes:
    """One record with that many empty headers: two bytes each."""
    front = b"\0\0\0" + encode_varint(1) + b"k" + _NULL + encode_varint(count)
    length = encode_varint(len(front) + 2 * count)
    some = MB // 2
    pieces = [length + front, *[b"\0\1" * some] * (count // some), b"\0\1" * (count % some)]
    return sealed(squeezed(codec, pieces), codec=codec, timestamp=timestamp)


def records_bomb(codec: Codec, count: int, *, keyed: bool = True, timestamp: int = 0) -> bytes:
    """That many records with nothing in them but a key, or not even that."""
    return sealed(
        squeezed(codec, _tiny_records(count, keyed)),
        codec=codec,
        record_count=count,
        timestamp=timestamp,
    )


def _tiny_records(count: int, keyed: bool) -> Iterator[bytes]:
    piece = bytearray()
    for index in range(count):
        key = encode_varint(4) + index.to_bytes(4, "big") if keyed else _NULL
        content = b"\0\0" + encode_varint(index) + key + encode_varint(0) + b"\0"
        piece += encode_varint(len(content)) + content
        if len(piece) > MB:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def squeezed(codec: Codec, pieces: Iterable[bytes]) -> bytes:
    """The pieces as one stream of the codec; snappy's takes several blocks anyway."""
    if codec is Codec.NONE:
        return b"".join(pieces)
    if codec is Codec.SNAPPY:
        return b"".join(compress(codec, piece) for piece in pieces)
    squeezer: Any
    if codec is Codec.GZIP:
        squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    elif codec is Codec.ZSTD:
        squeezer = zstandard.ZstdCompressor().compressobj()
    else:
        squeezer = lz4.frame.LZ4FrameCompressor(block_linked=False)
    parts = [squeezer.begin()] if codec is Codec.LZ4 else []
    parts += [squeezer.compress(piece) for piece in pieces]
    return b"".join([*parts, squeezer.flush()])
