"""What happened while a client could not hear: the difference between then and now, as events.

A server forgets a client's watches when the connection breaks. So the client keeps the paths that
its watchers know of, with the latest commit that they were told; after it has come back it reads
the watched nodes and tells the difference. Several changes of one node show as one.

Pure: it is given what was read. Start at `Known.compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidemill.store.base import Event, EventKind, split_path

UNKNOWN_COMMIT = 0
"""The commit of an event whose server does not say it."""


class Sight(NamedTuple):
    """What a look at a node shows: when it was made, changed, and won or lost a child."""

    created: int
    changed: int
    children_changed: int


class Known:
    """The nodes that watchers know of, and up to which commit."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def learn(self, path: str, commit: int) -> None:
        """A node was seen; what was heard of it since counts for more."""
        self._told.setdefault(path, commit)

    def hear(self, event: Event) -> None:
        """Watchers are told of this event now."""
        if event.kind is EventKind.DELETED:
            self._told.pop(event.path, None)
        else:
            self._told[event.path] = max(event.commit, self._told.get(event.path, 0))

    def keep_only(self, watched: Callable[[str], bool]) -> None:
        """Forget the nodes that nobody watches any more."""
        self._told = {path: commit for path, commit in self._told.items() if watched(path)}

    def compare(self, found: Mapping[str, Sight], since: int, now: int) -> list[Event]:
        """Tell what differs from what is known, and know it.

        `found` are all watched nodes that there are; a node that nobody knew is news if it is
        younger than `since`; `now` is the latest commit that the look can show.
        """
        gone = [path for path in self._told if path not in found]
        events = [
            Event(EventKind.DELETED, path, _deletion(path, found, now))
            for path in sorted(gone, key=lambda path: -path.count("/"))
        ]
        for path in gone:
            del self._told[path]
        for path, sight in found.items():
            events += _changes(path, sight, self._told.get(path), since)
            self._told[path] = max(sight.changed, self._told.get(path, 0))
        return sorted(events, key=lambda event: event.commit)

    def news(self, events: Iterable[Event]) -> list[Event]:
        """Those events, heard during the look, that it has not already shown."""
        fresh = []
        for event in events:
            if self._is_news(event):
                fresh.append(event)
                self.hear(event)
        return fresh

    def _is_news(self, event: Event) -> bool:
        told = self._told.get(event.path)
        if event.commit == UNKNOWN_COMMIT:
            return True
        if event.kind is EventKind.DELETED:
            return told is not None and told <= event.commit
        return told is None or told < event.commit


def _changes(path: str, sight: Sight, told: int | None, since: int) -> list[Event]:
    if told is None:
        if sight.created > since:
            return [Event(EventKind.CREATED, path, sight.created)]
        if sight.changed > since:
            return [Event(EventKind.CHANGED, path, sight.changed)]
        return []
    if sight.created > told:
        return [
            Event(EventKind.DELETED, path, sight.created),
            Event(EventKind.CREATED, path, sight.created),
        ]
    return [Event(EventKind.CHANGED, path, sight.changed)] if sight.changed > told else []


def _deletion(path: str, found: Mapping[str, Sight], now: int) -> int:
    """When a node went, as near as its nearest surviving ancestor can say."""
    while path != "/":
        path, _ = split_path(path)
        if path in found:
            return found[path].children_changed
    return now
