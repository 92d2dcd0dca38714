"""Kafka's node tree on a real ZooKeeper, read with nothing but kazoo, as its old tools would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from kazoo.client import KazooClient
from tests.controller.helpers import broker_config, create, topic
from tests.store.helpers import ZooKeeperWorld

from tidemill.clock import SystemClock
from tidemill.controller import Controller
from tidemill.controller.tree import uuid_text
from tidemill.image import Endpoint
from tidemill.store.base import Store

BROKER_PORTS = {1: 9092, 2: 9093, 3: 9094}


@pytest.fixture
def kafka_tools(zookeeper_place: tuple[str, str]) -> Iterator[KazooClient]:
    """A plain client below the cluster's path."""
    address, chroot = zookeeper_place
    client = KazooClient(address + chroot)
    with pytest.warns(UserWarning, match="No chroot path exists"):
        client.start(10)
    yield client
    client.stop()
    client.close()


async def start(store: Store, broker_id: int) -> Controller:
    controller = Controller(
        store,
        broker_config(),
        SystemClock(),
        Random(broker_id),
        broker_id=broker_id,
        directory_id=f"directory-{broker_id}",
    )
    await controller.start()
    endpoint = Endpoint("PLAINTEXT", "127.0.0.1", BROKER_PORTS[broker_id])
    await controller.register_broker([endpoint], rack=f"rack-{broker_id}", flush_policy="ack")
    return controller


def read(client: KazooClient, path: str) -> tuple[Any, Any]:
    value, stat = client.get(path)
    return json.loads(value), stat


async def test_brokers_and_controller(
    zookeeper_place: tuple[str, str], kafka_tools: KazooClient
) -> None:
    world = ZooKeeperWorld(*zookeeper_place)
    stores = [await world.open() for _ in range(2)]
    first, second = await start(stores[0], 1), await start(stores[1], 2)
    assert sorted(kafka_tools.get_children("/brokers/ids")) == ["1", "2"]
    for controller, store, broker_id in ((first, stores[0], 1), (second, stores[1], 2)):
        value, stat = read(kafka_tools, f"/brokers/ids/{broker_id}")
        assert value.pop("timestamp").isdigit()
        assert value == {
            "version": 5,
            "host": "127.0.0.1",
            "port": BROKER_PORTS[broker_id],
            "endpoints": [f"PLAINTEXT://127.0.0.1:{BROKER_PORTS[broker_id]}"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "jmx_port": -1,
            "features": {},
            "directory_id": f"directory-{broker_id}",
            "rack": f"rack-{broker_id}",
            "flush_policy": "ack",
            "process": str(store.session_id),
        }
        assert stat.ephemeralOwner == store.session_id
        assert stat.czxid == controller.broker_epoch
    office, stat = read(kafka_tools, "/controller")
    assert office.pop("timestamp").isdigit()
    assert office == {"version": 1, "brokerid": 1}
    assert stat.ephemeralOwner == stores[0].session_id
    assert kafka_tools.get("/controller_epoch")[0] == b"1"
    cluster, _ = read(kafka_tools, "/cluster/id")
    assert cluster == {"version": "1", "id": first.image.cluster_id}
    for path in ("/admin/delete_topics", "/isr_change_notification", "/config/brokers"):
        assert kafka_tools.get_children(path) == []
    await first.stop()
    await second.stop()
    await world.close()
    assert kafka_tools.get_children("/brokers/ids") == []
    assert kafka_tools.exists("/controller") is None


async def test_topics_their_states_and_settings(
    zookeeper_place: tuple[str, str], kafka_tools: KazooClient
) -> None:
    world = ZooKeeperWorld(*zookeeper_place)
    controller = await start(await world.open(), 1)
    results = await create(
        controller,
        topic(
            "clicks", partitions=3, configs={"retention.ms": "1000", "cleanup.policy": "compact"}
        ),
        topic("placed", assignments={0: [1]}),
    )
    assert [result.error_code for result in results] == [0, 0]
    value, _ = read(kafka_tools, "/brokers/topics/clicks")
    assert value == {
        "version": 3,
        "topic_id": uuid_text(results[0].topic_id),
        "partitions": {"0": [1], "1": [1], "2": [1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    assert sorted(kafka_tools.get_children("/brokers/topics/clicks/partitions")) == ["0", "1", "2"]
    for index in range(3):
        state, stat = read(kafka_tools, f"/brokers/topics/clicks/partitions/{index}/state")
        assert state == {
            "controller_epoch": 1,
            "leader": 1,
            "version": 1,
            "leader_epoch": 0,
            "isr": [1],
        }
        partition = controller.image.topics["clicks"].partitions[index]
        assert stat.version == partition.partition_epoch
    configs, _ = read(kafka_tools, "/config/topics/clicks")
    assert configs == {
        "version": 1,
        "config": {"cleanup.policy": "compact", "retention.ms": "1000"},
    }
    plans = await controller.delete_topics(["placed"])
    assert plans[0].error is None
    assert kafka_tools.get_children("/brokers/topics") == ["clicks"]
    assert kafka_tools.exists("/config/topics/placed") is None
    await controller.stop()
    await world.close()


async def test_another_controller_reads_what_the_first_one_wrote(
    zookeeper_place: tuple[str, str], kafka_tools: KazooClient
) -> None:
    """Rule A2: the next holder of the office starts an epoch, on the same facts."""
    world = ZooKeeperWorld(*zookeeper_place)
    store = await world.open()
    first = await start(store, 1)
    await create(first, topic("clicks", partitions=50, configs={"retention.ms": "1000"}))
    await first.stop()
    await store.close()
    second = await start(await world.open(), 1)
    assert second.active
    assert second.image.topics == first.image.topics
    assert second.image.cluster_id == first.image.cluster_id
    assert kafka_tools.get("/controller_epoch")[0] == b"2"
    await second.stop()
    await world.close()
