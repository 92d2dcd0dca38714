"""A broker and names for tests of the data source; the session is the one of the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.testing.process import KEEPS_ALL, BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for tests that leave it alone; each of them has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("spark-broker") / "data", KEEPS_ALL) as process:
        yield process


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own, another one if it runs again."""
    plain = str(request.node.name).replace("[", "-").replace("]", "").removeprefix("test_")
    run = getattr(request.node, "execution_count", 1)
    return plain if run == 1 else f"{plain}-{run}"
