"""Following files through everything that log rotation does to them.

A file is known by its identity and by the bytes before the position reached in it, not by its name:

* renamed, and another file created in its place: the old one stays open, and is read until it has
  been quiet for a while; one that was renamed while nobody looked is found in its directory;
* copied and truncated: the bytes before the position are gone, so what follows is a new file, and
  what had not been read of the old one is read from the copy, if that is in the same directory;
* deleted, and its inode given to a new file: the same test tells them apart.

`collect` reads and changes no position; `apply` moves them once the lines are delivered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from random import Random
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.ship.disk import Disk, FileState, Identity, OpenFile
from tidemill.ship.journal import FILES_MAX, WINDOW_BYTES, Bookmark
from tidemill.ship.lines import Cut, Line, cut

READ_BYTES = 256 * 1024
LOOK_EVERY_MS = 250
COPY_RESTS_MS = 2_000
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_AFTER_THE_NAME = (".", "-", "_", "~")


class TooManyFilesError(TidemillError):
    """The patterns match more files than may be followed at a time."""


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """What to follow and how patiently.

    A file that has lost its name is done with when it has been quiet for `rotated_wait_ms`: until
    then its writer may still hold it. A file that looks like a copy of another one is left alone
    for `copy_rests_ms` after its last change, so that it is judged when it is complete.
    """

    patterns: tuple[str, ...]
    line_bytes_max: int = 256 * 1024
    rotated_wait_ms: int = 60_000
    copy_rests_ms: int = COPY_RESTS_MS
    ignored: frozenset[str] = frozenset()


class Piece(NamedTuple):
    """Lines of one file, in order."""

    file: Bookmark
    lines: list[Line]


@dataclass(slots=True)
class Round:
    """What is delivered together, and where its files are afterwards."""

    pieces: list[Piece] = field(default_factory=list)
    reached: dict[Identity, Bookmark] = field(default_factory=dict)
    over: set[Identity] = field(default_factory=set)
    cost_bytes: int = 0


@dataclass(slots=True)
class _Followed:
    """An open file, how far it is delivered, and under which name it was last seen."""

    bookmark: Bookmark
    file: OpenFile
    name: str | None
    away_since_ms: int | None = None
    changed_ms: int = 0
    last_state: FileState | None = None
    exhausted: tuple[FileState, int, bool] | None = None
    """State and position at which there was nothing more to cut, and whether it was over then."""


class Follower:
    """All files of one `ship`; blocking, and used by one thread at a time."""

    def __init__(
        self,
        settings: FollowSettings,
        disk: Disk,
        clock: Clock,
        random: Random,
        known: Iterable[Bookmark] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._settings = settings
        self._read_bytes = max(READ_BYTES, settings.line_bytes_max + 1)
        self._disk = disk
        self._clock = clock
        self._random = random
        self._say = say
        self._followed: dict[Identity, _Followed] = {}
        self._remembered = {bookmark.identity: bookmark for bookmark in known}
        self._looked_ms: int | None = None
        self._said: set[str] = set()

    @property
    def bookmarks(self) -> list[Bookmark]:
        """How far everything is delivered: what the journal has to remember."""
        return [each.bookmark for each in self._followed.values()] + [*self._remembered.values()]

    @property
    def file_count(self) -> int:
        return len(self._followed)

    def progress(self) -> list[tuple[str, int, int]]:
        """Of each file: its name, the bytes that are delivered, and those that are not yet."""
        rows = []
        for each in list(self._followed.values()):
            position = each.bookmark.position
            rows.append((each.bookmark.path, position, max(0, each.file.state().size - position)))
        return sorted(rows)

    def behind_bytes(self) -> int:
        """How much has been written and not delivered yet."""
        return sum(left for _, _, left in self.progress())

    def close(self) -> None:
        for followed in self._followed.values():
            followed.file.close()
        self._followed.clear()

    # --- one round -------------------------------------------------------------------------------

    def collect(self, cost_bytes_max: int) -> Round:
        """The next lines, a bit of each file in turn, for about so many bytes."""
        self._look()
        result = Round()
        done: set[Identity] = set()
        # Looked up again in each turn: a file that starts over may bring its copy with it.
        while waiting := [each for key, each in self._followed.items() if key not in done]:
            for followed in waiting:
                if result.cost_bytes >= cost_bytes_max:
                    return result
                if not self._take(followed, result, cost_bytes_max - result.cost_bytes):
                    done.add(followed.bookmark.identity)
        return result

    def apply(self, delivered: Round) -> None:
        """The lines of a round are delivered: go on after them."""
        for identity, bookmark in delivered.reached.items():
            self._followed[identity].bookmark = bookmark
        for identity in delivered.over:
            if self._followed[identity].name is None:
                self._followed.pop(identity).file.close()
        # Whoever has waited longest comes first in the next round.
        for identity in delivered.reached:
            if identity in self._followed:
                self._followed[identity] = self._followed.pop(identity)

    def _take(self, followed: _Followed, result: Round, cost_bytes_max: int) -> bool:
        """Add some lines of a file; whether there may be more."""
        identity = followed.bookmark.identity
        cursor = result.reached.get(identity, followed.bookmark)
        state = followed.file.state()
        over = self._is_over(followed, state)
        if followed.exhausted != (state, cursor.position, over):
            data = self._read(followed.file, cursor)
            if data is None:
                return identity not in result.reached and self._start_over(followed)
            if not cursor.head:
                head = data[:WINDOW_BYTES]
                cursor = followed.bookmark = replace(followed.bookmark, head=head)
            found = self._cut(data, cursor, cost_bytes_max, over)
            if found.position != cursor.position:
                _add(result, followed, cursor, found, data)
                return True
            followed.exhausted = (state, cursor.position, over)
        if over:
            result.over.add(identity)
        return False

    def _is_over(self, followed: _Followed, state: FileState) -> bool:
        """Whether nobody is expected to write to it any more."""
        now_ms = self._clock.monotonic_ms()
        if state != followed.last_state:
            followed.last_state, followed.changed_ms = state, now_ms
        if followed.away_since_ms is None:
            return False
        quiet_ms = now_ms - max(followed.away_since_ms, followed.changed_ms)
        return quiet_ms >= self._settings.rotated_wait_ms

    def _read(self, file: OpenFile, cursor: Bookmark) -> bytes | None:
        """The bytes before the position once more, and those after it; None if they have changed.

        One read for both: what follows is from the same content as what was compared.
        """
        known = len(cursor.window)
        data = file.pread(known + self._read_bytes, cursor.position - known)
        expected = cursor.window if cursor.position else cursor.head
        return data if data.startswith(expected) else None

    def _cut(self, data: bytes, cursor: Bookmark, cost_bytes_max: int, over: bool) -> Cut:
        known = len(cursor.window)
        return cut(
            data,
            start=known,
            position=cursor.position,
            part=cursor.part,
            line_bytes_max=self._settings.line_bytes_max,
            cost_bytes_max=cost_bytes_max,
            final=over and len(data) < known + self._read_bytes,
        )

    # --- which files there are -------------------------------------------------------------------

    def _look(self) -> None:
        """See which names there are now, and whose they are."""
        now_ms = self._clock.monotonic_ms()
        first = self._looked_ms is None
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        names = self._names()
        for identity, followed in self._followed.items():
            _note_name(followed, names.get(identity, []), now_ms)
        if first:
            self._know_again(names)
        for identity in names.keys() & self._remembered.keys():
            self._resume(self._remembered[identity], names[identity])
        if first:
            self._find_renamed()
        if names.keys() - self._followed.keys():
            self._look_for_truncations()
        for identity, paths in names.items():
            if identity not in self._followed:
                self._meet(identity, paths[0])

    def _names(self) -> dict[Identity, list[str]]:
        names: dict[Identity, list[str]] = {}
        for pattern in self._settings.patterns:
            paths = self._disk.expand(pattern)
            if not paths:
                self._say_once(f"nothing matches {pattern} yet")
            for path in paths:
                if path in self._settings.ignored:
                    continue
                if path.endswith(COMPRESSED):
                    self._say_once(f"{path} is compressed and not shipped")
                elif (identity := self._disk.identity(path)) is not None:
                    names.setdefault(identity, []).append(path)
        return names

    def _resume(self, bookmark: Bookmark, paths: list[str]) -> None:
        """A file of an earlier run; `_take` sees to it that it is the same."""
        file = self._open(bookmark.path if bookmark.path in paths else paths[0])
        if file is not None and file.identity == bookmark.identity:
            self._follow(bookmark, file, paths)
        elif file is not None:
            file.close()  # It changed hands just now: the next look knows more.

    def _know_again(self, names: Mapping[Identity, list[str]]) -> None:
        """Files whose device has another number since the machine was started."""
        by_inode = {identity.inode: bookmark for identity, bookmark in self._remembered.items()}
        for identity, paths in names.items():
            bookmark = by_inode.get(identity.inode)
            if bookmark is None or identity in self._remembered or not bookmark.position:
                continue
            file = self._open(paths[0])
            if file is not None:
                if file.identity == identity and _continues(file, bookmark):
                    self._remembered.pop(bookmark.identity, None)
                    self._remembered[identity] = replace(bookmark, identity=identity)
                file.close()

    def _look_for_truncations(self) -> None:
        """Before a file is taken for a new one: it may be the copy of one that starts over."""
        for followed in list(self._followed.values()):
            if not _continues(followed.file, followed.bookmark):
                self._start_over(followed)

    def _meet(self, identity: Identity, path: str) -> None:
        """A new file."""
        file = self._open(path)
        if file is None:
            return
        if file.identity != identity or self._may_be_copying(path, file):
            file.close()  # It changed hands in between, or is not complete: the next look decides.
            return
        self._follow(Bookmark(self._new_id(), path, identity), file, [path])

    def _follow(self, bookmark: Bookmark, file: OpenFile, names: list[str]) -> None:
        if len(self._followed) >= FILES_MAX:
            file.close()
            raise TooManyFilesError(f"the patterns match more than {FILES_MAX:,} files")
        self._remembered.pop(file.identity, None)
        followed = self._followed[file.identity] = _Followed(bookmark, file, None)
        _note_name(followed, names, self._clock.monotonic_ms())

    def _find_renamed(self) -> None:
        """Files that were renamed while nobody looked: find the rest of each in its directory."""
        for identity, bookmark in list(self._remembered.items()):
            patterns = self._settings.patterns
            if bookmark.path not in patterns and not any(
                fnmatch(bookmark.path, p) for p in patterns
            ):
                continue  # It is another invocation's.
            for path in self._disk.names_in(os.path.dirname(bookmark.path)):
                if self._disk.identity(path) != identity:
                    continue
                file = self._open(path)
                if file is not None and _continues(file, bookmark):
                    self._follow(bookmark, file, [])
                    break
                if file is not None:
                    file.close()
            else:
                del self._remembered[identity]
                self._say(
                    f"{bookmark.path}, of which {bookmark.position:,} bytes were shipped, is gone: "
                    "what was written to it since is not shipped"
                )

    def _start_over(self, followed: _Followed) -> bool:
        """The file was truncated and written anew; its former content may be in a copy."""
        former = followed.bookmark
        path = followed.name or former.path
        followed.bookmark = Bookmark(self._new_id(), path, former.identity)
        _note_name(followed, [path] if followed.name else [], self._clock.monotonic_ms())
        for name in self._disk.names_in(os.path.dirname(former.path)):
            if not _is_rotated_name(name, former.path) or name.endswith(COMPRESSED):
                continue
            file = self._open(name)
            if file is None:
                continue
            unknown = file.identity not in self._followed and file.identity not in self._remembered
            if unknown and _continues(file, former):
                self._follow(replace(former, identity=file.identity), file, [])
                break
            file.close()
        return True

    def _may_be_copying(self, path: str, file: OpenFile) -> bool:
        """A new file with another's rotated name, still changing: it may become that one's copy."""
        others = (each.bookmark.path for each in self._followed.values())
        if not any(_is_rotated_name(path, other) for other in others):
            return False
        age_ms = self._clock.now_ms() - file.state().modified_ns // 1_000_000
        return 0 <= age_ms < self._settings.copy_rests_ms

    # --- helpers ---------------------------------------------------------------------------------

    def _open(self, path: str) -> OpenFile | None:
        try:
            return self._disk.open(path)
        except OSError as error:
            self._say_once(f"{path} cannot be read: {error.strerror}")
            return None

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(48):012x}"

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < FILES_MAX:
            self._said.add(text)
            self._say(text)


def _add(result: Round, followed: _Followed, cursor: Bookmark, found: Cut, data: bytes) -> None:
    """Lines that were cut from `data`, which begins with the cursor's window."""
    consumed = len(cursor.window) + found.position - cursor.position
    window = data[max(0, consumed - WINDOW_BYTES) : consumed]
    reached = replace(cursor, position=found.position, part=found.part, window=window)
    result.reached[cursor.identity] = reached
    result.cost_bytes += found.cost_bytes
    if found.lines:
        result.pieces.append(Piece(followed.bookmark, found.lines))


def _note_name(followed: _Followed, names: list[str], now_ms: int) -> None:
    """A file that has the name it was found under is at home, however many others it has."""
    home = followed.bookmark.path
    followed.name = home if home in names else next(iter(names), None)
    if followed.name == home:
        followed.away_since_ms = None
    elif followed.away_since_ms is None:
        followed.away_since_ms = now_ms


def _continues(file: OpenFile, bookmark: Bookmark) -> bool:
    """Whether the first bytes, and those before the position, are what was read there."""
    head, window = bookmark.head, bookmark.window
    begins_so = file.pread(len(head), 0) == head
    return begins_so and file.pread(len(window), bookmark.position - len(window)) == window


def _is_rotated_name(path: str, original: str) -> bool:
    """`app.log.1`, `app.log-20260101` and the like of `app.log`."""
    return path.startswith(tuple(original + mark for mark in _AFTER_THE_NAME))
