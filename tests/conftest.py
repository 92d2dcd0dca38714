"""Fixtures that tests of every area share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.reference.kafka import SharedKafka, kafka_jars, shared_kafka, unavailable_reason

# A loaded machine is slow now and then: that is no failure of the code under test.
settings.register_profile("tidemill", deadline=None)
settings.load_profile("tidemill")


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
