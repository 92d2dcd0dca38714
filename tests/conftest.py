"""Fixtures that tests of every area share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.reference.kafka import SharedKafka, kafka_jars, shared_kafka, unavailable_reason
from tests.reference.spark_kafka import connector_jars

# A loaded machine is slow now and then: that is no failure of the code under test. The examples are
# the same in each run, so that the same code gets the same answer; `make soak` looks for new ones.
settings.register_profile("tidemill", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None)
settings.load_profile("tidemill")

# A script's background jobs ignore Ctrl-C, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of one test run see."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def apache_kafka(run_dir: Path) -> Iterator[SharedKafka]:
    """A running Apache Kafka 4.3.1, one for the whole run; skips loudly where it cannot run."""
    if kafka_jars() is None:
        pytest.skip(f"NO REFERENCE: Apache Kafka cannot run here: {unavailable_reason()}")
    with shared_kafka(run_dir) as kafka:
        yield kafka


@pytest.fixture(scope="session", autouse=True)
def _what_killed_drivers_leave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A killed Spark clears nothing away: what is temporary to it is in the folder of this run."""
    folder = tmp_path_factory.mktemp("java")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", f"-Djava.io.tmpdir={folder}")
        yield


NO_TIME_TO_START = "Python worker failed to connect back"
"""Spark's words: it gives each Python process ten seconds, whatever else the machine has to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            # The first one waits for a JVM and its warming up, on a machine that has more to do.
            item.add_marker(pytest.mark.timeout(300))
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=NO_TIME_TO_START))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for the whole run: `local[2]`, small, without a web page, warm after the first
    test. All tests that use it stay with one worker. It has Spark's own Kafka connector, where its
    jars can be had."""
    from tidemill.spark import session
    from tidemill.spark.sessions import SHORT_LIVED

    folder = tmp_path_factory.mktemp("spark")
    jars = connector_jars()
    made = session(
        "tests",
        master="local[2]",
        conf={
            **SHORT_LIVED,
            **({"spark.jars": jars} if jars else {}),
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
