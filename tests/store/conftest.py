"""A ZooKeeper server that the tests of this area share, each below a path of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tidemill.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, unavailable_reason

_numbers = count(1)


def _skip_without_zookeeper() -> None:
    if reason := unavailable_reason():
        pytest.skip(f"NO ZOOKEEPER: it cannot run here: {reason}")


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One server for all tests that do not harm it."""
    _skip_without_zookeeper()
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_place(zookeeper_server: ZooKeeperServer) -> tuple[str, str]:
    """The address, and a path that nobody else uses."""
    return zookeeper_server.address, f"/test-{next(_numbers)}/cluster"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that a test may kill."""
    _skip_without_zookeeper()
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """Three servers that a test may kill."""
    _skip_without_zookeeper()
    with ZooKeeperEnsemble(tmp_path / "ensemble") as servers:
        yield servers
