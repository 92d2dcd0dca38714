"""The public surface: what is exported, and that the blocking twin has the same names."""

from __future__ import annotations

import inspect

import pytest

import tidemill.client
from tidemill.client import Admin, Consumer, Producer, blocking

TWINS = [
    (Producer, blocking.Producer),
    (Consumer, blocking.Consumer),
    (Admin, blocking.Admin),
]


def public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("twin", "blocking_twin"), TWINS)
def test_the_blocking_twin_has_the_same_names(twin: type, blocking_twin: type) -> None:
    assert public_names(twin) == public_names(blocking_twin)


@pytest.mark.parametrize(("twin", "blocking_twin"), TWINS)
def test_the_blocking_twin_takes_the_same_arguments(twin: type, blocking_twin: type) -> None:
    for name in public_names(twin) - {"close"}:
        method = getattr(twin, name)
        if callable(method):
            ours = inspect.signature(method).parameters
            theirs = inspect.signature(getattr(blocking_twin, name)).parameters
            assert list(ours) == list(theirs), name


def test_what_is_exported_exists() -> None:
    for name in tidemill.client.__all__:
        assert getattr(tidemill.client, name).__doc__, name
