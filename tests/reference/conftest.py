"""Everything in this folder compares with Apache Kafka and carries the `reference` marker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.reference.kafka import QUICK_GROUPS, SharedKafka
from tests.reference.pair import Pair, Peer

from tidemill.testing.process import BrokerProcess

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.reference)


@pytest.fixture(scope="session")
def tidemill_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A Tidemill broker with the reference's node id, so that ids need no translation."""
    data_dir = tmp_path_factory.mktemp("reference") / "data"
    settings = {"node.id": "1", **QUICK_GROUPS}
    with BrokerProcess(data_dir, settings) as process:
        yield process


@pytest.fixture
def pair(apache_kafka: SharedKafka, tidemill_broker: BrokerProcess) -> Iterator[Pair]:
    kafka, tidemill = Peer("kafka", apache_kafka.port), Peer("tidemill", tidemill_broker.port)
    yield Pair(kafka, tidemill)
    kafka.close()
    tidemill.close()


@pytest.fixture
def name(request: pytest.FixtureRequest, worker_id: str) -> str:
    """A topic name of this test's own, the same on both systems and on no other worker."""
    test = request.node.name.replace("[", "-").replace("]", "")
    module = request.node.path.stem
    return f"{module}-{test}-{worker_id}".replace("test_", "")
