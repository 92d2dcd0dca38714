"""A driver that dies at any step of a batch, and comes back, has the batch in the table once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.tables.lake import KINDS, Crash, Lake, Row, Steps, rows_of

from tidemill.spark.tables.parquet import committed_files
from tidemill.spark.tables.target import BatchId


def die_at_every_step(lake: Lake, rows: Any) -> Steps:
    """Batch after batch: die at a step, come back and do the batch again; one step later each time.

    `rows(batch)` are the rows of a batch. Returns the steps of the run that nobody interrupted.
    """
    lake.add(rows(0), 0)
    for step in range(200):
        batch = step + 1
        steps = Steps(crash_at=step)
        try:
            lake.add(rows(batch), batch, steps=steps)
        except Crash:
            lake.add(rows(batch), batch)
            continue
        return steps
    raise AssertionError("a batch takes more than 200 steps")


@pytest.mark.parametrize("kind", KINDS)
def test_appending(kind: str, tmp_path: Path) -> None:
    lake = Lake(kind, tmp_path)

    def rows(batch: int) -> list[Row]:
        return rows_of(range(batch * 3, batch * 3 + 3))

    steps = die_at_every_step(lake, rows)
    batches = len(lake.read()) // 3
    assert [row["id"] for row in lake.read()] == list(range(batches * 3))
    assert batches == steps.reached + 2, "one batch per step, the first and the last"
    assert any("commit" in name for name in steps.names)
    lake.target().clean_orphans(older_than_ms=0)
    assert lake.parquet_files() == lake.live_files()


@pytest.mark.parametrize("kind", KINDS)
def test_upserting(kind: str, tmp_path: Path) -> None:
    lake = Lake(kind, tmp_path, {"mode": "upsert", "keys": ("id",)})
    model: dict[int, Row] = {}

    def rows(batch: int) -> list[Row]:
        made = [dict(row) for row in rows_of([0, batch, batch + 1], first_offset=batch * 10)]
        made[1]["value"] = None if batch % 3 == 0 else f"batch {batch}"
        model.update({row["id"]: row for row in made})
        return list(made)

    die_at_every_step(lake, rows)
    expected = [row for _, row in sorted(model.items()) if row["value"] is not None]
    assert lake.read() == expected
    lake.target().clean_orphans(older_than_ms=0)
    unnamed = lake.parquet_files() - lake.format().named(lake.parquet_files())
    assert unnamed == set()


def test_a_crash_between_commit_and_publishing_is_finished_by_whoever_comes_next(
    tmp_path: Path,
) -> None:
    """The log names the files before they are at their places; our own reader goes by the log."""
    lake = Lake("parquet", tmp_path)
    lake.add(rows_of(range(2)), 0)
    written = lake.write(rows_of(range(2, 6)), 1)
    steps = Steps()
    lake.target(steps).commit(lake.write(rows_of([9]), 1, query="probe"), BatchId("probe", 1))
    moves = [at for at, name in enumerate(steps.names) if name.startswith("before move part-")]
    dying = Steps(crash_at=moves[0])
    with pytest.raises(Crash):
        lake.target(dying).commit(written, BatchId("again", 1))
    assert [row["id"] for row in lake.read()] == [0, 1, 9]
    assert len(committed_files(lake.address)) == 2 + 1 + 2
    lake.add(rows_of(range(6, 8)), 2)
    assert [row["id"] for row in lake.read()] == [0, 1, 2, 3, 4, 5, 6, 7, 9]
