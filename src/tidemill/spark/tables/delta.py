"""Delta tables through `deltalake`: a batch is one commit, marked with its query and number.

Delta keeps this mark as an application transaction, and a second one beside it for the number of
rows, since such a mark holds one number and outlives the commit that brought it. A commit is tried
once on top of the version that was looked at; if another writer was faster nothing is written, and
the caller looks again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tidemill.clock import Clock, SystemClock
from tidemill.spark.tables.committing import TableChange, TableState
from tidemill.spark.tables.files import Location, TableFiles, local_path
from tidemill.spark.tables.schema import additions, plain_schema
from tidemill.spark.tables.target import CommitConflictError, TableError, TableOptions

NAMES_OF_ROWS_ELSEWHERE = ("deletionVectors", "columnMapping")


@dataclass(frozen=True, slots=True)
class DeltaState(TableState):
    """One version of the table."""

    table: DeltaTable


class DeltaFormat:
    """The commit protocol of Delta."""

    data_folder = "data"

    def __init__(
        self,
        options: TableOptions,
        *,
        files: TableFiles | None = None,
        clock: Clock | None = None,
    ) -> None:
        path = local_path(options.name.address)
        self._url = path if path is not None else options.name.address
        self._storage = dict(options.storage)
        self._attempts_max = options.commit_attempts_max
        self._files = files
        self._clock = clock or SystemClock()

    def narrowed(self, kind: pa.DataType) -> pa.DataType:
        return kind

    def location(self) -> Location:
        return Location("delta", self._url, self._storage)

    def files(self) -> TableFiles:
        if self._files is None:
            self._files = self.location().open()
        return self._files

    def prepare(self, schema: pa.Schema) -> None:
        for _ in range(self._attempts_max):
            try:
                self._create_or_extend(schema)
                return
            except CommitFailedError:
                continue  # Another driver prepares the same table; see what it has done.
        raise TableError(f"{self._url}: other writers change the table's columns all the time")

    def _create_or_extend(self, schema: pa.Schema) -> None:
        try:
            table = DeltaTable(self._url, storage_options=self._storage)
        except TableNotFoundError:
            self.files().make_folder("")
            DeltaTable.create(
                self._url, schema=schema, mode="ignore", storage_options=self._storage
            )
            return
        if table.metadata().partition_columns:
            raise TableError(f"{self._url} is partitioned; this sink writes unpartitioned tables")
        missing = additions(_schema_of(table), schema)
        if missing:
            fields = Schema.from_arrow(pa.schema(missing)).fields
            table.alter.add_columns([_nullable(each) for each in fields])

    def load(self, query: str) -> DeltaState:
        table = DeltaTable(self._url, storage_options=self._storage)
        last, rows = map(table.transaction_version, (query, _rows_mark(query)))
        return DeltaState(_schema_of(table), last, rows, table)

    def live(self, state: DeltaState) -> list[str]:
        """What upsert reads; tables whose files are not the whole truth are refused."""
        protocol = state.table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        for feature in NAMES_OF_ROWS_ELSEWHERE:
            if feature in features:
                raise TableError(f"{self._url} uses {feature}; rows cannot be replaced in it here")
        return sorted(_sizes(state.table))

    def commit(self, state: DeltaState, change: TableChange) -> None:
        now_ms = self._clock.now_ms()
        sizes = _sizes(state.table) if change.remove else {}
        actions: list[Any] = [
            AddAction(
                each.path, each.size_bytes, {}, now_ms, True, json.dumps({"numRecords": each.rows})
            )
            for each in change.add
        ]
        actions += [RemoveAction(path, True, now_ms, sizes[path], {}) for path in change.remove]
        batch = change.batch
        marks = [(batch.query, batch.batch), (_rows_mark(batch.query), change.rows)]
        mark = [Transaction(*each, now_ms) for each in marks] if batch.recorded else None
        # No retries inside the library: it would not ask again whether the batch is there.
        properties = CommitProperties(max_commit_retries=0, app_transactions=mark)
        try:
            state.table.create_write_transaction(
                actions, "append", state.table.schema(), commit_properties=properties
            )
        except CommitFailedError as error:
            raise CommitConflictError(str(error)) from error
        except DeltaError as error:
            raise TableError(f"{self._url}: {error}") from error

    def named(self, among: set[str]) -> set[str]:
        """Live files, and whatever the log that is still there added or removed: all of it has to
        be read for that, so only if there are files that are not live."""
        table = DeltaTable(self._url, storage_options=self._storage)
        found = set(_sizes(table))
        files = self.files()
        commits = files.list("_delta_log", recursive=False) if among - found else []
        for each in commits:
            if not each.path.endswith(".json"):
                continue
            for line in files.read(each.path).splitlines():
                action = json.loads(line)
                found.update(action[kind]["path"] for kind in ("add", "remove") if kind in action)
        return found


def _rows_mark(query: str) -> str:
    return f"{query}.rows"


def _sizes(table: DeltaTable) -> dict[str, int]:
    actions = pa.table(table.get_add_actions(flatten=True))
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    return dict(zip(paths, sizes, strict=True))


def _schema_of(table: DeltaTable) -> pa.Schema:
    return plain_schema(pa.schema(table.schema().to_arrow()))


def _nullable(field: Field) -> Field:
    return Field(field.name, field.type, nullable=True)
