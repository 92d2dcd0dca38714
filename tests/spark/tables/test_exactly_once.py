"""A batch is in a table once, whoever brings it and however often; for each kind of table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.tables.lake import KINDS, QUERY, SCHEMA, Lake, rows_of

from tidemill.spark.tables import files, iceberg
from tidemill.spark.tables.committing import CommittingTarget
from tidemill.spark.tables.files import local_path
from tidemill.spark.tables.target import BatchId, CommitConflictError, TableError, TaskIdentity


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def test_batches_become_rows(lake: Lake) -> None:
    assert lake.add(rows_of(range(5)), 0)
    assert lake.add(rows_of(range(5, 9)), 1)
    assert lake.read() == sorted(
        [*rows_of(range(5)), *rows_of(range(5, 9))], key=lambda row: row["id"]
    )


def test_a_replayed_batch_adds_nothing_and_leaves_nothing(lake: Lake) -> None:
    """Spark runs the last batch again after a restart: its tasks write new files."""
    lake.add(rows_of(range(4)), 0)
    lake.add(rows_of(range(4, 8)), 1)
    assert not lake.add(rows_of(range(4, 8)), 1)
    assert len(lake.read()) == 8
    assert lake.parquet_files() == lake.live_files()


def test_an_older_batch_is_refused(lake: Lake) -> None:
    """A zombie driver, or a checkpoint from a backup, whose batch need not be the one of then."""
    zombie = lake.write(rows_of(range(4)), 0)
    for batch in range(3):
        lake.add(rows_of(range(batch * 4, batch * 4 + 4)), batch)
    with pytest.raises(TableError, match=r"batch 0 of query .* has taken its batch 2 with 4 rows"):
        lake.commit(zombie, 0)
    assert len(lake.read()) == 12
    assert lake.parquet_files() == lake.live_files()


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_batch_that_was_planned_anew_is_refused(lake: Lake, mode: str) -> None:
    """The checkpoint lost its last step: the batch of the same number has more records now."""
    lake.options = {"mode": mode, "keys": ("id",) if mode == "upsert" else ()}
    lake.add(rows_of(range(4)), 0)
    lake.add(rows_of(range(2, 6), first_offset=4), 1)
    before = lake.read()
    with pytest.raises(TableError, match=r"batch 1 .* again with 7 rows.*batch 1 with 4 rows"):
        lake.add(rows_of(range(2, 9), first_offset=4), 1)
    assert lake.read() == before
    assert not lake.add(rows_of(range(2, 6), first_offset=4), 1), "the same rows are no news"
    assert not lake.add(rows_of(range(2, 4), first_offset=4), 1), "others were compacted away"
    assert lake.add(rows_of(range(20, 23), first_offset=8), 2)


def test_a_table_that_kept_no_number_of_rows_is_believed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written before such numbers were kept; its next batch has one."""
    with monkeypatch.context() as patch:
        lake.add(rows_of(range(4)), 0)
        table = lake.format()
        load = table.load
        patch.setattr(table, "load", lambda query: dataclasses.replace(load(query), last_rows=None))
        again = lake.write(rows_of(range(6)), 0)
        assert not CommittingTarget(table, lake.table_options()).commit(again, BatchId(QUERY, 0))
    lake.add(rows_of(range(4, 6)), 1)
    with pytest.raises(TableError, match="comes again with 3 rows"):
        lake.add(rows_of(range(4, 7)), 1)


def test_the_same_commit_twice_deletes_nothing_of_the_table(lake: Lake) -> None:
    written = lake.write(rows_of(range(6)), 0)
    assert lake.commit(written, 0)
    assert not lake.commit(written, 0)
    assert len(lake.read()) == 6


def test_each_query_has_its_own_batches(lake: Lake) -> None:
    assert lake.add(rows_of(range(3)), 0)
    assert lake.add(rows_of(range(3, 6)), 0, query="another")
    assert not lake.add(rows_of(range(3, 6)), 0, query="another")
    assert len(lake.read()) == 6


def test_a_write_that_is_no_stream_may_come_any_number_of_times(lake: Lake) -> None:
    for number in range(2):
        assert lake.add(rows_of(range(3)), 0, query=f"write-{number}", recorded=False)
    assert len(lake.read()) == 6


def test_two_drivers_commit_the_same_batch_and_one_wins(lake: Lake) -> None:
    """Both have looked and found the batch missing before either commits."""
    lake.add(rows_of(range(2)), 0)
    first, second = lake.write(rows_of(range(2, 5)), 1), lake.write(rows_of(range(2, 5)), 1)
    slow = lake.format()
    target = CommittingTarget(slow, lake.table_options())
    load = slow.load
    overtaken: list[bool] = []

    def load_and_be_overtaken(query: str) -> Any:
        state = load(query)
        if not overtaken:
            overtaken.append(lake.commit(first, 1))
        return state

    slow.load = load_and_be_overtaken
    assert not target.commit(second, BatchId(QUERY, 1))
    assert overtaken == [True]
    assert len(lake.read()) == 5
    assert lake.parquet_files() == lake.live_files()


def test_writers_of_different_queries_get_in_one_after_the_other(lake: Lake) -> None:
    lake.add(rows_of(range(2)), 0)
    written = lake.write(rows_of(range(2, 5)), 1)
    slow = lake.format()
    load, others = slow.load, iter(range(3))

    def load_and_be_overtaken(query: str) -> Any:
        state = load(query)
        for batch in others:
            lake.add(rows_of([100 + batch]), batch, query="another")
            break
        return state

    slow.load = load_and_be_overtaken
    assert CommittingTarget(slow, lake.table_options()).commit(written, BatchId(QUERY, 1))
    assert [row["id"] for row in lake.read()] == [0, 1, 2, 3, 4, 100, 101, 102]


def test_a_commit_that_is_overtaken_for_ever_gives_up(lake: Lake) -> None:
    written = lake.write(rows_of(range(2)), 0)
    table = lake.format()

    def overtaken(state: Any, change: Any) -> None:
        raise CommitConflictError("somebody was faster")

    table.commit = overtaken
    with pytest.raises(TableError, match="other writers were faster 20 times in a row"):
        CommittingTarget(table, lake.table_options()).commit(written, BatchId(QUERY, 0))


def test_of_two_attempts_at_a_task_only_the_reported_one_counts(lake: Lake) -> None:
    """Speculation: both attempts write all their rows, one message reaches the driver."""
    spare = lake.write(rows_of(range(6)), 0, tasks=1)
    chosen = lake.write(rows_of(range(6)), 0, tasks=1)
    assert lake.commit(chosen, 0)
    assert len(lake.read()) == 6
    assert lake.parquet_files() == lake.live_files()
    assert spare[0].files[0].path not in lake.parquet_files()


def test_a_straggler_that_ends_after_the_commit_is_found_as_an_orphan(lake: Lake) -> None:
    lake.add(rows_of(range(6)), 0)
    straggler = lake.write(rows_of(range(3)), 0, tasks=1)
    before = lake.live_files()
    assert lake.target().clean_orphans(older_than_ms=60_000) == []
    assert lake.target().clean_orphans(older_than_ms=0) == [straggler[0].files[0].path]
    assert lake.live_files() == before
    assert len(lake.read()) == 6


def test_a_file_of_unknown_age_may_be_of_a_batch_that_runs(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some storages do not say when a file was written."""
    lake.add(rows_of(range(3)), 0)
    lake.write(rows_of(range(3, 6)), 1)
    there = lake.parquet_files()
    monkeypatch.setattr(files, "_milliseconds", lambda _: None)
    assert lake.target().clean_orphans(older_than_ms=0) == []
    assert lake.parquet_files() == there


def test_an_aborted_batch_leaves_no_file(lake: Lake) -> None:
    lake.add(rows_of(range(2)), 0)
    lake.target().abort(lake.write(rows_of(range(2, 6)), 1))
    assert lake.parquet_files() == lake.live_files()
    assert lake.add(rows_of(range(2, 6)), 1)
    assert len(lake.read()) == 6


def test_a_batch_whose_files_were_cleared_away_fails(lake: Lake) -> None:
    written = lake.write(rows_of(range(4)), 0)
    lake.target().clean_orphans(older_than_ms=0)
    with pytest.raises(TableError, match="gone before it was committed"):
        lake.commit(written, 0)
    assert lake.read() == []


def test_an_empty_batch_changes_nothing(lake: Lake) -> None:
    assert not lake.add([], 0)
    assert lake.add(rows_of(range(2)), 1)
    assert len(lake.read()) == 2


def test_large_batches_become_several_files(lake: Lake) -> None:
    lake.options = {"file_bytes_max": 2_000, "compression": "none"}
    schema, rows = SCHEMA, rows_of(range(2_000), value="x" * 20)
    writer = lake.target().prepare(schema)
    parts = [rows[at : at + 100] for at in range(0, 2_000, 100)]
    batches = (pa.RecordBatch.from_pylist([dict(row) for row in part], schema) for part in parts)
    written = writer.write(batches, TaskIdentity(BatchId(QUERY, 0), 0, "ab"))
    assert len(written.files) > 5
    assert sum(each.rows for each in written.files) == 2_000
    assert lake.commit([written], 0)
    assert len(lake.read()) == 2_000


def test_replacing_takes_away_what_was_there(lake: Lake) -> None:
    """The output mode complete, or the save mode overwrite."""
    lake.add(rows_of(range(5)), 0)
    lake.options = {"mode": "replace"}
    lake.add(rows_of([7, 8]), 1)
    assert [row["id"] for row in lake.read()] == [7, 8]
    assert not lake.add(rows_of([7, 8]), 1)
    assert [row["id"] for row in lake.read()] == [7, 8]
    lake.add([], 2)
    assert lake.read() == []


def test_many_small_commits_are_summed_up_in_an_iceberg_table(tmp_path: Path) -> None:
    """Each commit adds a manifest; a table that a stream writes to would drown in them."""
    lake = Lake("iceberg", tmp_path)
    lake.add(rows_of([0]), 0)
    with lake.iceberg().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for batch in range(1, 8):
        lake.add(rows_of([batch]), batch)
    table = lake.iceberg()
    assert len(table.current_snapshot().manifests(table.io)) < 4
    assert [row["id"] for row in lake.read()] == list(range(8))
    assert table.properties[f"tidemill.last-batch.{QUERY}"] == "7"
    assert table.current_snapshot().summary.additional_properties["tidemill.batch"] == "7"


def test_snapshots_expire_where_they_are_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit writes the list of all of them anew."""
    monkeypatch.setattr(iceberg, "EXPIRE_EVERY", 4)
    lake = Lake("iceberg", tmp_path, {"history_days": 0})
    for batch in range(5):
        lake.add(rows_of([batch]), batch)
    assert len(lake.iceberg().snapshots()) == 1
    assert [row["id"] for row in lake.read()] == list(range(5))
    lake.options = {"history_days": 1}
    for batch in range(5, 10):
        lake.add(rows_of([batch]), batch)
    assert len(lake.iceberg().snapshots()) == 6


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("no such"), TableError("out")])
def test_a_batch_that_is_in_does_not_fail_for_old_snapshots(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever happens after its commit, be it that the catalog does not answer."""
    lake = Lake("iceberg", tmp_path, {"history_days": 0})
    lake.add(rows_of([0]), 1)
    written = lake.write(rows_of([1]), 100)
    table = lake.format()
    commit = table.commit

    def commit_and_lose_the_catalog(state: Any, change: Any) -> None:
        catalog = table._catalog()
        load = catalog.load_table

        def load_no_more(name: str) -> Any:
            if lake.iceberg().properties[f"tidemill.last-batch.{QUERY}"] == "100":
                raise error
            return load(name)

        with monkeypatch.context() as patched:
            patched.setattr(catalog, "load_table", load_no_more)
            commit(state, change)

    table.commit = commit_and_lose_the_catalog
    assert CommittingTarget(table, lake.table_options()).commit(written, BatchId(QUERY, 100))
    assert [row["id"] for row in lake.read()] == [0, 1]
    (warning,) = (each for each in caplog.records if "did not expire" in each.getMessage())
    assert warning.levelname == "WARNING"


def test_snapshots_do_not_expire_at_each_write_of_a_frame(tmp_path: Path) -> None:
    """It has no number that would say whether it is time."""
    lake = Lake("iceberg", tmp_path, {"history_days": 0})
    for each in range(3):
        lake.add(rows_of([each]), 0, query=f"write-{each}", recorded=False)
    assert len(lake.iceberg().snapshots()) == 3


def test_an_iceberg_table_knows_its_batches_when_snapshots_have_expired(tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    lake.add(rows_of([0]), 0)
    first = lake.iceberg().current_snapshot().snapshot_id
    lake.add(rows_of([1]), 0, query="another")
    lake.iceberg().maintenance.expire_snapshots().by_id(first).commit()
    assert not lake.add(rows_of([0]), 0)
    assert [row["id"] for row in lake.read()] == [0, 1]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("s3://bucket/a", None),
        ("hdfs:/a", None),
    ],
)
def test_where_an_address_leads(url: str, path: str | None) -> None:
    assert local_path(url) == path


@pytest.mark.parametrize("url", ["file:a/b", "file://host/a"])
def test_an_address_that_could_lead_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(TableError, match="write file:///absolute/path"):
        local_path(url)
