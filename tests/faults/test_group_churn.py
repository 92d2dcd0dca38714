"""Groups of real clients that never come to rest, and lose nothing; see `churn.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.churn import Churn, Figures, Kind, Rules, churn_settings

from tidemill.testing.process import BrokerProcess

FLAVOURS: dict[str, list[Kind]] = {
    "confluent-range": [Kind("confluent")],
    "confluent-roundrobin": [Kind("confluent", strategy="roundrobin")],
    "confluent-cooperative": [Kind("confluent", strategy="cooperative-sticky")],
    "confluent-consumer": [Kind("confluent", "consumer")],
    "kafka-python": [Kind("kafka-python")],
    "kafka-python-cooperative": [Kind("kafka-python", strategy="cooperative-sticky")],
    "aiokafka": [Kind("aiokafka", strategy="roundrobin")],
    "tidemill": [Kind("tidemill")],
    "tidemill-cooperative": [Kind("tidemill", strategy="cooperative-sticky")],
    "tidemill-consumer": [Kind("tidemill", "consumer")],
    "mixed-range": [Kind(each) for each in ("confluent", "kafka-python", "aiokafka", "tidemill")],
    "mixed-sticky": [
        Kind(each, strategy="sticky") for each in ("kafka-python", "aiokafka", "tidemill")
    ],
    "mixed-cooperative": [
        Kind(each, strategy="cooperative-sticky")
        for each in ("confluent", "kafka-python", "tidemill")
    ],
    "mixed-consumer": [Kind("confluent", "consumer"), Kind("tidemill", "consumer")],
    "mixed-protocols": [
        Kind("confluent", "consumer"),
        Kind("confluent"),
        Kind("tidemill", "consumer"),
        Kind("kafka-python"),
    ],
}


HEARTBEAT_MS = 1_000
"""librdkafka 2.16 gives a heartbeat up after about this time and does not tell everything in the
next one, as it should; if the answer that was lost told it to give partitions up, it never hears of
it (Apache Kafka's brokers leave it in the dark just so). A busy machine needs the time."""


def churn(folder: Path, flavour: str, rules: Rules) -> Figures:
    settings = churn_settings(rules.session_ms, HEARTBEAT_MS)
    with BrokerProcess(folder / "data", settings) as broker:
        figures = Churn(broker.bootstrap, folder, FLAVOURS[flavour], rules).run()
        assert broker.running
    assert figures.duplicates <= figures.duplicates_allowed
    print(f"\n{flavour}: {figures}")
    return figures


@pytest.mark.parametrize("flavour", ["mixed-range", "mixed-cooperative", "mixed-consumer"])
def test_a_moment_of_churn(tmp_path: Path, flavour: str) -> None:
    """All clients, both protocols: joined, left, killed and paused under load."""
    rules = Rules(seconds=6, seed=8, session_ms=3_000, pause_between_s=(0.4, 0.8))
    figures = churn(tmp_path, flavour, rules)
    assert {"join", "kill", "leave", "pause"} <= set(figures.disruptions)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_two_minutes_of_churn(tmp_path: Path, flavour: str) -> None:
    """Nothing is lost, nothing is repeated without a reason, nobody is left out."""
    churn(tmp_path, flavour, Rules(seconds=120, seed=20))
