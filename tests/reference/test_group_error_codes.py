"""What groups refuse is refused by Apache Kafka with the same code, and every answer on the way to
it is the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.coordinators.refusals import BEFORE_THE_TOPIC, REFUSALS, WHEN_FULL, Refusal, Scene
from tests.reference.group_steps import compare, wait_for_coordinator
from tests.reference.kafka import ApacheKafka, SharedKafka
from tests.reference.pair import Pair, Peer

from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess

FULL = {
    "group.max.size": "1",
    "group.consumer.max.size": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def play(pair: Pair, refusal: Refusal, name: str) -> None:
    scenes = [Scene(pair.kafka, name), Scene(pair.tidemill, name)]
    for scene in scenes:
        try:
            code = ErrorCode(refusal.play(scene))
            assert code is refusal.code, f"{scene.peer.name} says {code.name}"
        finally:
            scene.close()
    compare(*scenes)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: each.name)
def test_refusals(pair: Pair, name: str, refusal: Refusal) -> None:
    for peer in (pair.kafka, pair.tidemill):
        wait_for_coordinator(peer)
    play(pair, refusal, name)


@pytest.fixture
def new_pair(apache_kafka: SharedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two brokers that nobody has asked for a coordinator, and whose groups are full with one."""
    directory = tmp_path_factory.mktemp("new") / "data"
    with (
        ApacheKafka(properties=FULL) as kafka,
        BrokerProcess(directory, {"node.id": "1", **FULL}) as tidemill,
    ):
        pair = Pair(Peer("kafka", kafka.port), Peer("tidemill", tidemill.port))
        yield pair
        pair.kafka.close()
        pair.tidemill.close()


def test_before_and_after_there_is_a_coordinator(new_pair: Pair) -> None:
    """In this order: the first question for a coordinator makes the topic."""
    refuse = partial(play, new_pair)
    for number, refusal in enumerate(BEFORE_THE_TOPIC):
        refuse(refusal, f"early-{number}")
    for peer in (new_pair.kafka, new_pair.tidemill):
        wait_for_coordinator(peer)
    for number, refusal in enumerate(WHEN_FULL):
        refuse(refusal, f"full-{number}")
