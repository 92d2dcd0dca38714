"""Batches that Apache Kafka stored decode to what its producers were given."""

from __future__ import annotations

import pytest
from tests.wire.batch_strategies import decode
from tests.wire.golden_batches import BATCHES, MARKERS

from tidemill.wire.batch import crc_matches, read_header
from tidemill.wire.compression import Codec
from tidemill.wire.control import ControlType, read_marker
from tidemill.wire.records import Record, build_batch

VALUE = b"the tide comes in " * 6
RECORDS = [
    Record(0, 1_700_000_000_000, b"key-0", VALUE),
    Record(1, 1_700_000_001_000, None, VALUE),
    Record(2, 1_700_000_002_000, b"key-2", None),
    Record(3, 1_700_000_003_000, b"key-3", VALUE, (("h", b"x"), ("n", None))),
]


@pytest.mark.parametrize("name", BATCHES)
def test_golden_batches(name: str) -> None:
    writer, codec = name.split()
    batch = BATCHES[name]
    header, records = decode(batch)
    assert records == RECORDS
    assert crc_matches(batch, 0, header)
    assert header.codec is Codec[codec.upper()]
    assert header.is_transactional is (writer == "java")
    assert header.has_producer_id
    assert (header.base_sequence, header.last_sequence) == (0, 3)


@pytest.mark.parametrize("name", BATCHES)
def test_we_write_the_same_bytes_where_nothing_is_compressed(name: str) -> None:
    stored = read_header(BATCHES[name])
    ours = build_batch(
        RECORDS,
        codec=stored.codec,
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        base_sequence=0,
        transactional=stored.is_transactional,
        leader_epoch=stored.partition_leader_epoch,
    )
    if stored.codec is Codec.NONE:
        assert ours == BATCHES[name]
    else:
        assert read_header(ours)._replace(crc=0, batch_length=0) == stored._replace(
            crc=0, batch_length=0
        )


@pytest.mark.parametrize("name", MARKERS)
def test_golden_markers(name: str) -> None:
    header = read_header(MARKERS[name])
    marker = read_marker(MARKERS[name], 0, header)
    assert marker is not None
    assert marker.control_type is ControlType[name.upper()]
    assert header.is_control
    assert header.base_offset == 4
