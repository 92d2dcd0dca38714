"""The topic of the groups is born with as many replicas as it should have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.controller.helpers import broker_config, create, topic
from tests.controller.wires import Wires
from tests.store.helpers import until

from tidemill.broker.offsets_topic import OffsetsTopic
from tidemill.config import BrokerConfig
from tidemill.controller import Controller

NAME = "__consumer_offsets"


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    made = Wires()
    yield made
    await made.stop()


def config_of(**settings: str) -> BrokerConfig:
    return broker_config(
        broker_session_timeout_ms="500", offsets_topic_num_partitions="2", **settings
    )


def ensure(controller: Controller, topic: OffsetsTopic) -> asyncio.Future[None]:
    return asyncio.ensure_future(topic.ensure(controller.image))


async def test_it_waits_for_all_brokers_that_are_started_together(wires: Wires) -> None:
    """Whoever asks first knows of nobody yet; the controller counts when all have come."""
    config = config_of(cluster_brokers_min="3")
    one = await wires.start(1, config=config)
    making = ensure(one, OffsetsTopic(one, config))
    await wires.start(2, config=config)
    await asyncio.sleep(0.1)
    assert not making.done()
    await wires.start(3, config=config)
    await making
    assert one.image.topics[NAME].replication_factor == 3


@pytest.mark.parametrize("settings", [{}, {"offsets_topic_replication_factor": "2"}])
async def test_a_small_cluster_has_as_many_replicas_as_brokers(
    wires: Wires, settings: dict[str, str]
) -> None:
    config = config_of(**settings)
    one = await wires.start(1, config=config)
    await wires.start(2, config=config)
    await ensure(one, OffsetsTopic(one, config))
    assert one.image.topics[NAME].replication_factor == 2


async def test_a_broker_that_is_down_gets_its_replica_all_the_same(wires: Wires) -> None:
    """Born while one of three is down, with two replicas, it would keep two for good."""
    config = config_of()
    one, *_ = [await wires.start(number, config=config) for number in (1, 2, 3)]
    await create(one, topic("t", 1, 3))
    wires.kill(3)
    await until(lambda: one.image.broker(3) is None)
    await ensure(one, OffsetsTopic(one, config))
    for partition in one.image.topics[NAME].partitions:
        assert set(partition.replicas) == {1, 2, 3}
        assert set(partition.isr) == {1, 2}
        assert partition.replicas[-1] == 3


async def test_on_an_ensemble_it_waits_for_as_many_brokers_as_it_has_replicas(
    wires: Wires,
) -> None:
    config = config_of()
    one = await wires.start(1, config=config)
    topic = OffsetsTopic(one, config, is_patient=True)
    for other in (2, 3):
        await ensure(one, topic)
        assert NAME not in one.image.topics
        await wires.start(other, config=config)
    await ensure(one, topic)
    assert one.image.topics[NAME].replication_factor == 3


async def test_a_factor_that_somebody_set_is_meant(wires: Wires) -> None:
    config = config_of(offsets_topic_replication_factor="2")
    one = await wires.start(1, config=config)
    await ensure(one, OffsetsTopic(one, config))
    assert NAME not in one.image.topics
