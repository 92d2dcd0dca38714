"""A file system in memory whose power can be cut at any byte.

`CrashDisk` implements `tidemill.storage.files.Files` and keeps two pictures: what a process sees
(the page cache) and what would survive. Content becomes durable by `fdatasync`, names by
`fsync_dir`, nothing else. `cut_after(steps)` arms a power cut: each byte written and each other
operation is one step, and the step that reaches zero raises `PowerCut`, in the middle of a write if
need be. `power_on` then shows what survived: of everything not made durable, any part may have,
torn anywhere; `restart` is the kind case of a killed process, whose page cache is all there.

    disk = CrashDisk(Random(seed))
    disk.cut_after(1234)
    with pytest.raises(PowerCut):
        run_something(disk)
    disk.power_on()
    check_what_is_left(disk)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tidemill.storage.disk_errors import DiskFailedError, DiskFullError, FileMissingError
from tidemill.storage.files import Buffer, FileLock, Space


class PowerCut(BaseException):
    """The machine is gone: nothing may catch this but the test that caused it."""


@dataclass(slots=True)
class _File:
    """Content as seen, content as durable, and the changes between the two in order."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, data) of a write, or (size, None) of a truncation."""

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()


@dataclass(slots=True)
class _Dir:
    """Names as seen, names as durable, and the groups of changes between the two in order."""

    names: dict[str, _File | _Dir] = field(default_factory=dict)
    durable: dict[str, _File | _Dir] = field(default_factory=dict)
    pending: list[list[tuple[str, _File | _Dir | None]]] = field(default_factory=list)

    def change(self, *changes: tuple[str, _File | _Dir | None]) -> None:
        """Several changes of one call are atomic: a rename loses no name."""
        _apply(self.names, changes)
        self.pending.append(list(changes))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()


def _apply(
    names: dict[str, _File | _Dir], changes: Sequence[tuple[str, _File | _Dir | None]]
) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class CrashDisk:
    """See the module's docstring. Not safe for use from several threads."""

    def __init__(self, random: Random | None = None, *, capacity_bytes: int = 1 << 40) -> None:
        self.random = random or Random(0)
        self.capacity_bytes = capacity_bytes
        self.is_cold = False
        """Whether `pread_now` finds nothing in memory."""
        self.fails_sync: Callable[[str], bool] = lambda _: False
        """Paths whose next syncs fail, and lose what they should have made durable."""
        self.on_cut: Callable[[], object] = lambda: None
        """Called at the moment of a cut, before `PowerCut` is raised: to end the whole machine."""
        self.steps = 0
        """Steps taken so far: the range from which to choose a cut."""
        self.syncs = 0
        self._cut_at: int | None = None
        self._is_off = False
        self._root = _Dir()
        self._locks: set[str] = set()

    # Power

    def cut_after(self, steps: int | None) -> None:
        """Cut the power when that many more steps have been taken; None disarms."""
        self._cut_at = None if steps is None else self.steps + steps

    def power_on(self) -> None:
        """Come back with what was durable and a random part of what was not."""
        self._root = self._survivor(self._root)
        self._reset()

    def restart(self) -> None:
        """Come back after the process died: the page cache is still there."""
        self._reset()

    def _reset(self) -> None:
        self._cut_at = None
        self._is_off = False
        self._locks.clear()

    def _survivor(self, directory: _Dir) -> _Dir:
        names = dict(directory.durable)
        for changes in directory.pending[: self._survivors(len(directory.pending))]:
            _apply(names, changes)
        settled: dict[str, _File | _Dir] = {}
        for name, node in names.items():
            settled[name] = self._survivor(node) if isinstance(node, _Dir) else self._torn(node)
        return _Dir(settled, dict(settled))

    def _survivors(self, count: int) -> int:
        """How many changes of a directory made it: its journal keeps their order."""
        return self.random.choice((0, count, self.random.randint(0, count)))

    def _torn(self, file: _File) -> _File:
        """Each write made it, or not, or a part of it: pages go out in any order."""
        content = bytearray(file.durable)
        mood = self.random.random()
        for position, data in file.pending:
            if data is None:
                if self._keeps(mood):
                    _resize(content, position)
                continue
            if self._keeps(mood):
                _put(content, position, data)
            elif self.random.random() < 0.3:
                _put(content, position, data[: self.random.randint(0, len(data))])
        return _File(content, bytes(content))

    def _keeps(self, mood: float) -> bool:
        return self.random.random() < mood

    def _step(self, count: int = 1) -> int:
        """Take steps; how many of them happen before the power goes."""
        if self._is_off:
            raise PowerCut
        allowed = count if self._cut_at is None else min(count, self._cut_at - self.steps)
        self.steps += max(0, allowed)
        if allowed < count:
            self._is_off = True
            self.on_cut()
        return max(0, allowed)

    def _operation(self) -> None:
        if not self._step():
            raise PowerCut

    # The tree

    def _walk(self, path: str) -> _File | _Dir | None:
        node: _File | _Dir | None = self._root
        for name in _split(path):
            if not isinstance(node, _Dir):
                return None
            node = node.names.get(name)
        return node

    def _parent(self, path: str) -> tuple[_Dir, str]:
        *above, name = _split(path)
        node = self._walk("/".join(above))
        if not isinstance(node, _Dir):
            raise FileMissingError(f"{path}: its directory is missing")
        return node, name

    def _file(self, path: str) -> _File:
        node = self._walk(path)
        if not isinstance(node, _File):
            raise FileMissingError(f"{path} is missing")
        return node

    def _all_files(self, directory: _Dir | None = None) -> Iterator[_File]:
        for node in (directory or self._root).names.values():
            if isinstance(node, _Dir):
                yield from self._all_files(node)
            else:
                yield node

    # Files

    def write_at(self, path: str, position: int, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        node = self._walk(path)
        if node is None:
            self._operation()
            directory, name = self._parent(path)
            node = _File()
            directory.change((name, node))
        if not isinstance(node, _File):
            raise DiskFailedError(f"{path} is a directory")
        room = self._room_for(node, position, len(data))
        count = self._step(min(len(data), room)) if data else 0
        if count:
            _put(node.content, position, data[:count])
            node.pending.append((position, data[:count]))
        if self._is_off:
            raise PowerCut
        if room < len(data):
            raise DiskFullError(f"No space left while writing {path}")

    def _room_for(self, file: _File, position: int, length: int) -> int:
        grows = max(0, position + length - len(file.content))
        if not grows:
            return length
        used = sum(len(one.content) for one in self._all_files())
        return length - max(0, grows - max(0, self.capacity_bytes - used))

    def pread(self, path: str, position: int, length: int) -> bytes:
        self._check_power()
        return bytes(self._file(path).content[position : position + length])

    def pread_now(self, path: str, position: int, length: int) -> bytes | None:
        return None if self.is_cold else self.pread(path, position, length)

    def forget(self, path: str, position: int, length: int) -> None:
        """Everything is in memory here, whatever is asked."""

    def read_file(self, path: str) -> bytes:
        self._check_power()
        return bytes(self._file(path).content)

    def fdatasync(self, path: str) -> None:
        self._operation()
        self.syncs += 1
        file = self._file(path)
        if self.fails_sync(path):
            # The kernel drops the pages and reports the error once: what was written is lost.
            file.pending.clear()
            raise DiskFailedError(f"Flushing {path} failed: input/output error")
        file.sync()

    def fsync_dir(self, path: str) -> None:
        self._operation()
        self.syncs += 1
        node = self._walk(path)
        if not isinstance(node, _Dir):
            raise FileMissingError(f"{path} is missing")
        if self.fails_sync(path):
            raise DiskFailedError(f"Flushing {path} failed: input/output error")
        node.sync()

    def sync_all(self, path: str) -> None:
        self._operation()
        self.syncs += 1
        if self.fails_sync(path):
            raise DiskFailedError(f"Flushing all of {path} failed: input/output error")
        self._sync_tree(self._root)

    def _sync_tree(self, directory: _Dir) -> None:
        directory.sync()
        for node in directory.names.values():
            self._sync_tree(node) if isinstance(node, _Dir) else node.sync()

    def truncate(self, path: str, size: int) -> None:
        self._operation()
        file = self._file(path)
        _resize(file.content, size)
        file.pending.append((size, None))

    def reserve(self, path: str, size: int) -> None:
        """The simulated disk promises no room beforehand, as a file system may."""
        self._operation()
        self._file(path)

    def replace(self, source: str, target: str) -> None:
        self._operation()
        node = self._walk(source)
        if node is None:
            raise FileMissingError(f"{source} is missing")
        old_dir, old_name = self._parent(source)
        new_dir, new_name = self._parent(target)
        if old_dir is new_dir:
            old_dir.change((old_name, None), (new_name, node))
        else:
            new_dir.change((new_name, node))
            old_dir.change((old_name, None))

    def unlink(self, path: str) -> None:
        self._operation()
        if self._walk(path) is not None:
            directory, name = self._parent(path)
            directory.change((name, None))

    def mkdir(self, path: str) -> None:
        self._check_power()
        above = ""
        for name in _split(path):
            above = f"{above}/{name}"
            if self._walk(above) is None:
                self._operation()
                directory, last = self._parent(above)
                directory.change((last, _Dir()))

    def rmdir(self, path: str) -> None:
        self._operation()
        directory, name = self._parent(path)
        directory.change((name, None))

    def listdir(self, path: str) -> list[str]:
        self._check_power()
        node = self._walk(path)
        if not isinstance(node, _Dir):
            raise FileMissingError(f"{path} is missing")
        return sorted(node.names)

    def is_dir(self, path: str) -> bool:
        self._check_power()
        return isinstance(self._walk(path), _Dir)

    def exists(self, path: str) -> bool:
        self._check_power()
        return self._walk(path) is not None

    def size(self, path: str) -> int:
        self._check_power()
        return len(self._file(path).content)

    def modified_ms(self, path: str) -> int:
        self._check_power()
        return 0

    def space(self, path: str) -> Space:
        self._check_power()
        used = sum(len(file.content) for file in self._all_files())
        return Space(max(0, self.capacity_bytes - used), self.capacity_bytes)

    def lock(self, path: str) -> FileLock | None:
        self.write_at(path, 0, ())
        if path in self._locks:
            return None
        self._locks.add(path)
        return _Lock(self._locks, path)

    def close(self, path: str) -> None:
        """Descriptors do not exist here."""

    def _check_power(self) -> None:
        if self._is_off:
            raise PowerCut


@dataclass(slots=True)
class _Lock:
    _held: set[str]
    _path: str

    def release(self) -> None:
        self._held.discard(self._path)


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
