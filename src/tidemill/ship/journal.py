"""What `ship` remembers between its runs: how far each file is delivered, in one small file.

It is replaced as a whole, flushed, and only ever says what brokers have acknowledged. A lock keeps
two shippers from sharing one.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.errors import TidemillError
from tidemill.ship.disk import Identity
from tidemill.storage.files import FileLock, Files, make_dir, read_if_there, replace_file

VERSION = 1
WINDOW_BYTES = 256
FILES_MAX = 1_000
"""The most files that one shipper follows, each with an open descriptor."""


class JournalError(TidemillError):
    """The journal cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """How far one file is delivered.

    `window` holds the last bytes before `position`, `head` the first ones of all. A file that does
    not have them there is not the file that was read: it was truncated and written anew, or is
    another one with the same inode.
    """

    id: str
    path: str
    identity: Identity
    position: int = 0
    part: int = 0
    window: bytes = b""
    head: bytes = b""


class Journal:
    """The bookmarks on disk, for one topic of one cluster."""

    def __init__(self, files: Files, path: str, topic: str) -> None:
        self._files = files
        self.path = os.path.abspath(path)
        self._topic = topic
        self._cluster: str | None = None
        self._lock: FileLock | None = None
        self._written: bytes | None = None

    def open(self) -> list[Bookmark]:
        """Take the lock and read what is remembered."""
        make_dir(self._files, os.path.dirname(self.path))
        self._lock = self._files.lock(f"{self.path}.lock")
        if self._lock is None:
            raise JournalError(
                f"another `tidemill ship` uses {self.path}; give this one a --state of its own"
            )
        return self.read()

    def read(self) -> list[Bookmark]:
        """What is remembered, without taking the lock."""
        self._written = read_if_there(self._files, self.path)
        if self._written is None:
            return []
        try:
            found = json.loads(self._written)
            version, topic = found["version"], found["topic"]
            self._cluster = found["cluster"]
            bookmarks = [_from_json(each) for each in found["files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{self.path} is no journal of `ship`: {error!r}") from error
        if version != VERSION:
            raise JournalError(f"{self.path} was written by another version of `ship`")
        if topic != self._topic:
            raise JournalError(f"{self.path} belongs to topic {topic!r}; choose another --state")
        return bookmarks

    def bind(self, cluster: str) -> None:
        """What is remembered was delivered to this cluster, or must not be relied on."""
        if self._cluster not in (None, cluster):
            raise JournalError(
                f"{self.path} says what was delivered to cluster {self._cluster}, and this is "
                f"{cluster}; choose another --state, or remove it to send everything again"
            )
        self._cluster = cluster

    def save(self, bookmarks: Iterable[Bookmark]) -> None:
        """Remember these, durably, and nothing else; costs nothing when they are the same."""
        document = {
            "version": VERSION,
            "topic": self._topic,
            "cluster": self._cluster,
            "files": [_to_json(each) for each in sorted(bookmarks, key=lambda each: each.path)],
        }
        data = json.dumps(document, indent=1).encode()
        if data == self._written:
            return
        replace_file(self._files, os.path.dirname(self.path), os.path.basename(self.path), data)
        self._written = data

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _to_json(bookmark: Bookmark) -> dict[str, Any]:
    # A path may be any bytes: those that are no text survive as surrogates, which JSON escapes.
    return asdict(bookmark) | {
        "identity": list(bookmark.identity),
        "window": base64.b64encode(bookmark.window).decode(),
        "head": base64.b64encode(bookmark.head).decode(),
    }


def _from_json(found: dict[str, Any]) -> Bookmark:
    device, inode = found["identity"]
    return Bookmark(
        id=str(found["id"]),
        path=str(found["path"]),
        identity=Identity(int(device), int(inode)),
        position=int(found["position"]),
        part=int(found["part"]),
        window=base64.b64decode(found["window"]),
        head=base64.b64decode(found["head"]),
    )
