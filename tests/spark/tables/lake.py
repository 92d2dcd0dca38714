"""Tables of each kind for tests: written through a target, read by the format's own library."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tidemill.spark.tables.committing import CommittingTarget, TableChange
from tidemill.spark.tables.delta import DeltaFormat
from tidemill.spark.tables.files import TableFiles
from tidemill.spark.tables.iceberg import IcebergFormat
from tidemill.spark.tables.parquet import ParquetFormat
from tidemill.spark.tables.target import (
    BatchId,
    FilesWritten,
    TableOptions,
    TaskIdentity,
    parse_table,
)
from tidemill.spark.tables.writing import FileWriter

KINDS = ("parquet", "delta", "iceberg")
QUERY = "5e0fb0c4-3a46-4b1c-a1d2-4f0a7b6a9d11"
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string()), ("offset", pa.int64())])

Row = Mapping[str, Any]

_tokens = (f"{number:016x}" for number in itertools.count(1))


def rows_of(ids: Iterable[int], *, value: str = "v", first_offset: int = 0) -> list[Row]:
    return [
        {"id": each, "value": f"{value}{each}", "offset": first_offset + at}
        for at, each in enumerate(ids)
    ]


class Crash(BaseException):
    """The process dies here; no handler of ours may catch it."""


@dataclass
class Steps:
    """Counts the steps of a commit, and dies at one of them."""

    crash_at: int | None = None
    reached: int = 0
    names: list[str] = field(default_factory=list)

    def reach(self, name: str) -> None:
        self.names.append(name)
        self.reached += 1
        if self.crash_at is not None and self.reached > self.crash_at:
            raise Crash(name)


class SteppedFiles(TableFiles):
    """Files that count, before and after everything that changes the folder."""

    steps: Steps

    @classmethod
    def over(cls, files: TableFiles, steps: Steps) -> SteppedFiles:
        made = cls(files.filesystem, files.root)
        made.steps = steps
        return made

    def _step(self, name: str, act: Callable[[], Any]) -> Any:
        self.steps.reach(f"before {name}")
        result = act()
        self.steps.reach(f"after {name}")
        return result

    def open_output(self, path: str) -> Any:
        return self._step(f"open {path}", lambda: super(SteppedFiles, self).open_output(path))

    def seal(self, path: str) -> None:
        self._step(f"seal {path}", lambda: super(SteppedFiles, self).seal(path))

    def create(self, path: str, data: bytes, *, token: str) -> None:
        act = super().create
        self._step(f"create {path}", lambda: act(path, data, token=token))

    def move(self, source: str, target: str) -> None:
        act = super().move
        self._step(f"move {target}", lambda: act(source, target))

    def delete(self, path: str) -> None:
        act = super().delete
        self._step(f"delete {path}", lambda: act(path))


@dataclass(frozen=True)
class Opened:
    """A location whose files are open already."""

    files: TableFiles

    def open(self) -> TableFiles:
        return self.files


@dataclass
class Lake:
    """One table of a kind below a folder."""

    kind: str
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return "lake.db.events" if self.kind == "iceberg" else str(self.folder / "events")

    @property
    def catalog(self) -> dict[str, str]:
        if self.kind != "iceberg":
            return {}
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def table_options(self) -> TableOptions:
        name = parse_table(f"{self.kind}:{self.address}")
        return TableOptions(name=name, catalog=self.catalog, **self.options)

    def format(self, files: TableFiles | None = None) -> Any:
        kinds: dict[str, Any] = {
            "parquet": ParquetFormat,
            "delta": DeltaFormat,
            "iceberg": IcebergFormat,
        }
        return kinds[self.kind](self.table_options(), files=files)

    def target(self, steps: Steps | None = None) -> CommittingTarget[Any]:
        table = self.format()
        if steps is None:
            return CommittingTarget(table, self.table_options())
        stepped = self.format(SteppedFiles.over(table.files(), steps))
        _count_commits(stepped, steps)
        return CommittingTarget(stepped, self.table_options())

    def write(
        self,
        rows: Sequence[Row],
        batch: int,
        *,
        schema: pa.Schema = SCHEMA,
        tasks: int = 2,
        query: str = QUERY,
        recorded: bool = True,
        steps: Steps | None = None,
    ) -> list[FilesWritten]:
        """What the tasks of a batch leave behind, each with its part of the rows."""
        writer = self.target().prepare(schema)
        if steps is not None:
            opened: Any = Opened(SteppedFiles.over(writer.location.open(), steps))
            writer = dataclasses.replace(writer, location=opened)
        identity = BatchId(query, batch, recorded)
        return [
            self.task(writer, rows[part::tasks], identity, part, schema) for part in range(tasks)
        ]

    @staticmethod
    def task(
        writer: FileWriter, rows: Sequence[Row], batch: BatchId, part: int, schema: pa.Schema
    ) -> FilesWritten:
        task = TaskIdentity(batch, part, next(_tokens))
        return writer.write(iter(_batches(rows, schema)), task)

    def commit(self, written: Sequence[FilesWritten], batch: int, *, query: str = QUERY) -> bool:
        return self.target().commit(written, BatchId(query, batch))

    def add(self, rows: Sequence[Row], batch: int, **options: Any) -> bool:
        """A whole batch, from tasks to commit."""
        steps = options.get("steps")
        written = self.write(rows, batch, **options)
        identity = BatchId(options.get("query", QUERY), batch, options.get("recorded", True))
        return self.target(steps).commit(written, identity)

    def read(self) -> list[Row]:
        """The table as others see it, by id and offset."""
        rows: list[Row] = self._read().to_pylist()
        return sorted(rows, key=lambda row: (row["id"], row.get("offset") or 0))

    def _read(self) -> pa.Table:
        match self.kind:
            case "delta":
                return DeltaTable(self.address).to_pyarrow_table()
            case "iceberg":
                return self.iceberg().scan().to_arrow()
            case _:
                if not Path(self.address).exists():
                    return SCHEMA.empty_table()
                paths = ds.dataset(self.address, format="parquet").files
                tables = [ds.dataset(path).to_table() for path in paths]
                if not tables:
                    return SCHEMA.empty_table()
                return pa.concat_tables(tables, promote_options="default")

    def iceberg(self) -> Any:
        return load_catalog("lake", **self.catalog).load_table("db.events")

    def parquet_files(self) -> set[str]:
        """Every Parquet file below the table's folder, committed or not."""
        return {
            found.path
            for found in self.format().files().list("")
            if found.path.endswith(".parquet") and "_delta_log" not in found.path
        }

    def live_files(self) -> set[str]:
        table = self.format()
        return set(table.live(table.load(QUERY)))


def _batches(rows: Sequence[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if rows:
        yield pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)


def _count_commits(table: Any, steps: Steps) -> None:
    """The library's own commit is a step as well."""
    act = table.commit

    def commit(state: Any, change: TableChange) -> None:
        steps.reach("before commit")
        act(state, change)
        steps.reach("after commit")

    table.commit = commit
