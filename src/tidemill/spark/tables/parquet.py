"""A folder of Parquet files as a table that any Parquet reader can read.

    part-....parquet                 the table's files
    _tidemill/staged/QUERY/BATCH/    files that wait for their commit
    _tidemill/log/                   the commits, see `parquet_log.py`

Readers pass over names that begin with an underscore. A commit is a log record that names the
staged files and the places they go to; after it the files are moved there, and files that the batch
replaced are deleted. Whoever finds a record whose files have not all been moved - its driver was
killed - moves them first. So a reader that lists the folder sees committed data only; while files
are being moved it may see part of a batch. `committed_files` never does: it goes by the log.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidemill.clock import Clock, SystemClock
from tidemill.spark.tables.committing import TableChange, TableState
from tidemill.spark.tables.files import Location, TableFiles, local_path
from tidemill.spark.tables.parquet_log import (
    CHECKPOINT_EVERY,
    Added,
    CommitLog,
    Image,
    Record,
    schema_of,
    schema_text,
)
from tidemill.spark.tables.schema import additions
from tidemill.spark.tables.target import DataFile, TableError, TableOptions

STAGED_FOLDER: Final = "_tidemill/staged"


@dataclass(frozen=True, slots=True)
class ParquetState(TableState):
    """The image a commit builds upon."""

    image: Image


class ParquetFormat:
    """The commit protocol of a Parquet folder."""

    data_folder = STAGED_FOLDER

    def __init__(
        self,
        options: TableOptions,
        *,
        files: TableFiles | None = None,
        clock: Clock | None = None,
    ) -> None:
        # Executors may run in another folder: what a relative path means is settled here.
        url = local_path(options.name.address) or options.name.address
        self._location = Location("parquet", url, options.storage)
        self._files = files
        self._clock = clock or SystemClock()

    def narrowed(self, kind: pa.DataType) -> pa.DataType:
        return kind

    def location(self) -> Location:
        return self._location

    def files(self) -> TableFiles:
        if self._files is None:
            self._files = self._location.open()
        return self._files

    def prepare(self, schema: pa.Schema) -> None:
        """Nothing is written before the first commit; what cannot be committed is said now."""
        image, _ = CommitLog(self.files()).load()
        if not image.version:
            self._check_ownership()
        additions(schema_of(image.schema), schema)

    def load(self, query: str) -> ParquetState:
        image = self._roll_forward()
        last, rows = image.batches.get(query), image.rows.get(query)
        return ParquetState(schema_of(image.schema), last, rows, image)

    def live(self, state: ParquetState) -> list[str]:
        return sorted(state.image.files)

    def commit(self, state: ParquetState, change: TableChange) -> None:
        batch = change.batch
        record = Record(
            version=state.image.version + 1,
            query=batch.query,
            batch=batch.batch,
            recorded=batch.recorded,
            time_ms=self._clock.now_ms(),
            schema=schema_text(change.schema),
            add=[_added(each) for each in change.add],
            remove=list(change.remove),
            rows=change.rows,
        )
        token = _token(record)
        log = CommitLog(self.files())
        log.append(record, token=token)
        image = state.image.after([record])
        self._publish(record, image)
        log.set_published(record.version, token=token)
        if record.version % CHECKPOINT_EVERY == 0:
            log.checkpoint(image, token=token)

    def named(self, among: set[str]) -> set[str]:
        """Once everything committed is at its place, no commit names a staged file."""
        return set(self._roll_forward().files)

    def _roll_forward(self) -> Image:
        """Finishes what a killed driver began: its commit stands, its files may not be in place."""
        log = CommitLog(self.files())
        image, records = log.load()
        published = log.published()
        unpublished = [record for record in records if record.version > published]
        for record in unpublished:
            self._publish(record, image)
        if unpublished:
            log.set_published(image.version, token=_token(unpublished[-1]))
        return image

    def _publish(self, record: Record, image: Image) -> None:
        files = self.files()
        for added in record.add:
            if files.exists(added.staged):
                with suppress(FileNotFoundError):  # Another driver finishes the same commit.
                    files.move(added.staged, added.path)
            elif added.path in image.files and self._is_lost(added.path):
                raise TableError(
                    f"{files.root}: commit {record.version} names {added.path}, which is gone"
                )
        for path in record.remove:
            files.delete(path)

    def _is_lost(self, path: str) -> bool:
        """Whether a file is gone that the table still has: another driver may have moved it, and
        have replaced it since then."""
        if self.files().exists(path):
            return False
        image, _ = CommitLog(self.files()).load()
        return path in image.files and not self.files().exists(path)

    def _check_ownership(self) -> None:
        others = [
            each.path
            for each in self.files().list("", recursive=False)
            if each.path.endswith(".parquet")
        ]
        if others:
            raise TableError(
                f"{self.files().root} holds {others[0]}, which no commit of ours wrote; give the "
                "table a folder of its own"
            )


def committed_files(address: str, storage: dict[str, str] | None = None) -> list[str]:
    """Full paths of the files that make up a table now, whether or not they have been moved yet."""
    files = Location("parquet", address, storage or {}).open()
    image, _ = CommitLog(files).load()
    return [
        files.full(added.path if files.exists(added.path) else added.staged)
        for _, added in sorted(image.files.items())
    ]


def _added(file: DataFile) -> Added:
    """`_tidemill/staged/QUERY/BATCH/NAME` goes to `part-QUERY-BATCH-NAME`."""
    query, batch, name = file.path.rsplit("/", 3)[1:]
    return Added(f"part-{query[:8]}-{batch}-{name}", file.path, file.rows, file.size_bytes)


def _token(record: Record) -> str:
    """Tells apart the drivers that may write at once: their files have different names."""
    if record.add:
        return record.add[0].staged.rsplit("-", 1)[1].removesuffix(".parquet")
    return f"{record.time_ms:x}"
