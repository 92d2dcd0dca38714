"""What a table target is: named `kind:address`, written by many tasks, committed once per batch.

Tasks write files (`TableWriter.write`) and report them; nobody sees these files yet. The driver
then commits all files of a batch in one step (`TableTarget.commit`). The table itself remembers
which batch of which query it took last, in the same step, so a batch that comes again - replayed
after a crash, or brought by a second driver - is recognised and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from tidemill.errors import TidemillError
from tidemill.spark.option_values import Given, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.spark.options import SinkOptions

KINDS: Final = ("delta", "iceberg", "parquet")
FILE_BYTES_MAX: Final = 128 << 20
COMMIT_ATTEMPTS_MAX: Final = 20
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
NO_COLUMN: Final = "none"
VALUE_COLUMN: Final = "value"
OFFSET_COLUMN: Final = "offset"
TOPIC_COLUMN: Final = "topic"
PARTITION_COLUMN: Final = "partition"
TIMESTAMP_COLUMN: Final = "timestamp"

TABLE_OPTIONS: Final = (
    "table.orderBy",
    "table.tombstone",
    "table.fileBytes",
    "table.compression",
    "table.historyDays",
    "table.txnAppId",
    "table.txnVersion",
)


class TableError(TidemillError):
    """A table cannot take what it was given; the message says why and what to do."""


class CommitConflictError(TableError):
    """Somebody else changed the table first; whoever catches it looks again and decides anew."""


class TableName(NamedTuple):
    """`delta:/lake/clicks` taken apart."""

    kind: str
    address: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.address}"


class BatchId(NamedTuple):
    """Which batch of which query; a one-off write never comes again and is `recorded` nowhere."""

    query: str
    batch: int
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """One attempt at one part of a batch; `token` is new for every attempt in every process."""

    batch: BatchId
    partition: int
    token: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file, its path relative to the table's folder."""

    path: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FilesWritten:
    """What one task left behind."""

    task: TaskIdentity
    files: tuple[DataFile, ...]
    schema: pa.Schema


WriteMode = Literal["append", "upsert", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Everything a table target is told."""

    name: TableName
    mode: WriteMode = "append"
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] | None = None
    """What says which of two changes of a key is the later; None: `offset`, if there is one, and
    between partitions `timestamp`."""
    tombstone: str | None = None
    """The column whose null deletes a key; None: `value`, if there is one; `none`: nothing does."""
    file_bytes_max: int = FILE_BYTES_MAX
    compression: str = COMPRESSIONS[0]
    history_days: int | None = None
    """Snapshots of an Iceberg table expire when they are older; None: they stay."""
    commit_attempts_max: int = COMMIT_ATTEMPTS_MAX
    once: BatchId | None = None
    """The identity a user gave to a write that is no stream, so that it can be repeated safely."""
    storage: Mapping[str, str] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: SinkOptions, *, overwrite: bool) -> TableOptions:
        """The sink's options; `overwrite` is Spark's word for replacing all that is there."""
        name = parse_table(options.table or "")
        given = Given(options.table_options, TABLE_OPTIONS)
        if overwrite and options.mode == "upsert":
            advice = "an upsert changes rows by key; write it with the output mode update or append"
            raise OptionError("mode", "upsert", advice)
        found = cls(
            name=name,
            mode="replace" if overwrite else "upsert" if options.mode == "upsert" else "append",
            keys=options.keys,
            order_by=given.names("table.orderBy"),
            tombstone=given.text("table.tombstone"),
            file_bytes_max=given.count("table.fileBytes") or FILE_BYTES_MAX,
            compression=given.choice("table.compression", COMPRESSIONS, COMPRESSIONS[0]),
            history_days=given.count("table.historyDays", low=0),
            once=_once(given),
            storage=_without_prefix(given, "storage."),
            catalog=_without_prefix(given, "catalog."),
        )
        given.finish()
        if found.catalog and name.kind != "iceberg":
            raise OptionError("catalog", None, "only Iceberg tables have a catalog")
        if found.history_days is not None and name.kind != "iceberg":
            advice = "is for Iceberg tables; the others do not keep older versions for good"
            raise OptionError("table.historyDays", str(found.history_days), advice)
        if found.mode != "upsert" and (found.order_by or found.tombstone):
            option = "table.orderBy" if found.order_by else "table.tombstone"
            raise OptionError(option, None, "is for `mode` = upsert")
        return found


def _once(given: Given) -> BatchId | None:
    query, batch = given.text("table.txnAppId"), given.count("table.txnVersion", low=0)
    if (query is None) != (batch is None):
        raise OptionError("table.txnAppId", query, "goes together with `table.txnVersion`")
    return None if query is None or batch is None else BatchId(query, batch)


def _without_prefix(given: Given, prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in given.prefixed(prefix).items()}


def parse_table(text: str) -> TableName:
    """`delta:URL`, `iceberg:CATALOG.DB.TABLE` or `parquet:URL`."""
    kind, colon, address = text.partition(":")
    if not colon or kind not in KINDS or not address:
        shapes = "delta:URL, iceberg:CATALOG.DB.TABLE or parquet:URL"
        raise OptionError("table", text, f"must be {shapes}")
    if kind == "iceberg" and (address.count(".") < 2 or not all(address.split("."))):
        raise OptionError("table", text, "an Iceberg table is named CATALOG.DB.TABLE")
    return TableName(kind, address)


class TableWriter(Protocol):
    """The half that travels to executors."""

    def write(self, batches: Iterator[pa.RecordBatch], task: TaskIdentity) -> FilesWritten: ...


class TableTarget(Protocol):
    """The half that stays with the driver."""

    def prepare(self, schema: pa.Schema) -> TableWriter:
        """Creates the table or adds the columns it lacks; TableError when they cannot be added."""
        ...

    def commit(self, written: Sequence[FilesWritten], batch: BatchId) -> bool:
        """All files of a batch in one step; False when there was nothing (more) to commit."""
        ...

    def abort(self, written: Sequence[FilesWritten]) -> None:
        """Deletes files of a batch for which no commit was ever tried."""
        ...

    def clean_orphans(self, older_than_ms: int) -> list[str]:
        """Deletes files that no commit names and that were last written so long ago."""
        ...


def open_target(options: TableOptions) -> TableTarget:
    """The target for a kind of table; its library is imported here and not before."""
    from tidemill.spark.tables.committing import CommittingTarget

    match options.name.kind:
        case "delta":
            from tidemill.spark.tables.delta import DeltaFormat

            return CommittingTarget(DeltaFormat(options), options)
        case "iceberg":
            from tidemill.spark.tables.iceberg import IcebergFormat

            return CommittingTarget(IcebergFormat(options), options)
        case _:
            from tidemill.spark.tables.parquet import ParquetFormat

            return CommittingTarget(ParquetFormat(options), options)


ORPHANS_OLDER_THAN_MS: Final = 24 * 60 * 60 * 1000


def clean_orphans(
    table: str,
    options: Mapping[str, str] | None = None,
    *,
    older_than_ms: int = ORPHANS_OLDER_THAN_MS,
) -> list[str]:
    """Deletes files that killed tasks and drivers left in a table, and says which.

    `table` is named as for the sink, and `options` are its `storage.` and `catalog.` options. A
    batch that takes longer than `older_than_ms` would lose files before their commit, and fail.
    """
    given = Given(options or {}, TABLE_OPTIONS)
    found = TableOptions(
        name=parse_table(table),
        storage=_without_prefix(given, "storage."),
        catalog=_without_prefix(given, "catalog."),
    )
    given.finish()
    return open_target(found).clean_orphans(older_than_ms)
