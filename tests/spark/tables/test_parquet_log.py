"""The commit log of a Parquet table: its sum, its checkpoints, drivers that slept through them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import fs
from tests.spark.tables.lake import QUERY, Lake, rows_of

from tidemill.spark.tables import parquet_log
from tidemill.spark.tables.files import TableFiles
from tidemill.spark.tables.parquet import ParquetFormat
from tidemill.spark.tables.parquet_log import Added, CommitLog, Image, Record
from tidemill.spark.tables.target import (
    CommitConflictError,
    TableError,
    TableOptions,
    parse_table,
)


def record(version: int, *, query: str = QUERY, remove: tuple[str, ...] = ()) -> Record:
    added = Added(f"part-{version}", f"staged-{version}", 1, 10)
    return Record(version, query, version, True, 0, "", [added], list(remove))


def open_log(folder: Path) -> CommitLog:
    return CommitLog(TableFiles(fs.LocalFileSystem(), str(folder)))


def test_an_image_is_the_sum_of_its_records() -> None:
    image = Image()
    for each in (record(1), record(2, query="other"), record(3, remove=("part-1",))):
        image = image.after([each])
    assert image.version == 3
    assert sorted(image.files) == ["part-2", "part-3"]
    assert image.batches == {QUERY: 3, "other": 2}


def test_what_a_record_removes_is_not_searched_for_every_file() -> None:
    """An upsert may replace all of ten thousand files."""

    class Unsearchable(list[str]):
        def __contains__(self, path: object) -> bool:
            raise AssertionError("a list is searched from its beginning each time")

    image = Image().after([record(1)]).after([record(2)])
    removing = msgspec.structs.replace(record(3), remove=Unsearchable(["part-1"]))
    assert sorted(image.after([removing]).files) == ["part-2", "part-3"]


def test_how_many_rows_a_batch_had_is_known_of_the_last_batch_only() -> None:
    """Records and checkpoints of logs that were written without the number can be read."""
    rows = msgspec.structs.replace(record(1), rows=5)
    image = Image().after([rows])
    assert image.rows == {QUERY: 5}
    old = msgspec.json.decode(
        msgspec.json.encode(record(2)).replace(b',"rows":null', b""), type=Record
    )
    assert image.after([old]).rows == {}
    assert msgspec.json.decode(b'{"version": 3, "batches": {"q": 1}}', type=Image).rows == {}


def test_a_number_is_given_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(record(1), token="a")
    with pytest.raises(CommitConflictError, match="another driver's"):
        log.append(record(1, query="other"), token="b")
    image, records = log.load()
    assert image.batches == {QUERY: 1}
    assert [each.version for each in records] == [1]


def test_a_checkpoint_stands_for_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_log, "RECORDS_KEPT", 2)
    log, image = open_log(tmp_path), Image()
    for version in range(1, 7):
        log.append(record(version), token="a")
        image = image.after([record(version)])
    log.checkpoint(image, token="a")
    log.append(record(7), token="a")
    found, records = log.load()
    assert sorted(found.files) == [f"part-{version}" for version in range(1, 8)]
    assert [each.version for each in records] == [7]
    left = sorted(path.name for path in (tmp_path / parquet_log.FOLDER).iterdir())
    assert [name for name in left if "checkpoint" not in name] == [
        f"{version:020d}.json" for version in (5, 6, 7)
    ]


def test_a_driver_that_slept_through_a_checkpoint_does_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number was taken and then deleted: creating the record works and counts for nothing."""
    monkeypatch.setattr(parquet_log, "RECORDS_KEPT", 0)
    log, image = open_log(tmp_path), Image()
    for version in range(1, 4):
        log.append(record(version), token="a")
        image = image.after([record(version)])
    log.checkpoint(image, token="a")
    with pytest.raises(CommitConflictError, match="summed up long ago"):
        log.append(record(2, query="zombie"), token="b")
    assert log.load()[0] == image


def test_a_missing_record_is_noticed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for version in (1, 2, 3):
        log.append(record(version), token="a")
    (tmp_path / parquet_log.FOLDER / f"{2:020d}.json").unlink()
    with pytest.raises(TableError, match="lacks a record"):
        log.load()


def test_a_table_lives_through_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.spark.tables.parquet.CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(parquet_log, "RECORDS_KEPT", 1)
    lake = Lake("parquet", tmp_path)
    for batch in range(8):
        assert lake.add(rows_of([batch]), batch, tasks=1)
        assert not lake.add(rows_of([batch]), batch, tasks=1)
    assert [row["id"] for row in lake.read()] == list(range(8))
    assert any((Path(lake.address) / parquet_log.FOLDER).glob("*6.checkpoint.json"))


def test_a_file_that_the_log_names_and_that_is_gone_is_noticed(tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path)
    lake.add(rows_of(range(2)), 0, tasks=1)
    (published,) = Path(lake.address).glob("part-*.parquet")
    published.unlink()
    (Path(lake.address) / parquet_log.PUBLISHED).unlink()
    with pytest.raises(TableError, match="which is gone"):
        lake.add(rows_of(range(2, 4)), 1)


def test_a_file_that_another_driver_has_replaced_already_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a commit and the moving of its files another driver moves them, and upserts."""
    lake = Lake("parquet", tmp_path, {"mode": "upsert", "keys": ("id",)})
    lake.add(rows_of([1], value="first"), 0)
    append = CommitLog.append

    def append_and_be_overtaken(log: CommitLog, record: Record, *, token: str) -> None:
        append(log, record, token=token)
        monkeypatch.undo()
        lake.add(rows_of([1], value="third", first_offset=9), 0, query="another")

    monkeypatch.setattr(CommitLog, "append", append_and_be_overtaken)
    assert lake.add(rows_of([1], value="second", first_offset=5), 1)
    assert [row["value"] for row in lake.read()] == ["third1"]


def test_other_file_systems_do_without_links(tmp_path: Path) -> None:
    """What is not a local disk goes through Arrow alone, as HDFS does."""
    lake = Lake("parquet", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    elsewhere = fs.SubTreeFileSystem(str(tmp_path / "elsewhere"), fs.LocalFileSystem())
    files = TableFiles(elsewhere, "events")
    log = CommitLog(files)
    log.append(record(1), token="a")
    with pytest.raises(CommitConflictError):
        log.append(record(1), token="b")
    log.set_published(1, token="a")
    log.set_published(1, token="b")
    assert log.published() == 1
    table = ParquetFormat(lake.table_options(), files=files)
    assert table.files() is files
    assert [each.path for each in files.list("", recursive=False)] == []
    files.delete("nothing")
    assert files.list("no/such/folder") == []


def test_a_relative_path_means_the_drivers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors on a cluster work in folders of their own."""
    monkeypatch.chdir(tmp_path)
    table = ParquetFormat(TableOptions(name=parse_table("parquet:./lake/events")))
    assert table.location().url == str(tmp_path / "lake" / "events")
    remote = ParquetFormat(TableOptions(name=parse_table("parquet:hdfs://host/events")))
    assert remote.location().url == "hdfs://host/events"


def test_schemas_survive_the_log() -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("n", pa.list_(pa.int64()))])
    assert parquet_log.schema_of(parquet_log.schema_text(schema)) == schema
    assert parquet_log.schema_of("") == pa.schema([])
