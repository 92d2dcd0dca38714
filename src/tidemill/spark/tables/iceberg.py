"""Iceberg tables through `pyiceberg`: a batch is one snapshot, marked with its query and number.

The mark is kept twice in the same commit: as properties of the snapshot, where people look, and as
a property of the table, which is what counts, since snapshots expire. A commit is tried once on top
of the metadata that was looked at; if another writer was faster the caller looks again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table, TableProperties, Transaction

from tidemill.clock import Clock, SystemClock
from tidemill.spark.tables.committing import TableChange, TableState
from tidemill.spark.tables.files import Location, TableFiles
from tidemill.spark.tables.schema import additions, plain_schema, small_integers_wide
from tidemill.spark.tables.target import CommitConflictError, TableError, TableOptions

log = logging.getLogger(__name__)

QUERY_PROPERTY = "tidemill.query"
BATCH_PROPERTY = "tidemill.batch"
FILE_IO = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}

OF_A_STREAM = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
"""Small commits without end: their traces are summed up as they go. For tables that we create."""

EXPIRE_EVERY: Final = 100
"""Batches between two times that old snapshots expire, where they are to."""
DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class IcebergState(TableState):
    """One version of the table's metadata."""

    table: Table


class IcebergFormat:
    """The commit protocol of Iceberg."""

    data_folder = "data"

    def __init__(
        self,
        options: TableOptions,
        *,
        files: TableFiles | None = None,
        clock: Clock | None = None,
    ) -> None:
        catalog, _, self._name = options.name.address.partition(".")
        self._address = options.name.address
        self._catalog_name = catalog
        self._properties = {**FILE_IO, **options.catalog, **options.storage}
        self._attempts_max = options.commit_attempts_max
        self._history_days = options.history_days
        self._clock = clock or SystemClock()
        self._opened: Catalog | None = None
        self._located: Location | None = None
        self._files = files

    def narrowed(self, kind: pa.DataType) -> pa.DataType:
        return small_integers_wide(kind)

    def location(self) -> Location:
        if self._located is None:
            self._locate(self._catalog().load_table(self._name))
        assert self._located is not None
        return self._located

    def files(self) -> TableFiles:
        if self._files is None:
            self._files = self.location().open()
        return self._files

    def prepare(self, schema: pa.Schema) -> None:
        for _ in range(self._attempts_max):
            try:
                self._create_or_extend(schema)
                return
            except (CommitFailedException, TableAlreadyExistsError):
                continue  # Another driver prepares the same table; see what it has done.
        raise TableError(f"{self._address}: other writers change the table's columns all the time")

    def _create_or_extend(self, schema: pa.Schema) -> None:
        catalog = self._catalog()
        try:
            table = catalog.load_table(self._name)
        except NoSuchTableError:
            try:
                catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            except NamespaceAlreadyExistsError:
                pass  # Created by another driver between the look and the leap.
            table = catalog.create_table(self._name, schema=schema, properties=OF_A_STREAM)
        if not table.spec().is_unpartitioned():
            raise TableError(
                f"{self._address} is partitioned; this sink writes unpartitioned tables"
            )
        missing = additions(_schema_of(table), schema)
        unmapped = table.name_mapping() is None
        if missing or unmapped:
            with _single_attempt(table) as transaction:
                if missing:
                    with transaction.update_schema() as update:
                        update.union_by_name(pa.schema([*_schema_of(table), *missing]))
                if unmapped:
                    # Our files name their columns and do not number them.
                    mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
                    transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        self._locate(table)

    def load(self, query: str) -> IcebergState:
        table = self._catalog().load_table(self._name)
        self._locate(table)
        last, rows = (
            _number(table, each(query)) for each in (_last_batch_property, _last_rows_property)
        )
        return IcebergState(_schema_of(table), last, rows, table)

    def live(self, state: IcebergState) -> list[str]:
        """What upsert reads; tables whose files are not the whole truth are refused."""
        tasks = list(state.table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise TableError(
                f"{self._address} has delete files; rewrite its data files before rows can be "
                "replaced in it here"
            )
        return sorted(self._relative(task.file.file_path) for task in tasks)

    def commit(self, state: IcebergState, change: TableChange) -> None:
        table, batch = state.table, change.batch
        marks = {QUERY_PROPERTY: batch.query, BATCH_PROPERTY: str(batch.batch)}
        transaction = _single_attempt(table)
        if batch.recorded:
            transaction.set_properties(
                {
                    _last_batch_property(batch.query): str(batch.batch),
                    _last_rows_property(batch.query): str(change.rows),
                }
            )
        snapshot = transaction.update_snapshot(snapshot_properties=marks)
        producer: Any = snapshot.overwrite() if change.remove else snapshot.merge_append()
        replaced = set(change.remove)
        with producer:
            for each in change.add:
                path = f"{self.location().url}/{each.path}"
                metadata = transaction.table_metadata
                producer.append_data_file(parquet_file_to_data_file(table.io, metadata, path))
            for task in table.scan().plan_files() if replaced else ():
                if self._relative(task.file.file_path) in replaced:
                    producer.delete_data_file(task.file)
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise CommitConflictError(str(error)) from error
        if self._history_days is not None and batch.recorded and batch.batch % EXPIRE_EVERY == 0:
            self._expire(self._history_days)

    def _expire(self, history_days: int) -> None:
        """Let go of old snapshots, all of which are written anew with each commit. Files that only
        they had are orphans then. The batch is in the table already, so nothing here may fail it:
        not another writer that is faster, and not a catalog that does not answer."""
        try:
            until_ms = self._clock.now_ms() - history_days * DAY_MS
            until = datetime.fromtimestamp(until_ms / 1000, UTC)
            table = self._catalog().load_table(self._name)
            table.maintenance.expire_snapshots().older_than(until).commit()
        except Exception as error:  # noqa: BLE001 - whatever catalogs and storages throw
            log.warning("%s: snapshots did not expire this time: %s", self._address, error)

    def named(self, among: set[str]) -> set[str]:
        """The data files of every snapshot that has not expired."""
        table = self._catalog().load_table(self._name)
        self._locate(table)
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
        }
        paths = {
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        }
        prefix = self.location().url + "/"
        return {path.removeprefix(prefix) for path in paths}

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = load_catalog(self._catalog_name, **self._properties)
        return self._opened

    def _locate(self, table: Table) -> None:
        """The catalog may have handed out access to the storage along with the table."""
        self._located = Location("iceberg", table.location().rstrip("/"), dict(table.io.properties))

    def _relative(self, path: str) -> str:
        prefix = self.location().url + "/"
        if not path.startswith(prefix):
            raise TableError(f"{self._address} has {path}, which is outside of {prefix}")
        return path.removeprefix(prefix)


def _single_attempt(table: Table) -> Transaction:
    """A transaction that is not repeated by the library, which would not ask about the batch again.

    The setting is changed in this process's picture of the table only; it is never written.
    """
    table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
    return table.transaction()


def _number(table: Table, name: str) -> int | None:
    found = table.properties.get(name)
    return int(found) if found is not None else None


def _last_batch_property(query: str) -> str:
    return f"tidemill.last-batch.{query}"


def _last_rows_property(query: str) -> str:
    return f"tidemill.last-rows.{query}"


def _schema_of(table: Table) -> pa.Schema:
    return plain_schema(table.schema().as_arrow(), small_integers_wide)
