"""Tidying up when a pipeline starts: what killed runs left goes, and nothing can fail for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.spark.tables.lake import Lake, rows_of

from tidemill.spark.pipeline.tidying import tidy, tidy_beside
from tidemill.spark.tables.target import ORPHANS_OLDER_THAN_MS


def test_old_files_that_no_commit_names_go_and_young_ones_stay(tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path)
    lake.add(rows_of(range(3)), 0)
    old, young = (
        [each.path for part in lake.write(rows_of(range(4)), batch) for each in part.files]
        for batch in (1, 2)
    )
    before_s = (tmp_path.stat().st_mtime_ns // 10**9) - 2 * ORPHANS_OLDER_THAN_MS // 1000
    for path in old:
        os.utime(Path(lake.address) / path, (before_s, before_s))
    tidy_beside(
        [{"table": f"parquet:{lake.address}", "mode": "append", "table.fileBytes": "9"}]
    ).join()
    assert lake.parquet_files() == {*lake.live_files(), *young}


def test_each_table_once_and_a_failure_is_no_ones_end() -> None:
    asked: list[tuple[str, Mapping[str, str]]] = []

    def clean(table: str, access: Mapping[str, str]) -> list[str]:
        asked.append((table, access))
        raise OSError("no such storage")

    first = {"table": "delta:s3://a/b", "keys": "id", "storage.aws_region": "here"}
    tidy([first, {**first, "mode": "upsert"}, {"topic": "t"}, {"table": "parquet:/x"}], clean)
    assert asked == [("delta:s3://a/b", {"storage.aws_region": "here"}), ("parquet:/x", {})]
