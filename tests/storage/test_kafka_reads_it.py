"""Kafka's own dump tool reads what we write, and finds nothing to complain about."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reference.kafka import kafka_jars, run_kafka_tool, unavailable_reason
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on

from tidemill.storage.files import OsFiles
from tidemill.storage.log_config import LogConfig
from tidemill.wire.compression import Codec
from tidemill.wire.control import ControlType, build_marker

DUMP = "org.apache.kafka.tools.DumpLogSegments"


def write_directory(path: Path) -> Path:
    """A log of two segments with every codec, an idempotent producer and an aborted transaction."""
    config = LogConfig(segment_bytes=4000, index_interval_bytes=300)
    files = OsFiles()
    manager = manager_on(files, dirs=(str(path),), config=config)
    log = manager.create(TP, TOPIC_ID, config)
    for number in range(40):
        data = batch(
            b"x" * 50,
            timestamp=1_700_000_000_000 + number,
            codec=Codec(number % 5),
            producer_id=7,
            epoch=2,
            sequence=number,
        )
        log.append_as_leader(data, leader_epoch=number // 20)
    data = batch(b"t", producer_id=8, epoch=0, sequence=0, transactional=True)
    log.append_as_leader(data, leader_epoch=1)
    marker = build_marker(
        ControlType.ABORT, producer_id=8, producer_epoch=0, coordinator_epoch=3, timestamp=5
    )
    log.append_as_leader(marker, leader_epoch=1, producer_check=False)
    manager.shutdown({TP: 42}, broker_epoch=1)
    files.close_all()
    return path / str(TP)


@pytest.mark.reference
def test_kafka_reads_our_files(tmp_path: Path) -> None:
    if kafka_jars() is None:
        pytest.skip(f"Kafka's jars cannot be had: {unavailable_reason()}")
    directory = write_directory(tmp_path)
    logs = sorted(str(path) for path in directory.glob("*.log"))
    assert len(logs) >= 2
    dumped = run_kafka_tool(DUMP, "--files", ",".join(logs), "--deep-iteration").stdout
    assert dumped.count("isvalid: true") == 42
    assert "isvalid: false" not in dumped
    assert "endTxnMarker: ABORT coordinatorEpoch: 3" in dumped
    indexes = sorted(str(path) for path in directory.glob("*index") if path.suffix != ".txnindex")
    checked = run_kafka_tool(DUMP, "--files", ",".join(indexes), "--index-sanity-check").stdout
    sound = checked.count("passed sanity check") + checked.count("is empty")
    assert sound == len(indexes)
    verified = run_kafka_tool(DUMP, "--files", ",".join(indexes), "--verify-index-only").stdout
    assert "Mismatches" not in verified
    snapshot = str(max(directory.glob("*.snapshot")))
    producers = run_kafka_tool(DUMP, "--files", snapshot).stdout
    assert "producerId: 7 producerEpoch: 2" in producers
    assert "lastSequence: 39 lastOffset: 39" in producers
    aborted = [str(path) for path in directory.glob("*.txnindex")]
    entries = run_kafka_tool(DUMP, "--files", ",".join(aborted)).stdout
    assert "producerId: 8 firstOffset: 40 lastOffset: 41 lastStableOffset: 42" in entries
