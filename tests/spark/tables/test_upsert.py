"""Upserts against a model: a dictionary that takes the changes one by one."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.tables.lake import KINDS, QUERY, SCHEMA, Lake, Row, rows_of

from tidemill.spark.tables.committing import CommittingTarget
from tidemill.spark.tables.target import BatchId, TableError

UPSERT = {"mode": "upsert", "keys": ("id",)}

change = st.tuples(st.integers(0, 8), st.one_of(st.none(), st.text("ab", max_size=2)))
changes = st.lists(change, max_size=12)
few_changes = st.lists(change, min_size=1, max_size=3)
"""Such that a file often has keys on both sides of a new one."""


@st.composite
def histories(
    draw: st.DrawFn, changes: st.SearchStrategy[list[tuple[int, str | None]]] = changes
) -> list[list[Row]]:
    """Batches of changes; offsets grow along the log, and a batch's tasks see them in any order."""
    batches: list[list[Row]] = []
    offset = 0
    for batch in draw(st.lists(changes, min_size=1, max_size=5)):
        rows: list[Row] = [
            {"id": key, "value": value, "offset": offset + at}
            for at, (key, value) in enumerate(batch)
        ]
        offset += len(rows)
        batches.append(draw(st.permutations(rows)))
    return batches


def model_of(batches: list[list[Row]]) -> list[Row]:
    table: dict[int, Row] = {}
    for row in sorted((row for batch in batches for row in batch), key=lambda row: row["offset"]):
        if row["value"] is None:
            table.pop(row["id"], None)
        else:
            table[row["id"]] = row
    return [row for _, row in sorted(table.items())]


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(1, 3), st.sampled_from([1, 10_000_000]))
def test_a_parquet_table_is_what_the_changes_make_of_it(
    batches: list[list[Row]], tasks: int, file_bytes_max: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake("parquet", Path(folder), {**UPSERT, "file_bytes_max": file_bytes_max})
        for at, batch in enumerate(batches):
            lake.add(batch, at, tasks=tasks)
        assert lake.read() == model_of(batches)
        assert lake.parquet_files() == lake.live_files()


AT_SCHEMA = pa.schema([*SCHEMA, ("at", pa.int64())])
LOG_SCHEMA = pa.schema(
    [*SCHEMA, ("partition", pa.int32()), ("timestamp", pa.timestamp("us", tz="UTC"))]
)
DAY = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)


@st.composite
def dated_histories(draw: st.DrawFn) -> list[list[Row]]:
    """Each change has a time of its own making, or none, that has nothing to do with the log."""
    return [
        [{**row, "at": draw(st.one_of(st.none(), st.integers(0, 4)))} for row in batch]
        for batch in draw(histories(few_changes))
    ]


@st.composite
def moving_histories(draw: st.DrawFn) -> list[list[Row]]:
    """Keys are in any of three partitions, offsets go on, and no two times are equal."""
    batches = draw(histories(few_changes))
    hours = iter(draw(st.permutations(range(sum(map(len, batches))))))
    moving: list[list[Row]] = []
    for batch in batches:
        rows: list[Row] = [
            {**row, "partition": draw(st.integers(0, 2)), "timestamp": DAY + dt.timedelta(hours=h)}
            for row, h in zip(batch, hours, strict=False)
        ]
        moving.append(rows)
    return moving


def dated_model(batches: list[list[Row]]) -> list[Row]:
    table: dict[int, Row] = {}
    for batch in batches:
        last: dict[int, Row] = {}
        for row in sorted(batch, key=lambda row: (_time_of(row), row["offset"])):
            last[row["id"]] = row
        for key, row in last.items():
            if key not in table or _time_of(table[key]) <= _time_of(row):
                _take(table, row)
    return [row for _, row in sorted(table.items())]


def _time_of(row: Row) -> float:
    """A row without one is older than all, and a delete later."""
    if row["at"] is not None:
        return float(row["at"])
    return float("inf") if row["value"] is None else float("-inf")


def moving_model(batches: list[list[Row]]) -> list[Row]:
    table: dict[int, Row] = {}
    for batch in batches:
        of_places: dict[tuple[int, int], Row] = {}
        for row in sorted(batch, key=lambda row: row["offset"]):
            of_places[row["id"], row["partition"]] = row
        last: dict[int, Row] = {}
        for row in sorted(of_places.values(), key=lambda row: row["timestamp"]):
            last[row["id"]] = row
        for key, row in last.items():
            there = table.get(key, row)
            is_elsewhere = there["partition"] != row["partition"]
            if not (is_elsewhere and there["timestamp"] > row["timestamp"]):
                _take(table, row)
    return [row for _, row in sorted(table.items())]


def _take(table: dict[int, Row], row: Row) -> None:
    if row["value"] is None:
        table.pop(row["id"], None)
    else:
        table[row["id"]] = row


@settings(max_examples=40, deadline=None)
@given(dated_histories(), st.integers(1, 3), st.sampled_from([1, 10_000_000]))
def test_changes_are_compared_with_the_table_by_their_order(
    batches: list[list[Row]], tasks: int, file_bytes_max: int
) -> None:
    options = {**UPSERT, "order_by": ("at", "offset"), "file_bytes_max": file_bytes_max}
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake("parquet", Path(folder), options)
        for at, batch in enumerate(batches):
            lake.add(batch, at, tasks=tasks, schema=AT_SCHEMA)
        assert lake.read() == dated_model(batches)


@settings(max_examples=40, deadline=None)
@given(moving_histories(), st.integers(1, 3), st.sampled_from([1, 10_000_000]))
def test_changes_of_keys_that_move_are_compared_by_their_times(
    batches: list[list[Row]], tasks: int, file_bytes_max: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake("parquet", Path(folder), {**UPSERT, "file_bytes_max": file_bytes_max})
        for at, batch in enumerate(batches):
            lake.add(batch, at, tasks=tasks, schema=LOG_SCHEMA)
        assert lake.read() == moving_model(batches)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_other_tables_are_too(kind: str) -> None:
    @settings(max_examples=8, deadline=None)
    @given(histories())
    def check(batches: list[list[Row]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lake = Lake(kind, Path(folder), UPSERT)
            lake.target().prepare(SCHEMA)
            for at, batch in enumerate(batches):
                lake.add(batch, at)
            assert lake.read() == model_of(batches)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_a_changed_key_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    lake = Lake(kind, tmp_path, UPSERT)
    lake.add(rows_of(range(10)), 0, tasks=1)
    first = lake.live_files()
    lake.add(rows_of(range(20, 30), first_offset=10), 1, tasks=1)
    assert first < lake.live_files()
    lake.add(rows_of([25], value="new", first_offset=20), 2, tasks=1)
    assert first < lake.live_files()
    assert [row["value"] for row in lake.read() if row["id"] == 25] == ["new25"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_upsert_that_is_overtaken_starts_from_the_new_table(kind: str, tmp_path: Path) -> None:
    """Both drivers change the same key: the later commit must replace the earlier one's row."""
    lake = Lake(kind, tmp_path, UPSERT)
    lake.add(rows_of(range(3)), 0)
    written = lake.write(rows_of([1, 7], value="mine"), 1)
    slow = lake.format()
    load = slow.load
    overtaken: list[bool] = []

    def load_and_be_overtaken(query: str) -> Any:
        state = load(query)
        if not overtaken:
            overtaken.append(lake.add(rows_of([1, 7], value="theirs"), 0, query="another"))
        return state

    slow.load = load_and_be_overtaken
    assert CommittingTarget(slow, lake.table_options()).commit(written, BatchId(QUERY, 1))
    values = {row["id"]: row["value"] for row in lake.read()}
    assert values == {0: "v0", 1: "mine1", 2: "v2", 7: "mine7"}
    assert len(lake.read()) == 4


def test_keys_of_several_columns_and_every_type(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("name", pa.string()),
            ("raw", pa.binary()),
            ("flag", pa.bool_()),
            ("n", pa.int32()),
        ]
    )
    keys = ("id", "day", "at", "name", "raw", "flag")
    lake = Lake("parquet", tmp_path, {"mode": "upsert", "keys": keys, "order_by": ("n",)})
    day, at = dt.date(2026, 11, 16), dt.datetime(2026, 11, 16, 9, tzinfo=dt.UTC)
    row = {"id": 1, "day": day, "at": at, "name": "x", "raw": b"\x00\xff", "flag": True, "n": 0}
    lake.add([row, {**row, "flag": False, "n": 1}], 0, schema=schema)
    lake.add([{**row, "n": 5}, {**row, "n": 4}, {**row, "name": "y", "n": 6}], 1, schema=schema)
    assert sorted((each["name"], each["flag"], each["n"]) for each in lake.read()) == [
        ("x", False, 1),
        ("x", True, 5),
        ("y", True, 6),
    ]


def test_a_key_twice_in_a_batch_needs_an_order(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("total", pa.int64())])
    lake = Lake("parquet", tmp_path, UPSERT)
    lake.add([{"id": 1, "total": 1}, {"id": 2, "total": 2}], 0, schema=schema)
    lake.add([{"id": 2, "total": 5}], 1, schema=schema)
    assert lake.read() == [{"id": 1, "total": 1}, {"id": 2, "total": 5}]
    with pytest.raises(TableError, match=r"changes a key twice.*set table.orderBy"):
        lake.add([{"id": 1, "total": 1}, {"id": 1, "total": 2}], 2, schema=schema)


IN_PARTITIONS = pa.schema(
    [("id", pa.int64()), ("value", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)


def test_offsets_of_different_partitions_are_not_compared(tmp_path: Path) -> None:
    """After a topic grew a key's newest change has a low offset, in another partition."""
    lake = Lake("parquet", tmp_path, UPSERT)
    schema = IN_PARTITIONS.append(pa.field("timestamp", pa.timestamp("us", tz="UTC")))
    day = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)
    changes = [(1, "new", 3, 0, 2), (1, "old", 0, 900, 1), (2, "b", 1, 8, 4), (2, "a", 1, 7, 5)]
    rows = [
        dict(zip(schema.names, (*each, day + dt.timedelta(hours=hour)), strict=True))
        for *each, hour in changes
    ]
    lake.add(rows, 0, schema=schema, tasks=1)
    values = {row["id"]: row["value"] for row in lake.read()}
    assert values == {1: "new", 2: "b"}, "within a partition its order counts, not the clock's"


def test_of_two_changes_that_are_equally_late_the_same_is_taken_each_time(tmp_path: Path) -> None:
    schema = IN_PARTITIONS.append(pa.field("timestamp", pa.timestamp("us", tz="UTC")))
    at = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)
    for attempt in range(3):
        lake = Lake("parquet", tmp_path / str(attempt), UPSERT)
        rows = [
            dict(zip(schema.names, (key, f"{partition}", partition, 7, at), strict=True))
            for partition in range(8)
            for key in range(200)
        ]
        lake.add(rows, 0, schema=schema)
        assert {row["value"] for row in lake.read()} == {"7"}


def test_a_key_in_two_partitions_needs_an_order(tmp_path: Path) -> None:
    """Nothing is guessed where no timestamp says which change is the later."""
    rows = [
        dict(zip(IN_PARTITIONS.names, each, strict=True))
        for each in [(1, "old", 0, 900), (1, "new", 3, 0), (2, "a", 0, 1), (2, "b", 0, 2)]
    ]
    lake = Lake("parquet", tmp_path, UPSERT)
    with pytest.raises(TableError, match=r"a key in several partitions.*set table.orderBy"):
        lake.add(rows, 0, schema=IN_PARTITIONS)
    lake.add(rows[1:], 0, schema=IN_PARTITIONS)
    assert [row["value"] for row in lake.read()] == ["new", "b"]
    lake.options = {**UPSERT, "order_by": ("value",)}
    lake.add(rows, 1, schema=IN_PARTITIONS)
    assert [row["value"] for row in lake.read()] == ["old", "b"]


def dated(day: int, value: str | None, key: int = 1) -> Row:
    return {"id": key, "value": value, "at": day}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_is_older_than_the_row_leaves_it_alone(kind: str, tmp_path: Path) -> None:
    """Batch after batch may bring changes in another order than the one that counts."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.string()), ("at", pa.int64())])
    lake = Lake(kind, tmp_path, {**UPSERT, "order_by": ("at",)})
    lake.add([dated(5, "newer"), dated(5, "other", 2)], 0, schema=schema, tasks=1)
    lake.add([dated(3, "older"), dated(6, "newest", 2)], 1, schema=schema)
    assert [row["value"] for row in lake.read()] == ["newer", "newest"]
    lake.add([dated(4, None), dated(7, None, 2)], 2, schema=schema)
    assert [row["value"] for row in lake.read()] == ["newer"], "an older delete, and a newer one"
    lake.add([dated(5, "equal")], 3, schema=schema)
    assert [row["value"] for row in lake.read()] == ["equal"], "of equals the later batch counts"
    lake.add([{"id": 1, "value": "null", "at": None}], 4, schema=schema)
    assert [row["value"] for row in lake.read()] == ["equal"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_key_between_the_keys_of_a_file(kind: str, tmp_path: Path) -> None:
    """The file may hold it and does not: there is no row to compare with."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.string()), ("at", pa.int64())])
    lake = Lake(kind, tmp_path, {**UPSERT, "order_by": ("at",)})
    lake.add([dated(1, "one", 1), dated(1, "nine", 9)], 0, schema=schema, tasks=1)
    lake.add([dated(1, "five", 5)], 1, schema=schema)
    assert [row["value"] for row in lake.read()] == ["one", "five", "nine"]


def test_a_delete_without_its_order_deletes(tmp_path: Path) -> None:
    """The order is a column of the value as a rule, and a tombstone has no value."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.string()), ("at", pa.int64())])
    lake = Lake("parquet", tmp_path, {**UPSERT, "order_by": ("at",)})
    delete: Row = {"id": 1, "value": None, "at": None}
    lake.add([dated(5, "there"), dated(5, "stays", 2)], 0, schema=schema)
    lake.add([delete], 1, schema=schema)
    assert [row["value"] for row in lake.read()] == ["stays"]
    lake.add([dated(6, "again"), delete, {**delete, "id": 2, "value": "null"}], 2, schema=schema)
    assert [row["value"] for row in lake.read()] == ["stays"]


def test_offsets_are_not_compared_with_the_table_even_where_they_are_the_order(
    tmp_path: Path,
) -> None:
    """Those of a topic that was made anew begin at 0 again, and its changes count."""
    lake = Lake("parquet", tmp_path, {**UPSERT, "order_by": ("offset",)})
    lake.add(rows_of([1, 2], value="old", first_offset=900), 0)
    lake.add(rows_of([1, 1], value="new"), 1)
    assert [(row["value"], row["offset"]) for row in lake.read()] == [("new1", 1), ("old2", 901)]
    schema = pa.schema([*SCHEMA, ("at", pa.int64())])
    lake = Lake("parquet", tmp_path / "both", {**UPSERT, "order_by": ("at", "offset")})
    lake.add([{"id": 1, "value": "old", "offset": 900, "at": 5}], 0, schema=schema)
    lake.add([{"id": 1, "value": "older", "offset": 901, "at": 4}], 1, schema=schema)
    lake.add([{"id": 1, "value": "new", "offset": 0, "at": 5}], 2, schema=schema)
    assert [row["value"] for row in lake.read()] == ["new"]


def test_a_key_that_moved_is_not_set_back_by_the_partition_that_it_left(tmp_path: Path) -> None:
    """It lags behind, and what it brings is of before the move. Within one partition the order of
    batches counts: offsets begin anew with a topic that was made anew."""
    lake = Lake("parquet", tmp_path, UPSERT)
    schema = IN_PARTITIONS.append(pa.field("timestamp", pa.timestamp("us", tz="UTC")))
    day = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)

    def change(value: str, partition: int, offset: int, hour: int) -> Row:
        each = (1, value, partition, offset, day + dt.timedelta(hours=hour))
        return dict(zip(schema.names, each, strict=True))

    for number, (row, expected) in enumerate(
        [
            (change("moved", 3, 0, 5), "moved"),
            (change("before", 0, 900, 4), "moved"),
            (change("after", 0, 901, 6), "after"),
            (change("made anew", 0, 1, 2), "made anew"),
        ]
    ):
        lake.add([row], number, schema=schema)
        assert [each["value"] for each in lake.read()] == [expected]


def test_a_table_without_the_order_takes_the_later_batch(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.string())])
    lake = Lake("parquet", tmp_path, UPSERT)
    lake.add([{"id": 1, "value": "first"}], 0, schema=schema)
    lake.options = {**UPSERT, "order_by": ("at",)}
    dated_schema = schema.append(pa.field("at", pa.int64()))
    lake.add([dated(1, "second")], 1, schema=dated_schema)
    assert [row["value"] for row in lake.read()] == ["second"]


def test_a_change_without_a_key_is_refused(tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path, UPSERT)
    with pytest.raises(TableError, match=r"column id is null in a change.*IS NOT NULL"):
        lake.add([{"id": None, "value": "x", "offset": 1}], 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ("nope",)}, "option keys names nope.*there are: id, value, offset"),
        ({"keys": ("id",), "order_by": ("nope",)}, "option table.orderBy names nope"),
        ({"keys": ("id",), "tombstone": "nope"}, "option table.tombstone names nope"),
        ({"keys": ("id",), "tombstone": "id"}, "column id is a key"),
    ],
)
def test_columns_that_are_not_there(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path, {"mode": "upsert", **options})
    with pytest.raises(TableError, match=message):
        lake.target().prepare(SCHEMA)


def test_a_null_is_kept_where_nothing_is_a_tombstone(tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path, {**UPSERT, "tombstone": "none"})
    lake.add(rows_of([1]), 0)
    lake.add([{"id": 1, "value": None, "offset": 1}], 1)
    assert lake.read() == [{"id": 1, "value": None, "offset": 1}]


def test_floats_and_nested_columns_are_no_keys(tmp_path: Path) -> None:
    for kind in (pa.float64(), pa.list_(pa.int64())):
        lake = Lake("parquet", tmp_path, {"mode": "upsert", "keys": ("id",)})
        with pytest.raises(TableError, match="cannot be a key; cast it to string"):
            lake.target().prepare(pa.schema([("id", kind)]))
