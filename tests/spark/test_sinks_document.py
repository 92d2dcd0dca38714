"""docs/spark-sinks.md is run from top to bottom, and says what the options are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.spark.pipeline.cases import records_of
from tests.spark.topics import create

from tidemill.spark.options import SINK_OPTIONS
from tidemill.spark.tables.target import FILE_BYTES_MAX, TABLE_OPTIONS
from tidemill.testing.process import BrokerProcess

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "spark-sinks.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_every_block_runs(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """Word for word; only the broker's port and the folder are others."""
    from deltalake import DeltaTable

    lake = tmp_path / "lake"
    lake.mkdir()
    create(broker.bootstrap, "page-views", partitions=2)
    create(broker.bootstrap, "page-views-avro")
    names: dict[str, Any] = {"spark": spark}
    for block in BLOCKS:
        local = block.replace("localhost:9092", broker.bootstrap).replace("/data/lake", str(lake))
        exec(local, names)
    rows = DeltaTable(lake / "clicks").to_pyarrow_table().to_pylist()
    pages = sorted((row["user"], row["page"]) for row in rows)
    assert pages == sorted([("alice", "/home"), ("bob", "/cart")] * 2), "once each, and once more"
    last = {row.user: row.value for row in names["last_pages"].collect()}
    assert last == {"alice": "/home", "bob": "/cart"}
    assert names["deleted"] == []
    views = [record.value for record in records_of(broker.bootstrap, "page-views-avro")]
    assert sorted(views) == [b"\x06bob\x0a/cart", b"\x0aalice\x0a/home"]


def test_every_option_is_described() -> None:
    for option in (*SINK_OPTIONS, *TABLE_OPTIONS):
        if option != "includeHeaders":
            assert f"`{option}`" in TEXT, option
    assert str(FILE_BYTES_MAX) in TEXT
