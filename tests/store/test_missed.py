"""A gap in hearing, played against a tree in memory: afterwards watchers know what there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.timers.helpers import HandClock

from tidemill.store import watchers as watchers_module
from tidemill.store.base import Create, Delete, Event, EventKind, Op, Put, StoreError, watches
from tidemill.store.memory import MemoryStore, MemoryTree
from tidemill.store.missed import UNKNOWN_COMMIT, Known, Sight
from tidemill.store.watchers import Watchers

PATHS = ["/w", "/w/a", "/w/b", "/w/a/x", "/w/a/y", "/v", "/v/a"]
OPS = st.one_of(
    st.builds(Create, st.sampled_from(PATHS)),
    st.builds(Delete, st.sampled_from(PATHS)),
    st.builds(Put, st.sampled_from(PATHS), st.binary(max_size=1)),
)
COMMITS = st.lists(st.lists(OPS, min_size=1, max_size=2), max_size=8)


class Played:
    """A tree, its events as a server would send them, and a watcher that believes what it hears."""

    def __init__(self) -> None:
        self.tree = MemoryTree(HandClock())
        self.sent: list[Event] = []
        listener = MemoryStore(self.tree, lambda deliver: None)
        listener.hear = self.sent.extend  # type: ignore[method-assign,assignment]
        self.tree.attach(listener)
        self.child_changes: dict[str, int] = {}
        self.told: list[Event] = []
        self.believed: dict[str, int] = {}
        self.watchers = Watchers()

    def commit(self, commits: list[list[Op]]) -> None:
        for ops in commits:
            try:
                self.tree.commit(0, ops)
            except StoreError:
                continue

    def deliver(self) -> None:
        for event in self.sent:
            self.watchers.hear(event)
        self.sent.clear()

    def drop(self) -> None:
        self.sent.clear()

    def hear(self, event: Event) -> None:
        self.told.append(event)
        if event.kind is EventKind.DELETED:
            self.believed.pop(event.path, None)
        else:
            self.believed[event.path] = self.changed(event.path)

    def changed(self, path: str) -> int:
        """What a watcher sees that reads a node after it was told of it."""
        node = self.tree.read(path)
        return -1 if node is None else node.stat.changed

    def sights(self, recursive: bool) -> dict[str, Sight]:
        nodes = {path: self.tree.read(path) for path in PATHS if watches("/w", recursive, path)}
        return {
            path: Sight(node.stat.created, node.stat.changed, self.tree._commit)
            for path, node in nodes.items()
            if node is not None
        }


@given(before=COMMITS, missed=COMMITS, during=COMMITS, after=COMMITS, recursive=st.booleans())
def test_after_a_gap_a_watcher_knows_what_there_is(
    before: list[list[Op]],
    missed: list[list[Op]],
    during: list[list[Op]],
    after: list[list[Op]],
    recursive: bool,
) -> None:
    """Rule K5: read again after the watch is set; nothing that differs goes untold."""
    played = Played()
    played.commit([[Create(path)] for path in PATHS])
    played.commit(before)
    played.drop()
    watch = played.watchers.add("/w", played.hear, recursive, played.tree._commit)
    found = played.sights(recursive)
    played.believed = {path: sight.changed for path, sight in found.items()}
    played.watchers.learn(watch, found)
    played.watchers.go_deaf(played.tree._commit)
    played.commit(missed)
    played.drop()
    found = played.sights(recursive)
    played.commit(during)
    played.deliver()
    assert played.told == []
    played.watchers.catch_up([watch], found, played.tree._commit)
    played.commit(after)
    played.deliver()
    expected = {path: sight.changed for path, sight in played.sights(recursive).items()}
    assert played.believed == expected
    commits = [event.commit for event in played.told]
    assert commits == sorted(commits)


def test_a_watcher_that_could_not_say_what_it_knew_is_sent_to_look() -> None:
    watchers, heard = Watchers(), list[Event]()
    there = watchers.add("/a", heard.append, False, 5)
    gone = watchers.add("/b", heard.append, True, 5)
    watchers.go_deaf(7)
    watchers.catch_up([there, gone], {"/a": Sight(1, 1, 1)}, 9)
    assert heard == [Event(EventKind.CHANGED, "/a", 9), Event(EventKind.DELETED, "/b", 9)]
    assert not watchers.deaf


def test_a_watch_hears_nothing_of_before_its_time() -> None:
    watchers, heard = Watchers(), list[Event]()
    watch = watchers.add("/a", heard.append, False, 5)
    for commit in (4, 5, 6, UNKNOWN_COMMIT):
        watchers.hear(Event(EventKind.CHANGED, "/a", commit))
    assert [event.commit for event in heard] == [6, UNKNOWN_COMMIT]
    watch.cancel()
    watchers.hear(Event(EventKind.CHANGED, "/a", 7))
    assert len(heard) == 2


def test_a_server_that_names_no_commits_is_believed() -> None:
    """Servers before 3.9: an event too many is better than one too few."""
    known = Known()
    known.learn("/a", 8)
    events = [Event(EventKind.CHANGED, "/a", UNKNOWN_COMMIT)]
    assert known.news(events) == events


def test_what_the_look_has_shown_is_not_told_again() -> None:
    watchers, heard = Watchers(), list[Event]()
    watch = watchers.add("/w", heard.append, True, 0)
    watchers.learn(watch, {"/w": Sight(1, 1, 1), "/w/gone": Sight(2, 2, 2)})
    watchers.go_deaf(2)
    for event in (
        Event(EventKind.CHANGED, "/w", 3),
        Event(EventKind.CREATED, "/w/new", 4),
        Event(EventKind.DELETED, "/w/gone", 5),
        Event(EventKind.CHANGED, "/w", 6),
    ):
        watchers.hear(event)
    watchers.catch_up([watch], {"/w": Sight(1, 3, 5), "/w/new": Sight(4, 4, 4)}, 5)
    assert [(event.kind.value, event.path, event.commit) for event in heard] == [
        ("changed", "/w", 3),
        ("created", "/w/new", 4),
        ("deleted", "/w/gone", 5),
        ("changed", "/w", 6),
    ]


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 3.4: a limit on everything that waits."""
    monkeypatch.setattr(watchers_module, "HELD_BACK_MAX", 3)
    watchers = Watchers()
    watchers.go_deaf(1)
    event = Event(EventKind.CHANGED, "/a", 2)
    assert [watchers.hear(event) for _ in range(4)] == [True, True, True, False]
