"""The folder of a table: reading, writing, listing, and creating a file that must not exist yet.

Everything goes through a pyarrow file system, so local disks, HDFS and object stores look alike. On
local disks files are flushed before anything refers to them, and `create` is atomic; on HDFS it is
atomic because a rename there does not overwrite. Object stores offer no such thing through Arrow:
there `create` looks first, which one driver at a time may rely on and two may not.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from tidemill.spark.tables.target import TableError


class FoundFile(NamedTuple):
    """A file of a listing, its path relative to the table's folder."""

    path: str
    size_bytes: int
    modified_ms: int | None
    """None where the storage does not say."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a table's folder is and how to get there: what executors are told."""

    kind: str
    url: str
    options: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> TableFiles:
        filesystem, root = _OPENERS[self.kind](self.url, dict(self.options))
        return TableFiles(filesystem, root)


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def local_path(url: str) -> str | None:
    """The absolute path when the address is on this machine: a plain path, or `file:/...`."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return os.path.abspath(url)
    if scheme[1].lower() != "file":
        return None
    path = url[scheme.end() :]
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//"):
        raise TableError(f"{url}: write file:///absolute/path, or a path without file:")
    return os.path.abspath(path)


def _open_arrow(url: str, options: dict[str, str]) -> tuple[fs.FileSystem, str]:
    path = local_path(url)
    if path is not None:
        return fs.LocalFileSystem(), path
    if options and url.startswith(("s3:", "s3a:")):
        return fs.S3FileSystem(**options), url.split("://", 1)[1]
    filesystem, root = fs.FileSystem.from_uri(url)
    return filesystem, root


def _open_delta(url: str, options: dict[str, str]) -> tuple[fs.FileSystem, str]:
    path = local_path(url)
    if path is not None:
        return fs.LocalFileSystem(), path
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(url, options)), ""


def _open_iceberg(url: str, options: dict[str, str]) -> tuple[fs.FileSystem, str]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, netloc, path = PyArrowFileIO.parse_location(url, options)
    return PyArrowFileIO(options).fs_by_scheme(scheme, netloc), path


_OPENERS = {"parquet": _open_arrow, "delta": _open_delta, "iceberg": _open_iceberg}


class TableFiles:
    """One folder; all paths are relative to it."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        self._local = filesystem.type_name == "local"

    def full(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path

    # --- reading ----------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """FileNotFoundError when there is no such file."""
        with self.filesystem.open_input_stream(self.full(path)) as stream:
            return bytes(stream.read())

    def open_input(self, path: str) -> Any:
        return self.filesystem.open_input_file(self.full(path))

    def exists(self, path: str) -> bool:
        return bool(self.filesystem.get_file_info(self.full(path)).type == fs.FileType.File)

    def list(self, folder: str, *, recursive: bool = True) -> list[FoundFile]:
        """The files below a folder, by name; nothing when it does not exist."""
        selector = fs.FileSelector(
            self.full(folder) if folder else self.root or "",
            allow_not_found=True,
            recursive=recursive,
        )
        skip = len(self.root) + 1 if self.root else 0
        found = [
            FoundFile(info.path[skip:], info.size, _milliseconds(info.mtime_ns))
            for info in self.filesystem.get_file_info(selector)
            if info.type == fs.FileType.File
        ]
        return sorted(found, key=lambda each: each.path)

    # --- writing ----------------------------------------------------------------------------------

    def open_output(self, path: str) -> Any:
        """A stream into a new file; call `seal` when it is closed."""
        self.make_folder(os.path.dirname(path))
        return self.filesystem.open_output_stream(self.full(path))

    def make_folder(self, folder: str) -> None:
        self.filesystem.create_dir(self.full(folder) if folder else self.root, recursive=True)

    def seal(self, path: str) -> None:
        """Flushes a finished file, so that a commit never names data a power cut could take."""
        if self._local:
            _flush(self.full(path))
            _flush(os.path.dirname(self.full(path)))

    def create(self, path: str, data: bytes, *, token: str) -> None:
        """A file that did not exist, at once and whole; FileExistsError when it did."""
        temporary = f"{path}.{token}.tmp"
        self._write(temporary, data)
        try:
            if self._local:
                os.link(self.full(temporary), self.full(path))
                _flush(os.path.dirname(self.full(path)))
            else:
                self._rename_new(temporary, path)
        finally:
            self.delete(temporary)

    def replace(self, path: str, data: bytes, *, token: str) -> None:
        """A file with new contents; readers see the old or the new ones."""
        temporary = f"{path}.{token}.tmp"
        self._write(temporary, data)
        self.move(temporary, path)

    def move(self, source: str, target: str) -> None:
        if self._local:
            os.replace(self.full(source), self.full(target))
            _flush(os.path.dirname(self.full(target)))
        else:
            self.filesystem.move(self.full(source), self.full(target))

    def delete(self, path: str) -> None:
        """A file that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.full(path))

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.full(folder))

    def _write(self, path: str, data: bytes) -> None:
        with self.open_output(path) as stream:
            stream.write(pa.py_buffer(data))
        self.seal(path)

    def _rename_new(self, source: str, target: str) -> None:
        if self.exists(target):
            raise FileExistsError(target)
        try:
            self.filesystem.move(self.full(source), self.full(target))
        except OSError:
            if self.exists(target):
                raise FileExistsError(target) from None
            raise


def _milliseconds(time_ns: int | None) -> int | None:
    return None if time_ns is None else time_ns // 1_000_000


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
