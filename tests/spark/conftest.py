"""One Spark session for the whole run: all tests that use it stay with one worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.testing.process import BrokerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            # The first one waits for a JVM and its warming up, on a machine that has more to do.
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`local[2]`, small, without a web page; warm after the first test."""
    from tidemill.spark.session import session

    folder = tmp_path_factory.mktemp("spark")
    made = session(
        "tests",
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for tests that leave it alone; each of them has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("spark-broker") / "data") as process:
        yield process


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own."""
    return str(request.node.name).replace("[", "-").replace("]", "").removeprefix("test_")
