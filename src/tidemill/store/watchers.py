"""The watches of one client of an ensemble, and what becomes of them while it cannot hear.

Events go straight to the watchers while there is a connection. Without one (`go_deaf`), and until
the watched nodes have been read again, events are held back; then `catch_up` tells what was missed
and what was held back, in commit order. Pure and synchronous: the store does the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tidemill.store.base import Event, EventKind, call_watcher, watches
from tidemill.store.missed import UNKNOWN_COMMIT, Known, Sight

HELD_BACK_MAX = 100_000


class EnsembleWatch:
    """A registered watch; it is told of commits after `since`."""

    def __init__(
        self,
        watchers: Watchers,
        path: str,
        callback: Callable[[Event], None],
        recursive: bool,
        since: int,
    ) -> None:
        self._watchers = watchers
        self.path = path
        self.callback = callback
        self.recursive = recursive
        self.since = since
        self.learned = False

    def cancel(self) -> None:
        self._watchers.remove(self)

    def covers(self, path: str) -> bool:
        return watches(self.path, self.recursive, path)


class Watchers:
    """All watches of a store."""

    def __init__(self) -> None:
        self._watches: list[EnsembleWatch] = []
        self._known = Known()
        self._deaf_since: int | None = None
        self._held_back: list[Event] = []

    @property
    def deaf(self) -> bool:
        """Whether events are held back until `catch_up`."""
        return self._deaf_since is not None

    @property
    def all(self) -> list[EnsembleWatch]:
        return list(self._watches)

    def add(
        self, path: str, callback: Callable[[Event], None], recursive: bool, since: int
    ) -> EnsembleWatch:
        watch = EnsembleWatch(self, path, callback, recursive, since)
        self._watches.append(watch)
        return watch

    def remove(self, watch: EnsembleWatch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            self._known.keep_only(self._is_watched)

    def clear(self) -> None:
        """Forget everything, as if nobody had ever watched."""
        self._watches.clear()
        self._known = Known()
        self._deaf_since = None
        self._held_back.clear()

    def learn(self, watch: EnsembleWatch, found: Mapping[str, Sight]) -> None:
        """Take note of the nodes that a new watch's watcher may come to miss."""
        if watch not in self._watches or self.deaf:
            return
        for path, sight in found.items():
            self._known.learn(path, sight.changed)
        watch.learned = True

    def hear(self, event: Event) -> bool:
        """Tell of an event, now or later; False if too many are held back already.

        Then they were dropped, which does no harm if the watched nodes are read once more.
        """
        if self.deaf:
            self._held_back.append(event)
            if len(self._held_back) > HELD_BACK_MAX:
                self._held_back.clear()
                return False
        else:
            if self._is_watched(event.path):
                self._known.hear(event)
            self._tell(event)
        return True

    def go_deaf(self, commit: int) -> None:
        """Nothing is heard from now on; everything up to this commit was."""
        if self._deaf_since is None:
            self._deaf_since = commit

    def catch_up(
        self, asked: Iterable[EnsembleWatch], found: Mapping[str, Sight], now: int
    ) -> None:
        """Hear again: `found` are the nodes that there are of those watches."""
        assert self._deaf_since is not None
        events = self._known.compare(found, self._deaf_since, now)
        events += self._known.news(self._held_back)
        self._deaf_since = None
        self._held_back = []
        self._known.keep_only(self._is_watched)
        for event in sorted(events, key=lambda event: event.commit):
            self._tell(event)
        for watch in asked:
            if not watch.learned and watch in self._watches:
                # The connection broke before we knew what there was to miss: let it look again.
                watch.learned = True
                kind = EventKind.CHANGED if watch.path in found else EventKind.DELETED
                call_watcher(watch.callback, Event(kind, watch.path, now))

    def _is_watched(self, path: str) -> bool:
        return any(watch.covers(path) for watch in self._watches)

    def _tell(self, event: Event) -> None:
        for watch in self.all:
            later = event.commit == UNKNOWN_COMMIT or watch.since < event.commit
            if later and watch.covers(event.path) and watch in self._watches:
                call_watcher(watch.callback, event)
