"""The cluster in one process, as somebody uses it who tests a program of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.client import Admin, Producer
from tidemill.client.admin_types import NewTopic
from tidemill.testing.in_process import InProcessCluster, until
from tidemill.testing.process import free_port


async def in_sync(cluster: InProcessCluster, *brokers: int) -> None:
    await until(lambda: set(cluster.partition("t").isr) == set(brokers))


async def test_brokers_come_and_go_and_clients_find_what_is_there(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, 3, {"min.insync.replicas": "1"}) as cluster:
        assert sorted(cluster.servers) == [1, 2, 3]
        assert len(cluster.bootstrap.split(",")) == 3
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("t", 1, 3)])
        async with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            assert (await producer.send("t", b"first")).offset == 0
            before = cluster.controller_id
            await cluster.fall(before)
            await cluster.settled()
            assert cluster.controller_id != before
            assert (await producer.send("t", b"second")).offset == 1
            await cluster.start(before)
            await cluster.settled()
            await in_sync(cluster, 1, 2, 3)
            leader = cluster.partition("t").leader
            await cluster.stop(leader)
            await cluster.settled()
            assert cluster.partition("t").leader not in (leader, -1)
            assert (await producer.send("t", b"third")).offset == 2
        assert leader not in cluster.servers
    assert cluster.servers == {}


async def test_a_broker_that_loses_its_session_comes_back_as_another_incarnation(
    tmp_path: Path,
) -> None:
    async with InProcessCluster(tmp_path, 2) as cluster:
        (other,) = cluster.others()
        epoch = other.controller.broker_epoch
        await cluster.lose_session(other.broker.broker_id)
        await until(lambda: other.controller.broker_epoch > epoch)
        await cluster.settled()


async def test_settings_are_the_cluster_s_or_one_broker_s(tmp_path: Path) -> None:
    cluster = InProcessCluster(tmp_path, settings={"num.partitions": "5"})
    special = cluster.make(2, {"num.partitions": "7", "broker.rack": "a", "node.id": ""})
    assert cluster.make(1).config.int("num.partitions") == 5
    assert special.config.int("num.partitions") == 7
    assert special.config.str("broker.rack") == "a"


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, 1) as cluster:
        with pytest.raises(KeyError, match="t-0"):
            cluster.partition("t")
        with pytest.raises(TimeoutError):
            await until(lambda: cluster.controller_id == 2, within_s=0.05)


async def test_a_broker_that_does_not_start_takes_the_others_down(tmp_path: Path) -> None:
    listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
    cluster = InProcessCluster(tmp_path, 2, listeners)
    with pytest.raises(OSError, match="in use"):
        async with cluster:
            pytest.fail("two brokers at one address")
    assert cluster.servers == {}
