"""Brokers to run the client against: Tidemill as a process, and Apache Kafka where it can run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tidemill.testing.process import KEEPS_ALL, BrokerProcess

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def tidemill_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One Tidemill broker for all tests of this worker."""
    data_dir = tmp_path_factory.mktemp("client-broker") / "data"
    with BrokerProcess(data_dir, KEEPS_ALL) as broker:
        yield broker


@pytest.fixture(params=["tidemill", pytest.param("apache", marks=pytest.mark.reference)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a running broker: the same test runs against ours and against Kafka's."""
    name = "tidemill_broker" if request.param == "tidemill" else "apache_kafka"
    address: str = request.getfixturevalue(name).bootstrap
    return address


@pytest.fixture
def topic(worker_id: str) -> str:
    """A topic's name that no other test uses."""
    return f"client-test-{worker_id}-{next(_NUMBERS)}"
