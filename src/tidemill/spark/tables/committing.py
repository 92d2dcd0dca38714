"""How a batch gets into a table of any format: look, decide, commit, and again if overtaken.

The order of steps is what makes it exactly once. Files are written and flushed first; the table's
own commit names them and the batch in one atomic step; only then is anything tidied up. A crash
before that step leaves files that nothing names, a crash after it leaves only tidying undone, and a
batch that comes again finds itself in the table. A format says how to do the one atomic step
(`TableFormat.commit`), which fails with `CommitConflictError` when the table is no longer what was
looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa

from tidemill.clock import Clock, SystemClock
from tidemill.spark.tables.files import Location, TableFiles
from tidemill.spark.tables.orphans import delete_orphans
from tidemill.spark.tables.schema import additions, plain_schema
from tidemill.spark.tables.target import (
    BatchId,
    CommitConflictError,
    DataFile,
    FilesWritten,
    TableError,
    TableOptions,
)
from tidemill.spark.tables.upsert import UpsertRule, merge
from tidemill.spark.tables.writing import FileWriter, RollingFiles, batch_folder

log = logging.getLogger(__name__)

CHANGES_FOLDER: Final = "_tidemill/changes"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as it was found; formats add what they need to commit on top of exactly this."""

    schema: pa.Schema
    last_batch: int | None
    """The last batch of the asking query that the table has."""
    last_rows: int | None
    """How many rows tasks wrote for it; None where that was not kept."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one batch does to a table."""

    batch: BatchId
    rows: int
    """How many rows tasks wrote, to know the batch by when it comes again."""
    add: tuple[DataFile, ...]
    remove: tuple[str, ...]
    schema: pa.Schema


State = TypeVar("State", bound=TableState)


class TableFormat(Protocol[State]):
    """What differs between Parquet folders, Delta and Iceberg."""

    data_folder: str
    """Where data files are written; readers do not look there, or only at what a commit names."""

    def narrowed(self, kind: pa.DataType) -> pa.DataType:
        """The type, nested in nothing, that the format keeps in the place of this one."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Creates the table, or adds the columns that it lacks; the schema is plain."""
        ...

    def location(self) -> Location: ...

    def files(self) -> TableFiles: ...

    def load(self, query: str) -> State: ...

    def live(self, state: State) -> list[str]:
        """The data files that make up the table, relative to its folder."""
        ...

    def commit(self, state: State, change: TableChange) -> None:
        """One attempt at one atomic step; CommitConflictError when `state` is out of date."""
        ...

    def named(self, among: set[str]) -> set[str]:
        """Those of some files that a commit names, one of an older version of the table included.
        There may be others in the answer."""
        ...


class CommittingTarget(Generic[State]):
    """A table target on top of any format."""

    def __init__(
        self, table: TableFormat[State], options: TableOptions, clock: Clock | None = None
    ) -> None:
        self._table = table
        self._options = options
        self._clock = clock or SystemClock()

    def prepare(self, schema: pa.Schema) -> FileWriter:
        incoming = plain_schema(schema, self._table.narrowed)
        upsert = self._options.mode == "upsert"
        if upsert:
            UpsertRule.of(self._options, incoming)
        self._table.prepare(incoming)
        return FileWriter(
            self._table.location(),
            CHANGES_FOLDER if upsert else self._table.data_folder,
            incoming,
            self._options.file_bytes_max,
            self._options.compression,
        )

    def commit(self, written: Sequence[FilesWritten], batch: BatchId) -> bool:
        for attempt in range(self._options.commit_attempts_max):
            state = self._table.load(batch.query)
            if _has(state, batch):
                self._forget(written, state)
                self._check_repeated(state, written, batch)
                return False
            try:
                return self._try_commit(state, written, batch, attempt)
            except CommitConflictError as conflict:
                log.info("batch %s of %s: %s; looking again", batch.batch, batch.query, conflict)
            except FileNotFoundError as missing:
                gone = self._first_gone(_all_files(written))
                if gone is None:
                    log.info("%s: %s was replaced meanwhile; looking again", batch, missing)
                    continue
                # Another driver that commits the same batch clears away what this one wrote.
                state = self._table.load(batch.query)
                if _has(state, batch):
                    self._check_repeated(state, written, batch)
                    return False
                raise TableError(
                    f"{self._options.name}: {gone} is gone before it was committed; the age at "
                    "which orphans are deleted must be longer than a batch takes"
                ) from missing
        raise TableError(
            f"{self._options.name}: other writers were faster {self._options.commit_attempts_max} "
            "times in a row; let fewer queries write to this table, or larger batches"
        )

    def abort(self, written: Sequence[FilesWritten]) -> None:
        files = self._table.files()
        for each in _all_files(written):
            files.delete(each.path)

    def clean_orphans(self, older_than_ms: int) -> list[str]:
        return delete_orphans(
            self._table.files(),
            [self._table.data_folder, CHANGES_FOLDER],
            self._table.named,
            before_ms=self._clock.now_ms() - older_than_ms,
        )

    # --- one attempt ------------------------------------------------------------------------------

    def _try_commit(
        self, state: State, written: Sequence[FilesWritten], batch: BatchId, attempt: int
    ) -> bool:
        change = self._plan(state, written, batch, attempt)
        if change.add or change.remove:
            # A commit must not name a file that was cleared away while the batch was running.
            gone = self._first_gone(change.add)
            if gone is not None:
                raise FileNotFoundError(gone)
            try:
                self._table.commit(state, change)
            except CommitConflictError:
                self._drop_merged(change, written)
                raise
        self._tidy(change)
        return bool(change.add or change.remove)

    def _plan(
        self, state: State, written: Sequence[FilesWritten], batch: BatchId, attempt: int
    ) -> TableChange:
        """What to commit on top of this state."""
        files, rows = _all_files(written), _rows(written)
        schema = _joined(state.schema, written)
        if self._options.mode == "replace":
            return TableChange(batch, rows, files, tuple(self._table.live(state)), schema)
        if self._options.mode == "append" or not files:
            return TableChange(batch, rows, files, (), schema)
        add, remove = self._merge(state, written, attempt, schema)
        return TableChange(batch, rows, add, remove, schema)

    def _merge(
        self, state: State, written: Sequence[FilesWritten], attempt: int, schema: pa.Schema
    ) -> tuple[tuple[DataFile, ...], tuple[str, ...]]:
        first = next(each for each in written if each.files)
        task = first.task
        files = self._table.files()
        folder = batch_folder(self._table.data_folder, task.batch.query, task.batch.batch)
        with RollingFiles(
            files,
            f"{folder}/merged-{attempt:02d}",
            schema,
            token=task.token,
            file_bytes_max=self._options.file_bytes_max,
            compression=self._options.compression,
        ) as output:
            removed = merge(
                files,
                UpsertRule.of(self._options, first.schema),
                live=self._table.live(state),
                changes=[each.path for each in _all_files(written)],
                output=output,
                schema=schema,
            )
        return tuple(output.written), tuple(removed)

    def _first_gone(self, written: Sequence[DataFile]) -> str | None:
        files = self._table.files()
        return next((each.path for each in written if not files.exists(each.path)), None)

    # --- afterwards -------------------------------------------------------------------------------

    def _check_repeated(
        self, state: TableState, written: Sequence[FilesWritten], batch: BatchId
    ) -> None:
        """A batch that comes again must be the one that the table has, or its rows would be lost.

        Spark repeats its last batch only, and with the same records. Fewer rows are fine: topics
        are compacted and records expire between a batch and its repetition, but none come in.
        """
        rows = _rows(written)
        if not rows:
            return
        known = state.last_rows if state.last_rows is not None else rows
        if batch.batch == state.last_batch and rows <= known:
            return
        before = f" with {state.last_rows:,} rows" if state.last_rows is not None else ""
        raise TableError(
            f"{self._options.name}: batch {batch.batch} of query {batch.query} comes again with "
            f"{rows:,} rows, and the table has taken its batch {state.last_batch}{before} already; "
            "the query's checkpoint is older than the table, or the query runs twice. Nothing was "
            "written. Stop the other one, or bring back the newest checkpoint; if there is none, "
            "give the query a new checkpoint and a place to start from (startingOffsets)"
        )

    def _forget(self, written: Sequence[FilesWritten], state: State) -> None:
        """The batch was there already: what was written again goes, what the table has stays."""
        mine = {each.path for each in _all_files(written)}
        self._delete(sorted(mine - set(self._table.live(state)) if mine else mine))

    def _drop_merged(self, change: TableChange, written: Sequence[FilesWritten]) -> None:
        given = {each.path for each in _all_files(written)}
        self._delete([each.path for each in change.add if each.path not in given])

    def _tidy(self, change: TableChange) -> None:
        """Whatever else was written for this batch belongs to attempts that can win no more."""
        query, batch = change.batch.query, change.batch.batch
        kept = {each.path for each in change.add}
        try:
            files = self._table.files()
            folders = [batch_folder(self._table.data_folder, query, batch)]
            folders.append(batch_folder(CHANGES_FOLDER, query, batch))
            found = [each.path for folder in folders for each in files.list(folder)]
            spare = [path for path in found if path not in kept]
            if any(path.startswith(self._table.data_folder) for path in spare):
                live = set(self._table.live(self._table.load(query)))
                spare = [path for path in spare if path not in live]
        except (OSError, TableError) as error:
            log.warning("could not look for leftovers of a batch: %s", error)
            return
        self._delete(spare)

    def _delete(self, paths: Sequence[str]) -> None:
        """Tidying is not worth failing a batch for: what stays is found again as an orphan."""
        files = self._table.files()
        for path in paths:
            try:
                files.delete(path)
            except OSError as error:
                log.warning("could not delete %s, which nothing names: %s", path, error)


def _has(state: TableState, batch: BatchId) -> bool:
    return batch.recorded and state.last_batch is not None and batch.batch <= state.last_batch


def _rows(written: Sequence[FilesWritten]) -> int:
    return sum(file.rows for file in _all_files(written))


def _all_files(written: Sequence[FilesWritten]) -> tuple[DataFile, ...]:
    return tuple(file for each in written for file in each.files)


def _joined(table: pa.Schema, written: Sequence[FilesWritten]) -> pa.Schema:
    """The table's columns, then those that the batch brings along."""
    for each in written:
        table = pa.schema([*table, *additions(table, each.schema)])
    return table
