"""What runs on executors: record batches become Parquet files of a bounded size.

A task's files carry its token in their names, so two attempts at the same part of a batch never
write to the same file, and which attempt counts is decided by the commit alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.spark.tables.files import Location, TableFiles
from tidemill.spark.tables.schema import conform
from tidemill.spark.tables.target import DataFile, FilesWritten, TableError, TaskIdentity

ROW_GROUP_BYTES_MAX: Final = 32 << 20
ROW_GROUP_ROWS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileWriter:
    """The half of a table target that Spark sends to executors."""

    location: Location
    folder: str
    """Where files wait for their commit; below it one folder per query and batch."""
    schema: pa.Schema
    file_bytes_max: int
    compression: str

    def write(self, batches: Iterator[pa.RecordBatch], task: TaskIdentity) -> FilesWritten:
        with RollingFiles(
            self.location.open(),
            f"{batch_folder(self.folder, task.batch.query, task.batch.batch)}/{task.partition:05d}",
            self.schema,
            token=task.token,
            file_bytes_max=self.file_bytes_max,
            compression=self.compression,
        ) as output:
            for batch in batches:
                output.write(conform(batch, self.schema))
        return FilesWritten(task, tuple(output.written), self.schema)


_SAFE = re.compile(r"[A-Za-z0-9-]{1,64}")


def batch_folder(folder: str, query: str, batch: int) -> str:
    """One folder per batch; a name that a path cannot have is replaced by its digest."""
    name = query if _SAFE.fullmatch(query) else hashlib.sha256(query.encode()).hexdigest()[:32]
    return f"{folder}/{name}/{batch:010d}"


class RollingFiles:
    """Rows in, files out: a new file whenever the last one is large enough.

    Row groups are gathered to a useful size first, since Spark's record batches are small. Leaving
    the block with an error leaves files behind that nothing names; they are cleared up as orphans.
    """

    def __init__(
        self,
        files: TableFiles,
        prefix: str,
        schema: pa.Schema,
        *,
        token: str,
        file_bytes_max: int,
        compression: str,
    ) -> None:
        self.written: list[DataFile] = []
        self._files = files
        self._prefix = prefix
        self._schema = schema
        self._token = token
        self._file_bytes_max = file_bytes_max
        self._compression = compression
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._waiting_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._stream: pa.NativeFile | None = None
        self._path = ""
        self._rows = 0

    def __enter__(self) -> RollingFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._write_group()
            self._finish_file()
        elif self._writer is not None and self._stream is not None:
            with suppress(OSError, ValueError):  # What is in the file counts for nothing.
                self._writer.close()
            self._stream.close()

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        group_is_full = self._waiting_rows >= ROW_GROUP_ROWS_MAX or self._waiting_bytes >= min(
            ROW_GROUP_BYTES_MAX, self._file_bytes_max
        )
        if group_is_full:
            self._write_group()
            if self._stream is not None and self._stream.tell() >= self._file_bytes_max:
                self._finish_file()

    def _write_group(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._start_file()
        assert self._writer is not None
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
        self._rows += table.num_rows
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0

    def _start_file(self) -> None:
        self._path = f"{self._prefix}-{len(self.written):04d}-{self._token}.parquet"
        self._stream = self._files.open_output(self._path)
        try:
            self._writer = pq.ParquetWriter(
                self._stream, self._schema, compression=self._compression
            )
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise TableError(f"a column's type cannot be kept in a table: {error}") from error

    def _finish_file(self) -> None:
        if self._writer is None or self._stream is None:
            return
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        self._files.seal(self._path)
        self.written.append(DataFile(self._path, self._rows, size_bytes))
        self._writer, self._stream, self._rows = None, None, 0
