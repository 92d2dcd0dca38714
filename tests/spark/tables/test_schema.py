"""What a table does with columns that are new, that changed, and that come as Spark labels them."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.tables.lake import KINDS, SCHEMA, Lake, rows_of

from tidemill.spark.tables.schema import plain_schema
from tidemill.spark.tables.target import TableError

WIDER = SCHEMA.append(pa.field("country", pa.string()))
NARROWER = pa.schema([("id", pa.int64()), ("offset", pa.int64())])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_new_columns_are_added_and_missing_ones_are_null(
    kind: str, mode: str, tmp_path: Path
) -> None:
    options = {"mode": mode, "keys": ("id",) if mode == "upsert" else ()}
    lake = Lake(kind, tmp_path, options)
    lake.add(rows_of([1]), 0)
    lake.add([{**rows_of([2])[0], "country": "nl"}], 1, schema=WIDER)
    lake.add([{"id": 3, "offset": 9}], 2, schema=NARROWER)
    found = {row["id"]: (row.get("value"), row.get("country")) for row in lake.read()}
    assert found == {1: ("v1", None), 2: ("v2", "nl"), 3: (None, None)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_another_type_is_refused_before_anything_is_written(
    kind: str, tmp_path: Path
) -> None:
    lake = Lake(kind, tmp_path)
    lake.add(rows_of([1]), 0)
    changed = pa.schema([("id", pa.string()), ("value", pa.string()), ("offset", pa.int64())])
    with pytest.raises(TableError, match="column id is int64 in the table and string in the query"):
        lake.write([], 1, schema=changed)
    renamed = pa.schema([("ID", pa.int64())])
    with pytest.raises(TableError, match="column ID is called id in the table"):
        lake.write([], 1, schema=renamed)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_spark_has_comes_back(kind: str, tmp_path: Path) -> None:
    """Timestamps labelled with the session's zone, nested columns, small and large numbers."""
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("tiny", pa.int8()),
            ("at", pa.timestamp("us", tz="Etc/UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("price", pa.decimal128(12, 2)),
            ("ratio", pa.float64()),
            ("raw", pa.binary()),
            ("flag", pa.bool_()),
            (
                "headers",
                pa.list_(
                    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
                ),
            ),
            ("place", pa.struct([("at", pa.timestamp("us", tz="Etc/UTC")), ("n", pa.int16())])),
            ("counts", pa.map_(pa.string(), pa.int64())),
        ]
    )
    at = dt.datetime(2026, 11, 16, 9, 30, tzinfo=dt.UTC)
    row = {
        "id": 1,
        "tiny": 7,
        "at": at,
        "local": at.replace(tzinfo=None),
        "day": at.date(),
        "price": decimal.Decimal("12.50"),
        "ratio": 0.5,
        "raw": b"\x00\xff",
        "flag": True,
        "headers": [{"key": "a", "value": b"1"}],
        "place": {"at": at, "n": 3},
        "counts": [("x", 1)],
    }
    empty = dict.fromkeys(row) | {"id": 2}
    lake = Lake(kind, tmp_path)
    lake.add([row, empty], 0, schema=schema, tasks=1)
    if kind == "iceberg":
        (path,) = lake.live_files()
        with lake.format().files().open_input(path) as file:
            assert pq.read_table(file).column("headers").null_count == 1
        empty["headers"] = []  # What pyiceberg itself makes of a null list when it reads.
    assert lake.read() == [row, empty]


def test_a_column_without_a_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="column gap has no type"):
        Lake("parquet", tmp_path).target().prepare(pa.schema([("gap", pa.null())]))


def test_two_names_that_differ_by_case_only_are_refused() -> None:
    with pytest.raises(TableError, match="columns Id and id have the same name"):
        plain_schema(pa.schema([("Id", pa.int64()), ("id", pa.int64())]))


def test_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path)
    Path(lake.address).mkdir()
    pq.write_table(SCHEMA.empty_table(), f"{lake.address}/theirs.parquet")
    with pytest.raises(TableError, match=r"holds theirs.parquet.*a folder of its own"):
        lake.target().prepare(SCHEMA)


def test_partitioned_tables_are_refused(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    lake = Lake("delta", tmp_path)
    DeltaTable.create(lake.address, schema=SCHEMA, partition_by="id")
    with pytest.raises(TableError, match="is partitioned"):
        lake.target().prepare(SCHEMA)
