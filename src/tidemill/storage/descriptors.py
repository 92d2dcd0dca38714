"""A bounded set of open file descriptors; those that are not in use make room for others.

A descriptor in use by a thread is never closed under it: a closed number may already belong to
another file. So each use is a lease, and dropping a leased one closes it when it comes back.

A descriptor must never outlive its file's name: what is written to the next file of that name would
go into the old one. Files are opened under the lock, so whoever drops a name after it changed hands
has dropped every descriptor that was opened before.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from itertools import islice

from tidemill.storage.disk_errors import disk_error

_NO_FILES = (errno.EMFILE, errno.ENFILE)
_EVICT_ON_EMFILE = 64
"""How many idle descriptors to give up when the operating system has none left."""


def descriptor_limit() -> int:
    """A quarter of what the process may open: sockets, the store and libraries need the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(soft, 1 << 20) // 4)


class Descriptor:
    """One open file; `users` leases are out."""

    __slots__ = ("dropped", "fd", "path", "users")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.users = 0
        self.dropped = False


class DescriptorCache:
    """Descriptors by path. Safe for use from several threads."""

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._entries: OrderedDict[str, Descriptor] = OrderedDict()
        self._by_directory: dict[str, dict[str, Descriptor]] = {}
        self._lock = threading.Lock()
        self._takes_newest = True

    def __len__(self) -> int:
        return len(self._entries)

    def lease(self, path: str, *, create: bool = True) -> Descriptor:
        """The file's descriptor, opened if need be; `give_back` must follow."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                entry = self._open(path, create)
            else:
                self._entries.move_to_end(path)
            entry.users += 1
            return entry

    def open_once(self, path: str, flags: int) -> int:
        """A descriptor of the caller's own, to be closed by it; idle ones make room if need be."""
        with self._lock:
            return self._os_open(path, flags | os.O_CLOEXEC)

    def make_room(self, error: OSError) -> bool:
        """Whether idle descriptors were closed, because `error` says that there are none left."""
        with self._lock:
            return error.errno in _NO_FILES and self._evict(_EVICT_ON_EMFILE) > 0

    def give_back(self, entry: Descriptor) -> None:
        # A decrement is not atomic, so it is done under the lock like everything else here.
        with self._lock:
            entry.users -= 1
            if entry.dropped and not entry.users:
                os.close(entry.fd)

    def drop(self, path: str) -> None:
        """Let go of the file, or of all files that lie in the directory."""
        with self._lock:
            entry = self._entries.get(path)
            inside = self._by_directory.get(path, {})
            for gone in [*inside.values()] if entry is None else [entry, *inside.values()]:
                self._retire(gone)

    def clear(self) -> None:
        with self._lock:
            for entry in list(self._entries.values()):
                self._retire(entry)

    def _open(self, path: str, create: bool) -> Descriptor:
        if len(self._entries) >= self._files_max:
            self._evict(1)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = self._os_open(path, flags)
        except OSError as error:
            raise disk_error(error, "opening", path) from error
        entry = Descriptor(fd, path)
        self._entries[path] = entry
        self._by_directory.setdefault(os.path.dirname(path), {})[path] = entry
        return entry

    def _os_open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno not in _NO_FILES or not self._evict(_EVICT_ON_EMFILE):
                raise
        return os.open(path, flags, 0o644)

    def _evict(self, wanted: int) -> int:
        """Close up to `wanted` descriptors that nobody is using; how many.

        By turns the longest unused one and the one used last. Were it always the former, going
        round slightly more files than fit would find every single one closed: ten thousand
        partitions that are written to in turn do just that.
        """
        self._takes_newest = not self._takes_newest
        entries = self._entries.values()
        order = reversed(entries) if self._takes_newest else iter(entries)
        # Few are in use at a time, so the first ones of the order do: no walk through them all.
        idle = list(islice((entry for entry in order if not entry.users), wanted))
        for entry in idle:
            self._retire(entry)
        return len(idle)

    def _retire(self, entry: Descriptor) -> None:
        """Nobody gets this one again; it is closed when those who have it are done."""
        del self._entries[entry.path]
        directory = os.path.dirname(entry.path)
        inside = self._by_directory[directory]
        del inside[entry.path]
        if not inside:
            del self._by_directory[directory]
        entry.dropped = True
        if not entry.users:
            os.close(entry.fd)
