"""Transactions against the simplest model there is: a dict that is copied before every change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.timers.helpers import HandClock

from tidemill.store.base import (
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Put,
    SessionExpired,
    StoreError,
)
from tidemill.store.memory import MemoryTree

PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/1"])
VALUES = st.binary(max_size=2)
VERSIONS = st.sampled_from([-1, -1, -1, 0, 1, 2])
OPS = st.one_of(
    st.builds(Create, PATHS, VALUES, st.booleans()),
    st.builds(Create, PATHS, VALUES),
    st.builds(Put, PATHS, VALUES, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


@dataclass(frozen=True)
class ModelNode:
    value: bytes = b""
    version: int = 0
    ephemeral: bool = False


Model = dict[str, ModelNode]


def parent_of(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"


def apply(model: Model, op: Op, has_session: bool) -> None:
    """One operation on the model, spelled out as the contract says it."""
    if isinstance(op, Create):
        if op.ephemeral and not has_session:
            raise SessionExpired("")
        parent = model.get(parent_of(op.path))
        if parent is None:
            raise NoNode("")
        if parent.ephemeral:
            raise NoChildrenForEphemerals("")
        if op.path in model:
            raise NodeExists("")
        model[op.path] = ModelNode(op.value, 0, op.ephemeral)
        return
    node = model.get(op.path)
    if node is None:
        raise NoNode("")
    if op.version not in (-1, node.version):
        raise BadVersion("")
    if isinstance(op, Put):
        model[op.path] = replace(node, value=op.value, version=node.version + 1)
    elif isinstance(op, Delete):
        if any(parent_of(path) == op.path for path in model):
            raise NotEmpty("")
        del model[op.path]


def failure(
    work: Callable[[], object], index: int | None = None
) -> tuple[type[StoreError], int] | None:
    """The kind of error and the operation at fault, None if there was none."""
    try:
        work()
    except StoreError as error:
        return type(error), error.index if index is None else index
    return None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(OPS, min_size=1, max_size=5)), max_size=12))
def test_the_tree_is_what_the_model_says(transactions: list[tuple[bool, list[Op]]]) -> None:
    tree = MemoryTree(HandClock())
    session_id = tree.open_session(1_000)
    model: Model = {"/": ModelNode()}
    for with_session, ops in transactions:
        trial, expected = dict(model), None
        for index, op in enumerate(ops):
            expected = failure(partial(apply, trial, op, with_session), index)
            if expected is not None:
                break
        owner = session_id if with_session else 0
        assert failure(partial(tree.commit, owner, ops)) == expected
        if expected is None:
            model = trial
        found = {path: tree.read(path) for path in model}
        assert len(tree._nodes) == len(model)
        for path, node in found.items():
            assert node is not None
            assert (node.value, node.stat.version) == (model[path].value, model[path].version)
            assert bool(node.stat.owner) == model[path].ephemeral
            names = [each.rsplit("/", 1)[1] for each in model if parent_of(each) == path]
            names = [name for name in names if name]
            assert tree.children(path) == sorted(names)
            assert node.stat.child_count == len(names)
    tree.expire(session_id)
    assert sorted(tree._nodes) == sorted(path for path in model if not model[path].ephemeral)


def test_a_transaction_has_a_largest_size() -> None:
    """Rule 3.4: a limit on everything."""
    tree = MemoryTree(HandClock())
    with pytest.raises(BadArguments):
        tree.commit(0, [Check("/")] * 200_001)
