"""Every codec both ways, against foreign writers, and against input made to harm."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
import zlib

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_codec
from tests.wire.batch_strategies import codecs

from tidemill.errors import WireError
from tidemill.wire import compression
from tidemill.wire.compression import (
    Codec,
    OutputLimitError,
    check_level,
    codec_of,
    compress,
    decompress,
)

REAL = [codec for codec in Codec if codec is not Codec.NONE]
MIB = 1 << 20


@given(codecs, st.binary(max_size=3000), st.integers(1, 40))
def test_what_goes_in_comes_out(codec: Codec, data: bytes, times: int) -> None:
    data *= times
    view = memoryview(bytearray(data))
    assert decompress(codec, compress(codec, view), limit_bytes=len(data)) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, n) for n in (-1, 1, 3, 6, 7, 9)]
    + [(Codec.LZ4, n) for n in (1, 3, 9, 12, 17)]
    + [(Codec.ZSTD, n) for n in (-131072, -5, 1, 3, 19, 22)],
)
def test_every_level_of_kafkas_settings_works(codec: Codec, level: int) -> None:
    data = b"the tide mill turns twice a day " * 4000
    check_level(codec, level)
    assert decompress(codec, compress(codec, data, level), limit_bytes=len(data)) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.LZ4, 0), (Codec.ZSTD, 23), (Codec.SNAPPY, 1)],
)
def test_a_level_outside_the_range_is_refused(codec: Codec, level: int) -> None:
    with pytest.raises(ValueError, match="level"):
        check_level(codec, level)


def test_kafka_python_reads_what_we_write_and_the_other_way_round() -> None:
    data = os.urandom(1000) + b"abc" * 50_000
    readers = {
        Codec.GZIP: (kafka_codec.gzip_encode, kafka_codec.gzip_decode),
        Codec.SNAPPY: (kafka_codec.snappy_encode, kafka_codec.snappy_decode),
        Codec.LZ4: (kafka_codec.lz4_encode, kafka_codec.lz4_decode),
        Codec.ZSTD: (kafka_codec.zstd_encode, kafka_codec.zstd_decode),
    }
    for codec, (encode, decode) in readers.items():
        assert bytes(decode(compress(codec, data))) == data, codec
        assert decompress(codec, encode(data), limit_bytes=len(data)) == data, codec


def test_raw_snappy_is_read_as_well() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"librdkafka" * 100))
    assert decompress(Codec.SNAPPY, raw, limit_bytes=1000) == b"librdkafka" * 100


def test_lz4_frames_have_what_kafkas_java_reader_insists_on() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, b"x" * 200_000))
    assert info["block_linked"] is False
    assert info["block_size_id"] == lz4.frame.BLOCKSIZE_MAX64KB


def _lz4_frames(data: bytes) -> dict[str, bytes]:
    """The same data in every kind of lz4 frame, ours first."""
    kinds: dict[str, dict[str, object]] = {
        "linked": {"block_linked": True},
        "block checksums": {"block_linked": False, "block_checksum": True},
        "content checksum": {"block_linked": False, "content_checksum": True},
        "content size": {"block_linked": False, "store_size": True},
        "4 MiB blocks": {"block_linked": False, "block_size": lz4.frame.BLOCKSIZE_MAX4MB},
    }
    frames = {name: lz4.frame.compress(data, **kind) for name, kind in kinds.items()}
    return {"plain": compress(Codec.LZ4, data), **frames}


@pytest.mark.parametrize("kind", _lz4_frames(b""))
def test_every_kind_of_lz4_frame_is_read_and_bounded(kind: str) -> None:
    """Stored blocks, full ones and a short last one, alone and in a row with others."""
    data = os.urandom(70_000) + b"tide" * 50_000
    frame = _lz4_frames(data)[kind]
    assert decompress(Codec.LZ4, frame, limit_bytes=len(data)) == data
    mixed = frame + compress(Codec.LZ4, b"between") + frame
    assert decompress(Codec.LZ4, mixed, limit_bytes=2 * len(data) + 7) == data + b"between" + data
    for limit_bytes in (0, 1, 65_536, len(data) - 1):
        with pytest.raises(OutputLimitError):
            decompress(Codec.LZ4, frame, limit_bytes=limit_bytes)
    for size in (4, 6, 7, 10, 11, len(frame) // 2, len(frame) - 4, len(frame) - 1):
        with pytest.raises(WireError):
            decompress(Codec.LZ4, frame[:size], limit_bytes=MIB)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("plain", 6),  # The header's checksum.
        ("content size", 6),  # The size itself; its checksum in the header tells.
        ("block checksums", -5),
        ("content checksum", -1),
    ],
)
def test_checksums_of_lz4_frames_are_looked_at(kind: str, place: int) -> None:
    frame = bytearray(_lz4_frames(b"the same again " * 9_000)[kind])
    frame[place] ^= 1
    with pytest.raises(WireError, match="damaged"):
        decompress(Codec.LZ4, frame, limit_bytes=MIB)


def test_a_content_size_that_lies_is_refused() -> None:
    """Its checksum is right, so only what comes out can tell."""
    short, long = (
        lz4.frame.compress(b"x" * size, block_linked=False, store_size=True)
        for size in (1_000, 1_001)
    )
    with pytest.raises(WireError, match="damaged"):
        decompress(Codec.LZ4, long[:15] + short[15:], limit_bytes=MIB)


def test_lz4_blocks_that_lie_about_their_size_are_refused() -> None:
    whole = compress(Codec.LZ4, b"x" * 65_536)
    for word in (0x7FFFFFFF, 0xFFFFFFFF, 0x10001, 0x80010001, 1):
        with pytest.raises(WireError):
            decompress(Codec.LZ4, whole[:7] + struct.pack("<I", word) + whole[11:], limit_bytes=MIB)
    too_large = lz4.block.compress(b"x" * 65_537, store_size=False)
    frame = whole[:7] + struct.pack("<I", len(too_large)) + too_large + bytes(4)
    with pytest.raises(WireError):
        decompress(Codec.LZ4, frame, limit_bytes=MIB)


@given(st.binary(max_size=400), st.integers(1, 400), st.data())
def test_damaged_lz4_is_judged_as_the_library_judges_it(
    data: bytes, times: int, draw: st.DataObject
) -> None:
    damaged = bytearray(compress(Codec.LZ4, data * times))
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = draw.draw(st.integers(0, 255))
    expected: bytes | None
    try:
        expected = lz4.frame.decompress(damaged)
    except RuntimeError:
        expected = None
    try:
        assert decompress(Codec.LZ4, damaged, limit_bytes=MIB) == expected
    except WireError:
        assert expected is None


@pytest.mark.parametrize("codec", REAL)
def test_frames_in_a_row_are_one_stream(codec: Codec) -> None:
    frames = compress(codec, b"first ") + compress(codec, b"second")
    assert decompress(codec, frames, limit_bytes=100) == b"first second"


@pytest.mark.parametrize("codec", REAL)
def test_the_limit_counts_all_frames(codec: Codec) -> None:
    frames = compress(codec, b"x" * 60) * 2
    assert len(decompress(codec, frames, limit_bytes=120)) == 120
    with pytest.raises(OutputLimitError):
        decompress(codec, frames, limit_bytes=119)


@pytest.mark.parametrize("codec", REAL)
def test_a_stream_that_is_cut_off_is_refused(codec: Codec) -> None:
    whole = compress(codec, os.urandom(3000) + b"z" * 1000)
    for size in (0, 1, 5, len(whole) // 2, len(whole) - 1):
        with pytest.raises(WireError):
            decompress(codec, whole[:size], limit_bytes=MIB)


@pytest.mark.parametrize("codec", REAL)
def test_bytes_after_the_end_are_refused(codec: Codec) -> None:
    for tail in (b"\x00", b"garbage that is no frame at all"):
        with pytest.raises(WireError):
            decompress(codec, compress(codec, b"data" * 100) + tail, limit_bytes=MIB)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_flood_of_tiny_frames_is_refused(codec: Codec) -> None:
    """Each frame costs a decoder; snappy's blocks cost none, so their number is free."""
    with pytest.raises(WireError, match=str(compression.FRAMES_MAX)):
        decompress(codec, compress(codec, b"") * 1100, limit_bytes=MIB)


def _bomb(codec: Codec) -> bytes:
    """About a gigabyte of zeros, made piece by piece."""
    zeros = bytes(MIB)
    if codec is Codec.GZIP:
        member = zlib.compressobj(1, wbits=31)
        start = member.compress(zeros) + member.flush(zlib.Z_FULL_FLUSH)
        return start + (member.compress(zeros) + member.flush(zlib.Z_FULL_FLUSH)) * 1023
    if codec is Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(zeros))
        head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
        return head + (struct.pack(">i", len(block)) + block) * 1024
    if codec is Codec.LZ4:
        context = lz4.frame.create_compression_context()
        parts = [lz4.frame.compress_begin(context, block_linked=False)]
        parts += [lz4.frame.compress_chunk(context, zeros) for _ in range(1024)]
        return b"".join([*parts, lz4.frame.compress_flush(context)])
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join([*(stream.compress(zeros) for _ in range(1024)), stream.flush()])


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_stops_at_the_limit_with_bounded_memory(codec: Codec) -> None:
    """Rule 3.4.3: an output ceiling, whatever the input declares."""
    bomb = _bomb(codec)
    limit_bytes = 8 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(OutputLimitError):
            decompress(codec, bomb, limit_bytes=limit_bytes)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * limit_bytes


def test_declared_sizes_are_not_believed() -> None:
    """Rule 3.4.3: never trust snappy chunk sizes or a content size (CVE-2023-34455)."""
    huge = b"\xff\xff\xff\xff\x07" + b"abc"
    with pytest.raises(WireError, match="declares"):
        decompress(Codec.SNAPPY, huge, limit_bytes=1 << 31)
    for size in (-1, 0x7FFFFFFF):
        lie = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, size)
        with pytest.raises(WireError):
            decompress(Codec.SNAPPY, lie, limit_bytes=MIB)
    zstd = bytearray(zstandard.ZstdCompressor().compress(b"x" * 70_000))
    zstd[5:9] = struct.pack("<I", 0x7FFFFFFF)
    with pytest.raises(WireError):
        decompress(Codec.ZSTD, bytes(zstd), limit_bytes=MIB)


@given(st.sampled_from(REAL), st.binary(max_size=400), st.data())
def test_damage_is_a_wire_error_or_harmless(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(compress(codec, data * 3))
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = draw.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, bytes(damaged), limit_bytes=5000)) <= 5000
    except WireError:
        pass


@given(st.sampled_from(REAL), st.binary(max_size=200))
def test_noise_is_a_wire_error_or_harmless(codec: Codec, noise: bytes) -> None:
    try:
        assert len(decompress(codec, noise, limit_bytes=5000)) <= 5000
    except WireError:
        pass


def test_gzip_works_without_the_fast_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_fast_zlib", None)
    data = b"plain zlib " * 1000
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert decompress(Codec.GZIP, gzip.compress(data), limit_bytes=len(data)) == data
    with pytest.raises(OutputLimitError):
        decompress(Codec.GZIP, gzip.compress(data), limit_bytes=100)
    with pytest.raises(WireError):
        decompress(Codec.GZIP, b"\x1f\x8bnot gzip", limit_bytes=100)


def test_unknown_codec_bits_are_refused() -> None:
    assert codec_of(0b1100) is Codec.ZSTD
    with pytest.raises(WireError, match="codec 7"):
        codec_of(7)


def test_no_codec_still_has_a_limit() -> None:
    with pytest.raises(OutputLimitError):
        decompress(Codec.NONE, b"12345", limit_bytes=4)
