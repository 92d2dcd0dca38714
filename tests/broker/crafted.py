"""Batches whose header and checksum are right and whose records are not."""

from __future__ import annotations

from tidemill.wire.batch import HEADER_BYTES, pack_batch, read_header
from tidemill.wire.compression import Codec, compress
from tidemill.wire.records import Record, build_batch


def contradictions(time_ms: int = 1_700_000_000_000) -> dict[str, bytes]:
    """By name: batches that only a look at each record can tell from sound ones."""

    def sound(*offsets: int, codec: Codec = Codec.NONE) -> bytes:
        records = [Record(offset, time_ms, b"key", b"value", ()) for offset in offsets]
        return build_batch(records, codec=codec)

    def mixed(head: bytes, body: bytes) -> bytes:
        return pack_batch(read_header(head), body)

    two, three = sound(0, 1), sound(0, 1, 2)
    zipped = sound(0, 1, 2, codec=Codec.GZIP)
    return {
        "fewer records than counted": mixed(three, two[HEADER_BYTES:]),
        "more records than counted": mixed(two, three[HEADER_BYTES:]),
        "offsets that jump": mixed(two, sound(0, 5)[HEADER_BYTES:]),
        "the same offset twice": mixed(two, 2 * sound(0)[HEADER_BYTES:]),
        "garbage": mixed(three, b"\xff" * 40),
        "zeros": mixed(three, bytes(40)),
        "compressed garbage": mixed(zipped, b"\xff" * 40),
        "compressed, fewer than counted": mixed(zipped, compress(Codec.GZIP, two[HEADER_BYTES:])),
        "compressed, more than counted": mixed(
            sound(0, 1, codec=Codec.GZIP), compress(Codec.GZIP, three[HEADER_BYTES:])
        ),
        "compressed, cut off": mixed(zipped, zipped[HEADER_BYTES:-12]),
    }
