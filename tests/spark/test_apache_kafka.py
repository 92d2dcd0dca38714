"""The source reads Apache Kafka as it reads Tidemill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.reference.kafka import SharedKafka
from tests.spark.topics import create, fill, numbers, read_what_is_there, source

from tidemill.client.blocking import Admin

pytestmark = pytest.mark.reference


def test_batch_and_stream(spark: Any, apache_kafka: SharedKafka, name: str, tmp_path: Path) -> None:
    bootstrap = f"127.0.0.1:{apache_kafka.port}"
    create(bootstrap, name, partitions=2)
    fill(bootstrap, name, numbers(0, 500), headers={"h": b"1"})
    fill(bootstrap, name, numbers(500, 600), partition=1)
    read = source(spark.read, bootstrap, subscribe=name, includeHeaders="true").load()
    rows = read.orderBy("partition", "offset").collect()
    assert [bytes(row.value) for row in rows] == numbers(0, 600)
    assert [tuple(rows[0].headers[0]), rows[-1].headers] == [("h", b"1"), None]
    frame = source(
        spark.readStream,
        bootstrap,
        subscribePattern=f"{name}.*",
        startingOffsets=json.dumps({name: {"0": 100, "1": -2}}),
        maxOffsetsPerTrigger=300,
        commitOffsets=f"{name}-group",
    ).load()
    seen = read_what_is_there(frame, tmp_path / "c")
    assert sorted(seen.values, key=int) == numbers(100, 600)
    assert len(seen.batches) == 2
    with Admin(bootstrap) as admin:
        committed = admin.list_group_offsets(f"{name}-group").raise_first()
    assert {tp.partition: at.offset for tp, at in committed.items() if at} == {0: 500, 1: 100}
