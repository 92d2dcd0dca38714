"""Requests as bytes: their size is known before they are made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import NodeExistsError, RolledBackError, RuntimeInconsistency

from tidemill.store.base import Check, Create, Delete, Op, Put
from tidemill.store.zookeeper_wire import AddWatch, Write, first_error, request_bytes, to_operation

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20)
PATHS = NAMES.map(lambda name: f"/{name}")
VERSIONS = st.integers(-1, 2**31 - 1)
OPS = st.one_of(
    st.builds(Create, PATHS, st.binary(max_size=50), st.booleans(), st.booleans()),
    st.builds(Put, PATHS, st.binary(max_size=50), VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


@given(st.lists(OPS, max_size=8), st.sampled_from(["", "/kafka", "/ä/b"]))
def test_the_size_of_a_transaction_is_bounded_closely(ops: list[Op], chroot: str) -> None:
    request = Write([to_operation(op, chroot + op.path) for op in ops])
    # In front of the request itself go its number and its type.
    size_bytes = len(request.serialize()) + 8
    assert size_bytes <= request_bytes(ops, chroot) <= size_bytes + 40 * len(ops)


def test_the_largest_creation_is_counted_exactly() -> None:
    ops = [Create("/a", bytes(1_000))]
    request = Write([to_operation(op, op.path) for op in ops])
    assert request_bytes(ops) - len(request.serialize()) - 8 <= 4


def test_a_watch_asks_for_all_below() -> None:
    assert AddWatch("/a").serialize() == b"\0\0\0\x02/a\0\0\0\x01"


def test_the_operation_at_fault_is_found_among_those_undone() -> None:
    error = NodeExistsError()
    assert first_error([RolledBackError(), error, RuntimeInconsistency()]) == (1, error)
    assert first_error([None, ("/a", None)]) is None
