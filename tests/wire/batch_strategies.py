"""Hypothesis strategies for records, and small helpers that several tests share."""

from __future__ import annotations

from hypothesis import strategies as st

from tidemill.wire.batch import BatchHeader, read_header
from tidemill.wire.compression import Codec
from tidemill.wire.records import Record, iter_records

LIMIT_BYTES = 1 << 24


codecs = st.sampled_from(list(Codec))
payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)))


@st.composite
def record_lists(
    draw: st.DrawFn, base_offset: int = 0, gaps: bool = False, size_max: int = 12
) -> list[Record]:
    """Records with rising offsets; timestamps jump both ways."""
    base_time = draw(st.integers(0, 2**45))
    offset = base_offset
    records = []
    for _ in range(draw(st.integers(1, size_max))):
        timestamp = base_time + draw(st.integers(-100, 100) | st.integers(-(2**40), 2**40))
        headers = tuple(draw(header_lists.filter(lambda each: len(each) < 5)))
        records.append(Record(offset, timestamp, draw(payloads), draw(payloads), headers))
        offset += 1 + (draw(st.integers(0, 10000)) if gaps else 0)
    return records


def decode(batch: bytes, pos: int = 0) -> tuple[BatchHeader, list[Record]]:
    header = read_header(batch, pos)
    return header, list(iter_records(batch, pos, header, limit_bytes=LIMIT_BYTES))


def simple_records(count: int, *, size_bytes: int = 10) -> list[Record]:
    return [Record(i, 1_700_000_000_000 + i, b"k%d" % i, b"v" * size_bytes) for i in range(count)]
