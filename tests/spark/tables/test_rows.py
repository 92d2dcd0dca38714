"""Rows of a Delta table for reports: read without Python code in Arrow's threads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import fs, write_deltalake

from tidemill.spark.tables.rows import local_rows


def test_rows_of_all_files_with_the_columns_asked_for(tmp_path: Path) -> None:
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"id": [number], "x": ["y"]}), mode="append")
    assert sorted(row["id"] for row in local_rows(tmp_path, ["id"])) == [0, 1, 2]
    assert local_rows(tmp_path, ["x"]) == [{"x": "y"}] * 3


def test_a_table_that_is_not_there_yet_has_no_rows(tmp_path: Path) -> None:
    assert local_rows(tmp_path / "later", ["id"]) == []


def test_no_file_system_written_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's threads would call into an interpreter that ends, and abort the process."""

    def refuse(*_: object) -> None:
        raise AssertionError("a file system written in Python")

    write_deltalake(tmp_path, pa.table({"id": [1]}))
    monkeypatch.setattr(fs.DeltaStorageHandler, "from_table", refuse)
    assert local_rows(tmp_path, ["id"]) == [{"id": 1}]
