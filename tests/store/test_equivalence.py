"""Whatever is asked of them, both engines answer the same, down to versions and commit numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.timers.helpers import HandClock

from tidemill.store.base import Check, Create, Delete, Event, Op, Put, StoreError
from tidemill.store.memory import MemoryStore, MemoryTree
from tidemill.store.sql import StoreFile

PATHS = st.sampled_from(["/", "/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/1", "/a//", "bad"])
VALUES = st.binary(max_size=3)
VERSIONS = st.sampled_from([-1, -1, 0, 1, 2])
OPS = st.one_of(
    st.builds(Create, PATHS, VALUES, st.booleans(), st.booleans()),
    st.builds(Create, PATHS, VALUES),
    st.builds(Put, PATHS, VALUES, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


def outcome(work: Callable[[], object]) -> object:
    """The result, or the error's kind, words and place."""
    try:
        return work()
    except StoreError as error:
        return type(error), str(error), error.index


class EnginesAgree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.file = StoreFile(str(Path(self.folder.name) / "store.db"))
        self.tree = MemoryTree(HandClock())
        self.heard: list[Event] = []
        listener = MemoryStore(self.tree, lambda deliver: None)
        listener.hear = self.heard.extend  # type: ignore[method-assign,assignment]
        self.tree.attach(listener)
        self.sessions: list[int] = [0]

    def teardown(self) -> None:
        self.file.close()
        self.folder.cleanup()

    @rule(ops=st.lists(OPS, min_size=1, max_size=4), choice=st.integers(0, 9))
    def write(self, ops: list[Op], choice: int) -> None:
        session_id = self.sessions[choice % len(self.sessions)]
        in_file = outcome(lambda: self.file.commit(session_id, ops))
        in_memory = outcome(lambda: self.tree.commit(session_id, ops))
        assert in_file == in_memory

    @rule()
    def open_session(self) -> None:
        session_id = self.tree.open_session(1_000)
        assert self.file.open_session(1_000, 1_000, "", lambda number: "") == session_id
        self.sessions.append(session_id)

    @rule(choice=st.integers(0, 9))
    def expire(self, choice: int) -> None:
        session_id = self.sessions[choice % len(self.sessions)]
        if session_id:
            self.sessions.remove(session_id)
            assert self.file.expire(session_id)
            self.tree.expire(session_id)

    @invariant()
    def same_nodes(self) -> None:
        nodes = self.file.tree("/")
        assert nodes == {path: self.tree.read(path) for path in nodes}
        for path in nodes:
            assert self.file.children(path) == self.tree.children(path)
        assert sorted(nodes) == sorted(self.tree._nodes)

    @invariant()
    def same_events(self) -> None:
        in_file = self.file.events_after(0)
        assert [(e.commit, e.kind) for e in in_file] == [(e.commit, e.kind) for e in self.heard]
        assert sorted(in_file, key=repr) == sorted(self.heard, key=repr)


EnginesAgree.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestEnginesAgree = EnginesAgree.TestCase


@pytest.mark.soak
class TestEnginesAgreeAtLength(EnginesAgree.TestCase):  # type: ignore[valid-type,misc]
    settings = settings(max_examples=3_000, stateful_step_count=80, deadline=None)
