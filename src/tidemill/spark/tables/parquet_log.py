"""The commit log of a Parquet table: numbered records, each created once, folded into an image.

    _tidemill/log/00000000000000000007.json               what commit 7 added and removed
    _tidemill/log/00000000000000000100.checkpoint.json    the sum of all commits up to 100
    _tidemill/published                                   up to where files are at their places

Creating record N+1 is the commit: of two drivers that try, one succeeds. A checkpoint stands for
the records up to its number, of which only the latest are kept. So a driver that slept through a
checkpoint could create a number anew that was deleted; it looks for a later checkpoint afterwards,
and if there is one, its record counts for nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from tidemill.spark.tables.files import TableFiles
from tidemill.spark.tables.target import CommitConflictError, TableError

FOLDER: Final = "_tidemill/log"
PUBLISHED: Final = "_tidemill/published"
CHECKPOINT_EVERY: Final = 100
RECORDS_KEPT: Final = 100
LOADS_MAX: Final = 5


class Added(msgspec.Struct, frozen=True):
    """A file of the table, and where it waited for its commit."""

    path: str
    staged: str
    rows: int
    size_bytes: int


class Record(msgspec.Struct, frozen=True):
    """One commit."""

    version: int
    query: str
    batch: int
    recorded: bool
    time_ms: int
    schema: str
    add: list[Added]
    remove: list[str]
    rows: int | None = None
    """How many rows the batch brought; unknown of batches that were committed without it."""


class Image(msgspec.Struct, frozen=True):
    """A table as of a version: the sum of its records."""

    version: int = 0
    schema: str = ""
    batches: dict[str, int] = {}
    files: dict[str, Added] = {}
    rows: dict[str, int] = {}
    """Of each query's last batch, where that is known."""

    def after(self, records: Sequence[Record]) -> Image:
        """The table once these were applied, too; all of them at once, as each copy takes time."""
        if not records:
            return self
        files, batches, rows = dict(self.files), dict(self.batches), dict(self.rows)
        for record in records:
            for path in record.remove:
                files.pop(path, None)
            files.update((added.path, added) for added in record.add)
            if record.recorded and record.batch >= batches.get(record.query, -1):
                batches[record.query] = record.batch
                rows.pop(record.query, None)
                if record.rows is not None:
                    rows[record.query] = record.rows
        return Image(records[-1].version, records[-1].schema, batches, files, rows)


class CommitLog:
    """Reads and extends the log of one table."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files

    def load(self) -> tuple[Image, list[Record]]:
        """The table as of now, and the records since its last checkpoint."""
        for _ in range(LOADS_MAX):
            try:
                return self._load()
            except FileNotFoundError:
                continue  # A checkpoint has replaced the records that were listed.
        raise TableError(f"{self._files.root}: the commit log changes faster than it can be read")

    def _load(self) -> tuple[Image, list[Record]]:
        checkpoints, versions = self._numbers()
        image = Image()
        if checkpoints:
            data = self._files.read(_checkpoint_path(max(checkpoints)))
            image = msgspec.json.decode(data, type=Image)
        first = image.version
        later = sorted(version for version in versions if version > first)
        if later and later != list(range(first + 1, first + 1 + len(later))):
            raise TableError(f"{self._files.root}: the commit log lacks a record after {first}")
        records = [
            msgspec.json.decode(self._files.read(_record_path(version)), type=Record)
            for version in later
        ]
        return image.after(records), records

    def append(self, record: Record, *, token: str) -> None:
        """The commit itself; CommitConflictError when another record has this number."""
        path = _record_path(record.version)
        try:
            self._files.create(path, msgspec.json.encode(record), token=token)
        except FileExistsError:
            raise CommitConflictError(f"commit {record.version} is another driver's") from None
        checkpoints, _ = self._numbers()
        if checkpoints and max(checkpoints) >= record.version:
            self._files.delete(path)
            raise CommitConflictError(f"commit {record.version} was made and summed up long ago")

    def published(self) -> int:
        """The version up to which every file is where readers look; may lag behind the truth."""
        try:
            return int(self._files.read(PUBLISHED))
        except FileNotFoundError:
            return 0

    def set_published(self, version: int, *, token: str) -> None:
        self._files.replace(PUBLISHED, b"%d" % version, token=token)

    def checkpoint(self, image: Image, *, token: str) -> None:
        """Sums up all records so far and deletes those that nobody needs any more."""
        path = _checkpoint_path(image.version)
        self._files.replace(path, msgspec.json.encode(image), token=token)
        checkpoints, versions = self._numbers()
        for version in versions:
            if version <= image.version - RECORDS_KEPT:
                self._files.delete(_record_path(version))
        for version in checkpoints:
            if version < image.version:
                self._files.delete(_checkpoint_path(version))

    def _numbers(self) -> tuple[list[int], list[int]]:
        checkpoints, versions = [], []
        for found in self._files.list(FOLDER, recursive=False):
            name = found.path.rsplit("/", 1)[1]
            number, _, rest = name.partition(".")
            if rest == "checkpoint.json":
                checkpoints.append(int(number))
            elif rest == "json":
                versions.append(int(number))
        return checkpoints, versions


def _record_path(version: int) -> str:
    return f"{FOLDER}/{version:020d}.json"


def _checkpoint_path(version: int) -> str:
    return f"{FOLDER}/{version:020d}.checkpoint.json"


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    if not text:
        return pa.schema([])
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
